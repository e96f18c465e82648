# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""How control messages reach a peer: what a manager needs of an engine's channel, or of ours."""

from typing import Protocol, runtime_checkable

__all__ = ["ControlChannel", "ExplainingChannel"]


@runtime_checkable
class ControlChannel(Protocol):
    """Carries whole messages, in order per peer, without ever blocking.

    A message may be lost when a peer goes away, never reordered or cut. Managers find their peers
    by the addresses that the engine gives them and that peers put into their messages.

    Attributes
    ----------
    address : str
        Where peers reach this channel: printable ASCII, at most 1,024 characters.
    """

    address: str

    def send(self, address: str, message: bytes) -> bool:
        """Queue one message for a peer.

        Returns
        -------
        bool
            False where the peer's queue is full or the address cannot be used: nothing was queued.
        """
        ...

    def receive(self) -> list[bytes]:
        """Return the whole messages that have arrived, oldest first; bounded per call."""
        ...

    def forget(self, address: str) -> None:
        """Drop what is queued for a peer and the connection to it. Unknown ones are ignored."""
        ...

    def close(self) -> None:
        """Stop listening and drop all connections. Idempotent."""
        ...


@runtime_checkable
class ExplainingChannel(Protocol):
    """A channel that can say why it took nothing; managers ask where it can."""

    def why_refused(self, address: str) -> str:
        """Return why the latest message for an address was not taken."""
        ...
