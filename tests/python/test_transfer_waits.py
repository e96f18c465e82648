# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Everything that waits: deadlines that name who is missing, events, executors, closing."""

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from kvxfer import Sharding
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.transfer import RoomState, TransferOptions
from kvxfer.transfer.copies import HostCopies
from kvxfer.transfer.messages import Abort, Hello, Identity, Ping, decode_frame, encode_frame
from support.deferred import DeferredCopies, Event
from support.transfer_world import Transfer, World

OPTIONS = TransferOptions()


def test_a_sender_names_the_receivers_that_asked() -> None:
    world = World()
    source, destinations = world.add("p0"), world.group("d", 3)
    sender = source.manager.open_sender(5, 3)
    receiver = destinations[1].manager.open_receiver(5, [source.address], [1], end=4)
    world.poll(4)
    for _ in range(11):
        world.clock.advance(OPTIONS.bootstrap_deadline_s / 10)
        world.poll(2)
    assert isinstance(sender.error, DeadlineError)
    assert "1 of 3 receivers asked within 300 s: d1" in str(sender.error)
    assert receiver.state is RoomState.FAILED


def test_a_receiver_names_the_source_that_does_not_answer() -> None:
    world = World()
    alive, rank = world.add("p0"), world.add("d0")
    receiver = rank.manager.open_receiver(5, [alive.address, "mem://nobody"], [1], end=4)
    for _ in range(11):
        world.clock.advance(OPTIONS.bootstrap_deadline_s / 10)
        world.poll(2)
    assert isinstance(receiver.error, TimeoutError)
    assert receiver.error.peer == "mem://nobody"
    assert not receiver.pages_held
    world.poll(2)
    assert world.is_idle()


def test_a_source_that_appears_late_is_met_all_the_same() -> None:
    world = World()
    rank = world.add("d0")
    receiver = rank.manager.open_receiver(5, ["mem://p0"], [1, 2], end=8)
    world.poll(5)
    source = world.add("p0")
    world.clock.advance(OPTIONS.heartbeat_interval_s)
    sender = source.manager.open_sender(5)
    sender.send([3, 4], 8, is_final=True)
    world.finish(sender, receiver)
    assert receiver.state is RoomState.SUCCESS


def test_rooms_that_nobody_feeds_end_on_both_sides() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8)
    transfer.open()
    world.poll(3)
    for _ in range(11):
        world.clock.advance(OPTIONS.waiting_deadline_s / 10)
        world.poll(3)
    for room in transfer.rooms:
        assert isinstance(room.error, DeadlineError)
        assert " for 300 s" in str(room.error)
    world.check_idle()


def test_a_write_that_does_not_end_names_its_peer() -> None:
    world = World()
    world.wire.completes_on_poll = None
    transfer = Transfer(world, [world.add("p0")], world.group("d", 2), 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 2)
    world.wire.complete(world.wire.running("d0")[0])
    for _ in range(13):
        world.clock.advance(OPTIONS.transfer_deadline_s / 12)
        world.poll(3)
    assert isinstance(transfer.senders[0].error, DeadlineError)
    assert transfer.senders[0].error.peer == "d1"
    assert transfer.receivers[0].state is RoomState.SUCCESS
    assert transfer.receivers[1].state is RoomState.FAILED
    assert transfer.receivers[1].pages_held


def test_a_segment_that_gets_no_buffer_says_so() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destinations = world.add("p0", pack_buffer_count=1), world.group("d", 2)
    first = Transfer(world, [source], destinations, 8, room=1)
    second = Transfer(world, [source], destinations, 8, room=2, seed=30)
    for transfer in (first, second):
        transfer.open()
    for transfer in (first, second):
        transfer.send(8, is_final=True)
        world.poll(3)
    world.clock.advance(OPTIONS.transfer_deadline_s + 1)
    world.poll(2)
    assert "1 of 1 pack buffers are in use" in str(second.senders[0].error)
    assert "writes did not end" in str(first.senders[0].error)


