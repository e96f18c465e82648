# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Conformance: what every transport promises, on every transport that is installed."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvxfer import InvalidArgumentError
from kvxfer.errors import TransferError
from kvxfer.transports.protocol import (
    COUNTER_NAMES,
    MAX_NOTIFICATION_BYTES,
    Description,
    DescriptionError,
    RegionTable,
    Transport,
    WriteState,
)
from support.transport_cases import CASES, Maker, Memory, Pair, receive, settle

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
NO_WRITES = np.empty((0, 3), dtype=np.int64)


@pytest.fixture(params=sorted(CASES))
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    case = CASES[request.param]
    if not case.is_installed:
        pytest.skip(f"{case.needs_module} is not installed")
    maker = case.make_maker()
    made: list[Transport] = []

    def make_agent(name: str) -> Transport:
        made.append(maker(name))
        return made[-1]

    yield make_agent
    for agent in made:
        agent.close()


# --- data and notifications ---------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 7, 4095, 4096, 4097, (1 << 20) + 3])
def test_bytes_then_notification(make: Maker, size_bytes: int) -> None:
    pair = Pair(make, size_bytes)
    handle = pair.source.post(pair.peer, pair.whole(), b"all of it")
    heard = pair.settle(handle)
    heard += pair.receive(1 - len(heard))
    assert pair.source.poll(handle) is WriteState.DONE
    assert heard == [("source", b"all of it")]
    assert pair.is_copied()
    assert pair.target_memory.guards_are_untouched()
    assert handle.error is None


def test_ten_thousand_writes_of_one_byte_and_nothing_beside_them(make: Maker) -> None:
    pair = Pair(make, 30_000)
    order = np.random.default_rng(7).permutation(10_000)
    writes = np.stack([3 * order, 3 * order[::-1] + 1, np.ones_like(order)], axis=1)
    expected = pair.target_memory.bytes.copy()
    expected[writes[:, 1]] = pair.source_memory.bytes[writes[:, 0]]
    pair.settle(pair.source.post(pair.peer, pair.writes(*writes.tolist()), b"x"))
    assert (pair.target_memory.bytes == expected).all()
    assert pair.target_memory.guards_are_untouched()


def test_random_runs_land_where_they_belong(make: Maker) -> None:
    generator = np.random.default_rng(11)
    pair = Pair(make, 1 << 18)
    cuts = np.sort(generator.choice(np.arange(1, 1 << 18), 300, replace=False))
    starts = np.concatenate([[0], cuts])
    lengths = np.diff(np.concatenate([starts, [1 << 18]]))
    order = generator.permutation(len(starts))
    sources = np.cumsum(lengths[order]) - lengths[order]
    expected = np.zeros(1 << 18, np.uint8)
    for source, number in zip(sources, order, strict=True):
        piece = pair.source_memory.bytes[source : source + lengths[number]]
        expected[starts[number] : starts[number] + lengths[number]] = piece
    runs = np.stack([sources, starts[order], lengths[order]], axis=1)
    pair.settle(pair.source.post(pair.peer, pair.writes(*runs.tolist())))
    assert (pair.target_memory.bytes == expected).all()


def test_data_is_complete_when_the_notification_is_seen(make: Maker) -> None:
    pair = Pair(make, 12 << 20)
    handle = pair.source.post(pair.peer, pair.whole(), b"complete")
    for _ in range(100_000):
        if pair.target.drain_notifications():
            break
        pair.source.poll(handle)
    assert pair.is_copied()
    pair.settle(handle)


def test_messages_without_writes_arrive_once_each(make: Maker) -> None:
    pair = Pair(make, 8)
    sent = [b"req-%d" % number for number in range(50)] + [b"req-1"]
    handles = [pair.source.post(pair.peer, NO_WRITES, message) for message in sent]
    heard = pair.settle(*handles)
    heard += pair.receive(len(sent) - len(heard))
    assert sorted(message for _, message in heard) == sorted(sent)
    assert {sender for sender, _ in heard} == {"source"}
    assert pair.target_memory.is_untouched()


def test_a_post_without_notification_sends_none(make: Maker) -> None:
    pair = Pair(make, 64)
    pair.settle(pair.source.post(pair.peer, pair.whole()))
    assert pair.is_copied()
    assert pair.receive(0) == []


