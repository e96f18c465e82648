# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Sends a manager's control messages and notes whose queue is full."""

from kvxfer.transfer.control import ControlChannel
from kvxfer.transfer.messages import Identity, Message, encode_frame

__all__ = ["Mailer"]


class Mailer:
    """Frames messages with the own identity. Never blocks and never raises for a peer's sake."""

    def __init__(self, channel: ControlChannel, identity: Identity) -> None:
        self.identity = identity
        self.sent_count = 0
        self.refused_count = 0
        self._channel = channel
        self._stalled: set[str] = set()

    def send(self, address: str, message: Message) -> bool:
        """Send a message; where the peer's queue is full, note it and return False."""
        if self._channel.send(address, encode_frame(self.identity, message)):
            self.sent_count += 1
            return True
        self.refused_count += 1
        self._stalled.add(address)
        return False

    def take_stalled(self) -> set[str]:
        """Return the addresses that took no message since the last call."""
        stalled, self._stalled = self._stalled, set()
        return stalled

    def forget(self, address: str) -> None:
        """Drop what is queued for an address."""
        self._channel.forget(address)