@pytest.mark.parametrize("landing", ["in_place", "landing"])
def test_metadata_that_gets_no_slot_says_so(landing: str) -> None:
    """The rows have left: neither pack buffers nor landing regions are what is missing."""
    world = World()
    source, destination = world.add("p0", metadata_slot_count=1), world.add("d0")
    source.manager._services.buffers.outbox.lease("another room")
    transfer = Transfer(world, [source], [destination], 8, landing=landing, metadata_bytes=8)
    transfer.open()
    transfer.send(8, is_final=True, metadata=b"8 bytes.")
    world.poll(4)
    world.clock.advance(OPTIONS.transfer_deadline_s + 1)
    world.poll(2)
    assert "no metadata left within 120 s: 1 of 1 metadata slots" in str(transfer.senders[0].error)


class IdleExecutor(Executor):
    """Takes everything and runs nothing."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        return Future[Any]()


@pytest.mark.parametrize(
    ("side", "message"),
    [
        ("source", "the executor did not finish a pack or a post within 120 s"),
        ("destination", "1 unpacks did not end within 300 s"),
    ],
)
def test_an_executor_that_runs_nothing_is_named_instead_of_a_peer(side: str, message: str) -> None:
    world = World()
    source = world.add("p0", executor=IdleExecutor() if side == "source" else None)
    destination = world.add("d0", executor=IdleExecutor() if side == "destination" else None)
    transfer = Transfer(world, [source], [destination], 8, landing="landing")
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll(6)
    room = transfer.senders[0] if side == "source" else transfer.receivers[0]
    seconds = OPTIONS.transfer_deadline_s if side == "source" else OPTIONS.waiting_deadline_s
    for _ in range(13):
        world.clock.advance(seconds / 12)
        world.poll()
    assert isinstance(room.error, DeadlineError)
    assert room.error.peer == ""
    assert message in str(room.error)


def test_a_frozen_peer_keeps_no_buffer_from_the_others() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, frozen = world.add("p0"), world.group("f", 2)
    alive = {4: world.group("g", 2), 5: world.group("h", 2)}
    stuck = [Transfer(world, [source], frozen, 8, room=room, seed=room) for room in (1, 2, 3)]
    served = [Transfer(world, [source], alive[room], 8, room=room) for room in alive]
    for transfer in [*stuck, *served]:
        transfer.open()
    for transfer in [*stuck, *served]:
        transfer.send(8, is_final=True)
        world.poll(3)
    assert {handle.peer for handle in world.wire.running()} == {"f0", "f1"}

    world.clock.advance(OPTIONS.spare_patience_s + 0.1)
    for _ in range(40):
        world.poll(2)
        for peer in ("g0", "g1", "h0", "h1"):
            for handle in world.wire.running(peer):
                world.wire.complete(handle)
    for transfer in served:
        assert all(room.state is RoomState.SUCCESS for room in transfer.rooms)
        transfer.check_rows()
    counters = source.manager.counters
    assert counters["spare_pack_buffers"] >= 1
    assert counters["pack_buffers_leased"] == OPTIONS.pack_buffer_count
    assert not any(room.state.is_over for transfer in stuck for room in transfer.rooms)


def test_no_more_spare_buffers_are_made_than_allowed() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source = world.add("p0", pack_buffer_count=1, spare_pack_buffer_count=1)
    transfers = [
        Transfer(world, [source], world.group(f"d{room}", 2), 8, room=room, seed=room)
        for room in (1, 2, 3)
    ]
    for transfer in transfers:
        transfer.open()
    for transfer in transfers:
        transfer.send(8, is_final=True)
    for _ in range(3):
        world.clock.advance(OPTIONS.spare_patience_s + 0.1)
        world.poll(3)
    assert source.manager.counters["spare_pack_buffers"] == 1
    assert source.manager.counters["pack_buffers_leased"] == 2
    world.clock.advance(OPTIONS.transfer_deadline_s)
    world.poll(2)
    assert "2 of 2 pack buffers are in use" in str(transfers[2].senders[0].error)


def test_a_segment_that_gets_no_region_names_the_receiver() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0", landing_region_count=1)
    first = Transfer(world, [source], [destination], 8, room=1, landing="landing")
    second = Transfer(world, [source], [destination], 8, room=2, landing="landing", seed=30)
    for transfer in (first, second):
        transfer.open()
        transfer.send(8, is_final=True)
        world.poll(4)
    world.clock.advance(OPTIONS.transfer_deadline_s + 1)
    world.poll(2)
    assert isinstance(second.senders[0].error, DeadlineError)
    assert second.senders[0].error.peer == "d0"
    assert "no landing region was granted within 120 s" in str(second.senders[0].error)


def test_waiting_for_a_buffer_is_measured() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destinations = world.add("p0", pack_buffer_count=1), world.group("d", 2)
    transfer = Transfer(world, [source], destinations, 16)
    transfer.open()
    transfer.send(16, is_final=True)
    world.poll(4)
    world.clock.advance(3.0)
    world.wire.complete_all()
    world.poll(3)
    world.wire.complete_all()
    world.finish(*transfer.rooms)
    assert transfer.senders[0].result().metrics.buffer_wait_s == 3.0


@pytest.mark.parametrize("landing", ["in_place", "landing"])
def test_rows_are_read_only_after_the_engines_event(landing: str) -> None:
    """Every segment of the send waits, not only the first (sglang#39417)."""
    world = World()
    source, destinations = world.add("p0"), world.group("d", 2)
    transfer = Transfer(world, [source], destinations, 24, landing=landing)
    transfer.open()
    event, late = Event(), [array.copy() for array in source.arrays]
    for array in source.arrays:
        array[:] = 0
    transfer.send(24, is_final=True, ready=event)
    world.poll(10)
    assert world.wire.posts == []
    assert transfer.senders[0].pages_held
    for array, rows in zip(source.arrays, late, strict=True):
        array[:] = rows
    event.has_happened = True
    world.finish(*transfer.rooms)
    transfer.check_rows()


def test_a_full_hit_waits_for_the_engines_event_too() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8, prefix=8, metadata_bytes=4)
    transfer.open()
    event = Event()
    transfer.send(8, is_final=True, metadata=b"x", ready=event)
    world.poll(5)
    assert world.wire.posts == []
    event.has_happened = True
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].metadata == b"x"


