# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Messages about rooms that are not open yet: kept for a while, within a bound."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["EarlyStore"]

T = TypeVar("T")


class EarlyStore(Generic[T]):
    """Keeps messages by room until the room opens, they are too old, or there are too many.

    Parameters
    ----------
    limit_count : int
        Most messages of all rooms; the oldest give way.
    ttl_s : float
        Age at which a message is dropped.
    clock : callable
        Monotonic seconds.
    """

    def __init__(self, limit_count: int, ttl_s: float, clock: Callable[[], float]) -> None:
        self._limit_count = limit_count
        self._ttl_s = ttl_s
        self._clock = clock
        self._messages: deque[tuple[float, int, T]] = deque()
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, room: int, message: T) -> None:
        """Keep a message of a room."""
        self.expire()
        if len(self._messages) == self._limit_count:
            self._messages.popleft()
            self.dropped_count += 1
        self._messages.append((self._clock() + self._ttl_s, room, message))

    def take(self, room: int, is_wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Remove and return a room's messages, oldest first."""
        self.expire()
        taken = [m for _, r, m in self._messages if r == room and is_wanted(m)]
        if taken:
            self._messages = deque(
                entry for entry in self._messages if not (entry[1] == room and is_wanted(entry[2]))
            )
        return taken

    def expire(self) -> None:
        """Drop what is too old."""
        now = self._clock()
        while self._messages and self._messages[0][0] <= now:
            self._messages.popleft()
            self.dropped_count += 1
