# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults that public projects had, as far as planning and row copies decide them.

Each test is one fault with its inputs and the right result; ``owner/repo#number`` is where it was
reported or fixed.
"""

import math

import numpy as np
import pytest

from kvxfer import (
    CapacityError,
    InvalidArgumentError,
    PackBufferLayout,
    PageTable,
    Relayout,
    Segment,
    Sharding,
    copy_rows,
    direct_writes,
    pack_rows,
    packed_writes,
    split_segments,
)
from support.core_pools import (
    POISON,
    make_layout,
    make_relayout,
    make_table,
    row_pairs,
    with_memory,
)
from support.oracle import PlaneSpec, Pool, Shard

ONE_PLANE = (PlaneSpec(0, "LATENT", 8),)


def prefill(
    pages: list[int], page_size: int = 4, planes: tuple[PlaneSpec, ...] = ONE_PLANE
) -> Pool:
    return Pool(page_size, planes, pages=tuple(pages))


def decode(
    rank: int,
    ranks: int,
    pages: list[int],
    first_position: int = 0,
    page_size: int = 4,
    planes: tuple[PlaneSpec, ...] = ONE_PLANE,
) -> Pool:
    shard = Shard(ranks, rank)
    return Pool(page_size, planes, shard, pages=tuple(pages), first_position=first_position)


def spans(
    begin: int, end: int, *, is_final: bool = True, prefix: int = 0, capacity: int | None = None
) -> list[tuple[int, int, bool]]:
    """Segments of a send at page size 4."""
    segments = split_segments(
        begin,
        end,
        is_final=is_final,
        prefix=prefix,
        alignment_tokens=4,
        capacity_tokens=capacity,
    )
    return [(segment.begin, segment.end, segment.is_final) for segment in segments]


# --- ownership, pages, prefix --------------------------------------------------------------------


def test_a01_a_rank_that_owns_no_token_has_no_write() -> None:
    """sgl-project/sglang#32837."""
    expected = [[(20, 36)], [(21, 36)], [], []]
    source, kept = with_memory(prefill([5]), 7)
    relayouts = []
    for rank in range(4):
        target, memory = with_memory(decode(rank, 4, [9]), POISON)
        assert row_pairs(source, target, 0, 2) == expected[rank]
        relayout = make_relayout(source, target)
        relayouts.append(relayout)
        assert not relayout.is_empty
        [segment] = split_segments(0, 2, is_final=True, prefix=0, alignment_tokens=4)
        tables = make_table(source), make_table(target)
        packed = packed_writes(relayout, [segment], 0, tables[1])
        direct = direct_writes(relayout, [segment], *tables)
        assert len(packed) == len(direct) == len(expected[rank])
        copy_rows(relayout, segment, *tables)
        changed = {(offset - 8) // 8 for offset in np.flatnonzero(memory != POISON)}
        assert changed == {to for _, to in expected[rank]}  # rows 37, 38, 39 stay untouched
    plan = PackBufferLayout(relayouts, 4).plan(segment)
    assert [(region.index, region.row_count) for region in plan.regions] == [(0, 1), (1, 1)]
    assert len(kept) > 0


def test_a02_a_half_filled_page_waits_for_the_next_send() -> None:
    """sgl-project/sglang#5588."""
    sends = [spans(0, 6, is_final=False), spans(4, 10)]
    assert sends == [[(0, 4, False)], [(4, 10, True)]]
    pages = [7, 2, 5]
    slices = [(begin // 4, math.ceil(end / 4)) for [(begin, end, _)] in sends]
    assert slices == [(0, 1), (1, 3)]
    assert [pages[slice(*pair)] for pair in slices] == [[7], [2, 5]]
    assert sum(end - begin for [(begin, end, _)] in sends) == 10


@pytest.mark.parametrize(
    ("tokens", "needed"), [(1, 1), (16, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)]
)
def test_a03_pages_per_rank_count_the_widened_page(tokens: int, needed: int) -> None:
    """vllm-project/vllm#54679."""
    source = prefill(list(range(5)), 16)
    for rank in range(2):
        layout = make_layout(decode(rank, 2, [], page_size=16))
        assert math.ceil(tokens / layout.widened_page_tokens) == needed
        relayout = Relayout(make_layout(source), layout)
        enough = PageTable(layout, list(range(needed)))
        assert enough.end_position >= tokens > enough.end_position - 32
        assert len(relayout.destination_rows(0, tokens, enough)) == relayout.row_count(0, tokens)
    short = PageTable(layout, list(range(needed - 1)))
    if relayout.row_count(short.end_position, tokens):
        with pytest.raises(InvalidArgumentError, match=f"got {needed - 1} pages"):
            relayout.destination_rows(0, tokens, short)


def test_a04_page_lists_of_different_length() -> None:
    """sgl-project/sglang#32997."""
    source = prefill([3, 0, 6, 2, 8])
    assert [row_pairs(source, decode(rank, 4, [1, 4]), 0, 17) for rank in range(4)] == [
        [(12, 4), (0, 5), (24, 6), (8, 7), (32, 16)],
        [(13, 4), (1, 5), (25, 6), (9, 7)],
        [(14, 4), (2, 5), (26, 6), (10, 7)],
        [(15, 4), (3, 5), (27, 6), (11, 7)],
    ]
    source = prefill([3, 0])
    assert [row_pairs(source, decode(rank, 3, [1]), 0, 5) for rank in range(3)] == [
        [(12, 4), (15, 5)],
        [(13, 4), (0, 5)],
        [(14, 4)],
    ]
    plain = prefill([3, 0, 6, 2, 8]), prefill([1, 4])
    with pytest.raises(ValueError, match=r"destination pages for .*\[0, 17\), got 2 pages for"):
        row_pairs(*plain, 0, 17)
    with pytest.raises(ValueError, match=r"source pages for .*\[0, 17\), got 2 pages for"):
        row_pairs(plain[1], plain[0], 0, 17)


def test_a05_only_the_rest_behind_the_prefix_is_sent() -> None:
    """sgl-project/sglang#19746."""
    source = prefill([10, 11, 12, 13, 14, 15])
    assert spans(16, 24, prefix=16) == [(16, 24, True)]
    assert [row_pairs(source, decode(rank, 2, [3], 16), 16, 24) for rank in range(2)] == [
        [(56, 12), (58, 13), (60, 14), (62, 15)],
        [(57, 12), (59, 13), (61, 14), (63, 15)],
    ]
    assert spans(24, 24, prefix=24) == [(24, 24, True)]  # full hit: one final message, no row
    full_hit = decode(0, 2, [], 24)
    assert row_pairs(source, full_hit, 24, 24) == []
    assert spans(16, 18, prefix=16, is_final=False) == []
    with pytest.raises(ValueError, match="page_size 4 \\* ranks 2 = 8 tokens, got 12"):
        make_table(decode(0, 2, [3], 12))


def test_a06_page_interleaved_ownership() -> None:
    """sgl-project/sglang#38356, sgl-project/sglang#37615: the plan's part."""
    sharding = Sharding(2, 0, 4)
    pairs = [(sharding.owner(p), sharding.local_index(p)) for p in range(12)]
    assert pairs == [
        *[(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)],
        *[(0, 4), (0, 5), (0, 6), (0, 7)],
    ]
    assert len(set(pairs)) == 12


def test_a07_the_grid_of_an_early_send_starts_at_the_prefix() -> None:
    """sgl-project/sglang#30545."""
    early = spans(8, 20, is_final=False, prefix=8, capacity=8)
    final = spans(early[-1][1], 30, prefix=8, capacity=8)
    assert early == [(8, 16, False), (16, 20, False)]
    assert final == [(20, 24, False), (24, 30, True)]
    segments = early + final
    assert [begin for begin, _, _ in segments[1:]] == [end for _, end, _ in segments[:-1]]
    assert all(end - begin <= 8 for begin, end, _ in segments)


# --- pack capacity and splitting -----------------------------------------------------------------

TWO_PLANES = (PlaneSpec(0, "LATENT", 2), PlaneSpec(1, "LATENT", 2))


def test_a08_a_region_never_runs_into_its_neighbour() -> None:
    """sgl-project/sglang#40376, sgl-project/sglang#40336."""
    source, kept = with_memory(prefill([3, 1, 0, 2], planes=TWO_PLANES), 7)
    relayouts = [make_relayout(source, decode(rank, 2, [], planes=TWO_PLANES)) for rank in range(2)]
    layout = PackBufferLayout(relayouts, 8)
    assert (layout.region_bytes, layout.bytes) == (16, 32)
    assert [relayout.segment_bytes(0, 16) for relayout in relayouts] == [32, 32]
    for index, relayout in enumerate(relayouts):  # each alone would fit the whole buffer
        with pytest.raises(CapacityError, match=f"needs 32 bytes for relayout {0}.* 16 bytes"):
            PackBufferLayout([relayout], 8).plan(Segment(0, 16, True))
        assert layout.region_offset_bytes(index) == 16 * index
    with pytest.raises(CapacityError, match="needs 32 bytes"):
        layout.plan(Segment(0, 16, True))

    segments = split_segments(0, 16, is_final=True, prefix=0, alignment_tokens=4, capacity_tokens=8)
    assert [(s.begin, s.end) for s in segments] == [(0, 8), (8, 16)]
    for segment in segments:
        plan = layout.plan(segment)
        assert [(r.offset_bytes, r.bytes, r.row_count) for r in plan.regions] == [
            (0, 16, 4),
            (16, 16, 4),
        ]
        alone = PackBufferLayout(relayouts[:1], 8)
        buffer = np.full(32, POISON, np.uint8)
        pack_rows(alone, alone.plan(segment), make_table(source), buffer)
        assert (buffer[:16] == 7).all()
        assert (buffer[16:] == POISON).all()  # the guard in the neighbour's region
    assert len(kept) > 0


def test_a08_real_size() -> None:
    """sgl-project/sglang#40336: the log line's buffer."""
    planes = tuple(PlaneSpec(layer, "LATENT", 576) for layer in range(24))
    source = Pool(64, planes)
    relayouts = [make_relayout(source, Pool(64, planes, Shard(8, rank))) for rank in range(8)]
    layout = PackBufferLayout(relayouts, 16_384)
    assert (layout.bytes, layout.region_bytes) == (226_492_416, 28_311_552)
    assert relayouts[0].row_count(0, 85_248) == 10_656
    needed = relayouts[0].segment_bytes(0, 85_248)
    assert needed == 147_308_544
    offsets = [layout.region_offset_bytes(rank) for rank in range(8)]
    assert offsets == [rank * 28_311_552 for rank in range(8)]
    # The whole-buffer test would pass ranks 0 to 2; the region test passes none.
    assert [rank for rank in range(8) if offsets[rank] + needed <= layout.bytes] == [0, 1, 2]
    for rank in range(8):
        with pytest.raises(CapacityError, match=r"needs 147308544 bytes .* 28311552 bytes"):
            PackBufferLayout([relayouts[rank]], 16_384).plan(Segment(0, 85_248, True))

    segments = split_segments(
        0, 85_248, is_final=True, prefix=0, alignment_tokens=64, capacity_tokens=16_384
    )
    assert [s.end - s.begin for s in segments] == [16_384] * 5 + [3_328]
    rows = [{r.row_count for r in layout.plan(segment).regions} for segment in segments]
    assert rows == [{2_048}] * 5 + [{416}]


def test_a09_an_oversized_prefix_is_split_only_for_peers_that_need_it() -> None:
    """sgl-project/sglang#40376."""
    source = prefill([9, 4, 1, 7, 2, 5])
    targets = [decode(rank, 2, [6, 3, 8]) for rank in range(2)]
    relayouts = [make_relayout(source, target) for target in targets]
    max_tokens = 10
    buffer_bytes = 2 * math.ceil(max_tokens / 2) * 8
    assert PackBufferLayout.capacity_for(relayouts, buffer_bytes) == 8
    assert PackBufferLayout.capacity_for(relayouts, 2 * 6 * 8) == 12
    assert spans(0, 21, capacity=8) == [(0, 8, False), (8, 16, False), (16, 21, True)]
    right = [
        [
            [(36, 24), (38, 25), (16, 26), (18, 27)],
            [(4, 12), (6, 13), (28, 14), (30, 15)],
            [(8, 32), (10, 33), (20, 34)],
        ],
        [
            [(37, 24), (39, 25), (17, 26), (19, 27)],
            [(5, 12), (7, 13), (29, 14), (31, 15)],
            [(9, 32), (11, 33)],
        ],
    ]
    for rank, target in enumerate(targets):
        cuts = [(begin, end) for begin, end, _ in spans(0, 21, capacity=8)]
        found = [row_pairs(source, target, *cut) for cut in cuts]
        assert found == right[rank]
        assert [pair for cut in found for pair in cut] == row_pairs(source, target, 0, 21)
        assert max(len(pairs) for pairs in found) <= 5
    plain = make_relayout(source, prefill([0, 1, 2, 3, 4, 5]))
    assert (plain.needs_packing, [r.needs_packing for r in relayouts]) == (False, [True, True])
    assert spans(0, 21) == [(0, 21, True)]


@pytest.mark.parametrize(("tokens", "segments"), [(83_264 + 6_720, 11), (163_840 + 6_720, 21)])
def test_a09_published_shape(tokens: int, segments: int) -> None:
    """sgl-project/sglang#40376."""
    planes = tuple(PlaneSpec(layer, "LATENT", 576) for layer in range(7))
    relayouts = [
        make_relayout(Pool(64, planes), Pool(64, planes, Shard(4, rank))) for rank in range(4)
    ]
    buffer_bytes = int(31.5 * 2**20)
    capacity = PackBufferLayout.capacity_for(relayouts, buffer_bytes)
    assert capacity == 8_192
    assert PackBufferLayout.bytes_for(relayouts, capacity) == buffer_bytes
    found = split_segments(
        0, tokens, is_final=True, prefix=0, alignment_tokens=64, capacity_tokens=capacity
    )
    assert len(found) == segments


def test_a15_only_the_last_segment_carries_state() -> None:
    """sgl-project/sglang#40376: the plan's part."""
    assert [is_final for _, _, is_final in spans(0, 21, capacity=8)] == [False, False, True]
    sends = [spans(0, 13, is_final=False, capacity=8), spans(12, 21, capacity=8)]
    assert sum(is_final for send in sends for _, _, is_final in send) == 1
    assert [is_final for _, _, is_final in spans(24, 24, prefix=24, capacity=8)] == [True]
