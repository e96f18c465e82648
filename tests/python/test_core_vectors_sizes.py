# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Worked sizes of pack buffers and worked splits of sends."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from kvxfer import (
    PackBufferLayout,
    Relayout,
    Segment,
    Sharding,
    packed_writes,
    split_segments,
)
from support.core_pools import make_relayout, make_table
from support.oracle import PlaneSpec, Pool, Shard

LATENT = (PlaneSpec(0, "LATENT", 576),)
KIMI_PLANES = tuple(PlaneSpec(layer, "LATENT", 576) for layer in (3, 7, 11, 15, 19, 23, 26))

# --- sizes of pack buffers -----------------------------------------------------------------------


def dcp_relayouts(
    ranks: int, planes: tuple[PlaneSpec, ...] = KIMI_PLANES, interleave: int = 1, page: int = 64
) -> list[Relayout]:
    return [
        make_relayout(Pool(page, planes), Pool(page, planes, Shard(ranks, rank, interleave)))
        for rank in range(ranks)
    ]


def test_pack_buffer_of_kimi_linear() -> None:
    layout = PackBufferLayout(dcp_relayouts(4), 8192)
    assert layout.relayouts[0].segment_bytes(0, 4) == 4032
    assert layout.bytes == 33_030_144 == int(31.5 * 2**20)
    assert layout.region_bytes == 8_257_536 == 2048 * 4032
    assert 4 * layout.bytes == 126 * 2**20
    wide = tuple(replace(plane, row_bytes=1152) for plane in KIMI_PLANES)
    assert PackBufferLayout.bytes_for(dcp_relayouts(4, wide), 8192) == 63 * 2**20


def test_pack_buffer_of_a_deep_model() -> None:
    planes = tuple(PlaneSpec(layer, "LATENT", 576 * 2) for layer in range(61))
    size = PackBufferLayout.bytes_for(dcp_relayouts(4, planes), 32768)
    assert (round(size / 2**30, 2), round(4 * size / 2**30, 2)) == (2.14, 8.58)


def test_pack_buffer_of_twenty_four_planes_on_eight_ranks() -> None:
    planes = tuple(PlaneSpec(layer, "LATENT", 576) for layer in range(24))
    layout = PackBufferLayout(dcp_relayouts(8, planes), 16384)
    assert (layout.bytes, layout.region_bytes) == (226_492_416, 28_311_552)
    assert layout.region_offset_bytes(3) == 84_934_656
    assert layout.relayouts[3].segment_bytes(0, 85_248) == 147_308_544 == 10_656 * 24 * 576


def test_interleave_makes_regions_larger_than_an_even_share() -> None:
    [*_, last] = dcp_relayouts(4, LATENT, interleave=64)
    assert last.max_segment_bytes(8256) == 2112 * 576  # not ceil(8256 / 4) = 2064 rows
    shard = Shard(4, 3, 64)
    window = 2 * 256 + 64
    most = max(sum(shard.holds(p) for p in range(s, s + window)) for s in range(256))
    assert last.max_segment_bytes(window) == most * 576


REUSED_BUFFERS = [
    # tokens, ranks it was sized for, rows a region then has, ranks it is used with, rows needed
    (10_048, 4, 1_674, 6, 1_675),
    (8_192, 4, 1_365, 6, 1_366),
    (8_192, 2, 2_730, 3, 2_731),
    (8_192, 4, 2_730, 3, 2_731),
]


@pytest.mark.parametrize("case", REUSED_BUFFERS)
def test_a_buffer_sized_for_another_group_holds_less(case: tuple[int, ...]) -> None:
    tokens, sized_for, rows, used_with, needed = case
    size = PackBufferLayout.bytes_for(dcp_relayouts(sized_for, LATENT), tokens)
    relayouts = dcp_relayouts(used_with, LATENT)
    assert size // used_with // 576 == rows
    assert relayouts[0].max_segment_bytes(tokens) == needed * 576
    capacity = PackBufferLayout.capacity_for(relayouts, size)
    assert capacity == tokens - 64
    layout = PackBufferLayout(relayouts, capacity)
    assert layout.bytes <= size
    for begin in range(3 * used_with):  # no rank of a full segment can overflow
        plan = layout.plan(Segment(begin, begin + capacity, False))
        assert len(plan.regions) == used_with


@pytest.mark.parametrize(("sized_for", "used_with"), [(4, 8), (8, 4), (3, 4)])
def test_some_group_sizes_share_a_buffer(sized_for: int, used_with: int) -> None:
    size = PackBufferLayout.bytes_for(dcp_relayouts(sized_for, LATENT), 8192)
    assert PackBufferLayout.capacity_for(dcp_relayouts(used_with, LATENT), size) >= 8192


# --- segments ------------------------------------------------------------------------------------


def spans(segments: list[Segment]) -> list[tuple[int, int]]:
    assert [segment.is_final for segment in segments[:-1]] == [False] * (len(segments) - 1)
    return [(segment.begin, segment.end) for segment in segments]


def split(begin: int, end: int, prefix: int = 0, *, is_final: bool = True) -> list[Segment]:
    return split_segments(
        begin, end, is_final=is_final, prefix=prefix, alignment_tokens=64, capacity_tokens=256
    )


