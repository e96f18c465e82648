# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults that other projects reported about writes under way: aborts, lifetimes, leaks, metrics."""

import numpy as np
import pytest

from kvxfer.transfer import RoomState, TransferOptions
from support.transfer_world import Pages, Transfer, World


def manual_world() -> World:
    """A world in which no post completes before the test says so."""
    world = World()
    world.wire.completes_on_poll = None
    return world


def finish_wire(world: World, *rooms: object) -> None:
    """Let every post complete as soon as it is made, until rooms are over."""
    for _ in range(300):
        world.poll()
        world.wire.complete_all()
        if all(room.state.is_over for room in rooms):  # type: ignore[attr-defined]
            return
    raise AssertionError("rooms are not over")


def aborted_transfer(world: World) -> Transfer:
    """Pages [3, 4] of the destination are being written when it gives up."""
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8, room=1)
    transfer.destination_pages = [Pages([3, 4])]
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    transfer.receivers[0].abort()
    world.poll(3)
    return transfer


def test_a22_pages_stay_held_until_the_late_write_is_over() -> None:
    """sglang#24527, #27372, #35049."""
    world = manual_world()
    first = aborted_transfer(world)
    receiver = first.receivers[0]
    assert receiver.state is RoomState.FAILED
    assert receiver.pages_held
    second = Transfer(world, first.sources, first.destinations, 8, room=2, seed=20)
    second.destination_pages = [Pages([5, 6])]
    second.open()
    second.send(8, is_final=True)
    world.poll(3)
    late, healthy = world.wire.running()
    world.wire.complete(healthy)
    world.poll(2)
    assert second.receivers[0].state is RoomState.SUCCESS
    assert receiver.pages_held
    world.wire.complete(late)
    assert receiver.pages_held, "the sender has not said yet that the write is over"
    world.poll(2)
    assert not receiver.pages_held
    assert receiver.state is RoomState.FAILED
    for transfer in (first, second):
        transfer.before = [rank.snapshot() for rank in transfer.destinations]
        transfer.check_rows()
    world.check_idle()


def test_a22_without_an_answer_pages_are_held_until_the_deadline_and_counted() -> None:
    """sglang#35049: the acknowledgement never comes."""
    world = manual_world()
    transfer = aborted_transfer(world)
    receiver, manager = transfer.receivers[0], transfer.destinations[0].manager
    world.clock.advance(TransferOptions().drain_deadline_s - 1)
    manager.poll()
    assert receiver.pages_held
    assert manager.counters.get("drains_expired", 0) == 0
    world.clock.advance(2)
    manager.poll()
    assert not receiver.pages_held
    assert receiver.drain_expired
    assert manager.counters["drains_expired"] == 1
    world.wire.complete_all()
    world.poll(3)
    world.check_idle()


def test_a22_a_landing_region_of_a_failed_room_returns_only_after_its_write() -> None:
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0", landing_region_count=1)
    first = Transfer(world, [source], [destination], 8, room=1, landing="landing")
    first.open()
    first.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    first.receivers[0].abort()
    second = Transfer(world, [source], [destination], 8, room=2, landing="landing", seed=20)
    second.open()
    second.send(8, is_final=True)
    world.clock.advance(TransferOptions().drain_deadline_s + 1)
    world.poll(10)
    assert first.receivers[0].drain_expired
    assert len(world.wire.posts) == 1, "the region is not granted again"
    world.wire.complete(world.wire.last_post)
    finish_wire(world, *second.rooms)
    assert second.receivers[0].state is RoomState.SUCCESS
    second.check_rows()
    world.poll(3)
    world.check_idle()


@pytest.mark.parametrize("landing", ["in_place", "landing"])
def test_a23_an_abort_during_a_transfer_ends_it_for_good(landing: str) -> None:
    """sglang#30352: segments 0, 1, 2; the abort comes while segment 0 is under way."""
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0")
    sharded = Transfer(
        world, [source], [destination], 24, room=7, landing=landing, metadata_bytes=8
    )
    sharded.open()
    sharded.send(8, is_final=False)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    sender, receiver = sharded.senders[0], sharded.receivers[0]
    receiver.abort("client went away")
    world.poll(2)
    world.wire.complete_all()
    world.poll(2)
    sharded.send(16, is_final=False)
    sharded.send(24, is_final=True, metadata=b"x")
    receiver.abort()
    world.poll(5)
    assert len(world.wire.posts) == 1
    assert [sender.state, receiver.state] == [RoomState.FAILED] * 2
    assert "client went away" in str(sender.error)
    assert sender.error is not None
    assert sender.error.peer == "d0"
    assert receiver.metadata is None
    healthy = Transfer(world, [source], [destination], 24, room=8)
    healthy.open()
    healthy.send(24, is_final=True)
    finish_wire(world, *healthy.rooms)
    healthy.check_rows()
    world.poll(3)
    world.check_idle()


