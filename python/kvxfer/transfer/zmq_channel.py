# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The control channel over ZeroMQ."""

import secrets
import threading
import warnings
from collections import Counter, deque
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvxfer import InvalidArgumentError
from kvxfer.transfer.channel_auth import Dialer, DialerState, Listener, checked_secret
from kvxfer.transfer.messages import MAX_ADDRESS_BYTES, MAX_FRAME_BYTES

if TYPE_CHECKING:
    import zmq

__all__ = ["ZmqChannel"]

_MAX_CONNECTIONS = 4096
# Room for what stands around a message.
_ENVELOPE_BYTES = 128


class ZmqChannel:
    """Control messages over TCP or Unix sockets of one machine or several.

    It has one thread, ZeroMQ's own, which making a channel asks for. It listens on 127.0.0.1 unless
    told otherwise. With a secret, every message is proven to come from someone who knows it, and
    nothing can be repeated; without one, whoever can reach the address can send.

    Parameters
    ----------
    listen : str
        "tcp://host:port" (port 0: any free one) or "ipc://path".
    advertise : str, optional
        Address that peers are told, where it is not the one that is listened on; without a port,
        the bound one is added.
    secret : bytes, optional
        At least 16 bytes that all peers share.
    queue_count : int
        Most messages that wait for one peer.

    Raises
    ------
    InvalidArgumentError
        For an address that cannot be listened on or advertised.

    Warns
    -----
    RuntimeWarning
        If it listens beyond this machine without a secret.
    """

    def __init__(
        self,
        listen: str = "tcp://127.0.0.1:0",
        *,
        advertise: str | None = None,
        secret: bytes | None = None,
        queue_count: int = 1000,
    ) -> None:
        import zmq

        self._zmq = zmq
        self._secret = checked_secret(secret)
        self._queue_count = queue_count
        self._scheme = urlsplit(listen).scheme
        if self._scheme not in ("tcp", "ipc"):
            raise InvalidArgumentError(
                f"listen is {listen!r}, expected tcp://host:port or ipc://path"
            )
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._dialed: dict[str, _Outbound] = {}
        self._listener = Listener(self._secret, _MAX_CONNECTIONS)
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, _MAX_CONNECTIONS + 1)
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            bound = _bind(self._socket, listen)
            self.address = _advertised(bound, advertise)
        except (zmq.ZMQError, ValueError) as error:
            self._context.destroy(linger=0)
            raise InvalidArgumentError(f"cannot listen on {listen!r}: {error}") from error
        if self._secret is None and not _is_local(bound):
            warnings.warn(
                f"control channel listens on {bound} without a secret: whoever reaches it can send "
                "control messages",
                RuntimeWarning,
                stacklevel=2,
            )

    def send(self, address: str, message: bytes) -> bool:
        """Queue one message for a peer; False where its queue is full or it cannot be reached."""
        with self._lock:
            outbound = self._dialed.get(address) or self._dial(address)
            is_taken = (
                outbound is not None
                and len(message) <= MAX_FRAME_BYTES
                and outbound.send(message, self._queue_count)
            )
            self._counts["sent" if is_taken else "refused"] += 1
            return is_taken

    def why_refused(self, address: str) -> str:
        """Return why the latest message for a peer was not taken."""
        with self._lock:
            outbound = self._dialed.get(address)
            if outbound is None:
                return "it cannot be dialled"
            return outbound.why_refused

    def receive(self) -> list[bytes]:
        """Return at most ``queue_count`` messages that have arrived."""
        with self._lock:
            for outbound in self._dialed.values():
                outbound.progress()
            messages: list[bytes] = []
            for _ in range(self._queue_count):
                frames = self._receive_frames()
                if frames is None:
                    break
                if len(frames) != 2:
                    self._counts["malformed"] += 1
                    continue
                reply, message = self._listener.take(*frames)
                if reply is not None:
                    self._reply(frames[0], reply)
                if message is not None:
                    messages.append(message)
            self._counts["received"] += len(messages)
            return messages

    def forget(self, address: str) -> None:
        """Drop what is queued for a peer and the connection to it."""
        with self._lock:
            outbound = self._dialed.pop(address, None)
            if outbound is not None:
                outbound.close()

    def close(self) -> None:
        """Stop listening and drop all connections."""
        with self._lock:
            for outbound in self._dialed.values():
                outbound.close()
            self._dialed.clear()
            if not self._context.closed:
                self._context.destroy(linger=0)

    @property
    def counters(self) -> dict[str, int]:
        """Messages sent, refused and received; frames that were malformed or not authentic."""
        with self._lock:
            names = ("sent", "refused", "received", "malformed")
            counts = {name: self._counts[name] for name in names}
            return {**counts, "not_authentic": self._listener.refused_count}

    def _dial(self, address: str) -> "_Outbound | None":
        zmq = self._zmq
        if len(self._dialed) >= _MAX_CONNECTIONS or not self._may_dial(address):
            return None
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError:
            # Out of descriptors, which peers that name ever new addresses can bring about.
            return None
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, self._queue_count)
        socket.setsockopt(zmq.MAXMSGSIZE, 4096)
        # A leading zero byte is ZeroMQ's own.
        socket.setsockopt(zmq.ROUTING_ID, b"k" + secrets.token_bytes(16))
        try:
            socket.connect(address)
        except zmq.ZMQError:
            socket.close(linger=0)
            return None
        outbound = _Outbound(socket, Dialer(self._secret))
        self._dialed[address] = outbound
        return outbound

    def _may_dial(self, address: str) -> bool:
        """Peers state their own address: they may not make us dial anything but their kind."""
        return (
            len(address) <= MAX_ADDRESS_BYTES
            and address.isascii()
            and address.isprintable()
            and address.startswith(f"{self._scheme}://")
        )

    def _receive_frames(self) -> list[bytes] | None:
        try:
            return self._socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return None

    def _reply(self, connection: bytes, frame: bytes) -> None:
        try:
            self._socket.send_multipart([connection, frame], self._zmq.NOBLOCK)
        except self._zmq.ZMQError:
            self._counts["replies_dropped"] += 1


