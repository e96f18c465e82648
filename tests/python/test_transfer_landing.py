# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Landing regions: who gets one, when it comes back, and what a wrong completion does."""

from dataclasses import replace
from typing import Any

import pytest

from kvxfer import InvalidArgumentError, Sharding
from kvxfer.transfer import RoomState, TransferOptions
from kvxfer.transfer.completion import Completion
from kvxfer.transfer.landing import LandingPool, Region, RegionHolder
from support.deferred import DeferredCopies, Event
from support.transfer_world import Transfer, World


def pool_of(count: int, depth: int = 2) -> tuple[LandingPool, list[Region]]:
    regions = [Region(index, 4096 * (index + 1), 64, None) for index in range(count)]
    return LandingPool(regions, depth), regions


def holder(log: list[tuple[str, list[int]]], name: str) -> RegionHolder:
    return RegionHolder(lambda regions: log.append((name, [r.index for r in regions])))


def test_at_most_half_of_the_regions_are_granted_ahead_of_need() -> None:
    pool, _ = pool_of(4)
    log: list[tuple[str, list[int]]] = []
    one, two, three = (holder(log, name) for name in "abc")
    assert [r.index for r in pool.reserve(one)] == [0, 1]
    assert pool.reserve(two) == []
    pool.want(two, 0)
    assert log == [("b", [2])]
    assert pool.reserve(three) == []
    pool.want(three, 0)
    assert log == [("b", [2]), ("c", [3])]
    assert (pool.held_count, pool.waiting_count) == (4, 0)


def test_a_single_region_serves_whoever_has_a_segment_ready() -> None:
    pool, (region,) = pool_of(1)
    log: list[tuple[str, list[int]]] = []
    one, two = holder(log, "a"), holder(log, "b")
    assert pool.reserve(one) == pool.reserve(two) == []
    pool.want(two, 0)
    pool.want(one, 0)
    assert log == [("b", [0])]
    pool.landed(region)
    pool.release(two, region)
    assert log == [("b", [0]), ("a", [0])]
    assert region.generation == 2


def test_sources_with_a_segment_ready_are_served_in_order_of_asking() -> None:
    pool, regions = pool_of(2)
    log: list[tuple[str, list[int]]] = []
    first, *others = (holder(log, name) for name in "abcd")
    pool.want(first, 0)
    pool.want(first, 0)
    for other in others:
        pool.want(other, 0)
    assert log == [("a", [0]), ("b", [1])]
    for region, owner in zip(regions, (first, others[0]), strict=True):
        pool.landed(region)
        pool.release(owner, region)
    assert log[2:] == [("c", [0]), ("d", [1])]


def test_a_holder_keeps_its_last_region_while_it_has_more_to_send() -> None:
    pool, regions = pool_of(2)
    log: list[tuple[str, list[int]]] = []
    one, two = holder(log, "a"), holder(log, "b")
    pool.want(one, 0)
    pool.landed(regions[0])
    pool.want(one, 1)
    assert log == [("a", [0]), ("a", [1])]
    pool.want(two, 0)
    pool.landed(regions[1])
    pool.renew(one, regions[0], has_more=True)
    assert log[2:] == [("b", [0])], "it holds another one"
    pool.renew(one, regions[1], has_more=True)
    assert log[3:] == [("a", [1])], "its last one"
    assert regions[1].generation == 2


def test_a_region_without_more_to_send_serves_those_that_wait() -> None:
    pool, regions = pool_of(2)
    log: list[tuple[str, list[int]]] = []
    one, two, three = (holder(log, name) for name in "abc")
    pool.want(one, 0)
    pool.want(two, 0)
    pool.want(three, 0)
    pool.landed(regions[0])
    pool.renew(one, regions[0], has_more=False)
    assert log == [("a", [0]), ("b", [1]), ("c", [0])]
    with pytest.raises(InvalidArgumentError, match="landing region 0 is not held by this room"):
        pool.release(one, regions[0])


