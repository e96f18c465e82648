# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The one thread of a manager: polls, and between two polls runs what was submitted."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from kvxfer import InvalidArgumentError
from kvxfer.adapters.ranges import Annotate
from kvxfer.errors import DeadlineError

__all__ = ["WorkerThread"]

_SHUTDOWN_TIMEOUT_S = 60.0


class WorkerThread(Executor):
    """An executor whose thread also polls.

    Between two polls at most one job runs, so that completions are seen while a long request is
    packed piece by piece. Where there is nothing to do it sleeps for an interval or until woken.

    Parameters
    ----------
    name : str
        Name of the thread.
    annotate : Annotate
        Marks jobs in a profile.
    busy_interval_s, idle_interval_s : float
        Longest sleep while something is open, and while nothing is.
    """

    def __init__(
        self, name: str, annotate: Annotate, busy_interval_s: float, idle_interval_s: float
    ) -> None:
        self._annotate = annotate
        self._intervals_s = {True: busy_interval_s, False: idle_interval_s}
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wake = threading.Condition()
        self._is_woken = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._poll: Callable[[], bool] = lambda: False

    def start(self, poll: Callable[[], bool]) -> None:
        """Start the thread.

        Parameters
        ----------
        poll : callable
            Goes on with what can go on; returns whether anything is open. Must not raise.
        """
        self._poll = poll
        self._thread.start()

    @property
    def name(self) -> str:
        """Name of the thread."""
        return self._thread.name

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Queue a job.

        Raises
        ------
        InvalidArgumentError
            Once ``stop`` was called.
        """
        future: Future[Any] = Future()
        with self._wake:
            if self._is_stopping:
                raise InvalidArgumentError(f"thread {self.name!r} was stopped and takes no jobs")
            self._jobs.append((future, lambda: fn(*args, **kwargs)))
            self._wake.notify()
        return future

    def wake(self) -> None:
        """Let the thread poll at once: there is something new."""
        with self._wake:
            self._is_woken = True
            self._wake.notify()

    def stop(self, timeout_s: float) -> None:
        """End the thread and wait for it; jobs that have not begun are cancelled. Idempotent.

        Raises
        ------
        DeadlineError
            If a job or a poll does not return in time; the thread ends when it does.
        """
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineError(
                "deadline", "", None, f"thread {self.name!r} did not end within {timeout_s:g} s"
            )
        while self._jobs:
            self._jobs.popleft()[0].cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``Executor.shutdown``, with a bound; jobs that have not begun are always cancelled."""
        del cancel_futures
        if wait:
            self.stop(_SHUTDOWN_TIMEOUT_S)
            return
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def _run(self) -> None:
        while not self._is_stopping:
            self._run_job()
            is_busy = self._poll()
            with self._wake:
                if not (self._jobs or self._is_woken or self._is_stopping):
                    self._wake.wait(self._intervals_s[is_busy])
                self._is_woken = False

    def _run_job(self) -> None:
        with self._wake:
            if not self._jobs:
                return
            future, job = self._jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._annotate("job"):
                result = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
