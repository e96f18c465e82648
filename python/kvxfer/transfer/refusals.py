# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Rooms that failed at their source before every receiver had asked: each is told when it asks."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvxfer.transfer.room import Failure

__all__ = ["Refusal", "Refusals"]


@dataclass(frozen=True)
class Refusal:
    """The end of one use of a room's id.

    Attributes
    ----------
    failure : Failure
    missing_count : int
        Receivers that had not asked.
    asked : mapping of str to int
        Which use of the id the others asked for, by name.
    """

    failure: Failure
    missing_count: int
    asked: Mapping[str, int]


class Refusals:
    """Remembers the latest refusal of each id for a while, within a bound.

    A receiver that has had its answer, or gave up by itself, and then asks for another use of the
    id is not refused again: its source will open the room anew.
    """

    def __init__(self, limit_count: int, ttl_s: float, clock: Callable[[], float]) -> None:
        self._limit_count = limit_count
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: OrderedDict[int, tuple[float, Refusal]] = OrderedDict()

    def put(self, room: int, refusal: Refusal) -> None:
        """Remember a refusal; it replaces an earlier one of the id."""
        self.expire()
        self._entries.pop(room, None)
        if refusal.missing_count == 0:
            return
        if len(self._entries) == self._limit_count:
            self._entries.popitem(last=False)
        self._entries[room] = (self._clock() + self._ttl_s, refusal)

    def answer(self, room: int, name: str, room_generation: int) -> Failure | None:
        """Return why a receiver's use of an id has failed, None where nothing says so."""
        self.expire()
        expires_s, refusal = self._entries.get(room, (0.0, None))
        if refusal is None:
            return None
        known = refusal.asked.get(name)
        if known is None:
            asked = {**refusal.asked, name: room_generation}
            left = Refusal(refusal.failure, refusal.missing_count - 1, asked)
            if left.missing_count:
                self._entries[room] = (expires_s, left)
            else:
                del self._entries[room]
        return refusal.failure if known in (None, room_generation) else None

    def forget(self, room: int) -> None:
        """Forget an id, which has been opened again."""
        self._entries.pop(room, None)

    def expire(self) -> None:
        """Drop what is too old."""
        now = self._clock()
        while self._entries and next(iter(self._entries.values()))[0] <= now:
            self._entries.popitem(last=False)