def test_a_second_region_of_a_source_with_one_more_segment_is_ahead_of_need() -> None:
    """Four sources each have two segments and then nothing for long: two of four regions stay."""
    pool, _ = pool_of(4)
    log: list[tuple[str, list[int]]] = []
    for name in "abcd":
        one = holder(log, name)
        pool.want(one, 0)
        for has_more in (True, False):
            region = next(r for r in one.held.values() if not r.has_landed)
            pool.landed(region)
            pool.renew(one, region, has_more=has_more)
    assert pool.held_count == 2
    pool.want(holder(log, "e"), 0)
    assert log[-1][0] == "e"


def test_a_want_that_crosses_a_grant_changes_nothing() -> None:
    pool, regions = pool_of(4)
    log: list[tuple[str, list[int]]] = []
    one = holder(log, "a")
    pool.want(one, 0)
    pool.want(one, 0)
    assert log == [("a", [0])]
    pool.want(one, 1)
    assert log == [("a", [0]), ("a", [1])], "it has used the first, whose write is under way"
    assert not any(region.has_landed for region in regions)


def test_everything_comes_back() -> None:
    pool, regions = pool_of(6, depth=3)
    log: list[tuple[str, list[int]]] = []
    holders = [holder(log, name) for name in "abcdef"]
    for one in holders:
        pool.reserve(one)
        pool.want(one, 0)
    for _ in range(3):
        for one in holders:
            for region in list(one.held.values()):
                pool.landed(region)
                pool.renew(one, region, has_more=len(log) % 2 == 0)
    for one in holders:
        pool.release_all(one)
    assert (pool.held_count, pool.waiting_count, pool._idle_count) == (0, 0, 0)
    assert all(not region.is_idle for region in regions)


def test_rooms_without_rows_do_not_keep_regions_from_rooms_with_rows() -> None:
    """Twelve rooms wait for their prefill; the last one's rows are there first."""
    world = World(tick_s=0.001)
    source = world.add("p0", page_count=64)
    destination = world.add("d0", page_count=64, landing_region_count=4)
    transfers = []
    for room in range(1, 13):
        transfer = Transfer(world, [source], [destination], 20, room=room, landing="landing")
        transfer.destination_pages = [
            replace(transfer.destination_pages[0], ids=list(range(5 * room - 5, 5 * room)))
        ]
        transfer.open()
        transfers.append(transfer)
    world.poll(5)
    for transfer in reversed(transfers):
        transfer.send(20, is_final=True)
        world.finish(*transfer.rooms)
        assert transfer.receivers[0].state is RoomState.SUCCESS
    world.check_idle()


@pytest.mark.parametrize("region_count", [1, 2])
def test_a_send_while_the_only_granted_region_is_written_gets_another(region_count: int) -> None:
    """The source asks before its write has landed and after it said that nothing follows it."""
    world = World(tick_s=0.001)
    source = world.add("p0")
    destination = world.add("d0", landing_region_count=region_count)
    transfer = Transfer(world, [source], [destination], 24, landing="landing")
    transfer.open()
    world.poll(4)
    world.wire.completes_on_poll = None
    for end in (8, 16):
        transfer.send(end, is_final=False)
        world.poll(4)
    world.wire.complete_all()
    world.poll(4)
    world.wire.completes_on_poll = 1
    transfer.send(24, is_final=True)
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].state is RoomState.SUCCESS
    transfer.check_rows()
    world.check_idle()


def test_a_region_that_is_granted_before_the_source_opens_the_room_is_not_lost() -> None:
    world = World(tick_s=0.001)
    source, destination = world.add("p0"), world.add("d0", landing_region_count=2)
    first, second = (
        Transfer(world, [source], [destination], 8, room=room, landing="landing") for room in (1, 2)
    )
    second.destination_pages = [replace(second.destination_pages[0], ids=[30, 31])]
    first.open()
    second.receivers.append(
        destination.manager.open_receiver(2, [source.address], [30, 31], end=8, landing="landing")
    )
    world.poll(4)
    first.send(8, is_final=True)
    world.finish(*first.rooms)
    world.poll(2)
    assert destination.manager.counters["landing_regions_held"] == 1
    second.senders.append(source.manager.open_sender(2))
    second.send(8, is_final=True)
    world.finish(*second.rooms)
    assert second.receivers[0].state is RoomState.SUCCESS
    world.check_idle()