@pytest.mark.parametrize("sharding", [Sharding(), Sharding(2, 0)])
def test_the_event_of_a_send_without_a_segment_holds_its_rows_back(sharding: Sharding) -> None:
    """Three rows are less than a page: they leave with the next send, whose own event is over."""
    world = World()
    source, destination = world.add("p0"), world.add("d0", sharding)
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    world.poll(4)
    first, second = Event(), Event()
    transfer.send(3, is_final=False, ready=first)
    second.has_happened = True
    transfer.send(8, is_final=True, ready=second)
    world.poll(5)
    assert world.wire.posts == []
    first.has_happened = True
    world.finish(*transfer.rooms)
    transfer.check_rows()
    world.check_idle()


def test_copies_may_be_enqueued_like_on_a_stream() -> None:
    world = World()
    packs, unpacks = DeferredCopies(), DeferredCopies()
    source, destination = world.add("p0", copies=packs), world.add("d0", copies=unpacks)
    transfer = Transfer(world, [source], [destination], 24, landing="landing")
    transfer.open()
    transfer.send(24, is_final=True)
    world.poll(5)
    assert len(packs.waiting) == 2, "as many as there are buffers"
    assert world.wire.posts == []
    packs.run_one()
    world.poll(4)
    assert len(world.wire.posts) == 1
    assert len(unpacks.waiting) == 1
    while packs.waiting:
        packs.run_one()
        world.poll(4)
    assert transfer.senders[0].state is RoomState.TRANSFERRING, "regions are still in use"
    for _ in range(20):
        if unpacks.waiting:
            assert transfer.receivers[0].pages_held
            unpacks.run_one()
        if packs.waiting:
            packs.run_one()
        world.poll(4)
    assert transfer.receivers[0].state is RoomState.SUCCESS
    transfer.check_rows()
    world.check_idle()


