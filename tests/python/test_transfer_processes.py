# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Whole transfers between processes: loopback transport, ZeroMQ control channel, real death."""

import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from support.transfer_process import PLANES, Process, Worker

Start = Callable[[Worker], Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers and ends them."""
    started: list[Process] = []

    def make(worker: Worker) -> Process:
        started.append(Process(worker))
        return started[-1]

    yield make
    for process in started:
        process.stop()


def page_ids(worker: Worker, tokens: int, seed: int) -> list[int]:
    count = -(-tokens // (worker.page_size * worker.ranks))
    return np.random.default_rng(seed).permutation(worker.page_count)[:count].tolist()


def check_rows(
    sources: list[tuple[Worker, list[int]]],
    destination: Process,
    pages: list[int],
    prefix: int,
    end: int,
) -> None:
    """Every byte of a destination's pool, row by row against what the sources hold."""
    worker = destination.worker
    got = [np.frombuffer(raw, dtype=np.uint8) for raw in destination.ask("rows")]
    for plane, (_, row_bytes) in enumerate(PLANES):
        expected = worker.noise(plane).reshape(-1, row_bytes)
        held = [(s, ids, s.noise(plane).reshape(-1, row_bytes)) for s, ids in sources]
        for position in range(prefix, end):
            if position % worker.ranks != worker.rank:
                continue
            local = (position - prefix) // worker.ranks
            to = pages[local // worker.page_size] * worker.page_size + local % worker.page_size
            source, ids, rows = held[position % len(held)]
            at = position // source.ranks
            page = ids[at // source.page_size]
            expected[to] = rows[page * source.page_size + at % source.page_size]
        assert np.array_equal(got[plane].reshape(-1, row_bytes), expected), f"plane {plane}"


def run_rooms(
    start: Start, source_ranks: int, destination_ranks: int, landing: str, prefix: int = 0
) -> None:
    tokens = 1000
    sources = [start(Worker(f"p{r}", source_ranks, r)) for r in range(source_ranks)]
    destinations = [
        start(Worker(f"d{r}", destination_ranks, r, page_size=32)) for r in range(destination_ranks)
    ]
    source_pages = page_ids(sources[0].worker, tokens, 1)
    pages = page_ids(destinations[0].worker, tokens - prefix, 2)
    for source in sources:
        source.ask("open_sender", 7, destination_ranks)
    addresses = [source.address for source in sources]
    fields = {"prefix": prefix, "end": tokens, "landing": landing, "metadata_bytes": 32}
    for destination in destinations:
        destination.ask("open_receiver", 7, addresses, pages, fields)
    for source in sources:
        source.ask("send", 7, source_pages, tokens // 2, False, {})
        source.ask("send", 7, source_pages, tokens, True, {"metadata": b"first token: 42"})
    for process in [*sources, *destinations]:
        process.tell("finish", 30.0)
    for process in [*sources, *destinations]:
        for ended in process.answer().values():
            assert ended == ("SUCCESS", "", False)
    given = [(source.worker, source_pages) for source in sources]
    for destination in destinations:
        check_rows(given, destination, pages, prefix, tokens)
        assert destination.ask("metadata", 7) == b"first token: 42"
    for process in [*sources, *destinations]:
        process.ask("rest", 0.05)
        counters = process.ask("counters")
        assert counters["live_handles"] == counters["pack_buffers_leased"] == 0
        assert counters["sender_rooms"] == counters["receiver_rooms"] == 0


def test_one_source_to_four_ranks(start: Start) -> None:
    run_rooms(start, 1, 4, "in_place", prefix=256)


def test_one_source_to_four_ranks_through_landing_regions(start: Start) -> None:
    run_rooms(start, 1, 4, "landing")


def test_two_sources_to_one_rank(start: Start) -> None:
    run_rooms(start, 2, 1, "auto")


# Long enough for a process that gets no CPU for a while, short enough for a test.
QUICK = {"heartbeat_interval_s": 0.8, "drain_deadline_s": 1.0}


def test_a_killed_source_fails_its_rooms_by_name_and_its_successor_serves_new_ones(
    start: Start,
) -> None:
    source = start(Worker("p0", options=QUICK))
    destination = start(Worker("d0", 2, 0, options=QUICK))
    pages = page_ids(destination.worker, 500, 2)
    source.ask("open_sender", 1, 1)
    destination.ask("open_receiver", 1, [source.address], pages, {"end": 500})
    destination.ask("rest", 0.3)
    source.process.kill()
    source.process.join(timeout=20)
    ended = destination.ask("finish", 20.0)["receiver 1"]
    assert ended[0] == "FAILED"
    assert "source p0 did not answer 3 heartbeats" in ended[1]
    successor = start(Worker("p0", options=QUICK))
    source_pages = page_ids(successor.worker, 500, 3)
    successor.ask("open_sender", 2, 1)
    destination.ask("open_receiver", 2, [successor.address], pages, {"end": 500})
    successor.ask("send", 2, source_pages, 500, True, {})
    assert destination.ask("finish", 20.0)["receiver 2"] == ("SUCCESS", "", False)
    check_rows([(successor.worker, source_pages)], destination, pages, 0, 500)


def test_a_stopped_destination_fails_alone_and_may_come_back(start: Start) -> None:
    source = start(Worker("p0", options=QUICK))
    stopped = start(Worker("d0", 2, 0, options=QUICK))
    healthy = start(Worker("d1", 2, 1, options=QUICK))
    source_pages = page_ids(source.worker, 500, 3)
    for room, destination in ((1, stopped), (2, healthy)):
        source.ask("open_sender", room, 1)
        pages = page_ids(destination.worker, 500, room)
        destination.ask("open_receiver", room, [source.address], pages, {"end": 500})
    source.ask("rest", 0.3)
    assert stopped.process.pid is not None
    os.kill(stopped.process.pid, signal.SIGSTOP)
    try:
        assert "d0 did not answer 3 heartbeats" in source.ask("end_of", "sender", 1, 30.0)
        source.ask("send", 2, source_pages, 500, True, {})
        assert healthy.ask("finish", 20.0)["receiver 2"] == ("SUCCESS", "", False)
        ended = source.ask("finish", 20.0)
        assert ended["sender 1"][0] == "FAILED"
        assert ended["sender 2"][0] == "SUCCESS"
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
    state, error, is_held = stopped.ask("finish", 20.0)["receiver 1"]
    assert (state, is_held) == ("FAILED", False)
    assert "did not answer 3 heartbeats" in error
    source.ask("open_sender", 3, 1)
    pages = page_ids(stopped.worker, 500, 9)
    stopped.ask("open_receiver", 3, [source.address], pages, {"end": 500})
    source.ask("send", 3, source_pages, 500, True, {})
    ended = stopped.ask("finish", 20.0)["receiver 3"]
    assert ended[1] == ""
    assert ended == ("SUCCESS", "", False)
