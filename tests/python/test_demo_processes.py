# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's worker processes: whatever happens to one, the parent's wait ends and names it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from operator import attrgetter, methodcaller

import numpy as np
import pytest

from kvxfer.demo.processes import Crew
from kvxfer.errors import DeadlineError, TransferError

START_S = 30.0


@pytest.fixture(name="crew")
def crew_fixture() -> Iterator[Crew]:
    with Crew() as crew:
        yield crew


def test_values_and_memory_arrive(crew: Crew) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    one = crew.start("one", methodcaller("send", "fact", (1, "a")))
    two = crew.start("two", methodcaller("send_memory", memory))
    assert one.receive("fact", START_S) == (1, "a")
    assert np.array_equal(two.receive_memory(100_000, START_S), memory)


def test_all_workers_are_heard_in_order_of_start(crew: Crew) -> None:
    for number in range(3):
        crew.start(f"rank {number}", methodcaller("send", "number", number))
    assert crew.receive_all("number", START_S) == [0, 1, 2]


def test_notes_are_handed_on_and_are_no_answer(crew: Crew) -> None:
    crew.start("talker", methodcaller("note", 7))
    heard: list[tuple[str, object]] = []
    with pytest.raises(TransferError, match="the process ended"):
        crew.receive_all("number", START_S, on_note=lambda *note: heard.append(note))
    assert heard == [("talker", 7)]


def test_a_failing_worker_ends_the_wait_with_its_traceback(crew: Crew) -> None:
    crew.start("silent rank", methodcaller("receive", "nothing", START_S))
    crew.start("bad rank", attrgetter("no_such_thing"))
    with pytest.raises(TransferError, match=r"(?s)Traceback.*AttributeError.*") as caught:
        crew.receive_all("number", START_S)
    assert caught.value.peer == "bad rank"
    assert caught.value.kind == "peer_lost"


def test_a_worker_that_fails_in_words_says_them_alone(crew: Crew) -> None:
    worker = crew.start("late rank", methodcaller("receive", "nothing", 0.01))
    with pytest.raises(TransferError, match="DeadlineError: expected 'nothing'") as caught:
        worker.receive("fact", START_S)
    assert "Traceback" not in str(caught.value)


def test_a_worker_that_ends_early_is_named(crew: Crew) -> None:
    worker = crew.start("short rank", attrgetter("peer"))
    with pytest.raises(TransferError, match="the process ended") as caught:
        worker.receive("fact", START_S)
    assert caught.value.peer == "short rank"


def test_a_worker_that_is_gone_is_named_by_a_send_as_well(crew: Crew) -> None:
    worker = crew.start("killed rank", methodcaller("receive", "setup", START_S))
    (process,) = crew.processes
    process.kill()
    process.join(START_S)
    for send in (lambda: worker.send("setup"), lambda: worker.send_memory(np.zeros(4, np.uint8))):
        with pytest.raises(TransferError, match="the process ended") as caught:
            send()
        assert (caught.value.kind, caught.value.peer) == ("peer_lost", "killed rank")


def test_a_send_says_what_the_worker_said_before_it_ended(crew: Crew) -> None:
    worker = crew.start("late rank", methodcaller("receive", "nothing", 0.01))
    (process,) = crew.processes
    process.join(START_S)
    with pytest.raises(TransferError, match="DeadlineError: expected 'nothing'"):
        worker.send("setup")


def test_workers_leave_an_interrupt_to_their_parent(crew: Crew) -> None:
    worker = crew.start("rank", methodcaller("receive", "nothing", START_S))
    (process,) = crew.processes
    assert process.pid is not None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.kill(process.pid, signal.SIGINT)
    worker.send("something else")
    with pytest.raises(TransferError, match="expected 'nothing', got 'something else'"):
        worker.receive("fact", START_S)
    assert signal.SIGINT not in before, "only the worker starts with interrupts blocked"


def test_a_silent_worker_is_named_and_ended() -> None:
    with Crew() as crew:
        crew.start("silent rank", methodcaller("receive", "nothing", START_S))
        with pytest.raises(DeadlineError, match=r"'fact' within 0.2 s \(peer silent rank\)"):
            crew.receive_all("fact", 0.2)
    assert [process.is_alive() for process in crew.processes] == [False]


def test_an_unexpected_name_is_refused(crew: Crew) -> None:
    worker = crew.start("rank", methodcaller("send", "other"))
    with pytest.raises(TransferError, match="expected 'fact', got 'other'"):
        worker.receive("fact", START_S)


def test_memory_of_another_size_is_refused(crew: Crew) -> None:
    worker = crew.start("rank", methodcaller("send_memory", np.zeros(4, dtype=np.uint8)))
    with pytest.raises(TransferError, match="expected 8 bytes, got 4"):
        worker.receive_memory(8, START_S)
