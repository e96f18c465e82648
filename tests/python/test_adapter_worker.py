# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The one thread of a manager, and engine threads that use one manager at once."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError
from kvxfer.adapters.ranges import find_annotate
from kvxfer.adapters.worker import WorkerThread
from kvxfer.errors import DeadlineError
from kvxfer.transfer import RoomState
from support.adapter_world import Job, Site, Worker, wait_until
from support.transfer_world import Pages, move_rows
from support.transport_cases import CASES


class Polls:
    """Counts polls; a test may hold them up."""

    def __init__(self) -> None:
        self.count = 0
        self.is_busy = False
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self) -> bool:
        self.may_go.wait(20)
        self.count += 1
        return self.is_busy


@pytest.fixture
def polls() -> Polls:
    return Polls()


@pytest.fixture
def worker(polls: Polls) -> Iterator[WorkerThread]:
    made = WorkerThread("kvxfer test", find_annotate(), 0.0002, 30.0)
    yield made
    polls.may_go.set()
    made.shutdown()


def test_jobs_run_on_the_named_thread_with_a_poll_between_them(
    worker: WorkerThread, polls: Polls
) -> None:
    seen: list[tuple[str, int]] = []

    def job() -> int:
        seen.append((threading.current_thread().name, polls.count))
        return len(seen)

    futures = [worker.submit(job) for _ in range(5)]
    assert not worker.is_alive
    worker.start(polls)
    assert [future.result(timeout=20) for future in futures] == [1, 2, 3, 4, 5]
    assert seen == [("kvxfer test", number) for number in range(5)]


def test_what_a_job_raises_is_in_its_future_and_the_thread_lives(
    worker: WorkerThread, polls: Polls
) -> None:
    worker.start(polls)
    failed = worker.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=20)
    assert worker.submit(lambda: 7).result(timeout=20) == 7


def test_an_idle_thread_sleeps_until_it_is_woken(worker: WorkerThread, polls: Polls) -> None:
    worker.start(polls)
    wait_until(lambda: polls.count >= 1)
    asleep = polls.count
    worker.wake()
    wait_until(lambda: polls.count == asleep + 1)
    polls.is_busy = True
    worker.wake()
    wait_until(lambda: polls.count > asleep + 20, "a busy thread polls by itself")


def test_stopping_waits_for_the_thread_and_cancels_what_has_not_begun(
    worker: WorkerThread, polls: Polls
) -> None:
    polls.may_go.clear()
    worker.start(polls)
    running = worker.submit(lambda: 1)
    queued = [worker.submit(lambda: 2) for _ in range(3)]
    with pytest.raises(DeadlineError, match=r"'kvxfer test' did not end within 0\.05 s"):
        worker.stop(0.05)
    with pytest.raises(InvalidArgumentError, match="was stopped"):
        worker.submit(lambda: 3)
    polls.may_go.set()
    worker.stop(20)
    worker.stop(20)
    assert not worker.is_alive
    futures = [running, *queued]
    assert all(future.done() for future in futures)
    assert sum(future.cancelled() for future in futures) >= 3


def test_a_cancelled_job_does_not_run(worker: WorkerThread, polls: Polls) -> None:
    ran: list[int] = []
    first, second = worker.submit(ran.append, 1), worker.submit(ran.append, 2)
    assert first.cancel()
    worker.start(polls)
    second.result(timeout=20)
    assert ran == [2]


class Engine:
    """One engine thread with pages of its own in the pools of all."""

    def __init__(self, number: int, source: Worker, destinations: list[Worker]) -> None:
        self.number, self.source, self.destinations = number, source, destinations
        self.pages = list(range(16 * number, 16 * number + 16))
        self.ends: Counter[RoomState] = Counter()
        self._rng = np.random.default_rng(number)

    def run(self) -> None:
        for turn in range(25):
            room, end = 1 + self.number + 4 * turn, 9 + turn % 9
            job = Job([self.source], self.destinations, end, room=room, item=self.number)
            job.source_pages, job.destination_pages = [Pages(self.pages)], [Pages(self.pages)] * 2
            self.renew_rows()
            if turn % 5 == 4:
                job.open().receivers[0].abort("client went away")
                job.wait()
                wait_until(lambda job=job: not any(r.pages_held for r in job.requests))  # type: ignore[misc]
            else:
                job.run(5)
                reasons = [request.failure_reason for request in job.requests]
                assert not any(reasons), reasons
                self.check_rows(end)
            self.ends.update(job.states)

    def renew_rows(self) -> None:
        """Fill the own pages with other noise on every side, so that an earlier turn shows."""
        for worker in (self.source, *self.destinations):
            for array, plane in zip(worker.arrays, worker.layout.planes, strict=True):
                pages = array.reshape(-1, plane.page_stride_bytes)
                pages[self.pages] = self._rng.integers(0, 256, pages[self.pages].shape, np.uint8)

    def check_rows(self, end: int) -> None:
        """Assert that moving the rows once more would change nothing on the own pages."""
        given: Any = [(self.source, Pages(self.pages))]
        for worker in self.destinations:
            at: Any = worker
            before, expected = self._own(worker, worker.snapshot()), worker.snapshot()
            move_rows(given, at, Pages(self.pages), (0, end), expected)
            for got, want in zip(before, self._own(worker, expected), strict=True):
                assert np.array_equal(got, want), worker.name

    def _own(self, worker: Worker, arrays: list[Any]) -> list[Any]:
        return [
            array.reshape(-1, plane.page_stride_bytes)[self.pages]
            for plane, array in zip(worker.layout.planes, arrays, strict=True)
        ]


def watch(site: Site, is_over: threading.Event) -> None:
    """Look at everything that a manager tells, all the time."""
    while not is_over.is_set():
        for manager in (worker.manager for worker in site.workers):
            assert manager.counters["failed_polls"] == 0
            assert manager.totals["sender"].bytes >= 0
            assert len(manager.peer_names) <= 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "transport",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                not CASES[name].is_installed, reason=f"{CASES[name].needs_module} is not installed"
            ),
        )
        for name in ("loopback-process_vm", "nixl", "mooncake")
    ],
)
def test_a34_four_engine_threads_share_one_manager(transport: str) -> None:
    """sglang#28897: while a fifth one looks at counters, metrics and peers."""
    is_over = threading.Event()
    with Site(transport) as site, ThreadPoolExecutor(5) as threads:
        source = site.add("p", page_count=64, pack_buffer_count=4)
        destinations = site.group("d", 2, page_count=64)
        engines = [Engine(number, source, destinations) for number in range(4)]
        watching = threads.submit(watch, site, is_over)
        running = [threads.submit(engine.run) for engine in engines]
        try:
            for future in running:
                future.result(timeout=90)
        finally:
            is_over.set()
        watching.result(timeout=20)
        site.check_idle()
    assert sum((engine.ends for engine in engines), Counter()) == {
        RoomState.SUCCESS: 240,
        RoomState.FAILED: 60,
    }