def test_a_drain_expires_once_however_long_an_unpack_takes() -> None:
    world = World()
    copies = DeferredCopies()
    source, destination = world.add("p0"), world.add("d0", copies=copies)
    transfer = Transfer(world, [source], [destination], 8, landing="landing")
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(copies.waiting) == 1)
    transfer.receivers[0].abort()
    for _ in range(4):
        world.clock.advance(OPTIONS.drain_deadline_s)
        world.poll(2)
    assert transfer.receivers[0].pages_held, "the unpack may still write them"
    assert destination.manager.counters["drains_expired"] == 1
    copies.run_one()
    world.poll(2)
    assert not transfer.receivers[0].pages_held
    world.check_idle()


def test_an_unpack_under_way_keeps_pages_and_region_after_a_failure() -> None:
    world = World()
    unpacks = DeferredCopies()
    source, destination = world.add("p0"), world.add("d0", copies=unpacks)
    transfer = Transfer(world, [source], [destination], 8, landing="landing")
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll(8)
    (receiver,) = transfer.receivers
    receiver.abort()
    world.poll(4)
    assert receiver.pages_held
    assert destination.manager.counters["landing_regions_held"] >= 1
    unpacks.run_one()
    world.poll(2)
    assert not receiver.pages_held
    world.check_idle()


class FailingCopies(HostCopies):
    def pack(self, *_: Any) -> None:
        raise RuntimeError("illegal address")

    unpack = pack


@pytest.mark.parametrize("side", ["pack", "unpack"])
def test_a_copy_that_raises_fails_the_room_on_both_sides(side: str) -> None:
    world = World()
    copies = FailingCopies()
    source = world.add("p0", copies=copies if side == "pack" else None)
    destination = world.add("d0", copies=copies if side == "unpack" else None)
    transfer = Transfer(world, [source], [destination], 24, landing="landing")
    transfer.open()
    transfer.send(24, is_final=True)
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "RuntimeError: illegal address" in str(room.error)
    world.check_idle()


@contextmanager
def executors(world: World) -> Iterator[None]:
    """Two workers of four threads each, polled by this thread alone."""
    with ThreadPoolExecutor(4) as one, ThreadPoolExecutor(4) as two:
        world.add("p0", executor=one, page_count=256)
        for rank in range(2):
            sharding = Sharding(2, rank)
            world.add(f"d{rank}", sharding, executor=two, page_count=256, landing_region_count=4)
        yield


@pytest.mark.parametrize("landing", ["in_place", "landing"])
def test_executors_pack_post_and_unpack(landing: str) -> None:
    world = World(tick_s=0.0001)
    with executors(world):
        source, *destinations = world.ranks
        transfers = []
        for room in range(1, 9):
            transfer = Transfer(
                world, [source], destinations, 90, room=room, landing=landing, metadata_bytes=8
            )
            transfer.destination_pages = [
                type(p)([30 * room - 30 + i for i in range(len(p.ids))], 0)
                for p in transfer.destination_pages
            ]
            transfer.open()
            transfers.append(transfer)
        for transfer in transfers:
            transfer.send(90, is_final=True, metadata=b"m%d" % transfer.room)
        rooms = [room for transfer in transfers for room in transfer.rooms]
        world.poll_until(lambda: all(r.state.is_over for r in rooms), limit_count=200_000)
        assert {room.state for room in rooms} == {RoomState.SUCCESS}
        for transfer in transfers:
            assert [r.metadata for r in transfer.receivers] == [b"m%d" % transfer.room] * 2
        assert sum(t.senders[0].result().metrics.bytes for t in transfers) == 8 * 90 * 16
        world.poll_until(world.is_idle, limit_count=200_000)
        world.check_idle()


