# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Whole transfers over the scripted transport: every row of every pool, against the oracle."""

from typing import Any

import numpy as np
import pytest

from kvxfer import PackBufferLayout, PackPlan, PageTable, Plane, PlaneKind, Segment, Sharding
from kvxfer.transfer import RoomState
from kvxfer.transfer.copies import HostCopies
from kvxfer.transfer.messages import Request, decode_frame
from support.transfer_world import (
    LATENT,
    Pages,
    Rank,
    Transfer,
    World,
    copy_arrays,
    move_rows,
    random_pages,
)


class CountingCopies(HostCopies):
    """Notes every segment that is packed."""

    def __init__(self) -> None:
        self.packed: list[Segment] = []

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> None:
        self.packed.append(plan.segment)
        super().pack(layout, plan, table, buffer)


# (source ranks, interleave) -> (destination ranks, interleave)
SHARDINGS = [
    ((1, 1), (1, 1)),
    ((1, 1), (2, 1)),
    ((1, 1), (4, 1)),
    ((1, 1), (4, 4)),
    ((2, 1), (4, 1)),
    ((2, 1), (2, 1)),
    ((4, 1), (2, 1)),
    ((4, 1), (1, 1)),
    ((3, 1), (2, 1)),
    ((2, 4), (4, 2)),
    ((2, 2), (2, 1)),
]


@pytest.mark.parametrize(("source", "destination"), SHARDINGS)
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 61])
@pytest.mark.parametrize("landing", ["auto", "landing"])
def test_rows_are_right(
    source: tuple[int, int], destination: tuple[int, int], tokens: int, landing: str
) -> None:
    world = World()
    transfer = Transfer(
        world, world.group("p", *source), world.group("d", *destination), tokens, landing=landing
    )
    transfer.run()
    assert [room.state for room in transfer.rooms] == [RoomState.SUCCESS] * len(transfer.rooms)
    transfer.check_rows()
    sent = sum(room.result().metrics.bytes for room in transfer.senders)
    received = sum(room.result().metrics.bytes for room in transfer.receivers)
    assert sent == received == tokens * 16
    world.check_idle()


@pytest.mark.parametrize(("source_page", "destination_page"), [(2, 8), (8, 2), (4, 16)])
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 4)])
def test_page_sizes_may_differ(
    source_page: int, destination_page: int, ranks: tuple[int, int]
) -> None:
    world = World()
    sources = world.group("p", ranks[0], page_size=source_page)
    destinations = world.group("d", ranks[1], page_size=destination_page)
    transfer = Transfer(world, sources, destinations, 59)
    transfer.run()
    transfer.check_rows()
    world.check_idle()


@pytest.mark.parametrize("prefix", [0, 8, 16, 40])
@pytest.mark.parametrize("ends", [(), (8, 19), (3, 3, 30, 39)])
def test_sends_may_come_in_parts(prefix: int, ends: tuple[int, ...]) -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], world.group("d", 2), 45, prefix=prefix)
    transfer.run(*(end for end in ends if end >= prefix))
    transfer.check_rows()
    world.check_idle()


def test_segments_are_cut_at_the_capacity_and_packed_once_for_all_receivers() -> None:
    world = World()
    copies = CountingCopies()
    transfer = Transfer(world, [world.add("p0", copies=copies)], world.group("d", 4), 37)
    transfer.run()
    transfer.check_rows()
    cuts = [(0, 8), (8, 16), (16, 24), (24, 32), (32, 37)]
    assert [(s.begin, s.end) for s in copies.packed] == cuts
    assert transfer.senders[0].capacity_tokens == 8
    assert [room.result().metrics.segments for room in transfer.receivers] == [5, 5, 5, 5]


@pytest.mark.parametrize(("source_ranks", "destination_ranks"), [(1, 4), (4, 1), (2, 4), (3, 2)])
@pytest.mark.parametrize("landing", ["auto", "landing"])
def test_replicated_draft_planes_travel_once(
    source_ranks: int, destination_ranks: int, landing: str
) -> None:
    draft = Plane(2, PlaneKind.KEY, 6, is_replicated=True)
    planes = [*LATENT, draft]
    world = World()
    sources = world.group("p", source_ranks, planes=planes)
    destinations = world.group("d", destination_ranks, planes=planes, page_size=8)
    transfer = Transfer(world, sources, destinations, 50, landing=landing)
    transfer.run()
    assert {room.state for room in transfer.rooms} == {RoomState.SUCCESS}
    sent = sum(room.result().metrics.bytes for room in transfer.senders)
    assert sent == 50 * 16 + destination_ranks * 50 * draft.row_bytes
    for rank, pages, before in zip(
        destinations, transfer.destination_pages, transfer.before, strict=True
    ):
        expected = copy_arrays(before)
        given = list(zip(sources, transfer.source_pages, strict=True))
        first = next(s for s in sources if _shares_rows(s, rank))
        by_draft_writer = sorted(given, key=lambda source: source[0] is not first)
        move_rows(by_draft_writer, rank, pages, (0, 50), expected)
        for got, want in zip(rank.arrays, expected, strict=True):
            assert np.array_equal(got, want)
    world.check_idle()


def _shares_rows(source: Rank, destination: Rank) -> bool:
    """Whether the two hold a token in common: the lowest such source writes replicated rows."""
    ranks = source.layout.sharding.ranks, destination.layout.sharding.ranks
    owners = source.layout.sharding.rank, destination.layout.sharding.rank
    return any((p % ranks[0], p % ranks[1]) == owners for p in range(ranks[0] * ranks[1]))


