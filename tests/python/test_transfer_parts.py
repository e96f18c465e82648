# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a manager by themselves: options, pools, slots, early messages, state, states."""

import ctypes
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer import InvalidArgumentError, Plane, PlaneKind, PoolLayout, Sharding
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.transfer import LocalPool, RoomState, StateComponent, TransferOptions
from kvxfer.transfer.early import EarlyStore
from kvxfer.transfer.options import budget_bytes
from kvxfer.transfer.pack_ring import Slot, SlotRing
from kvxfer.transfer.poll_lock import PollLock
from kvxfer.transfer.pool import MemorySpan, merge_spans
from kvxfer.transfer.room import Failure, Room
from kvxfer.transfer.state import mark_of_all, mark_of_sent, state_writes, sum_of_marks
from support.bounded import bounded
from support.transfer_world import LATENT, ManualClock, Transfer, World


def test_a_room_only_moves_forward_and_failure_is_the_end() -> None:
    room = Room(7, ManualClock())
    for state in (RoomState.TRANSFERRING, RoomState.WAITING_FOR_INPUT, RoomState.BOOTSTRAPPING):
        room.advance_to(state)
        assert room.state is RoomState.TRANSFERRING
    assert room.record_failure("aborted", "d0", "first")
    assert not room.record_failure("deadline", "d1", "second")
    room.advance_to(RoomState.SUCCESS)
    assert room.state is RoomState.FAILED
    assert room.failure == Failure("aborted", "d0", 7, "first")


def test_a_room_that_succeeded_does_not_fail_afterwards() -> None:
    room = Room(7, ManualClock())
    room.advance_to(RoomState.SUCCESS)
    assert not room.record_failure("aborted", "", "too late")
    assert room.state is RoomState.SUCCESS
    assert room.error is None


def test_a_reason_that_only_a_peer_knows_counts_as_aborted() -> None:
    room = Room(7, ManualClock())
    room.record_failure("x" * 32, "d0", "its own reason")
    assert room.failure is not None
    assert room.failure.kind == "aborted"


