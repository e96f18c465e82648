# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults that other projects reported about rows, segments, state and completion.

Every test names its case of the public reports in its docstring.
"""

import numpy as np
import pytest

from kvxfer import (
    HeadSharding,
    InvalidArgumentError,
    Plane,
    PlaneKind,
    PoolLayout,
)
from kvxfer.transfer import LocalPool, RoomState, StateComponent, TransferManager
from kvxfer.transfer.completion import Completion
from support.transfer_world import LATENT, Pages, Rank, Transfer, World

ONE_PLANE = [Plane(0, PlaneKind.LATENT, 2)]


def completions(world: World, peer: str | None = None) -> list[Completion]:
    """Completion messages that were posted, in order."""
    posts = [p for p in world.wire.posts if peer in (None, p.peer) and p.notification]
    return [Completion.decode(post.notification) for post in posts]


def rows_that_changed(rank: Rank, before: list[np.ndarray], row_bytes: int) -> list[int]:
    changed = (rank.arrays[0] != before[0]).reshape(-1, row_bytes).any(axis=1)
    return np.flatnonzero(changed).tolist()


def pairs(
    source: Rank, destination: Rank, row_bytes: int, rows: list[int]
) -> list[tuple[int, int]]:
    """(source row, destination row) by content; rows of the source must differ from each other."""
    content = {
        source.arrays[0][i * row_bytes : (i + 1) * row_bytes].tobytes(): i
        for i in range(len(source.arrays[0]) // row_bytes)
    }
    at = destination.arrays[0]
    return [(content[at[row * row_bytes :][:row_bytes].tobytes()], row) for row in rows]


def numbered(rank: Rank, row_bytes: int) -> None:
    """Give every row of a rank its own content."""
    rows = rank.arrays[0].reshape(-1, row_bytes)
    rows[:] = 0
    rows[:, 0] = np.arange(len(rows)) % 256
    rows[:, 1] = 128 + np.arange(len(rows)) // 256


def with_pages(transfer: Transfer, source: list[int], destination: list[int]) -> Transfer:
    transfer.source_pages = [Pages(source) for _ in transfer.sources]
    transfer.destination_pages = [
        Pages(destination, transfer.prefix) for _ in transfer.destinations
    ]
    for rank in transfer.sources:
        numbered(rank, 2)
    return transfer


def one_plane_world(destination_ranks: int, **options: int) -> tuple[World, Rank, list[Rank]]:
    world = World()
    source = world.add("p0", planes=ONE_PLANE, **options)
    return world, source, world.group("d", destination_ranks, planes=ONE_PLANE)


def test_a01_a_rank_that_owns_no_token_gets_one_completion_and_no_write() -> None:
    """sglang#32837."""
    world, source, destinations = one_plane_world(4)
    transfer = with_pages(Transfer(world, [source], destinations, 2), [5], [9])
    transfer.run()
    assert [room.state for room in transfer.receivers] == [RoomState.SUCCESS] * 4
    expected = {"d0": [(20, 36)], "d1": [(21, 36)], "d2": [], "d3": []}
    for rank, before in zip(destinations, transfer.before, strict=True):
        rows = rows_that_changed(rank, before, 2)
        assert pairs(source, rank, 2, rows) == expected[rank.name]
        posts = [post for post in world.wire.posts if post.peer == rank.name]
        assert [len(post.writes) for post in posts] == [len(expected[rank.name])]
        assert len(completions(world, rank.name)) == 1
        assert completions(world, rank.name)[0].is_final


def test_a02_a_half_filled_page_goes_with_the_next_send() -> None:
    """sglang#5588: prefill chunks of 6 and 4 tokens over pages [7, 2, 5]."""
    world, source, destinations = one_plane_world(1)
    transfer = with_pages(Transfer(world, [source], destinations, 10), [7, 2, 5], [3, 0, 6])
    transfer.run(6)
    sent = [(c.begin, c.end, c.is_final) for c in completions(world)]
    assert sent == [(0, 4, False), (4, 10, True)]
    rows = rows_that_changed(destinations[0], transfer.before[0], 2)
    sources_in_order = [28, 29, 30, 31, 8, 9, 10, 11, 20, 21]
    landed = [12, 13, 14, 15, 0, 1, 2, 3, 24, 25]
    assert pairs(source, destinations[0], 2, rows) == sorted(
        zip(sources_in_order, landed, strict=True), key=lambda pair: pair[1]
    )