def test_a_segment_that_waits_for_the_engine_keeps_no_region() -> None:
    """The first room's next rows are handed over but not computed; the second's are there."""
    world = World(tick_s=0.001)
    source, destination = world.add("p0"), world.add("d0", landing_region_count=1)
    first, second = (
        Transfer(world, [source], [destination], 16, room=room, landing="landing")
        for room in (1, 2)
    )
    second.destination_pages = [replace(second.destination_pages[0], ids=[28, 29, 30, 31])]
    event = Event()
    first.open()
    second.open()
    world.poll(4)
    first.send(8, is_final=False)
    first.send(16, is_final=True, ready=event)
    world.poll(10)
    second.send(16, is_final=True)
    world.finish(*second.rooms)
    event.has_happened = True
    world.finish(*first.rooms)
    assert {room.state for room in (*first.rooms, *second.rooms)} == {RoomState.SUCCESS}
    world.check_idle()


def test_rooms_that_hold_each_others_regions_both_end() -> None:
    """Two receivers with one region each; two rooms of two sources want both, in crossed order."""
    world = World(tick_s=0.001)
    sources = [world.add("p0"), world.add("q0")]
    destinations = world.group("d", 2, landing_region_count=1, page_count=64)
    transfers = []
    for room, source in enumerate(sources, start=1):
        transfer = Transfer(world, [source], destinations, 30, room=room, landing="landing")
        transfer.destination_pages = [
            replace(p, ids=[8 * room + i for i in range(len(p.ids))])
            for p in transfer.destination_pages
        ]
        transfer.open()
        transfers.append(transfer)
    world.poll(3)
    for transfer in transfers:
        transfer.send(30, is_final=True)
        transfer.sources[0].manager.poll()
    queues = [world.hub.queues[rank.address] for rank in destinations]
    assert [len(queue) for queue in queues] == [2, 2]
    queues[1].reverse()
    for rank in destinations:
        rank.manager.poll()
    holders = [t.senders[0].destinations for t in transfers]
    world.poll(1)
    assert [[len(d.credits) for d in both] for both in holders] == [[1, 0], [0, 1]]
    world.finish(*(room for transfer in transfers for room in transfer.rooms))
    for transfer in transfers:
        assert {room.state for room in transfer.rooms} == {RoomState.SUCCESS}
    world.check_idle()


def test_the_capacity_is_the_smaller_of_buffer_and_region() -> None:
    world = World()
    source = world.add("p0", pack_tokens=32)
    small = world.add("d0", landing_region_bytes=12 * 16)
    transfer = Transfer(world, [source], [small], 30, room=1, landing="landing")
    transfer.run()
    assert transfer.senders[0].capacity_tokens == 12
    transfer.check_rows()
    large = Transfer(world, [source], [world.add("d1")], 30, room=2, landing="in_place")
    large.run()
    assert large.senders[0].capacity_tokens is None


def test_a_region_that_holds_no_segment_is_refused_with_both_sizes() -> None:
    world = World()
    transfer = Transfer(world, world.group("p", 2), [world.add("d0", landing_region_bytes=32)], 30)
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "8 tokens has 64 bytes, but landing regions have 32" in str(room.error)


def test_a_buffer_that_holds_no_segment_is_refused_on_both_sides() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0", pack_buffer_bytes=40)], world.group("d", 2), 30)
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.error is not None
        assert room.error.kind == "capacity"
        assert "40" in str(room.error)


@pytest.mark.parametrize(
    ("write_cost_us", "mode"), [(0.0, "in_place"), (0.05, "in_place"), (7.0, "landing")]
)
def test_the_cost_of_a_write_decides_how_rows_land(write_cost_us: float, mode: str) -> None:
    """37 tokens onto shuffled pages of 4: 10 runs a plane against one write and one unpack."""
    world = World()
    source = world.add("p0", write_cost_us=write_cost_us, pack_tokens=64)
    transfer = Transfer(world, [source], world.group("d", 2), 61)
    transfer.run()
    transfer.check_rows()
    assert transfer.receivers[0].result().modes == {"p0": mode}
    assert transfer.senders[0].result().modes == {"d0": mode, "d1": mode}