def test_the_longest_notification_arrives(make: Maker) -> None:
    pair = Pair(make, 8)
    longest = b"n" * MAX_NOTIFICATION_BYTES
    heard = pair.settle(pair.source.post(pair.peer, NO_WRITES, longest))
    heard += pair.receive(1 - len(heard))
    assert heard == [("source", longest)]


def test_both_directions_at_once(make: Maker) -> None:
    pair = Pair(make, 100_000)
    back = pair.target.add_peer(pair.source.describe())
    half = 50_000
    forth = pair.source.post(pair.peer, pair.writes((0, 0, half)), b"forth")
    backward = pair.writes((half, half, half))[:, [1, 0, 2]].copy()
    back_handle = pair.target.post(back, backward, b"back")
    at_target = settle(pair.source, [forth], [pair.target])
    at_source = settle(pair.target, [back_handle], [pair.source])
    at_target += receive(pair.target, 1 - len(at_target), [pair.source])
    at_source += receive(pair.source, 1 - len(at_source), [pair.target])
    assert (at_target, at_source) == ([("source", b"forth")], [("target", b"back")])
    assert pair.is_copied()


def test_the_write_list_may_be_reused_at_once(make: Maker) -> None:
    pair = Pair(make, 4096)
    writes = pair.whole()
    handle = pair.source.post(pair.peer, writes)
    writes[:] = 0
    pair.settle(handle)
    assert pair.is_copied()


# --- refusals: nothing is written, and the message says what is wrong ---------------------------

BAD_RUNS = {
    "length zero": (0, 0, 0),
    "length negative": (0, 0, -1),
    "length negative from the middle": (64, 64, -64),
    "length least int64": (0, 0, INT64_MIN),
    "length greatest int64": (0, 0, INT64_MAX),
    "length that wraps to the start": (64, 64, INT64_MAX - 63),
    "one byte too long": (0, 0, 129),
    "source one byte too far": (1, 0, 128),
    "destination one byte too far": (0, 1, 128),
    "source before its region": (-1, 0, 8),
    "destination before its region": (0, -1, 8),
    "source just behind its region": (128, 0, 1),
    "destination just behind its region": (0, 128, 1),
}


@pytest.mark.parametrize("run", BAD_RUNS.values(), ids=BAD_RUNS.keys())
def test_a_write_out_of_bounds_refuses_the_whole_post(
    make: Maker, run: tuple[int, int, int]
) -> None:
    pair = Pair(make, 128)
    writes = pair.writes((0, 0, 16), (16, 16, 16), run, (32, 32, 16))
    with pytest.raises(InvalidArgumentError, match=r"^write 2 of 4: (source|destination) address"):
        pair.source.post(pair.peer, writes, b"never")
    assert pair.receive(0) == []
    assert pair.target_memory.is_untouched()
    counters = pair.source.counters
    assert (counters["posted"], counters["refused"], counters["live_handles"]) == (0, 1, 0)


@pytest.mark.parametrize("address", [0, 1, -1, INT64_MIN, INT64_MAX])
@pytest.mark.parametrize("column", [0, 1])
def test_an_address_outside_every_region_is_refused(make: Maker, column: int, address: int) -> None:
    pair = Pair(make, 128)
    writes = pair.whole()
    writes[0, column] = address
    with pytest.raises(InvalidArgumentError, match="is not inside one registered region"):
        pair.source.post(pair.peer, writes)
    assert pair.target_memory.is_untouched()


def test_the_message_names_bytes_and_region(make: Maker) -> None:
    pair = Pair(make, 128)
    start = pair.target_memory.address
    with pytest.raises(InvalidArgumentError) as caught:
        pair.source.post(pair.peer, pair.writes((0, 100, 29)))
    message = str(caught.value)
    assert f"destination address {start + 100:#x} with 29 bytes" in message
    assert f"[{start:#x}, {start + 128:#x}) of 128 bytes" in message


def test_a_write_across_two_adjacent_regions_is_refused(make: Maker) -> None:
    source, target = make("source"), make("target")
    memory, landing = Memory(128), Memory(128)
    source.register_memory(memory.address, 128)
    target.register_memory(landing.address, 64)
    target.register_memory(landing.address + 64, 64)
    peer = source.add_peer(target.describe())
    across = np.array([[memory.address, landing.address + 60, 8]], dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match="one registered region"):
        source.post(peer, across)
    assert landing.is_untouched()


