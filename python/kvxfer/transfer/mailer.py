# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Sends a manager's control messages and notes whose queue is full."""

from collections import OrderedDict
from collections.abc import Callable

from kvxfer.transfer.control import ControlChannel, ExplainingChannel
from kvxfer.transfer.messages import Identity, Message, encode_frame

__all__ = ["Mailer"]

_MAX_STRANGERS = 256


class Mailer:
    """Frames messages with the own identity. Never blocks and never raises for a peer's sake.

    Anyone can make us answer, at an address of their choice, and a channel keeps a connection to
    each. Those to addresses that nobody wants are bounded: the one that was answered longest ago is
    forgotten.
    """

    def __init__(self, channel: ControlChannel, identity: Identity) -> None:
        self.identity = identity
        self.sent_count = 0
        self.refused_count = 0
        self._channel = channel
        self._stalled: dict[str, str] = {}
        self._strangers: OrderedDict[str, None] = OrderedDict()
        self._is_wanted: Callable[[str], bool] = lambda _: True

    def begin(self, is_wanted: Callable[[str], bool]) -> None:
        """Set what tells whether an address is that of a peer, or one that the engine named."""
        self._is_wanted = is_wanted

    def send(self, address: str, message: Message) -> bool:
        """Send a message; where the peer's queue is full, note it and return False."""
        if self._channel.send(address, encode_frame(self.identity, message)):
            self.sent_count += 1
            self._note_stranger(address)
            return True
        self.refused_count += 1
        self._stalled[address] = self._why_refused(address)
        return False

    def take_stalled(self) -> dict[str, str]:
        """Return the addresses that took no message since the last call, each with why."""
        stalled, self._stalled = self._stalled, {}
        return stalled

    def forget(self, address: str) -> None:
        """Drop what is queued for an address."""
        self._strangers.pop(address, None)
        self._channel.forget(address)

    def _why_refused(self, address: str) -> str:
        if isinstance(self._channel, ExplainingChannel):
            return self._channel.why_refused(address)
        return "its queue is full or it cannot be reached"

    def _note_stranger(self, address: str) -> None:
        if self._is_wanted(address):
            return
        self._strangers[address] = None
        self._strangers.move_to_end(address)
        if len(self._strangers) > _MAX_STRANGERS:
            oldest, _ = self._strangers.popitem(last=False)
            if not self._is_wanted(oldest):
                self._channel.forget(oldest)