class ManualExecutor(Executor):
    """Runs a job when a test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_all(self) -> None:
        while self.jobs:
            future, work = self.jobs.pop(0)
            future.set_result(work())


def test_what_waits_for_a_thread_is_not_posted_after_the_room_failed() -> None:
    world = World()
    executor = ManualExecutor()
    source, destination = world.add("p0", executor=executor), world.add("d0", Sharding(2, 0))
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(executor.jobs) == 1)
    transfer.receivers[0].abort()
    world.poll(4)
    assert transfer.receivers[0].pages_held, "the job may post at any time"
    assert source.manager.counters["pack_buffers_leased"] == 1
    executor.run_all()
    world.poll(4)
    assert world.wire.posts == []
    assert not transfer.receivers[0].pages_held
    world.check_idle()


def test_pages_are_held_while_a_pack_waits_for_a_thread() -> None:
    world = World()
    executor = ManualExecutor()
    source, destination = world.add("p0", executor=executor), world.add("d0", Sharding(2, 0))
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=False)
    world.poll_until(lambda: len(executor.jobs) == 1)
    transfer.senders[0].abort()
    assert transfer.senders[0].pages_held
    executor.run_all()
    world.poll(4)
    assert not transfer.senders[0].pages_held


def test_engine_threads_may_call_while_another_polls() -> None:
    world = World(tick_s=0.0001)
    source, destination = world.add("p0", page_count=256), world.add("d0", page_count=256)
    problems: list[BaseException] = []

    def use(first: int) -> None:
        try:
            for room in range(first, first + 25):
                receiver = destination.manager.open_receiver(
                    room, [source.address], [room], end=4, landing="landing"
                )
                sender = source.manager.open_sender(room)
                sender.send([room], 4, is_final=True)
                if room % 5 == 0:
                    receiver.abort()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(1 + 25 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    world.poll_until(lambda: not any(t.is_alive() for t in threads), limit_count=500_000)
    world.poll_until(world.is_idle, limit_count=20_000)
    assert problems == []
    world.check_idle()


def test_close_ends_rooms_and_takes_memory_back() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    world.poll(3)
    source.manager.close()
    assert transfer.senders[0].state is RoomState.FAILED
    world.poll(3)
    assert "the manager was closed" in str(transfer.receivers[0].error)
    destination.manager.close()
    destination.manager.close()
    for rank in (source, destination):
        assert len(rank.transport._regions) == 0


def test_close_does_not_take_memory_from_under_a_write() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    with pytest.raises(DeadlineError, match=r"writes of rooms \[5\] were not over within"):
        source.manager.close(timeout_s=0.05)
    assert len(source.transport._regions) > 0
    world.wire.complete_all()
    source.manager.close()
    assert len(source.transport._regions) == 0


def test_certain_death_frees_pages_at_once() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    world.stop(source)
    for _ in range(4):
        world.clock.advance(OPTIONS.heartbeat_interval_s)
        world.poll(1)
    (receiver,) = transfer.receivers
    assert receiver.state is RoomState.FAILED
    assert receiver.pages_held, "three misses may also be a pause"
    destination.manager.declare_dead("p0")
    assert not receiver.pages_held
    world.poll(2)
    world.check_idle()


@pytest.mark.parametrize("address", ["mem://p0", "mem://elsewhere"])
def test_a_peer_back_at_its_address_ends_the_writes_of_its_earlier_life(address: str) -> None:
    """At another address its name alone does not prove that the process of the first is gone."""
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    world.stop(source)
    for _ in range(4):
        world.clock.advance(OPTIONS.heartbeat_interval_s)
        world.poll(1)
    (receiver,) = transfer.receivers
    assert receiver.pages_held
    back = world.add("p0", address=address)
    back.manager.connect(destination.address)
    world.poll(4)
    assert destination.manager.peer_names == ["p0"]
    assert receiver.pages_held == (address != source.channel.address)
    world.clock.advance(OPTIONS.drain_deadline_s + 1)
    world.poll(2)
    assert not receiver.pages_held


def test_a_second_claimant_of_a_live_peers_name_is_refused_and_frees_nothing() -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    claimant = world.add("p0", address="mem://elsewhere")
    room = claimant.manager.open_receiver(6, [destination.address], [1, 2], end=8)
    world.poll(4)
    assert "agent name 'p0' is taken by the peer at mem://p0" in str(room.error)
    (receiver,) = transfer.receivers
    assert not receiver.state.is_over
    assert receiver.pages_held
    assert len(world.wire.running()) == 1, "the transport has not replaced the first"
    world.wire.complete(world.wire.last_post)
    world.finish(*transfer.rooms)
    transfer.check_rows()
    again = Transfer(world, [source], [destination], 8, room=7)
    world.wire.completes_on_poll = 1
    again.run()
    again.check_rows()


def test_a_peer_back_elsewhere_waits_until_its_earlier_life_is_given_up() -> None:
    """It is not refused meanwhile: its room goes on by itself."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    source.manager.connect(destination.address)
    world.poll(3)
    world.stop(destination)
    back = world.add("d0", address="mem://elsewhere")
    transfer = Transfer(world, [source], [back], 8)
    transfer.open()
    transfer.send(8, is_final=True)
    for _ in range(OPTIONS.heartbeat_misses):
        world.poll(3)
        assert transfer.receivers[0].state is RoomState.BOOTSTRAPPING
        world.clock.advance(OPTIONS.heartbeat_interval_s)
    world.poll(3)
    world.clock.advance(OPTIONS.heartbeat_interval_s)
    world.finish(*transfer.rooms)
    transfer.check_rows()


