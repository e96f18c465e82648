# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Failures of a transfer: a peer, a write or a room. Preconditions raise the core's errors."""

from kvxfer._core import Error

__all__ = ["DeadlineError", "TransferError"]


class TransferError(Error):
    """A peer, a write or a room failed.

    Attributes
    ----------
    kind : str
        What sort of failure, one word for programs: "refused", "aborted", "deadline", "peer_lost",
        "transport", "protocol", "capacity", "duplicate", or a transport's own.
    peer : str
        Name or address of the peer that it is about; empty where it is about none.
    room : int or None
        Id of the room; None where it is about a whole peer.
    message : str
        Words for people: what was expected and what was got.
    """

    def __init__(self, kind: str, peer: str, room: int | None, message: str) -> None:
        where = f"room {room}: " if room is not None else ""
        about = f" (peer {peer})" if peer else ""
        super().__init__(f"{where}{message}{about}")
        self.kind = kind
        self.peer = peer
        self.room = room
        self.message = message

    def __reduce__(self) -> tuple[type, tuple[str, str, int | None, str]]:
        return type(self), (self.kind, self.peer, self.room, self.message)


class DeadlineError(TransferError, TimeoutError):
    """A bounded wait ran out; ``peer`` or the message names who is missing."""