def test_a05_only_what_is_beyond_the_prefix_is_sent() -> None:
    """sglang#19746."""
    world, source, destinations = one_plane_world(2)
    transfer = with_pages(
        Transfer(world, [source], destinations, 24, prefix=16), [10, 11, 12, 13, 14, 15], [3]
    )
    transfer.run(17)
    expected = {
        "d0": [(56, 12), (58, 13), (60, 14), (62, 15)],
        "d1": [(57, 12), (59, 13), (61, 14), (63, 15)],
    }
    for rank, before in zip(destinations, transfer.before, strict=True):
        rows = rows_that_changed(rank, before, 2)
        assert pairs(source, rank, 2, rows) == expected[rank.name]
        assert [c.segment for c in completions(world, rank.name)] == [0]


def test_a05_a_full_hit_sends_one_final_message_with_state_and_metadata() -> None:
    """sglang#19746."""
    world, source, (destination,) = one_plane_world(1)
    transfer = Transfer(world, [source], [destination], 24, prefix=24, metadata_bytes=8)
    transfer.open(state=[destination.state_component("conv", 0, 32)])
    transfer.send(
        24, is_final=True, state=[source.state_component("conv", 64, 32)], metadata=b"token"
    )
    world.finish(*transfer.rooms)
    transfer.check_untouched()
    assert transfer.receivers[0].metadata == b"token"
    assert np.array_equal(destination.state[:32], source.state[64:96])
    assert len(world.wire.posts) == 1
    assert [(c.begin, c.end, c.size_bytes) for c in completions(world)] == [(24, 24, 0)]


def test_a05_a_prefix_inside_a_virtual_page_is_refused() -> None:
    """sglang#19746."""
    _, source, destinations = one_plane_world(2)
    with pytest.raises(InvalidArgumentError, match=r"prefix is 12, expected a multiple of 8"):
        destinations[0].manager.open_receiver(5, [source.address], [3], prefix=12, end=24)


def test_a07_an_early_sent_prefix_is_cut_on_the_grid_of_the_decode_prefix() -> None:
    """sglang#30545."""
    world, source, destinations = one_plane_world(2)
    transfer = Transfer(world, [source], destinations, 30, prefix=8)
    transfer.run(20)
    transfer.check_rows()
    for rank in destinations:
        sent = [(c.begin, c.end, c.is_final) for c in completions(world, rank.name)]
        assert sent == [(8, 16, False), (16, 20, False), (20, 24, False), (24, 30, True)]