@pytest.mark.parametrize(
    "writes",
    [
        np.zeros((1, 3), dtype=np.float64),
        np.zeros((1, 3), dtype=np.int32),
        np.zeros((1, 3), dtype=np.uint64),
        np.zeros((1, 2), dtype=np.int64),
        np.zeros(3, dtype=np.int64),
        [(1, 1, 1)],
        None,
    ],
    ids=lambda value: f"{getattr(value, 'dtype', value)}{getattr(value, 'shape', '')}",
)
def test_a_malformed_write_list_is_refused(make: Maker, writes: object) -> None:
    pair = Pair(make, 128)
    with pytest.raises(InvalidArgumentError, match=r"^writes "):
        pair.source.post(pair.peer, writes, b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "notification", [b"n" * (MAX_NOTIFICATION_BYTES + 1), b"\xff", "text", None, bytearray(b"x")]
)
def test_a_bad_notification_is_refused(make: Maker, notification: object) -> None:
    pair = Pair(make, 128)
    with pytest.raises(InvalidArgumentError, match=r"^notification "):
        pair.source.post(pair.peer, pair.whole(), notification)  # type: ignore[arg-type]
    assert pair.receive(0) == []
    assert pair.target_memory.is_untouched()


def test_an_empty_post_is_refused(make: Maker) -> None:
    pair = Pair(make, 128)
    with pytest.raises(InvalidArgumentError, match="neither a write nor a notification"):
        pair.source.post(pair.peer, NO_WRITES)


def test_an_unknown_peer_is_refused(make: Maker) -> None:
    pair = Pair(make, 128)
    with pytest.raises(TransferError) as caught:
        pair.source.post("stranger", pair.whole())
    assert (caught.value.kind, caught.value.peer) == ("peer_unknown", "stranger")


# --- registration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "size_bytes"),
    [(0, 128), (0, 1), (127, 1), (-1, 2), (127, 2), (-64, 256), (32, 32)],
)
def test_an_overlapping_registration_is_refused(make: Maker, offset: int, size_bytes: int) -> None:
    agent, memory = make("agent"), Memory(128)
    agent.register_memory(memory.address, 128)
    with pytest.raises(InvalidArgumentError, match="overlaps"):
        agent.register_memory(memory.address + offset, size_bytes)
    agent.register_memory(memory.address + 128, 16)
    agent.register_memory(memory.address - 16, 16)


