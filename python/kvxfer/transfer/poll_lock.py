# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The lock of a manager: held by every call, and given up by a polling loop to whoever waits."""

import threading
import time
from collections import deque
from types import TracebackType

__all__ = ["PollLock"]

_GIVE_WAY_S = 50e-6


class PollLock:
    """A lock that its holder may take again, and that a tight loop does not keep from others.

    A loop that releases a lock and takes it at once holds the interpreter all the while, so that a
    waiting thread finds the lock taken whenever it runs. The loop therefore asks before each turn.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[None] = deque()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waiting.append(None)
            try:
                self._lock.acquire()
            finally:
                self._waiting.pop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def give_way(self) -> None:
        """Let a waiting thread have the lock. The caller must not hold it."""
        if self._waiting:
            time.sleep(_GIVE_WAY_S)