def test_a09_only_the_peer_that_needs_it_gets_a_cut_send() -> None:
    """sglang PR #40376: buffers of 10 tokens, so a capacity of 8."""
    world = World()
    source = world.add("p0", planes=ONE_PLANE, pack_buffer_bytes=2 * 5 * 2)
    plain = world.add("x", planes=ONE_PLANE)
    sharded = world.group("y", 2, planes=ONE_PLANE)
    pages = [9, 4, 1, 7, 2, 5]
    to_plain = Transfer(world, [source], [plain], 21, room=1)
    to_plain = with_pages(to_plain, pages, [0, 1, 2, 3, 4, 5])
    to_sharded = with_pages(Transfer(world, [source], sharded, 21, room=2), pages, [6, 3, 8])
    for transfer in (to_plain, to_sharded):
        transfer.run()
        transfer.check_rows()
    assert [(c.begin, c.end) for c in completions(world, "x")] == [(0, 21)]
    assert to_plain.senders[0].capacity_tokens is None
    assert to_sharded.senders[0].capacity_tokens == 8
    expected = {
        "y0": [(36, 24), (38, 25), (16, 26), (18, 27), (4, 12), (6, 13), (28, 14), (30, 15),
               (8, 32), (10, 33), (20, 34)],
        "y1": [(37, 24), (39, 25), (17, 26), (19, 27), (5, 12), (7, 13), (29, 14), (31, 15),
               (9, 32), (11, 33)],
    }  # fmt: skip
    for rank, before in zip(sharded, to_sharded.before, strict=True):
        rows = rows_that_changed(rank, before, 2)
        by_row = sorted(expected[rank.name], key=lambda pair: pair[1])
        assert pairs(source, rank, 2, rows) == by_row
        sent = [(c.begin, c.end, c.size_bytes // 2) for c in completions(world, rank.name)]
        last = 3 if rank.name == "y0" else 2
        assert sent == [(0, 8, 4), (8, 16, 4), (16, 21, last)]
    metrics = to_sharded.senders[0].result().metrics
    assert metrics.writes == metrics.packed_writes, "no row went without a pack buffer"
    assert metrics.row_writes == 21


def test_a09_a_token_budget_is_rounded_up_to_whole_pages() -> None:
    """sglang PR #40376: a budget of 10 tokens at page size 4 holds 12."""
    world = World()
    source = world.add("p0", planes=ONE_PLANE, pack_tokens=10)
    transfer = Transfer(world, [source], world.group("d", 2, planes=ONE_PLANE), 21)
    transfer.run()
    assert transfer.senders[0].capacity_tokens == 12


def head_layout(heads: int, ranks: int, rank: int) -> PoolLayout:
    sharding = HeadSharding(heads, ranks, rank)
    plane = Plane(0, PlaneKind.KEY, sharding.head_count * 8, head_bytes=8)
    return PoolLayout(4, 16, [plane], heads=sharding)


def test_a11_completion_counts_sources_and_a_repeat_does_not_count() -> None:
    """sglang#22145: TP4 with 2 heads to TP1; completions of ranks 3, 0, 2, 1, the first twice."""
    world = World()
    sources = [world.add(f"p{rank}", layout=head_layout(2, 4, rank)) for rank in range(4)]
    destination = world.add("d0", layout=head_layout(2, 1, 0))
    transfer = Transfer(world, sources, [destination], 6)
    world.wire.holds_notifications = True
    transfer.open()
    transfer.send(6, is_final=True)
    world.poll_until(lambda: len(world.wire.held) == 4)
    by_source = {n.sender: i for i, n in enumerate(world.wire.held)}
    world.wire.reorder([by_source[name] for name in ("p3", "p0", "p2", "p1")])
    world.wire.repeat(0)
    receiver = transfer.receivers[0]
    for _ in range(3):
        world.wire.deliver(1)
        world.poll(2)
        assert receiver.state is RoomState.TRANSFERRING
    world.wire.deliver(1)
    world.poll(2)
    assert receiver.state is RoomState.SUCCESS
    assert destination.manager.counters["completions_repeated"] == 1
    modes = receiver.result().modes
    assert modes == {"p0": "landing", "p1": "none", "p2": "landing", "p3": "none"}
    for position in range(6):
        page, row = divmod(position, 4)
        at_source = transfer.source_pages[0].ids[page] * 32 + row * 8
        at = transfer.destination_pages[0].ids[page] * 64 + row * 16
        for head, rank in ((0, 0), (1, 2)):
            got = destination.arrays[0][at + head * 8 : at + head * 8 + 8]
            assert np.array_equal(got, sources[rank].arrays[0][at_source : at_source + 8])


def test_a12_state_slices_of_a_wider_source_group_land_side_by_side() -> None:
    """sglang#20655: 2 channels on each of 4 source ranks, 4 on each of 2 destination ranks."""
    world = World()
    sources, destinations = world.group("p", 4, planes=LATENT), world.group("d", 2, planes=LATENT)
    transfer = Transfer(world, sources, destinations, 9)
    for rank, source in enumerate(sources):
        source.state[:2] = [10 * rank + 1, 10 * rank + 2]
    for source in sources:
        transfer.senders.append(source.manager.open_sender(5, 2))
    for rank, destination in enumerate(destinations):
        destination.state[:8] = 0
        component = destination.state_component("conv", 2, 4, ranks=2, rank=rank)
        transfer.receivers.append(
            destination.manager.open_receiver(
                5,
                [source.address for source in sources],
                transfer.destination_pages[rank].ids,
                end=9,
                state=[component],
            )
        )
    for rank, (sender, source) in enumerate(zip(transfer.senders, sources, strict=True)):
        component = source.state_component("conv", 0, 2, ranks=4, rank=rank)
        sender.send(transfer.source_pages[rank].ids, 9, is_final=True, state=[component])
    world.finish(*transfer.rooms)
    assert destinations[0].state[:8].tolist() == [0, 0, 1, 2, 11, 12, 0, 0]
    assert destinations[1].state[:8].tolist() == [0, 0, 21, 22, 31, 32, 0, 0]
    assert [room.state for room in transfer.receivers] == [RoomState.SUCCESS] * 2


def test_a12_state_beyond_registered_memory_is_refused_before_anything_is_posted() -> None:
    """sglang#20655: an offset past the end of the destination's channels."""
    world, source, (destination,) = one_plane_world(1)
    transfer = Transfer(world, [source], [destination], 4)
    transfer.open(state=[destination.state_component("conv", len(destination.state) - 2, 4)])
    transfer.send(4, is_final=True, state=[source.state_component("conv", 0, 4)])
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "state conv" in str(room.error)
    assert world.wire.posts == []


def test_a13_zero_byte_state_is_skipped_on_both_sides() -> None:
    """sglang#35689: conv0 6 B, temporal0 0 B, conv1 6 B, temporal1 0 B."""
    world, source, (destination,) = one_plane_world(1)
    destination.state[:12] = 0

    def components(rank: Rank) -> list[StateComponent]:
        return [
            rank.state_component("conv0", 0, 6),
            StateComponent(kind="temporal0", addresses=(0,), row_bytes=0),
            rank.state_component("conv1", 6, 6),
            StateComponent(kind="temporal1", addresses=(), row_bytes=6),
        ]

    transfer = Transfer(world, [source], [destination], 4)
    transfer.open(state=components(destination))
    present = [c for c in components(source) if c.size_bytes]
    transfer.send(4, is_final=True, state=present)
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].state is RoomState.SUCCESS
    assert np.array_equal(destination.state[:12], source.state[:12])
    final = completions(world)[-1]
    assert (final.state_count, final.state_bytes) == (2, 12)
    assert all((post.writes[:, 2] > 0).all() for post in world.wire.posts)


def test_a13_a_registration_that_fails_leaves_nothing_behind() -> None:
    """sglang#35689: the error names the region, and earlier ones are taken back."""
    world = World()
    transport = world.wire.create("p0")
    layout = PoolLayout(4, 8, [Plane(0, PlaneKind.LATENT, 4), Plane(1, PlaneKind.LATENT, 4)])
    array = np.zeros(layout.plane_bytes(0), dtype=np.uint8)
    taken = np.zeros(layout.plane_bytes(1), dtype=np.uint8)
    transport.register_memory(taken.ctypes.data + 16, 8)
    pool = LocalPool.from_arrays(layout, [array, taken])
    with pytest.raises(InvalidArgumentError, match=f"{taken.ctypes.data:#x}"):
        TransferManager(pool, transport, world.hub.create("mem://p0"))
    assert transport._regions.as_array().tolist() == [[taken.ctypes.data + 16, 8]]


def test_a14_paged_state_is_clamped_to_the_prompt() -> None:
    """sglang#27004: a prompt of 8 tokens at page size 4, one sampled token appended."""
    world, source, (destination,) = one_plane_world(1)
    base, own = destination.state.ctypes.data, source.state.ctypes.data
    transfer = Transfer(world, [source], [destination], 8)
    wanted = StateComponent.paged("swa", base, 16, [4, 1], page_count=2)
    transfer.open(state=[wanted])
    sent = StateComponent.paged("swa", own, 16, [7, 3, 9], page_count=2)
    transfer.send(8, is_final=True, state=[sent])
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].state is RoomState.SUCCESS
    pages = destination.state.reshape(-1, 16), source.state.reshape(-1, 16)
    assert np.array_equal(pages[0][[4, 1]], pages[1][[7, 3]])


