# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults that public projects had with heads, state, layers, element types and page sizes.

As far as planning and row copies decide them; ``owner/repo#number`` is where each was reported or
fixed.
"""

from dataclasses import replace

import numpy as np
import pytest

from kvxfer import (
    InvalidArgumentError,
    PackBufferLayout,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    Sharding,
    copy_rows,
    direct_writes,
    packed_writes,
)
from support.core_pools import POISON, make_relayout, make_table, row_pairs, with_memory
from support.oracle import Heads, PlaneSpec, Pool, Shard

ONE_PLANE = (PlaneSpec(0, "LATENT", 8),)

# --- TP head slices, GQA -------------------------------------------------------------------------


def head_pool(total: int, ranks: int, rank: int, head_bytes: int = 8) -> Pool:
    heads = Heads(total, ranks, rank)
    row_bytes = head_bytes * len(heads.held())
    return Pool(4, (PlaneSpec(0, "KEY", row_bytes, head_bytes=head_bytes),), heads=heads)


def head_slices(source: tuple[int, int], destination: tuple[int, int], total: int) -> list[
    tuple[int, int, int]
]:  # fmt: skip
    """(source offset, destination offset, bytes) that the pair of (ranks, rank) moves."""
    relayout = make_relayout(head_pool(total, *source), head_pool(total, *destination))
    return [
        (pair.source_offset_bytes, pair.destination_offset_bytes, pair.bytes)
        for pair in relayout.planes
    ]


def test_a10_replicated_heads_have_one_writer_each() -> None:
    """vllm-project/vllm#52516."""
    writes = {rank: head_slices((8, rank), (1, 0), 4) for rank in range(8)}
    assert {rank: found for rank, found in writes.items() if found} == {
        0: [(0, 0, 8)],
        2: [(0, 8, 8)],
        4: [(0, 16, 8)],
        6: [(0, 24, 8)],
    }
    assert sum(size for found in writes.values() for _, _, size in found) == 32
    readers = {}
    for rank in range(8):
        [(writer, [slice_])] = [
            (source, found)
            for source in range(2)
            if (found := head_slices((2, source), (8, rank), 4))
        ]
        assert slice_[1:] == (0, 8)
        readers[rank] = (writer, slice_[0] // 8)
    assert list(readers.values()) == [
        *[(0, 0), (0, 0), (0, 1), (0, 1)],
        *[(1, 0), (1, 0), (1, 1), (1, 1)],
    ]


@pytest.mark.parametrize("source_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("destination_ranks", [1, 2, 4, 8])
def test_rows_beside_divided_ones_have_one_writer(
    source_ranks: int, destination_ranks: int
) -> None:
    """Keys are divided over the group, index keys are on every rank of it."""

    def pool(ranks: int, rank: int) -> Pool:
        keys = head_pool(4, ranks, rank)
        return replace(keys, planes=(*keys.planes, PlaneSpec(0, "INDEX_KEY", 16)))

    for rank in range(destination_ranks):
        writers = []
        for source in range(source_ranks):
            relayout = make_relayout(pool(source_ranks, source), pool(destination_ranks, rank))
            kinds = {relayout.source.planes[pair.source_plane].kind for pair in relayout.planes}
            assert kinds != {PlaneKind.INDEX_KEY}, "index keys come from a rank that sends no key"
            if PlaneKind.INDEX_KEY in kinds:
                writers.append(source)
        assert len(writers) == 1


def test_a11_ranks_without_a_head_to_write_still_complete() -> None:
    """sgl-project/sglang#22145: the plan's part."""
    assert [Heads(2, 4, rank).held() for rank in range(4)] == [[0], [0], [1], [1]]
    found = [head_slices((4, rank), (1, 0), 2) for rank in range(4)]
    assert found == [[(0, 0, 8)], [], [(0, 8, 8)], []]
    silent = make_relayout(head_pool(2, 4, 1), head_pool(2, 1, 0))
    assert silent.is_empty
    assert silent.shares_tokens()  # a completion without data is owed all the same


# --- hybrid state --------------------------------------------------------------------------------


def test_a12_channel_offsets_count_inside_the_decode_rank() -> None:
    """sgl-project/sglang#20655: channels of recurrent state are divided as heads are."""
    offsets = [
        (target, found[0][1] // 8)
        for rank in range(4)
        for target in range(2)
        if (found := head_slices((4, rank), (2, target), 8))
    ]
    assert offsets == [(0, 0), (0, 2), (1, 0), (1, 2)]
    for rank in range(4):
        for target in range(2):
            for _, offset, size in head_slices((4, rank), (2, target), 8):
                assert offset + size <= 4 * 8  # never the wrong offsets 4 and 6 channels


def test_a13_arrays_without_bytes_are_refused_by_name() -> None:
    """sgl-project/sglang#35689: the plan's part."""
    sizes = {"conv0": 6, "temporal0": 0, "conv1": 6, "temporal1": 0}
    planes = [Plane(i, PlaneKind.LATENT, size) for i, size in enumerate(sizes.values())]
    with pytest.raises(InvalidArgumentError, match=r"layer 1, latent.* row_bytes .* got 0"):
        PoolLayout(1, 1, planes)
    kept = PoolLayout(1, 1, [plane for plane in planes if plane.row_bytes])
    relayout = Relayout(kept, kept)
    assert [(pair.source_plane, pair.bytes) for pair in relayout.planes] == [(0, 6), (1, 6)]
    table = PageTable(kept, [0], plane_addresses=[1 << 40, 1 << 41])
    assert len(direct_writes(relayout, [Segment(0, 0, True)], table, table)) == 0
    writes = direct_writes(relayout, [Segment(0, 1, True)], table, table)
    assert writes.runs[:, 2].tolist() == [6, 6]


def test_a14_a_longer_page_list_is_fine_and_a_shorter_one_is_refused() -> None:
    """sgl-project/sglang#27004: the plan's part."""
    source = Pool(4, ONE_PLANE, pages=(5, 2, 7))  # one page more than the prompt needs
    assert len(row_pairs(source, Pool(4, ONE_PLANE, pages=(1, 0)), 0, 8)) == 8
    with pytest.raises(InvalidArgumentError, match=r"destination pages .* got 2 pages"):
        row_pairs(source, Pool(4, ONE_PLANE, pages=(1, 0)), 0, 9)
    with pytest.raises(InvalidArgumentError, match=r"destination pages .* got 0 pages"):
        row_pairs(source, Pool(4, ONE_PLANE), 0, 8)


# --- draft layers and pipeline stages ------------------------------------------------------------


def key_value_layout(layers: range, draft_layers: tuple[int, ...] = ()) -> PoolLayout:
    """[K..., V..., Kd, Vd ...], as engines list their pointers."""
    planes = [
        *[Plane(layer, PlaneKind.KEY, 8) for layer in layers],
        *[Plane(layer, PlaneKind.VALUE, 8) for layer in layers],
    ]
    for layer in draft_layers:
        planes += [Plane(layer, PlaneKind.KEY, 8), Plane(layer, PlaneKind.VALUE, 8)]
    return PoolLayout(4, 8, planes)


def pointer_indices(relayout: Relayout) -> tuple[list[int], list[int]]:
    """Destination indices of the source's keys and of its values, in the source's order."""
    to = {pair.source_plane: pair.destination_plane for pair in relayout.planes}
    kinds = [plane.kind for plane in relayout.source.planes]
    return (
        [to[i] for i, kind in enumerate(kinds) if kind == PlaneKind.KEY],
        [to[i] for i, kind in enumerate(kinds) if kind == PlaneKind.VALUE],
    )


@pytest.mark.parametrize(
    ("draft_layers", "stage", "keys", "values"),
    [
        ((), range(7), range(7), range(15, 22)),
        ((), range(7, 15), range(7, 15), range(22, 30)),
        ((15,), range(3), range(3), range(15, 18)),
        ((15,), range(3, 7), range(3, 7), range(18, 22)),
        ((15,), range(7, 11), range(7, 11), range(22, 26)),
        ((15,), range(11, 15), range(11, 15), range(26, 30)),
    ],
)
def test_a16_an_uneven_stage_is_no_draft(
    draft_layers: tuple[int, ...], stage: range, keys: range, values: range
) -> None:
    """sgl-project/sglang#27740, sgl-project/sglang#28229."""
    destination = key_value_layout(range(15), draft_layers)
    relayout = Relayout(key_value_layout(stage), destination)
    assert pointer_indices(relayout) == (list(keys), list(values))
    assert relayout.unmatched_source_planes == []
    unmatched = set(relayout.unmatched_destination_planes)
    assert unmatched == set(range(len(destination.planes))) - {*keys, *values}
    assert set(range(30, 30 + 2 * len(draft_layers))) <= unmatched


def test_a17_a_draft_that_only_decode_has_stays_untouched() -> None:
    """sgl-project/sglang#17212."""
    relayout = Relayout(key_value_layout(range(2)), key_value_layout(range(2), (2,)))
    assert pointer_indices(relayout) == ([0, 1], [2, 3])
    assert relayout.unmatched_destination_planes == [4, 5]


def test_a18_a_bad_peer_is_refused_and_the_next_one_served() -> None:
    """sgl-project/sglang#33043: the plan's part."""
    ours = PoolLayout(4, 8, [Plane(0, PlaneKind.KEY, 8), Plane(0, PlaneKind.VALUE, 8)])
    scales = Plane(0, PlaneKind.KEY_SCALE, 2)
    bad = PoolLayout(4, 8, [*ours.planes, scales], sharding=Sharding(2))
    with pytest.raises(InvalidArgumentError, match=r"layer 0, key_scale.* on the destination only"):
        Relayout(ours, bad)
    assert len(Relayout(ours, PoolLayout(4, 8, ours.planes, sharding=Sharding(2))).planes) == 2


# --- quantised KV, dtypes, page sizes ------------------------------------------------------------


def test_a19_scale_rows_travel_with_their_rows() -> None:
    """sgl-project/sglang#35718: scales per slot."""
    planes = (PlaneSpec(0, "KEY", 8), PlaneSpec(0, "KEY_SCALE", 1))
    source = replace(Pool(4, planes, pages=(6, 2)), plane_addresses=(1 << 40, 1 << 41))
    target = replace(Pool(4, planes, Shard(2, 1), pages=(3,)), plane_addresses=(1 << 42, 1 << 43))
    assert row_pairs(source, target, 0, 8) == [(25, 12), (27, 13), (9, 14), (11, 15)]
    relayout = make_relayout(source, target)
    segment = Segment(0, 8, True)
    writes = direct_writes(relayout, [segment], make_table(source), make_table(target))
    starts = [1 << 40, 1 << 41], [1 << 42, 1 << 43]
    keys, scales = writes.runs[:4], writes.runs[4:]
    assert [(a - starts[0][0], b - starts[1][0], n) for a, b, n in keys.tolist()] == [
        (200, 96, 8),
        (216, 104, 8),
        (72, 112, 8),
        (88, 120, 8),
    ]
    assert [(a - starts[0][1], b - starts[1][1], n) for a, b, n in scales.tolist()] == [
        (25, 12, 1),
        (27, 13, 1),
        (9, 14, 1),
        (11, 15, 1),
    ]
    assert relayout.segment_bytes(0, 8) == 4 * (8 + 1)


def test_a20_item_bytes_are_those_of_the_entry() -> None:
    """NVIDIA/TensorRT-LLM#16505."""
    state = Plane(0, PlaneKind.LATENT, 16, dtype="float16")
    attention = Plane(1, PlaneKind.LATENT, 8, dtype="float8_e4m3")
    ours = PoolLayout(4, 2, [state, attention])
    table = PageTable(ours, [1], plane_addresses=[1 << 40, 1 << 41])
    runs = direct_writes(Relayout(ours, ours), [Segment(0, 4, True)], table, table).runs
    assert runs[:, 2].tolist() == [64, 32]
    wrong = [state, Plane(1, PlaneKind.LATENT, 16, dtype="float8_e4m3")]
    with pytest.raises(InvalidArgumentError, match=r"layer 1.* source 8 and destination 16"):
        Relayout(ours, PoolLayout(4, 2, wrong))
    wrong = [state, Plane(1, PlaneKind.LATENT, 8, dtype="float16")]
    with pytest.raises(InvalidArgumentError, match=r"layer 1.*source float8_e4m3 and.* float16"):
        Relayout(ours, PoolLayout(4, 2, wrong))


@pytest.mark.parametrize("sizes", [(32, 64), (64, 32), (64, 64)])
def test_a21_different_page_sizes_are_served_with_the_right_bytes(sizes: tuple[int, int]) -> None:
    """sgl-project/sglang#14439, sgl-project/sglang#14474."""
    tokens = 150
    source, memory = with_memory(
        Pool(sizes[0], ONE_PLANE, pages=(9, 4, 7, 1, 0), page_count=10), np.random.default_rng(1)
    )
    target, arrived = with_memory(
        Pool(sizes[1], ONE_PLANE, pages=(3, 8, 5, 2, 6), page_count=10), POISON
    )
    relayout = make_relayout(source, target)
    copy_rows(relayout, Segment(0, tokens, True), make_table(source), make_table(target))
    rows = memory[8:-8].reshape(-1, 8), arrived[8:-8].reshape(-1, 8)
    for position in range(tokens):
        assert (rows[0][source.row_of(position)] == rows[1][target.row_of(position)]).all()
    untouched = set(range(len(rows[1]))) - {target.row_of(p) for p in range(tokens)}
    assert (rows[1][sorted(untouched)] == POISON).all()


def test_a21_an_interleave_that_one_page_size_cannot_serve() -> None:
    """sgl-project/sglang#14439: refused, with both numbers."""
    with pytest.raises(InvalidArgumentError, match="divides page_size 32, got 64"):
        PoolLayout(32, 8, [Plane(0, PlaneKind.LATENT, 8)], sharding=Sharding(2, 0, 64))


# --- integer overflow ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "offset"), [(3_728_270, 2_147_483_520), (3_728_271, 2_147_484_096)]
)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_a37_row_offsets_beyond_32_bits(row: int, offset: int, dtype: type) -> None:
    """lightseekorg/tokenspeed#501."""
    layout = PoolLayout(1, 3_728_272, [Plane(0, PlaneKind.LATENT, 576)])
    small = PoolLayout(1, 1, [Plane(0, PlaneKind.LATENT, 576)])
    table = PageTable(layout, np.array([row], dtype), plane_addresses=[1 << 45])
    target = PageTable(small, [0], plane_addresses=[1 << 46])
    segment = Segment(0, 1, True)
    there = direct_writes(Relayout(layout, small), [segment], table, target)
    back = packed_writes(Relayout(small, layout), [segment], 0, table)
    assert there.runs.tolist() == [[(1 << 45) + offset, 1 << 46, 576]]
    assert back.runs.tolist() == [[0, (1 << 45) + offset, 576]]
    rows = Relayout(layout, small).source_rows(0, 1, table)
    assert (rows.tolist(), rows.dtype) == ([row], np.int64)


def test_a37_lengths_that_add_beyond_32_bits() -> None:
    """lightseekorg/tokenspeed#501."""
    layout = PoolLayout(64, 60_000, [Plane(0, PlaneKind.LATENT, 576)])
    relayout = Relayout(layout, layout)
    pages = np.arange(60_000, dtype=np.int32)
    table = PageTable(layout, pages, plane_addresses=[1 << 45])
    segment = Segment(0, 60_000 * 64, True)
    size = 60_000 * 64 * 576
    assert size > 2**31
    writes = direct_writes(relayout, [segment], table, table)
    assert writes.bytes == relayout.segment_bytes(0, segment.end) == size
    assert writes.runs.tolist() == [[1 << 45, 1 << 45, size]]
    layout_of_buffer = PackBufferLayout([relayout], segment.end)
    assert layout_of_buffer.plan(segment).regions[0].bytes == layout_of_buffer.bytes == size