def test_a_draft_that_only_the_destination_has_stays_as_it_is() -> None:
    planes = [*LATENT, Plane(2, PlaneKind.KEY, 6, is_replicated=True)]
    world = World()
    transfer = Transfer(world, [world.add("p0")], world.group("d", 2, planes=planes), 30)
    before = [rank.arrays[2].copy() for rank in transfer.destinations]
    transfer.run()
    transfer.check_rows()
    for rank, draft in zip(transfer.destinations, before, strict=True):
        assert np.array_equal(rank.arrays[2], draft)


def test_page_structured_planes_share_one_memory() -> None:
    planes = [
        Plane(0, PlaneKind.LATENT, 12),
        Plane(0, PlaneKind.INDEX_KEY, 8, page_stride_bytes=56),
        Plane(0, PlaneKind.INDEX_SCALE, 4, page_stride_bytes=56, page_offset_bytes=32),
    ]
    world = World()
    transfer = Transfer(
        world, world.group("p", 1, planes=planes), world.group("d", 2, planes=planes), 27
    )
    transfer.run()
    assert [room.state for room in transfer.rooms] == [RoomState.SUCCESS] * 3
    transfer.check_rows()
    world.check_idle()


def test_pipeline_stages_each_bring_their_layers() -> None:
    world = World()
    stages = [world.add(f"p{i}", planes=[plane]) for i, plane in enumerate(LATENT)]
    transfer = Transfer(world, stages, world.group("d", 2), 33)
    transfer.run()
    assert [room.state for room in transfer.rooms] == [RoomState.SUCCESS] * 4
    transfer.check_rows()


def test_many_rooms_share_the_ring_and_the_regions() -> None:
    world = World(tick_s=0.001)
    sources = world.group("p", 2, landing_region_count=2, page_count=128)
    destinations = world.group("d", 3, landing_region_count=3, landing_depth=2, page_count=128)
    rooms = []
    shuffled = np.random.default_rng(3).permutation(128)
    for room in range(1, 7):
        transfer = Transfer(world, sources, destinations, 41, room=room, seed=room)
        ids = shuffled[(room - 1) * 20 : room * 20].tolist()
        transfer.destination_pages = [
            type(p)(ids[: len(p.ids)], 0) for p in transfer.destination_pages
        ]
        transfer.open()
        rooms.append(transfer)
    for transfer in reversed(rooms):
        transfer.send(41, is_final=True)
    world.finish(*(room for transfer in rooms for room in transfer.rooms))
    for rank, index in zip(destinations, range(3), strict=True):
        expected = rooms[0].before[index]
        for transfer in rooms:
            assert transfer.receivers[index].state is RoomState.SUCCESS, rank.name
            given = list(zip(transfer.sources, transfer.source_pages, strict=True))
            pages = transfer.destination_pages[index]
            move_rows(given, rank, pages, (0, transfer.end), expected)
        for got, want in zip(rank.arrays, expected, strict=True):
            assert np.array_equal(got, want)
    world.check_idle()


def test_peers_of_different_shapes_live_on_one_manager() -> None:
    world = World()
    source = world.add("p0", page_count=64)
    plain = Transfer(world, [source], [world.add("plain")], 45, room=1)
    sharded = Transfer(world, [source], world.group("d", 2), 45, room=2)
    wide = Transfer(world, [source], world.group("w", 4, page_size=8), 45, room=3)
    transfers = [plain, sharded, wide]
    for transfer in transfers:
        transfer.open()
    for transfer in transfers:
        transfer.send(45, is_final=True)
    world.finish(*(room for transfer in transfers for room in transfer.rooms))
    for transfer in transfers:
        transfer.check_rows()
    assert plain.senders[0].capacity_tokens is None
    assert plain.senders[0].result().metrics.segments == 1
    assert sharded.senders[0].capacity_tokens == 8
    world.check_idle()


def test_a_buffer_of_given_bytes_holds_what_each_destination_sharding_lets_it() -> None:
    world = World()
    source = world.add("p0", pack_buffer_bytes=2 * 5 * 16)
    two = Transfer(world, [source], world.group("d", 2), 21, room=1)
    three = Transfer(world, [source], world.group("t", 3), 21, room=2)
    for transfer in (two, three):
        transfer.run()
        transfer.check_rows()
    assert two.senders[0].capacity_tokens == 8
    assert three.senders[0].capacity_tokens == 8


@pytest.mark.parametrize(("prefix", "end", "wanted"), [(16, 37, 3), (16, 16, 0), (0, 8, 1)])
def test_a_request_lists_the_pages_of_the_asked_positions_alone(
    prefix: int, end: int, wanted: int
) -> None:
    """The receiver's page table covers the whole request: its prefix too, and pages to come."""
    world = World()
    source, destination = world.add("p0"), world.add("d0", Sharding(2, 1, 2))
    ids = random_pages(destination.layout, 0, 80, 3)
    table = destination.manager.pool.table(ids, 0)
    transfer = Transfer(world, [source], [destination], end, prefix=prefix)
    transfer.destination_pages = [Pages(ids)]
    transfer.senders.append(source.manager.open_sender(5))
    transfer.receivers.append(
        destination.manager.open_receiver(5, [source.address], table, prefix=prefix, end=end)
    )
    transfer.send(end, is_final=True)
    world.finish(*transfer.rooms)
    transfer.check_rows()
    frames = (decode_frame(frame)[1] for _, frame in world.hub.log)
    (request,) = (message for message in frames if isinstance(message, Request))
    assert len(request.pages) == 8 * wanted
