# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Messages between two agents beside Mooncake's own connections.

A frame is a length (uint16, little endian) and a body that begins with one letter. The side that
writes sends Hello, then Notify and Ping; the target answers each Ping with a Pong. Everything comes
from another process and is checked before it is used.
"""

import contextlib
import socket
import struct
from dataclasses import dataclass

from kvxfer import InvalidArgumentError
from kvxfer.transports._library.transport import GENERATION_BYTES
from kvxfer.transports.protocol import MAX_NOTIFICATION_BYTES, check_agent_name

VERSION = 1

_LENGTH = struct.Struct("<H")
_HELLO = struct.Struct(f"<H{GENERATION_BYTES}s")
_NUMBER = struct.Struct("<Q")
_MAX_BODY_BYTES = 1 + MAX_NOTIFICATION_BYTES
_READ_BYTES = 64 << 10
# An unreachable host is noticed within half a minute; a frozen process still answers these.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


class FrameError(ValueError):
    """What came is not what this version sends."""


class ConnectionEnded(ConnectionError):  # noqa: N818 - a state of the connection, not a fault
    """The connection is over.

    Attributes
    ----------
    is_certain : bool
        Whether the other side has closed it, as the kernel does for a process that dies.
    """

    def __init__(self, message: str, is_certain: bool) -> None:
        super().__init__(message)
        self.is_certain = is_certain


@dataclass(frozen=True)
class Hello:
    """Who writes, and which generation it means to reach."""

    generation: bytes
    agent_name: str

    def encode(self) -> bytes:
        return b"H" + _HELLO.pack(VERSION, self.generation) + self.agent_name.encode("ascii")


@dataclass(frozen=True)
class Notify:
    """A notification whose data is in place."""

    text: bytes

    def encode(self) -> bytes:
        return b"N" + self.text


@dataclass(frozen=True)
class Ping:
    """Asks for the Pong of the same number."""

    number: int

    def encode(self) -> bytes:
        return b"P" + _NUMBER.pack(self.number)


@dataclass(frozen=True)
class Pong:
    """Proves that the target's process was running when it read the Ping."""

    number: int

    def encode(self) -> bytes:
        return b"Q" + _NUMBER.pack(self.number)


Frame = Hello | Notify | Ping | Pong


def decode(body: bytes) -> Frame:
    """Return what the body of a frame says.

    Raises
    ------
    FrameError
        If it is none of the messages, or holds a value out of range.
    """
    letter, rest = body[:1], body[1:]
    try:
        if letter == b"H":
            version, generation = _HELLO.unpack_from(rest)
            if version != VERSION:
                raise FrameError(f"version {version}, expected {VERSION}")
            return Hello(generation, check_agent_name(rest[_HELLO.size :].decode("ascii")))
        if letter == b"N":
            if not rest or not rest.isascii():
                raise FrameError("notification is empty or not ASCII")
            return Notify(rest)
        if letter == b"P":
            return Ping(_NUMBER.unpack(rest)[0])
        if letter == b"Q":
            return Pong(_NUMBER.unpack(rest)[0])
    except (struct.error, UnicodeDecodeError, InvalidArgumentError) as error:
        raise FrameError(f"frame {letter!r} of {len(body)} bytes: {error}") from error
    raise FrameError(f"frame of {len(body)} bytes begins with {letter!r}")


class FrameSocket:
    """A connected TCP socket that carries frames and never waits. Not thread-safe.

    Attributes
    ----------
    pending_bytes : int
        What has been sent here and not yet been taken by the kernel.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = connected
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def pending_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return len(self._outgoing)

    def send(self, frame: Frame) -> None:
        """Queue a frame; ``flush`` hands it to the kernel."""
        body = frame.encode()
        self._outgoing += _LENGTH.pack(len(body)) + body

    def flush(self) -> None:
        """Hand to the kernel what it takes.

        Raises
        ------
        ConnectionEnded
            If the connection is over.
        """
        while self._outgoing:
            try:
                sent_bytes = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise _ended(error) from error
            del self._outgoing[:sent_bytes]

    def receive(self) -> list[Frame]:
        """Return the frames that have come, at most some 64 KiB of them.

        Raises
        ------
        ConnectionEnded
            If the connection is over and every frame has been returned.
        FrameError
            For a frame that is none.
        """
        try:
            received = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise _ended(error) from error
        if not received:
            raise ConnectionEnded("the other side has closed the connection", is_certain=True)
        self._incoming += received
        return self._take_frames()

    def close(self) -> None:
        """End the connection. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        while len(self._incoming) >= _LENGTH.size:
            body_bytes = _LENGTH.unpack_from(self._incoming)[0]
            if not 1 <= body_bytes <= _MAX_BODY_BYTES:
                raise FrameError(f"frame has {body_bytes} bytes, expected 1 to {_MAX_BODY_BYTES}")
            end = _LENGTH.size + body_bytes
            if len(self._incoming) < end:
                break
            frames.append(decode(bytes(self._incoming[_LENGTH.size : end])))
            del self._incoming[:end]
        return frames


def _ended(error: OSError) -> ConnectionEnded:
    is_certain = isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionRefusedError)
    return ConnectionEnded(str(error), is_certain)