def test_rows_that_need_no_packing_stay_in_place_whatever_a_write_costs() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0", write_cost_us=50.0)], [world.add("d0")], 61, room=1)
    transfer.run()
    assert transfer.receivers[0].result().modes == {"p0": "in_place"}
    assert transfer.senders[0].result().metrics.segments == 1
    told = Transfer(world, transfer.sources, transfer.destinations, 61, room=2, landing="landing")
    told.run()
    told.check_rows()
    assert told.receivers[0].result().modes == {"p0": "landing"}


def test_landing_takes_one_write_per_segment() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], world.group("d", 2), 40, landing="landing")
    transfer.run()
    metrics = transfer.senders[0].result().metrics
    assert (metrics.segments, metrics.writes, metrics.packed_writes) == (10, 10, 10)
    assert metrics.row_writes == 40 * 2


FORGERIES = {
    "unknown region": ({"region": 7}, "names landing region 7 of generation"),
    "old generation": ({"region_generation": 99}, "of generation 99, expected one"),
    "no region": ({"region": -1}, "names landing region -1"),
    "too few bytes": ({"size_bytes": 1}, "has 1 bytes, expected 64"),
    "beyond the end": ({"end": 9}, r"is \[0, 9\), expected a part of \[0, 8\)"),
    "digest": ({"digest": "f" * 16}, "digest ffffffffffffffff, expected"),
    "not drained": ({"is_final": True}, "before the other writes were over"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_completion_that_does_not_fit_fails_the_room_by_name(name: str) -> None:
    fields, message = FORGERIES[name]
    world = World()
    world.wire.holds_notifications = True
    source, destination = world.add("p0"), world.add("d0", Sharding(2, 0))
    transfer = Transfer(world, [source], [destination], 8, landing="landing")
    transfer.open()
    transfer.send(8, is_final=False)
    world.poll_until(lambda: len(world.wire.held) == 1)
    genuine = Completion.decode(world.wire.held[0].message)
    destination.transport.inbox.append(("p0", replace(genuine, **fields).encode()))
    world.poll(3)
    (receiver,) = transfer.receivers
    assert receiver.state is RoomState.FAILED
    assert receiver.error is not None
    assert receiver.error.kind == "protocol"
    with pytest.raises(type(receiver.error), match=message):
        raise receiver.error
    world.wire.deliver()
    world.poll(3)
    transfer.check_untouched()
    assert transfer.senders[0].state is RoomState.FAILED
    world.check_idle()


def test_a_grant_holds_for_one_segment() -> None:
    """A second segment in a region that is still unpacked fails the room, and harms no other."""
    world = World()
    world.wire.holds_notifications = True
    copies = DeferredCopies()
    source, destination = world.add("p0"), world.add("d0", Sharding(2, 0), copies=copies)
    transfer = Transfer(world, [source], [destination], 16, landing="landing")
    transfer.open()
    transfer.send(8, is_final=False)
    world.poll_until(lambda: len(world.wire.held) == 1)
    first = Completion.decode(world.wire.held[0].message)
    second = replace(first, segment=1, begin=8, end=16)
    world.wire.deliver()
    destination.transport.inbox.append(("p0", second.encode()))
    world.poll(2)
    (receiver,) = transfer.receivers
    message = "segment 1 names landing region 0 of generation 1, which holds an earlier segment"
    assert message in str(receiver.error)
    assert len(copies.waiting) == 1
    copies.run_one()
    world.finish(*transfer.rooms)
    world.check_idle()


def test_a_completion_of_another_agent_counts_for_nothing() -> None:
    world = World()
    source, destination, other = world.add("p0"), world.add("d0"), world.add("x0")
    world.wire.holds_notifications = True
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.held) == 1)
    line = world.wire.held[0].message
    destination.transport.inbox.append((other.name, line))
    world.poll(2)
    assert transfer.receivers[0].state is RoomState.WAITING_FOR_INPUT
    assert destination.manager.counters["completions_of_strangers"] == 1
    world.wire.deliver()
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].state is RoomState.SUCCESS