def test_failures_become_errors_that_travel() -> None:
    deadline = Failure("deadline", "d0", 3, "no answer").as_error()
    assert isinstance(deadline, DeadlineError)
    assert isinstance(deadline, TimeoutError)
    other = Failure("transport", "d0", 3, "cable pulled").as_error()
    assert type(other) is TransferError
    for error in (deadline, other):
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.kind, copy.peer, copy.room) == (error.kind, error.peer, error.room)
        assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pack_tokens": 0}, "pack_tokens is 0, expected at least 1"),
        ({"pack_buffer_bytes": -1}, "pack_buffer_bytes is -1, expected at least 0"),
        ({"heartbeat_interval_s": 0.0}, "heartbeat_interval_s is 0.0, expected a positive number"),
        ({"drain_deadline_s": float("nan")}, "drain_deadline_s is nan"),
        ({"role": "server"}, "role is 'server', expected sender, receiver or both"),
        ({"landing": "ground"}, "landing is 'ground', expected auto, in_place or landing"),
    ],
)
def test_options_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TransferOptions(**fields)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("budget_tokens", [1, 64, 8192, 8200])
def test_a_token_budget_holds_at_any_number_of_destination_ranks(
    ranks: int, budget_tokens: int
) -> None:
    from kvxfer import PackBufferLayout, Relayout

    planes = [Plane(layer, PlaneKind.LATENT, 576) for layer in range(3)]
    source = PoolLayout(64, 8, planes)
    rounded = -(-budget_tokens // 64) * 64
    destinations = [
        PoolLayout(64, 8, planes, sharding=Sharding(ranks, rank)) for rank in range(ranks)
    ]
    relayouts = [Relayout(source, destination) for destination in destinations]
    size_bytes = budget_bytes(source, budget_tokens)
    assert PackBufferLayout.capacity_for(relayouts, size_bytes) >= rounded


def test_pools_are_taken_from_arrays_and_checked() -> None:
    layout = PoolLayout(4, 8, LATENT)
    arrays = [np.zeros(4 * 8 * 12, np.uint8), np.zeros(4 * 8 * 4, np.uint8)]
    pool = LocalPool.from_arrays(layout, arrays)
    assert pool.plane_addresses == tuple(array.ctypes.data for array in arrays)
    with pytest.raises(InvalidArgumentError, match="array of plane 1 has 127 bytes, expected 128"):
        LocalPool.from_arrays(layout, [arrays[0], arrays[1][:-1]])
    with pytest.raises(InvalidArgumentError, match="1 plane addresses given, expected 2"):
        LocalPool(layout, (4096,))


def test_spans_that_overlap_are_registered_as_one() -> None:
    spans = [MemorySpan(100, 50), MemorySpan(0, 10), MemorySpan(120, 50), MemorySpan(170, 5)]
    assert merge_spans(spans) == [MemorySpan(0, 10), MemorySpan(100, 70), MemorySpan(170, 5)]


def test_slots_go_to_who_has_waited_longest() -> None:
    ring = SlotRing([Slot(index, 0, 1, None) for index in range(2)])
    first, second = ring.lease("a"), ring.lease("a")
    assert first is not None
    assert second is not None
    assert ring.lease("b") is None
    assert ring.lease("c") is None
    ring.give_back(first)
    assert ring.lease("c") is None, "b has waited longer"
    assert ring.lease("b") is first
    ring.give_back(second)
    ring.withdraw("c")
    assert ring.lease("d") is second
    ring.give_back(second)
    with pytest.raises(InvalidArgumentError, match="slot 1 is not leased"):
        ring.give_back(second)
    assert (ring.leased_count, ring.waiting_count) == (1, 0)


def test_a_polling_loop_gives_way_to_whoever_waits() -> None:
    lock = PollLock()
    has_it, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            may_end.wait(timeout=20)

    with lock, lock:
        thread = threading.Thread(target=hold)
        thread.start()
        while not lock._waiting:
            time.sleep(0.001)
        assert not has_it.is_set()
    while not has_it.is_set():
        lock.give_way()
    may_end.set()
    thread.join(timeout=20)
    assert not lock._waiting
    with lock:
        pass


def test_early_messages_are_kept_in_order_and_within_bounds() -> None:
    clock = ManualClock()
    store: EarlyStore[str] = EarlyStore(3, 10.0, clock)
    for room, message in ((1, "a"), (2, "b"), (1, "c"), (1, "d")):
        store.put(room, message)
        clock.advance(1.0)
    assert store.dropped_count == 1
    assert store.take(1, lambda message: message == "c") == ["c"]
    assert store.take(1, lambda message: message == "x") == []
    assert store.take(1) == ["d"]
    assert store.take(9) == []
    clock.advance(10.0)
    assert store.take(2) == []
    assert (len(store), store.dropped_count) == (0, 2)


@bounded()
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.data())
def test_state_slices_land_where_their_bytes_belong(
    source_ranks: int, destination_ranks: int, rows: int, blocks: int, data: st.DataObject
) -> None:
    """Every byte of a whole row has one place, whatever the two groups are."""
    unit = data.draw(st.integers(1, 3))
    whole = np.lcm(source_ranks, destination_ranks).item() * unit
    truth = np.arange(blocks * rows * whole, dtype=np.int64).reshape(blocks, rows, whole)
    truth = (truth % 251).astype(np.uint8)

    def part(ranks: int, rank: int, memory: np.ndarray) -> StateComponent:
        size = whole // ranks
        base = memory.ctypes.data
        addresses = tuple(base + block * rows * size for block in range(blocks))
        return StateComponent(
            kind="conv", addresses=addresses, row_bytes=size, row_count=rows, ranks=ranks, rank=rank
        )

    for destination_rank in range(destination_ranks):
        size = whole // destination_ranks
        got = np.zeros((blocks, rows, size), dtype=np.uint8)
        written = 0
        for source_rank in range(source_ranks):
            width = whole // source_ranks
            own = truth[:, :, source_rank * width : (source_rank + 1) * width].copy()
            runs = state_writes(
                [part(source_ranks, source_rank, own)],
                [part(destination_ranks, destination_rank, got)],
            )
            for source, destination, size_bytes in runs.tolist():
                ctypes.memmove(destination, source, size_bytes)
            written += int(runs[:, 2].sum())
        first = destination_rank * size
        assert np.array_equal(got, truth[:, :, first : first + size])
        assert written == got.size


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "temporal"}, r"source are \[conv\], but the destination asked for \[temporal\]"),
        ({"addresses": (1, 2)}, "source has 1 blocks, the destination 2"),
        ({"row_count": 2}, "source has 1 rows of a block, the destination 2"),
        ({"row_bytes": 9}, "source has 8 bytes of a whole row, the destination 9"),
        ({"ranks": 2}, "source has 8 bytes of a whole row, the destination 16"),
    ],
)
def test_states_that_differ_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    component = {"kind": "conv", "addresses": (64,), "row_bytes": 8}
    with pytest.raises(InvalidArgumentError, match=message):
        state_writes([StateComponent(**component)], [StateComponent(**{**component, **fields})])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"row_bytes": -1}, "row_bytes -1"),
        ({"ranks": 2, "rank": 2}, "rank 2, expected 0 to 1"),
        ({"replica": -1}, "replica -1"),
    ],
)
def test_state_components_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        StateComponent(**{"kind": "conv", "addresses": (64,), "row_bytes": 8, **fields})