class _Outbound:
    """The connection to one peer, and what waits for its handshake."""

    def __init__(self, socket: "zmq.Socket[bytes]", dialer: Dialer) -> None:
        self._socket = socket
        self._dialer = dialer
        self._waiting: deque[bytes] = deque()
        self._send_now(dialer.begin())

    def send(self, message: bytes, limit_count: int) -> bool:
        self.progress()
        if self._dialer.state is DialerState.REFUSED:
            return False
        if self._dialer.state is DialerState.OPEN and not self._waiting:
            return self._send_now(self._dialer.seal(message))
        if len(self._waiting) >= limit_count:
            return False
        self._waiting.append(message)
        return True

    @property
    def why_refused(self) -> str:
        if self._dialer.state is DialerState.REFUSED:
            return "the two sides do not have the same secret"
        if self._dialer.state is DialerState.WAITING:
            return "its queue is full, and it has not proven to have the same secret"
        return "its queue is full"

    def progress(self) -> None:
        """Take in what the listener answered; let go what waited for it."""
        while (frame := self._receive()) is not None:
            self._send_now(self._dialer.take(frame))
        while self._waiting and self._dialer.state is DialerState.OPEN:
            if not self._send_now(self._dialer.seal(self._waiting[0])):
                break
            self._waiting.popleft()

    def close(self) -> None:
        self._socket.close(linger=0)

    def _receive(self) -> bytes | None:
        import zmq

        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _send_now(self, frame: bytes | None) -> bool:
        import zmq

        if frame is None:
            return False
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


def _bind(socket: "zmq.Socket[bytes]", listen: str) -> str:
    """Listen, and return the address that was bound."""
    import zmq

    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + _ENVELOPE_BYTES)
    socket.bind(listen)
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode("ascii")


def _advertised(bound: str, advertise: str | None) -> str:
    """Return the address that peers are told."""
    host = urlsplit(bound).hostname
    if advertise is None:
        if host in ("0.0.0.0", "::"):
            raise InvalidArgumentError(
                f"peers cannot dial {bound}, expected advertise to name an address that they can"
            )
        return bound
    parts, bound_parts = urlsplit(advertise), urlsplit(bound)
    if parts.scheme != bound_parts.scheme:
        raise InvalidArgumentError(f"advertise is {advertise!r}, expected {bound_parts.scheme}://")
    if parts.scheme == "tcp" and parts.port is None:
        return f"{advertise.rstrip(':')}:{bound_parts.port}"
    return advertise


def _is_local(bound: str) -> bool:
    parts = urlsplit(bound)
    if parts.scheme == "ipc":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"