@pytest.mark.parametrize(
    ("address", "size_bytes"),
    [(0, 16), (-4096, 16), (4096, 0), (4096, -1), (4096, INT64_MAX), (INT64_MAX, 2)],
)
def test_an_impossible_registration_is_refused(make: Maker, address: int, size_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^region "):
        make("agent").register_memory(address, size_bytes)


def test_deregistered_memory_is_not_read(make: Maker) -> None:
    pair = Pair(make, 128)
    with pytest.raises(InvalidArgumentError, match="begins at"):
        pair.source.deregister_memory(pair.source_memory.address + 1)
    pair.source.deregister_memory(pair.source_memory.address)
    with pytest.raises(InvalidArgumentError, match="has no registered region"):
        pair.source.post(pair.peer, pair.whole())
    pair.source.register_memory(pair.source_memory.address, 128)
    pair.settle(pair.source.post(pair.peer, pair.whole()))
    assert pair.is_copied()


# --- descriptions and peers ---------------------------------------------------------------------


def test_every_truncation_and_bit_flip_of_a_description_is_refused(make: Maker) -> None:
    pair = Pair(make, 128)
    good = pair.target.describe()
    damaged = [good[:length] for length in range(len(good))]
    damaged += [good + b"\0", good + good]
    for place in range(len(good)):
        for bit in range(8):
            flipped = bytearray(good)
            flipped[place] ^= 1 << bit
            damaged.append(bytes(flipped))
    for blob in damaged:
        with pytest.raises(DescriptionError):
            pair.source.add_peer(blob)
    assert pair.source.add_peer(good) == pair.peer
    pair.settle(pair.source.post(pair.peer, pair.whole()))
    assert pair.is_copied()


@pytest.mark.parametrize("blob", [b"", b"\0" * 64, b"not a description", "text", None])
def test_what_is_no_description_is_refused(make: Maker, blob: object) -> None:
    with pytest.raises(DescriptionError, match=r"^description "):
        make("agent").add_peer(blob)  # type: ignore[arg-type]


def test_another_transports_description_is_refused_by_name(make: Maker) -> None:
    foreign = Description("carrier-pigeon", "x", b"1", b"", RegionTable("x")).encode()
    with pytest.raises(DescriptionError, match=r"of transport 'carrier-pigeon', expected '\w+'"):
        make("agent").add_peer(foreign)


def test_the_own_description_is_refused(make: Maker) -> None:
    agent = make("agent")
    with pytest.raises(InvalidArgumentError, match="itself"):
        agent.add_peer(agent.describe())


@pytest.mark.parametrize("name", ["", "a\nb", "gr\u00fc\u00dfe", "n" * 256, 5])
def test_a_bad_agent_name_is_refused(make: Maker, name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="agent name"):
        make(name)  # type: ignore[arg-type]


def test_regions_registered_later_need_a_fresh_description(make: Maker) -> None:
    pair = Pair(make, 128)
    late = Memory(128)
    pair.target.register_memory(late.address, 128)
    writes = np.array([[pair.source_memory.address, late.address, 128]], dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match="destination address"):
        pair.source.post(pair.peer, writes)
    assert pair.source.add_peer(pair.target.describe()) == pair.peer
    pair.settle(pair.source.post(pair.peer, writes), pair.source.post(pair.peer, pair.whole()))
    assert (late.bytes == pair.source_memory.bytes).all()
    assert pair.is_copied()


def test_a_peer_that_restarts_is_written_at_its_new_place_only(make: Maker) -> None:
    pair = Pair(make, 128)
    old_writes = pair.whole()
    pair.target.close()
    restarted, new_memory = make("target"), Memory(128)
    restarted.register_memory(new_memory.address, 128)
    assert pair.source.add_peer(restarted.describe()) == pair.peer
    with pytest.raises(InvalidArgumentError, match="destination address"):
        pair.source.post(pair.peer, old_writes)
    writes = np.array([[pair.source_memory.address, new_memory.address, 128]], dtype=np.int64)
    heard = settle(pair.source, [pair.source.post(pair.peer, writes, b"again")], [restarted])
    heard += receive(restarted, 1 - len(heard), [pair.source])
    assert heard == [("source", b"again")]
    assert (new_memory.bytes == pair.source_memory.bytes).all()
    assert pair.target_memory.is_untouched()


def test_a_removed_peer_takes_no_posts(make: Maker) -> None:
    pair = Pair(make, 128)
    pair.source.remove_peer(pair.peer)
    pair.source.remove_peer(pair.peer)
    pair.source.remove_peer("never added")
    with pytest.raises(TransferError) as caught:
        pair.source.post(pair.peer, pair.whole())
    assert caught.value.kind == "peer_unknown"
    assert pair.source.add_peer(pair.target.describe()) == pair.peer
    pair.settle(pair.source.post(pair.peer, pair.whole()))
    assert pair.is_copied()


def test_a_closed_peer_disturbs_no_other(make: Maker) -> None:
    pair = Pair(make, 4096)
    other, other_memory = make("other"), Memory(4096)
    other.register_memory(other_memory.address, 4096)
    pair.source.add_peer(other.describe())
    doomed = pair.source.post(pair.peer, pair.whole(), b"x")
    pair.target.close()
    writes = np.array([[pair.source_memory.address, other_memory.address, 4096]], dtype=np.int64)
    alive = pair.source.post("other", writes, b"y")
    heard = settle(pair.source, [alive, doomed], [other])
    heard += receive(other, 1 - len(heard), [pair.source])
    assert heard == [("source", b"y")]
    assert pair.source.poll(doomed) is WriteState.FAILED
    assert doomed.error is not None
    assert "target" in doomed.error
    with pytest.raises(TransferError) as caught:
        pair.source.post(pair.peer, pair.whole())
    assert caught.value.kind == "peer_dead"


# --- handles ------------------------------------------------------------------------------------


def test_a_handle_is_released_once_and_by_its_own_agent(make: Maker) -> None:
    pair = Pair(make, 128)
    handle = pair.source.post(pair.peer, pair.whole())
    with pytest.raises(InvalidArgumentError, match="RUNNING"):
        pair.source.release(handle)
    pair.settle(handle)
    with pytest.raises(InvalidArgumentError, match="is not of agent 'target'"):
        pair.target.release(handle)
    pair.source.release(handle)
    for again in (pair.source.release, pair.source.poll):
        with pytest.raises(InvalidArgumentError, match="released before"):
            again(handle)
    assert pair.source.counters["released"] == 1


def test_removing_a_peer_ends_its_posts_or_calls_them_lost(make: Maker) -> None:
    pair = Pair(make, 1 << 20)
    handle = pair.source.post(pair.peer, pair.whole(), b"x")
    pair.source.remove_peer(pair.peer)
    state = pair.source.poll(handle)
    assert state in (WriteState.FAILED, WriteState.LOST)
    assert handle.error is not None
    if state is WriteState.LOST:
        with pytest.raises(InvalidArgumentError, match="LOST"):
            pair.source.release(handle)
    assert pair.receive(0) == []


def test_closing_ends_the_own_posts(make: Maker) -> None:
    pair = Pair(make, 1 << 20)
    handle = pair.source.post(pair.peer, pair.whole(), b"x")
    pair.source.close()
    pair.source.close()
    assert pair.source.poll(handle) is WriteState.FAILED
    before = pair.target_memory.bytes.copy()
    for _ in range(50):
        assert pair.target.drain_notifications() == []
    assert (pair.target_memory.bytes == before).all()
    pair.source.release(handle)
    assert pair.source.counters["live_handles"] == 0


def test_a_closed_agent_refuses_everything_new(make: Maker) -> None:
    pair = Pair(make, 128)
    description = pair.target.describe()
    pair.source.close()
    calls = (
        lambda: pair.source.register_memory(1 << 20, 1),
        pair.source.describe,
        lambda: pair.source.add_peer(description),
        lambda: pair.source.post(pair.peer, pair.whole()),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="agent 'source' is closed"):
            call()


def test_counters_add_up(make: Maker) -> None:
    pair = Pair(make, 1000)
    handles = [
        pair.source.post(pair.peer, pair.writes((0, 0, 10), (20, 20, 30)), b"%d" % number)
        for number in range(20)
    ]
    heard = pair.settle(*handles)
    heard += pair.receive(20 - len(heard))
    assert pair.source.counters["live_handles"] == 20
    for handle in handles:
        pair.source.release(handle)
    counters = pair.source.counters
    assert set(COUNTER_NAMES) <= set(counters)
    expected = {"posted": 20, "released": 20, "live_handles": 0, "writes": 40, "bytes": 800}
    expected |= {"done": 20, "failed": 0, "lost": 0, "drained": 0, "refused": 0}
    assert {name: counters[name] for name in expected} == expected
    assert pair.target.counters["notifications"] == 20


def test_an_agent_is_a_transport(make: Maker) -> None:
    agent = make("agent")
    assert isinstance(agent, Transport)
    assert agent.agent_name == "agent"
    assert agent.write_cost_us >= 0.0


# --- threads ------------------------------------------------------------------------------------


def test_workers_poll_while_peers_come_and_go(make: Maker) -> None:
    pair = Pair(make, 4096)
    guests = [make(f"guest-{number}") for number in range(10)]
    blobs = [guest.describe() for guest in guests]

    def work(worker: int) -> None:
        for number in range(50):
            handle = pair.source.post(pair.peer, pair.whole(), b"%d of %d" % (number, worker))
            while not pair.source.poll(handle).has_ended:
                time.sleep(0.0005)
            assert pair.source.poll(handle) is WriteState.DONE
            pair.source.release(handle)

    def control() -> None:
        for blob in blobs * 20:
            pair.source.remove_peer(pair.source.add_peer(blob))

    heard: list[tuple[str, bytes]] = []
    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(work, worker) for worker in range(4)] + [pool.submit(control)]
        while not all(job.done() for job in jobs):
            heard += pair.target.drain_notifications()
            for guest in guests:
                guest.drain_notifications()
        for job in jobs:
            job.result()
    heard += pair.receive(200 - len(heard))
    assert len(heard) == len({message for _, message in heard}) == 200
    assert pair.source.counters["live_handles"] == 0
    assert pair.is_copied()
