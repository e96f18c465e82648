# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's worker processes: whatever happens to one, the parent's wait ends and names it."""

from __future__ import annotations

from operator import attrgetter, methodcaller

import numpy as np
import pytest

from kvxfer.demo.processes import Crew
from kvxfer.errors import DeadlineError, TransferError

START_S = 30.0


def test_values_and_memory_arrive() -> None:
    memory = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    with Crew() as crew:
        one = crew.start("one", methodcaller("send", "fact", (1, "a")))
        two = crew.start("two", methodcaller("send_memory", memory))
        assert one.receive("fact", START_S) == (1, "a")
        assert np.array_equal(two.receive_memory(100_000, START_S), memory)


def test_all_workers_are_heard_in_order_of_start() -> None:
    with Crew() as crew:
        for number in range(3):
            crew.start(f"rank {number}", methodcaller("send", "number", number))
        assert crew.receive_all("number", START_S) == [0, 1, 2]


def test_a_failing_worker_ends_the_wait_with_its_traceback() -> None:
    with pytest.raises(TransferError, match=r"(?s)AttributeError.*peer bad rank") as caught:
        with Crew() as crew:
            crew.start("silent rank", methodcaller("receive", "nothing", START_S))
            crew.start("bad rank", attrgetter("no_such_thing"))
            crew.receive_all("number", START_S)
    assert caught.value.peer == "bad rank"
    assert caught.value.kind == "peer_lost"


def test_a_worker_that_ends_early_is_named() -> None:
    with pytest.raises(TransferError, match="the process ended") as caught:
        with Crew() as crew:
            crew.start("short rank", attrgetter("peer")).receive("fact", START_S)
    assert caught.value.peer == "short rank"


def test_a_silent_worker_is_named_and_ended() -> None:
    with pytest.raises(DeadlineError, match=r"expected 'fact' within 0.2 s \(peer silent rank\)"):
        with Crew() as crew:
            crew.start("silent rank", methodcaller("receive", "nothing", START_S))
            crew.receive_all("fact", 0.2)
    assert not any(process.is_alive() for process in crew.processes)


def test_an_unexpected_name_is_refused() -> None:
    with pytest.raises(TransferError, match="expected 'fact', got 'other'"):
        with Crew() as crew:
            crew.start("rank", methodcaller("send", "other")).receive("fact", START_S)


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(TransferError, match="expected 8 bytes, got 4"):
        with Crew() as crew:
            worker = crew.start("rank", methodcaller("send_memory", np.zeros(4, dtype=np.uint8)))
            worker.receive_memory(8, START_S)