def test_a14_state_lists_of_different_length_fail_that_room_alone() -> None:
    """sglang#27004: 2 pages against 0, and 3 against 2."""
    world, source, (destination,) = one_plane_world(1)
    base, own = destination.state.ctypes.data, source.state.ctypes.data
    two = StateComponent.paged("swa", base, 16, [4, 1], page_count=2)
    three = StateComponent.paged("swa", own, 16, [7, 3, 9], page_count=3)
    cases = {1: ([], r"\[\], but .* \[swa\]"), 2: ([three], "3 blocks, the destination 2")}
    for room, (sent, message) in cases.items():
        transfer = Transfer(world, [source], [destination], 8, room=room)
        transfer.open(state=[two])
        transfer.send(8, is_final=True, state=sent)
        world.finish(*transfer.rooms)
        for end in transfer.rooms:
            assert end.state is RoomState.FAILED
            with pytest.raises(Exception, match=message):
                raise end.error or AssertionError
    healthy = Transfer(world, [source], [destination], 8, room=3)
    healthy.run()
    assert healthy.receivers[0].state is RoomState.SUCCESS
    world.check_idle()


def test_a15_state_and_metadata_travel_once_after_the_last_row() -> None:
    """sglang PR #40376: the transport reads the source when a write completes."""
    world = World()
    world.wire.completes_on_poll = None
    source = world.add("p0", planes=ONE_PLANE, pack_buffer_bytes=2 * 5 * 2)
    destinations = world.group("y", 2, planes=ONE_PLANE)
    transfer = Transfer(world, [source], destinations, 21, metadata_bytes=4)
    for rank in destinations:
        rank.state[0] = 0
    transfer.senders.append(source.manager.open_sender(5, 2))
    for rank, pages in zip(destinations, transfer.destination_pages, strict=True):
        transfer.receivers.append(
            rank.manager.open_receiver(
                5,
                [source.address],
                pages.ids,
                end=21,
                metadata_bytes=4,
                state=[rank.state_component("kda", 0, 1)],
            )
        )
    world.poll(3)
    for value, end in ((1, 8), (2, 16), (3, 21)):
        source.state[0] = value
        is_final = end == 21
        fields = {"state": [source.state_component("kda", 0, 1)], "metadata": b"aux"}
        transfer.send(end, is_final=is_final, **(fields if is_final else {}))
    seen = 0
    for _ in range(40):
        world.poll()
        for post in world.wire.posts[seen:]:
            if 1 in post.writes[:, 2]:
                assert world.wire.running(post.peer) == [post], "rows are still under way"
        seen = len(world.wire.posts)
        world.wire.complete_all()
    assert [room.state for room in transfer.receivers] == [RoomState.SUCCESS] * 2
    for rank, room in zip(destinations, transfer.receivers, strict=True):
        assert rank.state[0] == 3
        assert room.metadata == b"aux"
        done = completions(world, rank.name)
        assert [c.state_count for c in done] == [0, 0, 1]
        assert [c.metadata_bytes for c in done] == [0, 0, 3]
    transfer.check_rows()
    world.poll(2)
    world.check_idle()


def test_a15_the_sharding_of_tokens_does_not_multiply_state() -> None:
    """State of a rank that gets no row of the request still travels once."""
    world = World()
    source, destinations = world.add("p0"), world.group("d", 2)
    transfer = Transfer(world, [source], destinations, 1)
    transfer.senders.append(source.manager.open_sender(5, 2))
    for rank, pages in zip(destinations, transfer.destination_pages, strict=True):
        component = rank.state_component("kda", 0, 8)
        transfer.receivers.append(
            rank.manager.open_receiver(5, [source.address], pages.ids, end=1, state=[component])
        )
    transfer.send(1, is_final=True, state=[source.state_component("kda", 0, 8)])
    world.finish(*transfer.rooms)
    assert [room.state for room in transfer.rooms] == [RoomState.SUCCESS] * 3
    for rank in destinations:
        assert np.array_equal(rank.state[:8], source.state[:8])