def test_segments_count_in_any_order_and_repeats_do_not() -> None:
    world = World()
    world.wire.holds_notifications = True
    transfer = Transfer(world, [world.add("p0")], [world.add("d0", Sharding(2, 1))], 40)
    transfer.open()
    transfer.send(40, is_final=True)
    world.poll_until(lambda: len(world.wire.held) == 5)
    world.wire.reorder([4, 2, 0, 3, 1])
    for number in range(4):
        world.wire.repeat(number)
    for _ in range(4):
        world.wire.deliver(1)
        world.poll(2)
        assert transfer.receivers[0].state is RoomState.TRANSFERRING
    world.wire.deliver(1)
    world.poll(2)
    assert transfer.receivers[0].state is RoomState.SUCCESS
    transfer.check_rows()
    assert transfer.receivers[0].result().metrics.bytes == 20 * 16


def test_a_gap_never_becomes_success() -> None:
    world = World()
    world.wire.holds_notifications = True
    transfer = Transfer(world, [world.add("p0")], [world.add("d0", Sharding(2, 1))], 40)
    transfer.open()
    transfer.send(40, is_final=True)
    world.poll_until(lambda: len(world.wire.held) == 5)
    world.wire.drop(2)
    world.wire.deliver()
    world.poll(5)
    assert transfer.receivers[0].state is RoomState.TRANSFERRING
    deadline_s = TransferOptions().waiting_deadline_s
    for _ in range(int(deadline_s) + 2):
        world.clock.advance(1.0)
        world.poll(1)
    error = transfer.receivers[0].error
    assert error is not None
    assert (error.kind, error.peer) == ("deadline", "p0")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"begin": 4, "end": 8, "size_bytes": 32}, "segment 0 was completed twice, with different"),
        ({"segment": 5}, "segment 5 came after the final segment 1"),
        ({"is_final": True, "is_drained": True, "segment": 2}, "segment 2 came after the final"),
        ({"region": 0, "segment": 2}, "segment 2 names landing region 0, expected none"),
    ],
)
def test_a_completion_that_contradicts_an_earlier_one_fails_the_room(
    fields: dict[str, Any], message: str
) -> None:
    world = World()
    world.wire.holds_notifications = True
    transfer = Transfer(world, [world.add("p0")], [world.add("d0", Sharding(2, 0))], 16)
    transfer.open()
    transfer.send(16, is_final=True)
    world.poll_until(lambda: len(world.wire.held) == 2)
    first = Completion.decode(world.wire.held[0].message)
    if "segment" in fields and "region" not in fields:
        world.wire.reorder([1, 0])
    world.wire.deliver(1)
    world.poll(1)
    forged = replace(first, **fields).encode()
    transfer.destinations[0].transport.inbox.append(("p0", forged))
    world.poll(2)
    assert message in str(transfer.receivers[0].error)


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([(0, 8), (12, 16)], "segment 1 begins at position 12, expected 8"),
        ([(0, 8), (4, 16)], "segment 1 begins at position 4, expected 8"),
        ([(0, 8), (8, 12)], "segments end at position 12, expected 16"),
    ],
)
def test_segments_must_tile_what_was_asked_for(cuts: list[tuple[int, int]], message: str) -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0", Sharding(2, 0))], 16)
    transfer.open()
    world.poll(3)
    (receiver,), rank = transfer.receivers, transfer.destinations[0]
    digest = receiver._sources[0].digest
    for number, (begin, end) in enumerate(cuts):
        is_final = number == len(cuts) - 1
        line = Completion(
            room=5,
            room_generation=receiver.generation,
            source_index=0,
            segment=number,
            begin=begin,
            end=end,
            size_bytes=(end - begin) // 2 * 16,
            is_final=is_final,
            is_drained=is_final,
            digest=digest,
            source="p0",
        ).encode()
        rank.transport.inbox.append(("p0", line))
    world.poll(2)
    assert receiver.state is RoomState.FAILED
    assert message in str(receiver.error)