def test_a_message_that_breaks_something_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    peers = source.manager._peers
    monkeypatch.setattr(peers, "on_ping", lambda _: 1 / 0)
    world.hub.queues[source.address].append(encode_frame(Identity("x", "mem://x", 1), Ping()))
    transfer.run()
    transfer.check_rows()
    assert source.manager.counters["frames_failed"] == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_completion_that_breaks_something_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0")
    broken, good = (Transfer(world, [source], [destination], 8, room=room) for room in (1, 2))
    for transfer in (broken, good):
        transfer.open()
        transfer.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 2)
    monkeypatch.setattr(broken.receivers[0], "on_completion", lambda *_: 1 / 0)
    for post in world.wire.running():
        world.wire.complete(post)
    assert len(destination.transport.inbox) == 2, "both come in one batch"
    world.finish(*good.rooms)
    good.check_rows()
    assert destination.manager.counters["completions_failed"] == 1
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("is_back", [True, False])
def test_a_room_with_a_peer_that_was_given_up_asks_at_once_and_waits_a_beat(is_back: bool) -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    destination.manager.connect(source.address)
    world.poll(3)
    world.ranks.remove(source)
    for _ in range(OPTIONS.heartbeat_misses + 1):
        world.clock.advance(OPTIONS.heartbeat_interval_s)
        world.poll()
    assert destination.manager.peer_names == []
    before = len(world.hub.log)
    if is_back:
        world.ranks.append(source)
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    sent = [decode_frame(frame)[1] for _, frame in world.hub.log[before:]]
    assert [type(message) for message in sent] == [Hello]
    if is_back:
        transfer.send(8, is_final=True)
        world.finish(*transfer.rooms)
        transfer.check_rows()
        return
    (receiver,) = transfer.receivers
    world.poll(3)
    assert receiver.state is RoomState.BOOTSTRAPPING
    world.clock.advance(OPTIONS.heartbeat_interval_s)
    world.poll(2)
    assert "did not answer 3 heartbeats" in str(receiver.error)


def test_a_forgotten_peer_is_not_asked_again() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open()
    world.poll(3)
    destination.manager.forget_peer(source.address)
    assert transfer.receivers[0].state is RoomState.FAILED
    assert destination.manager.peer_names == []
    before = len(world.hub.log)
    world.clock.advance(10 * OPTIONS.heartbeat_interval_s)
    destination.manager.poll()
    sent = [decode_frame(frame)[1] for _, frame in world.hub.log[before:]]
    assert [type(message) for message in sent] == [Abort], "for the pages that it may still write"


def test_errors_name_kind_peer_and_room() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8, room=77)
    transfer.open()
    world.poll(3)
    transfer.receivers[0].abort("client went away")
    world.poll(3)
    error = transfer.senders[0].error
    assert isinstance(error, TransferError)
    assert (error.kind, error.peer, error.room) == ("aborted", "d0", 77)
    assert str(error) == "room 77: client went away (peer d0)"
