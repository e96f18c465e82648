# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The embedded default transport: between processes of one host, over any host memory.

Bytes go straight into the target's memory with process_vm_writev where the kernel allows that, else
through a memfd that the target copies from when it polls; ``data_path`` says which. Notifications
follow over a Unix socket. A target has to poll before the first byte moves, because it greets each
writer, and to take notifications.

A post moves at most ``slice_bytes`` (or some 16,000 writes, if they are small) inside ``post``, and
as much in each ``poll``, so that a thread which polls stays responsive whatever was posted. Posts
to one peer move in order. Nothing here waits for a peer: a frozen one keeps its posts RUNNING, a
dead or closed one makes them FAILED.
"""

import ctypes
import os
import threading

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.errors import TransferError
from kvxfer.transports._loopback.connection import ConnectionEnded, connect
from kvxfer.transports._loopback.handle import LoopbackHandle
from kvxfer.transports._loopback.messages import GENERATION_BYTES
from kvxfer.transports._loopback.outbound import (
    Limits,
    OutboundPeer,
    decode_payload,
    encode_payload,
)
from kvxfer.transports._loopback.reader import Reader
from kvxfer.transports.protocol import (
    COUNTER_NAMES,
    Description,
    RegionTable,
    WriteHandle,
    WriteState,
    check_agent_name,
    check_notification,
    check_writes,
)

NAME = "loopback"

_DATA_PATHS = ("auto", "process_vm", "memfd")
_SLOT_COUNT = 4
# A slice takes milliseconds; whoever takes longer is frozen in the middle of one.
_SLICE_TIMEOUT_S = 5.0


class LoopbackTransport:
    """One agent, made by ``create``."""

    def __init__(self, agent_name: str, limits: Limits, write_cost_us: float) -> None:
        self.name = NAME
        self.agent_name = check_agent_name(agent_name)
        self.write_cost_us = write_cost_us
        self._limits = limits
        self._generation = os.urandom(GENERATION_BYTES)
        self._nonce = ctypes.create_string_buffer(self._generation, GENERATION_BYTES)
        self._socket_name = f"kvxfer-{self._generation.hex()}"
        self._regions = RegionTable(f"agent {agent_name!r}")
        self._reader = Reader(agent_name, self._socket_name, self._regions)
        self._peers: dict[str, OutboundPeer] = {}
        self._counts = dict.fromkeys(COUNTER_NAMES, 0)
        self._is_closed = False
        # Guards tables and counters; never held while bytes move.
        self._lock = threading.Lock()

    def register_memory(self, address: int, size_bytes: int) -> None:
        """See ``Transport.register_memory``."""
        with self._lock:
            self._refuse_closed()
            self._regions.add(address, size_bytes)

    def deregister_memory(self, address: int) -> None:
        """See ``Transport.deregister_memory``."""
        with self._lock:
            self._regions.remove(address)

    def describe(self) -> bytes:
        """See ``Transport.describe``."""
        payload = encode_payload(self._socket_name, ctypes.addressof(self._nonce))
        with self._lock:
            self._refuse_closed()
            description = Description(
                NAME, self.agent_name, self._generation, payload, self._regions
            )
            return description.encode()

    def add_peer(self, description: bytes) -> str:
        """See ``Transport.add_peer``. The agent that answers to the description is the newer one.

        Raises
        ------
        TransferError
            "peer_dead" if no agent of that generation lives, "backend" if it cannot be reached.
        """
        found = Description.decode(description, NAME)
        if found.generation == self._generation:
            raise InvalidArgumentError(f"the description is that of {self.agent_name!r} itself")
        with self._lock:
            self._refuse_closed()
            known = self._peers.get(found.agent_name)
        if known is not None and known.generation == found.generation and known.is_alive():
            known.regions = found.regions
            return found.agent_name
        peer = self._connect(found)
        with self._lock:
            replaced = peer if self._is_closed else self._peers.get(found.agent_name)
            if not self._is_closed:
                self._peers[found.agent_name] = peer
        if replaced is not None:
            replaced.end(f"peer {found.agent_name!r} was replaced", _SLICE_TIMEOUT_S)
        return found.agent_name

    def remove_peer(self, peer: str) -> None:
        """See ``Transport.remove_peer``."""
        with self._lock:
            known = self._peers.pop(peer, None)
        if known is not None:
            known.end(f"peer {peer!r} was removed", _SLICE_TIMEOUT_S)

    def data_path(self, peer: str) -> tuple[str, str]:
        """Return how bytes reach a peer, and why they do not go the straight way.

        Returns
        -------
        tuple[str, str]
            "process_vm", "memfd", or "opening" until the peer has polled; and the reason, empty
            for process_vm.
        """
        known = self._find(peer)
        return known.data_path, known.path_reason

    def post(
        self, peer: str, writes: NDArray[np.int64], notification: bytes = b""
    ) -> LoopbackHandle:
        """See ``Transport.post``."""
        try:
            known = self._find(peer)
            check_notification(notification)
            checked = check_writes(writes, self._regions, known.regions)
            if not len(checked) and not notification:
                raise InvalidArgumentError("post has neither a write nor a notification")
            handle = LoopbackHandle(known, checked, notification)
            known.advance()
            known.enqueue(handle)
        except (InvalidArgumentError, TransferError):
            self._count(refused=1)
            raise
        self._count(posted=1, writes=handle.write_count, bytes=handle.size_bytes)
        known.advance()
        return handle

    def poll(self, handle: WriteHandle) -> WriteState:
        """See ``Transport.poll``."""
        own = self._own(handle)
        if not own.state.has_ended:
            own.link.advance()
        self._reader.read()
        return own.state

    def drain_notifications(self) -> list[tuple[str, bytes]]:
        """See ``Transport.drain_notifications``. After ``close``: what had arrived before."""
        self._reader.read()
        with self._lock:
            busy = [peer for peer in self._peers.values() if not peer.is_idle]
        for peer in busy:
            peer.advance()
        inbox = self._reader.inbox
        taken = [inbox.popleft() for _ in range(len(inbox))]
        self._count(notifications=len(taken))
        return taken

    def release(self, handle: WriteHandle) -> None:
        """See ``Transport.release``."""
        with self._lock:
            own = self._own(handle)
            if not own.state.has_ended:
                raise InvalidArgumentError(f"handle is {own.state.name}, expected an ended one")
            own.is_released = True
            self._counts["released"] += 1

    def close(self) -> None:
        """See ``Transport.close``.

        Raises
        ------
        TransferError
            "lost", naming the writers, if one is frozen in the middle of a write: the own memory
            then has to stay mapped until that process ends.
        """
        with self._lock:
            self._is_closed = True
            peers = list(self._peers.values())
            self._peers.clear()
        for peer in peers:
            peer.end(f"agent {self.agent_name!r} was closed", _SLICE_TIMEOUT_S)
        self._reader.close(_SLICE_TIMEOUT_S)

    @property
    def counters(self) -> dict[str, int]:
        """See ``Transport.counters``; also ``rejected_peers``: writers that broke the protocol."""
        with self._lock:
            return {
                **self._counts,
                "live_handles": self._counts["posted"] - self._counts["released"],
                "rejected_peers": self._reader.rejected_count,
            }

    def count_settled(self, state: WriteState) -> None:
        """Count a post that has come to a state; for the peers of this agent."""
        self._count(**{state.value: 1})

    def _connect(self, found: Description) -> OutboundPeer:
        socket_name, _ = decode_payload(found.payload)
        try:
            connection = connect(socket_name)
            peer = OutboundPeer(found, connection, self._limits, self)
            peer.greet(self._generation, self.agent_name)
        except (ConnectionRefusedError, ConnectionEnded) as error:
            message = f"no agent of this generation listens: {error}"
            raise TransferError("peer_dead", found.agent_name, None, message) from error
        except OSError as error:
            message = f"cannot connect: {error}"
            raise TransferError("backend", found.agent_name, None, message) from error
        return peer

    def _find(self, peer: str) -> OutboundPeer:
        with self._lock:
            self._refuse_closed()
            known = self._peers.get(peer)
            if known is None:
                names = ", ".join(sorted(self._peers)) or "none"
                message = f"no peer of this name was added; known are: {names}"
                raise TransferError("peer_unknown", peer, None, message)
            return known

    def _own(self, handle: WriteHandle) -> LoopbackHandle:
        if not isinstance(handle, LoopbackHandle) or handle.link.owner is not self:
            raise InvalidArgumentError(f"handle {handle!r} is not of agent {self.agent_name!r}")
        if handle.is_released:
            raise InvalidArgumentError(f"handle was released before: {handle!r}")
        return handle

    def _count(self, **increments: int) -> None:
        with self._lock:
            for name, increment in increments.items():
                self._counts[name] += increment

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise InvalidArgumentError(f"agent {self.agent_name!r} is closed")


def create(
    agent_name: str,
    *,
    data_path: str = "auto",
    slice_bytes: int = 4 << 20,
    max_queued_posts: int = 1024,
    write_cost_us: float = 0.0,
) -> LoopbackTransport:
    """Make a loopback agent.

    Parameters
    ----------
    agent_name : str
        Printable ASCII, at most 255 characters.
    data_path : str
        "process_vm" or "memfd" to insist on one, "auto" to take the first where the kernel allows
        it.
    slice_bytes : int
        Most bytes that one call moves to one peer. [unit: bytes]
    max_queued_posts : int
        Posts that may wait for one peer; the next is refused.
    write_cost_us : float
        Estimated cost of one write. A write costs the kernel about as much as a page of bytes does,
        so 0.0 unless a caller wants to prefer landing regions. [unit: microseconds]

    Raises
    ------
    InvalidArgumentError
        For a value out of range.

    Examples
    --------
    >>> agent = create("prefill-0")
    >>> agent.counters["live_handles"]
    0
    >>> agent.close()
    """
    if data_path not in _DATA_PATHS:
        raise InvalidArgumentError(f"data_path is {data_path!r}, expected one of {_DATA_PATHS}")
    if slice_bytes < 1 or max_queued_posts < 1 or write_cost_us < 0:
        raise InvalidArgumentError(
            f"slice_bytes {slice_bytes} and max_queued_posts {max_queued_posts} must be at least 1,"
            f" write_cost_us {write_cost_us} at least 0"
        )
    limits = Limits(data_path, slice_bytes, _SLOT_COUNT, max_queued_posts)
    return LoopbackTransport(agent_name, limits, write_cost_us)
