# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The way to one peer's mailbox: carries notifications there, and knows when the peer has ended."""

import socket

from kvxfer.transports._mooncake.frames import (
    ConnectionEnded,
    FrameError,
    FrameSocket,
    Hello,
    Notify,
    Ping,
    Pong,
)

_CONNECT_TIMEOUT_S = 5.0


class Channel:
    """Not thread-safe.

    Attributes
    ----------
    error : str or None
        Why the connection is over.
    is_peer_gone : bool
        Whether the peer has closed it: its agent has ended or its process is dead.
    last_pong : int
        Number of the last Ping that was answered.

    Raises
    ------
    OSError
        If nobody listens there.
    """

    def __init__(self, address: tuple[str, int], hello: Hello) -> None:
        connected = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
        self._frames = FrameSocket(connected)
        self._frames.send(hello)
        self._last_ping = 0
        self.error: str | None = None
        self.is_peer_gone = False
        self.last_pong = 0
        self.pump()

    @property
    def pending_bytes(self) -> int:
        """Bytes that the peer does not take for now."""
        return self._frames.pending_bytes

    def notify(self, text: bytes) -> None:
        """Send a notification."""
        self._frames.send(Notify(text))
        self.pump()

    def ping(self) -> int:
        """Ask for a sign of life and return its number."""
        self._last_ping += 1
        self._frames.send(Ping(self._last_ping))
        self.pump()
        return self._last_ping

    def pump(self) -> None:
        """Send and receive what goes without waiting."""
        if self.error is not None:
            return
        try:
            # Receiving comes first: it sees the end of a peer that can still be sent to.
            for frame in self._frames.receive():
                if not isinstance(frame, Pong):
                    raise FrameError(f"a mailbox sends no {type(frame).__name__}")
                self.last_pong = max(self.last_pong, frame.number)
            self._frames.flush()
        except ConnectionEnded as ended:
            self.error, self.is_peer_gone = str(ended), ended.is_certain
        except FrameError as fault:
            self.error = str(fault)

    def close(self) -> None:
        """End the connection."""
        # A socket that is closed with unread bytes takes back what it has sent.
        self.pump()
        self.error = self.error or "closed by this agent"
        self._frames.close()