def test_a23_an_abort_of_an_unknown_room_is_harmless() -> None:
    """sglang#30352."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    warm = Transfer(world, [source], [destination], 4, room=1)
    warm.run()
    orphan = destination.manager.open_receiver(99, [source.address], [1], end=4)
    orphan.abort()
    orphan.abort()
    world.poll(5)
    assert orphan.state is RoomState.FAILED
    assert not orphan.pages_held
    again = Transfer(world, [source], [destination], 4, room=2)
    again.run()
    again.check_rows()


def test_a24_source_pages_are_held_until_every_read_is_over() -> None:
    """TensorRT-LLM#12542: the transport reads the page when the write completes."""
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4)
    transfer.open()
    assert not transfer.senders[0].pages_held
    transfer.send(4, is_final=True)
    assert transfer.senders[0].pages_held
    world.poll(5)
    assert transfer.senders[0].pages_held
    world.wire.complete_all()
    world.poll(2)
    assert not transfer.senders[0].pages_held
    transfer.check_rows()


def test_a24_packed_rows_need_their_pages_only_until_they_are_packed() -> None:
    world = manual_world()
    source, destinations = world.add("p0"), world.group("d", 2)
    transfer = Transfer(world, [source], destinations, 8)
    transfer.open()
    transfer.send(8, is_final=False)
    world.poll_until(lambda: len(world.wire.running()) == 2)
    assert not transfer.senders[0].pages_held
    expected = [array.copy() for array in source.arrays]
    for array in source.arrays:
        array[:] = 0xBB
    world.wire.complete_all()
    transfer.send(8, is_final=True)
    finish_wire(world, *transfer.rooms)
    for array, old in zip(source.arrays, expected, strict=True):
        array[:] = old
    transfer.check_rows()


