# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One Unix connection to another process: packets, file descriptors, and a life line.

Sockets are SOCK_SEQPACKET in the abstract namespace: packets arrive whole and in order, nothing
lies in a file system, and the kernel ends the connection when the process dies. Abstract sockets
have no permissions, so both sides compare the user id of the other.
"""

import contextlib
import os
import select
import socket
import struct

from kvxfer.transports._loopback.messages import MAX_PACKET_BYTES, Message, PacketError, decode

_BACKLOG = 4096
_CREDENTIALS = struct.Struct("iII")
_ENDED = select.POLLHUP | select.POLLRDHUP | select.POLLERR | select.POLLNVAL


class ConnectionEnded(ConnectionError):  # noqa: N818 - a state of the connection, not a fault
    """The other side has closed the connection or has died."""


class Connection:
    """A connected socket with the process behind it. Not thread-safe, except ``is_alive``.

    Attributes
    ----------
    pid : int
        Process id of the other side as seen here, 0 if it is in another pid namespace.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, user_id, _ = _CREDENTIALS.unpack(raw)
        if user_id != os.geteuid():
            connected.close()
            raise PermissionError(f"the other side has user id {user_id}, expected {os.geteuid()}")
        self._socket = connected
        # A child that the peer forked keeps the socket open after the peer's death; this sees it.
        self._pid_fd = _open_pid_fd(self.pid)
        self._life = select.poll()
        self._life.register(connected, select.POLLIN | select.POLLRDHUP)
        if self._pid_fd is not None:
            self._life.register(self._pid_fd, select.POLLIN)

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_pid_fd(self) -> bool:
        """Whether the process is pinned, so that its id cannot come to mean another one."""
        return self._pid_fd is not None

    def is_alive(self) -> bool:
        """Say whether the other side still holds the connection."""
        return self.look()[1]

    def look(self) -> tuple[bool, bool]:
        """Return whether something is there to receive, and whether the other side is alive."""
        has_packet, is_alive = False, self._socket.fileno() >= 0
        for fd, events in self._life.poll(0) if is_alive else ():
            has_packet = has_packet or (fd != self._pid_fd and bool(events & select.POLLIN))
            is_alive = is_alive and fd != self._pid_fd and not events & _ENDED
        return has_packet, is_alive

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> bool:
        """Send a packet; return False where the other side does not take any for now.

        Raises
        ------
        ConnectionEnded
            If the other side is gone.
        """
        packet = message.encode()
        try:
            if fds:
                socket.send_fds(self._socket, [packet], list(fds), socket.MSG_NOSIGNAL)
            else:
                self._socket.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        return True

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors, which the caller owns; None for none yet.

        Raises
        ------
        ConnectionEnded
            After the last message of a side that is gone.
        PacketError
            For a packet that is no message; its descriptors are closed.
        """
        packet, fds, flags = self._receive_packet()
        if packet is None:
            return None
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise PacketError(
                    f"packet is longer than {MAX_PACKET_BYTES} bytes or lost its descriptors"
                )
            return decode(packet), fds
        except PacketError:
            close_all(fds)
            raise

    def close(self) -> None:
        """End the connection on both sides. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._pid_fd is not None:
            os.close(self._pid_fd)
            self._pid_fd = None

    def _receive_packet(self) -> tuple[bytes | None, list[int], int]:
        # A side that closes with unread packets makes one call fail; what it sent comes after.
        for _ in range(2):
            try:
                packet, fds, flags, _ = socket.recv_fds(
                    self._socket, MAX_PACKET_BYTES, 4, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None, [], 0
            except ConnectionResetError:
                continue
            except OSError as error:
                raise ConnectionEnded(str(error)) from error
            if not packet:
                close_all(fds)
                break
            return packet, fds, flags
        raise ConnectionEnded("the connection was closed")


def listen(socket_name: str) -> socket.socket:
    """Listen at a name of the abstract namespace, without blocking."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(b"\0" + socket_name.encode("ascii"))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> Connection | None:
    """Return the next connection of an own process, None where none waits."""
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return None
        with contextlib.suppress(PermissionError):
            return Connection(accepted)


def connect(socket_name: str) -> Connection:
    """Connect to a name of the abstract namespace.

    Raises
    ------
    OSError
        If nobody listens there (ConnectionRefusedError), the listener's queue is full
        (BlockingIOError), or it belongs to another user (PermissionError).
    """
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        connecting.connect(b"\0" + socket_name.encode("ascii"))
    except OSError:
        connecting.close()
        raise
    return Connection(connecting)


def close_all(fds: list[int]) -> None:
    """Close descriptors that came with a message nobody wants."""
    for fd in fds:
        os.close(fd)


def _open_pid_fd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError:
        return None
