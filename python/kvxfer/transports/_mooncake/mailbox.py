# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Where peers deliver their notifications: a listening socket that is looked at when polled.

Whoever delivers has to name this agent's generation, which only those know that were told its
description.
"""

import contextlib
import selectors
import socket
from dataclasses import dataclass

from kvxfer import InvalidArgumentError
from kvxfer.transports._mooncake.frames import (
    ConnectionEnded,
    FrameError,
    FrameSocket,
    Hello,
    Notify,
    Ping,
    Pong,
)

_BACKLOG = 1024
_MAX_WRITERS = 4096


@dataclass
class _Writer:
    """One connection; ``agent_name`` is None until it has said whom it speaks for."""

    frames: FrameSocket
    agent_name: str | None = None


class Mailbox:
    """Not thread-safe."""

    def __init__(self, host: str, generation: bytes) -> None:
        self._generation = generation
        if not host:
            raise InvalidArgumentError("host is empty, expected a name or an IPv4 address")
        try:
            self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            raise InvalidArgumentError(
                f"host is {host!r}, expected a name or an IPv4 address of this machine: {error}"
            ) from error
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._writers: dict[int, _Writer] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def receive(self) -> list[tuple[str, bytes]]:
        """Return (sender's agent name, notification) of what has arrived, without waiting."""
        ready = {key.fd for key, _ in self._selector.select(0)}
        if self._listener.fileno() in ready:
            ready |= self._accept()
        heard: list[tuple[str, bytes]] = []
        for fd in ready & self._writers.keys():
            heard += self._serve(self._writers[fd])
        return heard

    def close(self) -> None:
        """End every connection: peers see that this agent is gone."""
        for writer in list(self._writers.values()):
            self._drop(writer)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> set[int]:
        accepted_fds: set[int] = set()
        while len(self._writers) < _MAX_WRITERS:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                break
            frames = FrameSocket(accepted)
            self._writers[frames.fileno()] = _Writer(frames)
            self._selector.register(frames.fileno(), selectors.EVENT_READ)
            accepted_fds.add(frames.fileno())
        return accepted_fds

    def _serve(self, writer: _Writer) -> list[tuple[str, bytes]]:
        heard: list[tuple[str, bytes]] = []
        try:
            for frame in writer.frames.receive():
                if isinstance(frame, Hello):
                    self._greet(writer, frame)
                elif writer.agent_name is None:
                    raise FrameError("the connection does not begin with Hello")
                elif isinstance(frame, Notify):
                    heard.append((writer.agent_name, frame.text))
                elif isinstance(frame, Ping):
                    writer.frames.send(Pong(frame.number))
            writer.frames.flush()
        except (ConnectionEnded, FrameError):
            self._drop(writer)
        return heard

    def _greet(self, writer: _Writer, hello: Hello) -> None:
        if hello.generation != self._generation or writer.agent_name is not None:
            raise FrameError("Hello is repeated or for another generation")
        writer.agent_name = hello.agent_name

    def _drop(self, writer: _Writer) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(writer.frames.fileno())
            del self._writers[writer.frames.fileno()]
        writer.frames.close()
