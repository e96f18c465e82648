# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Random small requests: the core against a walk over token positions.

The examples are the same in every run; ``KVXFER_EXPLORE=1`` looks for new ones.
"""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvxfer import (
    HeadSharding,
    PackBufferLayout,
    Segment,
    Sharding,
    copy_rows,
    direct_writes,
    landing_write,
    pack_rows,
    packed_writes,
    split_segments,
    unpack_rows,
)
from support import oracle
from support.core_pools import (
    POISON,
    Request,
    make_relayout,
    make_table,
    requests,
    with_memory,
)
from support.oracle import Heads, Pool, Shard

bounded = settings(
    max_examples=120,
    deadline=None,
    database=None,
    derandomize=not os.environ.get("KVXFER_EXPLORE"),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def segments_of(request: Request, capacity: int) -> list[Segment]:
    return split_segments(
        request.prefix,
        request.end,
        is_final=True,
        prefix=request.prefix,
        alignment_tokens=request.alignment_tokens,
        capacity_tokens=capacity,
    )


@bounded
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 80), st.integers(0, 40))
def test_sharding_counts_what_it_owns(ranks: int, interleave: int, begin: int, length: int) -> None:
    counts = Counter(Shard(ranks, 0, interleave).owner(p) for p in range(begin, begin + length))
    for rank in range(ranks):
        sharding = Sharding(ranks, rank, interleave)
        assert sharding.local_count(begin, begin + length) == counts[rank]
    shard = Shard(ranks, 0, interleave)
    assert sharding.owner(begin) == shard.owner(begin)
    assert sharding.local_index(begin) == shard.local_index(begin)
    owner = Sharding(ranks, sharding.owner(begin), interleave)
    assert owner.position(sharding.local_index(begin)) == begin


@bounded
@given(st.sampled_from((1, 2, 3, 4, 6, 8)), st.integers(0, 3), st.integers(0, 15))
def test_heads_are_those_of_the_rank(total: int, shift: int, rank: int) -> None:
    ranks = total << shift if rank % 2 else max(1, total >> shift)
    heads = Heads(total, ranks, rank % ranks)
    if total % ranks and ranks % total:
        return
    core = HeadSharding(*heads)
    held = heads.held()
    assert list(range(core.first_head, core.first_head + core.head_count)) == held
    holders = heads.holders(held[0])
    assert (core.replica_count, holders[core.replica]) == (len(holders), heads.rank)


@bounded
@given(st.data())
def test_segments_are_those_of_the_walk(data: st.DataObject) -> None:
    alignment = data.draw(st.integers(1, 8))
    capacity = data.draw(st.one_of(st.none(), st.integers(1, 4).map(lambda k: k * alignment)))
    prefix = data.draw(st.integers(0, 20))
    begin = prefix + data.draw(st.integers(0, 30))
    end = begin + data.draw(st.integers(0, 60))
    is_final = data.draw(st.booleans())
    found = split_segments(
        begin,
        end,
        is_final=is_final,
        prefix=prefix,
        alignment_tokens=alignment,
        capacity_tokens=capacity,
    )
    assert [(s.begin, s.end, s.is_final) for s in found] == oracle.split(
        begin, end, is_final=is_final, prefix=prefix, alignment=alignment, capacity=capacity
    )


@bounded
@given(requests())
def test_planes_rows_and_bytes_of_every_pair(request: Request) -> None:
    span = (request.prefix, request.end)
    for source in request.sources:
        for destination in request.destinations:
            relayout = make_relayout(source, destination)
            positions = oracle.shared_positions(source, destination, *span)
            assert relayout.positions(*span).tolist() == positions
            assert relayout.row_count(*span) == len(positions)
            rows = relayout.source_rows(*span, make_table(source))
            assert rows.tolist() == [source.row_of(p) for p in positions]
            rows = relayout.destination_rows(*span, make_table(destination))
            assert rows.tolist() == [destination.row_of(p) for p in positions]
            assert relayout.segment_bytes(*span) == oracle.segment_bytes(source, destination, *span)
            assert [
                (
                    pair.source_plane,
                    pair.destination_plane,
                    pair.source_offset_bytes,
                    pair.destination_offset_bytes,
                    pair.bytes,
                )
                for pair in relayout.planes
            ] == oracle.slices_of(source, destination)
            assert relayout.shares_tokens() == oracle.share_a_token(source.shard, destination.shard)


@bounded
@given(requests(), st.integers(1, 3))
def test_regions_hold_the_fullest_window(request: Request, pages: int) -> None:
    capacity = pages * request.alignment_tokens
    for source in request.sources:
        relayouts = [make_relayout(source, destination) for destination in request.destinations]
        needed = [
            oracle.max_window_bytes(source, destination, capacity)
            for destination in request.destinations
        ]
        layout = PackBufferLayout(relayouts, capacity)
        assert layout.region_bytes == max(needed)
        assert layout.bytes == max(needed) * sum(not r.is_empty for r in relayouts)
        if layout.bytes:
            assert PackBufferLayout.capacity_for(relayouts, layout.bytes) >= capacity


@bounded
@given(requests(), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_four_ways_to_move_a_request_end_in_the_same_bytes(
    request: Request, pages: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    sources, kept = zip(*(with_memory(pool, random) for pool in request.sources), strict=True)
    segments = segments_of(request, pages * request.alignment_tokens)
    for like in request.destinations:
        expected, memory = with_memory(like, POISON)
        for source in sources:
            oracle.execute(oracle.runs_of(source, expected, request.prefix, request.end))
        for move in (move_packed, move_unpacked, move_direct, move_copied):
            actual, other = with_memory(like, POISON)
            for source in sources:
                move(source, actual, segments, pages * request.alignment_tokens)
            assert np.array_equal(other, memory), move.__name__
    assert len(kept) == len(request.sources)  # the sources' memory lives until here


def packed(source: Pool, like: Pool, segment: Segment, capacity: int) -> NDArray[np.uint8]:
    layout = PackBufferLayout([make_relayout(source, like)], capacity)
    buffer = np.full(layout.bytes + 5, POISON, np.uint8)
    pack_rows(layout, layout.plan(segment), make_table(source), buffer)
    region = oracle.packed_bytes(source, like, segment.begin, segment.end)
    assert buffer.tobytes() == region + bytes([POISON]) * (len(buffer) - len(region))
    return buffer


def move_packed(source: Pool, target: Pool, segments: list[Segment], capacity: int) -> None:
    for segment in segments:
        buffer = packed(source, target, segment, capacity)
        address = buffer.ctypes.data
        writes = packed_writes(
            make_relayout(source, target), [segment], address, make_table(target)
        )
        expected = oracle.runs_of(source, target, segment.begin, segment.end, address)
        assert writes.runs.tolist() == [list(run) for run in expected]
        oracle.execute([oracle.Run(*run) for run in writes.runs.tolist()])


def move_unpacked(source: Pool, target: Pool, segments: list[Segment], capacity: int) -> None:
    relayout = make_relayout(source, target)
    for segment in segments:
        buffer = packed(source, target, segment, capacity)
        landing = np.full(len(buffer), POISON, np.uint8)
        writes = landing_write(relayout, segment, buffer.ctypes.data, landing.ctypes.data)
        assert len(writes) <= 1
        oracle.execute([oracle.Run(*run) for run in writes.runs.tolist()])
        unpack_rows(relayout, segment, landing, make_table(target))


def move_direct(source: Pool, target: Pool, segments: list[Segment], capacity: int) -> None:
    del capacity
    writes = direct_writes(
        make_relayout(source, target), segments, make_table(source), make_table(target)
    )
    assert len(writes.segment_offsets) == len(segments) + 1
    for i, segment in enumerate(segments):
        runs = writes.runs[writes.segment_offsets[i] : writes.segment_offsets[i + 1]]
        expected = oracle.runs_of(source, target, segment.begin, segment.end)
        assert runs.tolist() == [list(run) for run in expected]
    assert writes.bytes == sum(int(run[2]) for run in writes.runs)
    oracle.execute([oracle.Run(*run) for run in writes.runs.tolist()])


def move_copied(source: Pool, target: Pool, segments: list[Segment], capacity: int) -> None:
    del capacity
    for segment in segments:
        copy_rows(make_relayout(source, target), segment, make_table(source), make_table(target))


@bounded
@given(requests())
def test_every_position_of_a_shared_layer_arrives_once(request: Request) -> None:
    written: Counter[tuple[int, int, int]] = Counter()
    numbered = [
        replace(pool, plane_addresses=tuple((i + 1) << 40 for i in range(len(pool.planes))))
        for pool in (*request.sources, *request.destinations)
    ]
    sources, destinations = numbered[: len(request.sources)], numbered[len(request.sources) :]
    segment = Segment(request.prefix, request.end, True)
    for which, destination in enumerate(destinations):
        for source in sources:
            relayout = make_relayout(source, destination)
            writes = direct_writes(relayout, [segment], make_table(source), make_table(destination))
            for _, address, size in writes.runs.tolist():
                written.update((which, address >> 40, address + i) for i in range(size))
        owed = sum(
            destination.holds(plane, p) * destination.planes[plane].row_bytes
            for plane in range(len(destination.planes))
            for p in range(request.prefix, request.end)
        )
        assert sum(key[0] == which for key in written) == owed
    assert set(written.values()) <= {1}