@pytest.mark.parametrize("ends", ["complete", "fail"])
def test_a24_a_failed_room_lets_go_of_its_pages_once(ends: str) -> None:
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4)
    transfer.open()
    transfer.send(4, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    transfer.senders[0].abort()
    world.poll(2)
    assert transfer.senders[0].pages_held
    getattr(world.wire, ends)(world.wire.last_post)
    world.poll(3)
    assert not transfer.senders[0].pages_held
    assert transfer.receivers[0].state is RoomState.FAILED
    world.check_idle()


def test_a25_cancelling_one_room_leaves_the_others_and_the_peer_alone() -> None:
    """dynamo#7489: 100 rounds of two rooms, one cancelled in flight."""
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0")
    for turn in range(100):
        pair = []
        for offset, pages in ((1, [3, 4]), (2, [5, 6])):
            transfer = Transfer(world, [source], [destination], 8, room=2 * turn + offset)
            transfer.destination_pages = [Pages(pages)]
            transfer.open()
            transfer.send(8, is_final=True)
            pair.append(transfer)
        world.poll_until(lambda: len(world.wire.running()) == 2)
        pair[0].receivers[0].abort()
        world.poll(1)
        finish_wire(world, *pair[0].rooms, *pair[1].rooms)
        world.poll(2)
        assert pair[1].receivers[0].state is RoomState.SUCCESS
        assert pair[0].receivers[0].state is RoomState.FAILED
        assert not pair[0].receivers[0].pages_held
        pair[1].before = [rank.snapshot() for rank in pair[1].destinations]
        pair[1].check_rows()
    assert source.manager.peer_names == ["d0"]
    assert source.manager.counters["peers_dropped"] == 0
    world.check_idle()


def test_a26_a_failed_write_is_never_reported_as_received() -> None:
    """vllm#52234 (ii): the second write of the room ends in an error."""
    world = manual_world()
    source, destinations = world.add("p0"), world.group("d", 2)
    transfer = Transfer(world, [source], destinations, 16)
    transfer.open()
    transfer.send(16, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 4)
    first, second, third, fourth = world.wire.running()
    world.wire.complete(first)
    world.wire.fail(second, "cable pulled")
    world.poll(3)
    assert [room.state for room in transfer.rooms] == [RoomState.FAILED] * 3
    assert "cable pulled" in str(transfer.senders[0].error)
    assert "cable pulled" in str(transfer.receivers[1].error)
    assert source.manager.counters["failed_transport"] == 1
    assert transfer.receivers[0].pages_held, "the third write goes to it"
    world.wire.complete(third)
    world.wire.fail(fourth)
    world.poll(3)
    assert not any(room.pages_held for room in transfer.receivers)
    metrics = transfer.senders[0].result().metrics
    assert (metrics.bytes, metrics.failed_bytes) == (2 * 64, 2 * 64)
    world.check_idle()


def test_a26_a_lost_write_fails_the_room_and_keeps_its_buffer() -> None:
    """The result is ambiguous: the room fails at once, buffer and pages wait for the drain."""
    world = manual_world()
    source, (destination, _) = world.add("p0"), world.group("d", 2)
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    world.wire.lose(world.wire.last_post)
    world.poll(3)
    assert [room.state for room in transfer.rooms] == [RoomState.FAILED] * 2
    assert transfer.receivers[0].pages_held
    assert source.manager.counters["pack_buffers_leased"] == 1
    assert source.manager.counters["writes_lost"] == 1
    world.wire.drain(world.wire.last_post, lands=True)
    world.poll(3)
    assert not transfer.receivers[0].pages_held
    world.check_idle()


def test_a35_nothing_leaks_over_1000_rooms_with_every_ending() -> None:
    """vllm#18204, sglang#14072, Mooncake#2350, LMCache#1339."""
    world = manual_world()
    source = world.add("p0", pack_buffer_count=4)
    destination = world.add("d0", landing_region_count=4)
    endings = ["done"] * 14 + ["refused"] * 2 + ["failed"] * 2 + ["late"] + ["aborted"]
    outcome = dict.fromkeys(endings, 0)
    for room in range(1, 1001):
        ending = endings[room % len(endings)]
        landing = "landing" if room % 3 == 0 else "in_place"
        transfer = Transfer(
            world, [source], [destination], 8, room=room, landing=landing, metadata_bytes=8
        )
        transfer.open()
        if ending == "refused":
            world.wire.refuse_next("backend")
        transfer.send(8, is_final=True, metadata=b"meta")
        world.poll(2)
        sender, receiver = transfer.senders[0], transfer.receivers[0]
        if ending == "failed":
            world.wire.fail(world.wire.last_post)
        elif ending == "late":
            world.clock.advance(TransferOptions().transfer_deadline_s + 1)
            world.poll(2)
            assert sender.error is not None
            assert sender.error.kind == "deadline"
        elif ending == "aborted":
            receiver.abort()
        finish_wire(world, sender, receiver)
        world.poll(3)
        assert not receiver.pages_held
        is_right = RoomState.SUCCESS if ending == "done" else RoomState.FAILED
        assert [sender.state, receiver.state] == [is_right] * 2
        outcome[ending] += 1
    assert outcome == {"done": 700, "refused": 100, "failed": 100, "late": 50, "aborted": 50}
    counters = source.transport.counters
    assert counters["posted"] == counters["released"]
    world.check_idle()


def test_a44_speed_is_bytes_over_the_time_in_which_anything_was_under_way() -> None:
    """sglang#31993: 100, 100 and 50 B in 2, 2 and 1 s, with 5 s of idleness between them."""
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 100)
    transfer.open()
    expected_bytes = 0
    for end, seconds in ((40, 2.0), (80, 2.0), (100, 1.0)):
        transfer.send(end, is_final=end == 100)
        world.poll_until(lambda: len(world.wire.running()) == 1)
        expected_bytes += world.wire.last_post.size_bytes
        world.clock.advance(seconds)
        world.wire.complete_all()
        world.poll(2)
        if end != 100:
            world.clock.advance(5.0)
    metrics = transfer.senders[0].result().metrics
    assert (metrics.active_s, metrics.span_s) == (5.0, 15.0)
    assert metrics.bytes == expected_bytes == 100 * 16
    assert metrics.bytes_per_s == 320.0
    assert metrics.failed_bytes == 0


def test_a44_a_failed_segment_counts_as_failure_not_as_bytes() -> None:
    """sglang#31993."""
    world = manual_world()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    world.wire.fail(world.wire.last_post)
    world.poll(2)
    metrics = transfer.senders[0].result().metrics
    assert (metrics.bytes, metrics.failed_bytes) == (0, 8 * 16)
    assert np.isclose(metrics.bytes_per_s, 0.0)
