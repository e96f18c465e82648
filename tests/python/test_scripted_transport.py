# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The scripted transport obeys. What it promises like any other: test_transport_protocol.py."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvxfer.errors import TransferError
from kvxfer.transports.protocol import WriteState
from support.scripted_transport import ScriptedPost, ScriptedWire
from support.transport_cases import Pair


@pytest.fixture
def wire() -> ScriptedWire:
    return ScriptedWire()


@pytest.fixture
def pair(wire: ScriptedWire) -> Pair:
    return Pair(wire.create, 64)


def post(pair: Pair, notification: bytes = b"x") -> ScriptedPost:
    handle = pair.source.post(pair.peer, pair.writes((0, 0, 32), (32, 32, 32)), notification)
    assert isinstance(handle, ScriptedPost)
    return handle


def heard(pair: Pair) -> list[bytes]:
    return [message for _, message in pair.target.drain_notifications()]


def test_bytes_are_read_when_the_write_completes(wire: ScriptedWire, pair: Pair) -> None:
    handle = post(pair)
    assert pair.source.poll(handle) is WriteState.RUNNING
    assert pair.target_memory.is_untouched()
    pair.source_memory.bytes[:] = 0xBB
    wire.complete(handle)
    assert (pair.target_memory.bytes == 0xBB).all()
    assert heard(pair) == [b"x"]


def test_the_notification_follows_the_last_write_in_any_order(
    wire: ScriptedWire, pair: Pair
) -> None:
    handle = post(pair)
    wire.complete_write(handle, 1)
    wire.complete_write(handle, 1)
    assert (pair.source.poll(handle), heard(pair)) == (WriteState.RUNNING, [])
    assert (pair.target_memory.bytes[:32] == 0xA5).all()
    wire.complete_write(handle, 0)
    assert (pair.source.poll(handle), heard(pair)) == (WriteState.DONE, [b"x"])
    assert pair.is_copied()


def test_a_failure_leaves_what_has_landed_and_tells_nobody(wire: ScriptedWire, pair: Pair) -> None:
    handle = post(pair)
    wire.complete_write(handle, 0)
    wire.fail(handle, "cable pulled")
    assert pair.source.poll(handle) is WriteState.FAILED
    assert handle.error == "cable pulled"
    assert heard(pair) == []
    assert (pair.target_memory.bytes[:32] == pair.source_memory.bytes[:32]).all()
    assert (pair.target_memory.bytes[32:] == 0xA5).all()
    with pytest.raises(ValueError, match="expected RUNNING"):
        wire.complete(handle)


@pytest.mark.parametrize("lands", [False, True])
def test_a_lost_post_may_land_late_and_is_then_drained(
    wire: ScriptedWire, pair: Pair, lands: bool
) -> None:
    handle = post(pair)
    wire.lose(handle)
    assert pair.source.poll(handle) is WriteState.LOST
    pair.source_memory.bytes[:] = 0xBB
    wire.drain(handle, lands=lands)
    assert pair.source.poll(handle) is WriteState.DRAINED
    assert bool((pair.target_memory.bytes == 0xBB).all()) == lands
    assert heard(pair) == []


def test_a_removed_peers_posts_are_lost_and_still_land(wire: ScriptedWire, pair: Pair) -> None:
    handle = post(pair)
    pair.source.remove_peer(pair.peer)
    assert pair.source.poll(handle) is WriteState.LOST
    wire.drain(handle, lands=True)
    assert pair.is_copied()


def test_held_notifications_are_delivered_dropped_repeated_and_reordered(
    wire: ScriptedWire, pair: Pair
) -> None:
    wire.holds_notifications = True
    for message in (b"a", b"b", b"c", b"d"):
        wire.complete(post(pair, message))
    assert heard(pair) == []
    assert wire.drop(1).message == b"b"
    wire.reorder([2, 0, 1])
    wire.repeat(0)
    wire.deliver(2)
    assert heard(pair) == [b"d", b"d", b"a"]
    wire.deliver()
    assert heard(pair) == [b"c"]
    assert wire.held == []


def test_posts_complete_out_of_order(wire: ScriptedWire, pair: Pair) -> None:
    first, second = post(pair, b"1"), post(pair, b"2")
    wire.complete(second)
    wire.complete(first)
    assert heard(pair) == [b"2", b"1"]


def test_posts_complete_by_themselves_after_so_many_polls(wire: ScriptedWire, pair: Pair) -> None:
    wire.completes_on_poll = 3
    handle = post(pair)
    states = [pair.source.poll(handle) for _ in range(3)]
    assert states == [WriteState.RUNNING, WriteState.RUNNING, WriteState.DONE]


def test_a_refused_post_is_counted_and_the_next_goes_through(
    wire: ScriptedWire, pair: Pair
) -> None:
    wire.refuse_next("backend", "no memory")
    with pytest.raises(TransferError, match="no memory") as caught:
        post(pair)
    assert caught.value.kind == "backend"
    post(pair)
    counters = pair.source.counters
    assert (counters["refused"], counters["posted"]) == (1, 1)


def test_killing_an_agent_ends_what_touches_it_and_nothing_else(
    wire: ScriptedWire, pair: Pair
) -> None:
    other = wire.create("other")
    pair.source.add_peer(other.describe())
    doomed, lost = post(pair), post(pair)
    wire.lose(lost)
    alive = pair.source.post("other", np.empty((0, 3), np.int64), b"alive")
    wire.kill("target")
    found = [pair.source.poll(handle) for handle in (doomed, lost, alive)]
    assert found == [WriteState.FAILED, WriteState.DRAINED, WriteState.RUNNING]
    with pytest.raises(TransferError, match="gone") as caught:
        post(pair)
    assert caught.value.kind == "peer_dead"
    assert pair.target_memory.is_untouched()


def test_everything_is_recorded(wire: ScriptedWire, pair: Pair) -> None:
    handles = [post(pair, b"%d" % number) for number in range(3)]
    assert wire.posts == handles == wire.running() == wire.running("target") == wire.live()
    assert wire.running("other") == []
    wire.complete_all()
    pair.source.release(handles[0])
    assert wire.live() == handles[1:]
    assert wire.running() == []
    assert wire.events == [
        *(("post", str(number)) for number in range(3)),
        *((kind, str(number)) for number in range(3) for kind in ("done", "deliver")),
        ("release", "0"),
    ]


def test_every_outcome_of_a_thousand_posts_is_released_once(wire: ScriptedWire, pair: Pair) -> None:
    def room(number: int) -> WriteState:
        with wire.lock:
            if number % 10 == 0:
                wire.refuse_next("backend")
            try:
                handle = post(pair, b"%d" % number)
            except TransferError:
                return WriteState.FAILED
        match number % 10:
            case 1:
                wire.fail(handle)
            case 2:
                wire.lose(handle)
                wire.drain(handle, lands=True)
            case _:
                wire.complete(handle)
        state = pair.source.poll(handle)
        pair.source.release(handle)
        return state

    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(room, range(1000)))
    assert states.count(WriteState.DONE) == 700
    assert states.count(WriteState.FAILED) == 200
    assert states.count(WriteState.DRAINED) == 100
    assert wire.live() == []
    counters = pair.source.counters
    assert (counters["posted"], counters["released"], counters["refused"]) == (900, 900, 100)
    assert len(heard(pair)) == 700
