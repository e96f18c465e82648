# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Where the gathers of a pool run: beside the caller's work, and ordered with it."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from kvxfer.errors import DeadlineError

__all__ = ["ExecutorLane", "GatherLane", "InlineLane"]

Work = Callable[[], None]


class GatherLane(Protocol):
    """Runs what it is given one after another, as a stream does."""

    def submit(self, work: Work) -> Work:
        """Run ``work`` after all that the caller has done so far.

        Returns
        -------
        callable
            What the caller calls before it uses the result: it waits, bounded, and raises what the
            work raised. May be called again.
        """
        ...


class InlineLane:
    """Runs each gather in the call that starts it."""

    def submit(self, work: Work) -> Work:
        """Run ``work`` at once."""
        work()
        return _nothing


class ExecutorLane:
    """Runs gathers on an executor of the caller's, so that they overlap with its work.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        With one worker, for this pool alone: gathers run in the order in which they were started.
    bound_seconds : float
        Of each wait for a gather; above the bounds that the gather itself has.
    """

    def __init__(self, executor: Executor, *, bound_seconds: float = 120.0) -> None:
        self._executor = executor
        self._bound_seconds = bound_seconds

    def submit(self, work: Work) -> Work:
        """Hand ``work`` to the executor."""
        future = self._executor.submit(work)

        def wait() -> None:
            try:
                future.result(timeout=self._bound_seconds)
            except TimeoutError as error:
                if future.done():  # the work's own deadline
                    raise
                message = f"expected a gather to end within {self._bound_seconds} s, got no end"
                raise DeadlineError("deadline", "executor", None, message) from error

        return wait


def _nothing() -> None:
    return
