# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Where the gathers of a pool run: beside the caller's work, and ordered with it."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol

from kvxfer.errors import DeadlineError

__all__ = ["ExecutorLane", "GatherLane", "InlineLane", "StreamLane"]

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


class StreamLane:
    """Runs gathers on a stream of their own, ordered with the caller's current stream by events.

    Parameters
    ----------
    stream : torch.cuda.Stream
        For this pool alone, of higher priority than the model's where that helps.
    cuda : module, optional
        In place of torch.cuda: what has ``current_stream()`` and ``stream()``.
    """

    def __init__(self, stream: Any, *, cuda: Any = None) -> None:
        if cuda is None:
            import torch

            cuda = torch.cuda
        self._stream = stream
        self._cuda = cuda

    def submit(self, work: Work) -> Work:
        """Enqueue what ``work`` enqueues, after all that the current stream holds."""
        self._stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._stream):
            work()
            ready = self._stream.record_event()
        return lambda: self._cuda.current_stream().wait_event(ready)


def _nothing() -> None:
    return
