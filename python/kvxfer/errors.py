# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Errors of a transfer; those of the core come from the core."""

from kvxfer._core import Error

__all__ = ["DeadlineError", "TransferError"]


class TransferError(Error):
    """A peer, a write or a room failed.

    Attributes
    ----------
    kind : str
        What failed, for code to look at: "peer_dead", "limit", ...
    peer : str
        Name of the peer.
    room : int or None
        The room, None where the failure belongs to no single room.
    message : str
        What was expected and what was seen.
    """

    def __init__(self, kind: str, peer: str, room: int | None, message: str) -> None:
        where = f"peer {peer!r}" if room is None else f"peer {peer!r}, room {room}"
        super().__init__(f"{kind}: {where}: {message}")
        self.kind = kind
        self.peer = peer
        self.room = room
        self.message = message


class DeadlineError(TransferError, TimeoutError):
    """A bounded wait ran out; the message names who is missing."""