def test_a_final_send_longer_than_the_capacity() -> None:
    segments = split(0, 2055)
    assert spans(segments) == [(k * 256, (k + 1) * 256) for k in range(8)] + [(2048, 2055)]
    assert segments[-1].is_final
    for segment in segments:
        for rank in range(4):
            assert Sharding(4, rank).local_count(segment.begin, segment.end) <= 64


def test_a_final_send_behind_a_prefix() -> None:
    segments = split(256, 2055, 256)
    assert len(segments) == 8
    assert segments[-1] == Segment(2048, 2055, True)


def test_a_send_in_two_parts() -> None:
    first = split(0, 1000, is_final=False)
    assert spans(first) == [(0, 256), (256, 512), (512, 768), (768, 960)]
    assert not first[-1].is_final
    assert spans(split(960, 1031)) == [(960, 1024), (1024, 1031)]


def test_a_full_hit_is_one_empty_segment_and_no_capacity_one_send() -> None:
    assert split(256, 256, 256) == [Segment(256, 256, True)]
    whole = split_segments(0, 90_000, is_final=True, prefix=0, alignment_tokens=64)
    assert whole == [Segment(0, 90_000, True)]


@pytest.mark.parametrize(
    ("cached", "unique", "one_send", "early", "late"),
    [(83_264, 6_720, 11, 11, 1), (163_840, 6_720, 21, 20, 1)],
)
def test_segments_of_published_requests(
    cached: int, unique: int, one_send: int, early: int, late: int
) -> None:
    def count(begin: int, end: int, *, is_final: bool) -> int:
        return len(
            split_segments(
                begin, end, is_final=is_final, prefix=0, alignment_tokens=64, capacity_tokens=8192
            )
        )

    assert count(0, cached + unique, is_final=True) == one_send
    assert count(0, cached, is_final=False) == early
    assert count(cached, cached + unique, is_final=True) == late


def test_bytes_of_the_published_prefix() -> None:
    relayouts = dcp_relayouts(4)
    assert [r.segment_bytes(0, 83_264) for r in relayouts] == [83_930_112] * 4
    assert 4 * 83_930_112 == 335_720_448
    assert round(83_930_112 / 2**20, 2) == 80.04


TOKEN_EDGES = {
    63: ([16, 16, 16, 15], [63]),
    64: ([16, 16, 16, 16], [64]),
    65: ([17, 16, 16, 16], [65]),
    255: ([64, 64, 64, 63], [255]),
    256: ([64, 64, 64, 64], [256]),
    257: ([65, 64, 64, 64], [257]),
    8191: ([2048, 2048, 2048, 2047], [8191]),
    8192: ([2048, 2048, 2048, 2048], [8192]),
    8193: ([2049, 2048, 2048, 2048], [8192, 1]),
}


@pytest.mark.parametrize("tokens", TOKEN_EDGES)
def test_token_count_edges(tokens: int) -> None:
    rows, lengths = TOKEN_EDGES[tokens]
    relayouts = dcp_relayouts(4)
    layout = PackBufferLayout(relayouts, 8192)
    segments = split_segments(
        0, tokens, is_final=True, prefix=0, alignment_tokens=64, capacity_tokens=8192
    )
    assert [segment.end - segment.begin for segment in segments] == lengths
    assert [relayout.row_count(0, tokens) for relayout in relayouts] == rows
    packed = [0] * 4
    for segment in segments:
        for region in layout.plan(segment).regions:
            packed[region.index] += region.row_count
    assert packed == rows
    if tokens == 8193:
        [only] = layout.plan(segments[1]).regions
        assert (only.index, only.row_count) == (0, 1)


def test_joined_segments_are_the_unsplit_plan() -> None:
    draft = PlaneSpec(30, "LATENT", 8)
    source = Pool(64, (*KIMI_PLANES, draft), pages=tuple(range(40, 0, -1)))
    for rank in range(4):
        destination = Pool(
            64,
            (*KIMI_PLANES, replace(draft, is_replicated=True)),
            Shard(4, rank),
            pages=(3, 1, 8, 2, 4, 9, 7, 0, 5),
            plane_addresses=tuple((1 + i) << 32 for i in range(8)),
        )
        relayout = make_relayout(source, destination)
        whole, cut = (
            packed_writes(relayout, segments, 0, make_table(destination)).runs
            for segments in ([Segment(0, 2055, True)], split(0, 2055))
        )
        assert covered(whole) == covered(cut)
        rows = relayout.destination_rows(0, 2055, make_table(destination)).tolist()
        assert rows == [
            row
            for segment in split(0, 2055)
            for row in relayout.destination_rows(
                segment.begin, segment.end, make_table(destination)
            ).tolist()
        ]


def covered(runs: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Destination spans, joined."""
    spans: list[tuple[int, int]] = []
    for begin, size in sorted((int(run[1]), int(run[2])) for run in runs):
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], begin + size)
        else:
            assert not spans or spans[-1][1] < begin, "a byte is written twice"
            spans.append((begin, begin + size))
    return spans