def test_paged_state_needs_a_page_per_page_of_the_prompt() -> None:
    with pytest.raises(InvalidArgumentError, match="state swa: 1 pages given, expected at least 2"):
        StateComponent.paged("swa", 0, 16, [3], page_count=2)


def test_only_one_replica_of_a_state_is_sent() -> None:
    world = World()
    sources, destination = world.group("p", 2), world.add("d0")
    destination.state[:8] = 0
    transfer = Transfer(world, sources, [destination], 8)
    transfer.open(state=[destination.state_component("kda", 0, 8)])
    for replica, (sender, source) in enumerate(zip(transfer.senders, sources, strict=True)):
        component = source.state_component("kda", 0, 8, replica=replica)
        sender.send(transfer.source_pages[replica].ids, 8, is_final=True, state=[component])
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].state is RoomState.SUCCESS
    assert np.array_equal(destination.state[:8], sources[0].state[:8])


@pytest.mark.parametrize(("replicas", "got"), [((0, 0), 16), ((1, 1), 0)])
def test_state_that_comes_twice_or_never_is_not_success(
    replicas: tuple[int, int], got: int
) -> None:
    world = World()
    sources, destination = world.group("p", 2), world.add("d0")
    transfer = Transfer(world, sources, [destination], 8)
    transfer.open(state=[destination.state_component("kda", 0, 8)])
    for replica, sender, source, pages in zip(
        replicas, transfer.senders, sources, transfer.source_pages, strict=True
    ):
        component = source.state_component("kda", 0, 8, replica=replica)
        sender.send(pages.ids, 8, is_final=True, state=[component])
    world.finish(*transfer.receivers)
    assert f"state has {got} bytes, expected 8" in str(transfer.receivers[0].error)


@pytest.mark.parametrize(
    ("slices", "is_whole"),
    [(((2, 0), (2, 1)), True), (((2, 0), (2, 0)), False), (((2, 1), (2, 1)), False)],
)
def test_state_slices_that_overlap_are_not_success_though_the_bytes_add_up(
    slices: tuple[tuple[int, int], ...], is_whole: bool
) -> None:
    world = World()
    sources, destination = world.group("p", 2), world.add("d0")
    transfer = Transfer(world, sources, [destination], 8)
    transfer.open(state=[destination.state_component("kda", 0, 8, row_count=3)])
    for (ranks, rank), sender, source, pages in zip(
        slices, transfer.senders, sources, transfer.source_pages, strict=True
    ):
        part = source.state_component("kda", 0, 4, row_count=3, ranks=ranks, rank=rank)
        sender.send(pages.ids, 8, is_final=True, state=[part])
    world.finish(*transfer.receivers)
    (receiver,) = transfer.receivers
    assert receiver.state is (RoomState.SUCCESS if is_whole else RoomState.FAILED)
    if not is_whole:
        assert receiver.error is not None
        assert receiver.error.peer == "p0, p1"
        assert "slices of state [kda] overlap and leave gaps, in 24 bytes" in str(receiver.error)


@bounded()
@given(st.data())
def test_marks_add_up_only_where_every_byte_is_sent_once(data: st.DataObject) -> None:
    """Against the bytes counted one by one, for ranks of two components in any number and place."""
    wanted = [StateComponent(kind=kind, addresses=(8,), row_bytes=24) for kind in ("a", "b")]
    counts = np.zeros((2, 24), dtype=np.int64)
    marks = []
    for _ in range(data.draw(st.integers(1, 5))):
        sent = []
        for index in range(2):
            ranks = data.draw(st.sampled_from([1, 2, 3, 4]))
            rank, replica = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 1))
            size = 24 // ranks
            counts[index, rank * size : (rank + 1) * size] += replica == 0
            part = {"ranks": ranks, "rank": rank, "replica": replica}
            sent.append(StateComponent(kind="ab"[index], addresses=(8,), row_bytes=size, **part))
        marks.append(mark_of_sent(sent, wanted))
    assert (sum_of_marks(marks) == mark_of_all(wanted)) == bool((counts == 1).all())


def test_metadata_slots_run_out_by_name() -> None:
    world = World()
    world.add("p0")
    rank = world.add("d0", metadata_slot_count=1)
    rank.manager.open_receiver(1, ["mem://p0"], [1], end=4, metadata_bytes=4)
    with pytest.raises(InvalidArgumentError, match="all 1 metadata slots are in use"):
        rank.manager.open_receiver(2, ["mem://p0"], [2], end=4, metadata_bytes=4)
    rank.manager.open_receiver(3, ["mem://p0"], [2], end=4)


def test_the_state_of_an_ended_room_is_remembered() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8, room=4)
    transfer.run()
    world.poll(3)
    assert transfer.sources[0].manager.sender_state(4) is RoomState.SUCCESS
    assert transfer.destinations[0].manager.receiver_state(4) is RoomState.SUCCESS
    assert transfer.destinations[0].manager.open_room_count == 0
