# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The oracle's pools as values of the core, with memory, and random ones for hypothesis."""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvxfer import (
    HeadSharding,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Sharding,
)
from support.oracle import Heads, PlaneSpec, Pool, Shard

GUARD_BYTES = 8
POISON = 0xA5


def make_layout(pool: Pool) -> PoolLayout:
    planes = [
        Plane(
            spec.layer,
            PlaneKind[spec.kind],
            spec.row_bytes,
            row_stride_bytes=spec.row_stride_bytes,
            page_stride_bytes=spec.page_stride_bytes,
            page_offset_bytes=spec.page_offset_bytes,
            head_bytes=spec.head_bytes,
            is_replicated=spec.is_replicated,
        )
        for spec in pool.planes
    ]
    return PoolLayout(
        pool.page_size,
        pool.page_count,
        planes,
        sharding=Sharding(*pool.shard),
        heads=HeadSharding(*pool.heads) if pool.heads else None,
    )


def make_table(pool: Pool) -> PageTable:
    return PageTable(
        make_layout(pool),
        pool.pages,
        first_position=pool.first_position,
        plane_addresses=pool.plane_addresses or None,
    )


def make_relayout(source: Pool, destination: Pool) -> Relayout:
    return Relayout(make_layout(source), make_layout(destination))


def row_pairs(source: Pool, destination: Pool, begin: int, end: int) -> list[tuple[int, int]]:
    """(source row, destination row) of every token of a pair, in position order."""
    relayout = make_relayout(source, destination)
    return list(
        zip(
            relayout.source_rows(begin, end, make_table(source)).tolist(),
            relayout.destination_rows(begin, end, make_table(destination)).tolist(),
            strict=True,
        )
    )


def with_memory(pool: Pool, fill: int | np.random.Generator) -> tuple[Pool, NDArray[np.uint8]]:
    """Give the pool memory of its own: its planes one after another with guard bytes between."""
    sizes = [pool.page_count * pool.page_stride(i) + GUARD_BYTES for i in range(len(pool.planes))]
    total = GUARD_BYTES + sum(sizes)
    if isinstance(fill, int):
        memory = np.full(total, fill, np.uint8)
    else:
        memory = fill.integers(0, 256, total, np.uint8)
    offsets = np.cumsum([GUARD_BYTES, *sizes])[:-1]
    addresses = tuple(memory.ctypes.data + int(offset) for offset in offsets)
    return replace(pool, plane_addresses=addresses), memory


@dataclass(frozen=True)
class Request:
    """Positions [prefix, end) of one request between all ranks of two engines."""

    sources: tuple[Pool, ...]
    destinations: tuple[Pool, ...]
    prefix: int
    end: int

    @property
    def alignment_tokens(self) -> int:
        return self.sources[0].widened_page_tokens


@st.composite
def _planes(draw: st.DrawFn, layers: int, head_bytes: int, *, is_source: bool) -> list[PlaneSpec]:
    planes = []
    for layer in range(layers):
        kinds = ("KEY", "VALUE") if head_bytes else ("LATENT", "KEY_SCALE")
        for row_bytes, kind in zip((576, 1) if layer else (3, 5), kinds, strict=True):
            gap = draw(st.sampled_from((0, 0, 3)))
            size = head_bytes or row_bytes
            stride = 0 if head_bytes or not gap else size + gap
            planes.append(
                PlaneSpec(layer, kind, size, row_stride_bytes=stride, head_bytes=head_bytes)
            )
    if head_bytes:  # beside the divided rows, some that every rank of the group has
        planes.append(PlaneSpec(0, "INDEX_KEY", 5))
    return list(draw(st.permutations(planes))) if is_source else planes


def _pools(
    draw: st.DrawFn,
    planes: list[PlaneSpec],
    shape: tuple[int, int, int],
    heads: Heads | None,
    first_position: int,
    end: int,
) -> tuple[Pool, ...]:
    ranks, interleave, page_size = shape
    pools = []
    for rank in range(ranks):
        for head_rank in range(heads.ranks if heads else 1):
            mine = heads._replace(rank=head_rank) if heads else None
            count = len(mine.held()) if mine else 1
            pool = Pool(
                page_size,
                tuple(
                    replace(p, row_bytes=p.row_bytes * (count if p.head_bytes else 1))
                    for p in planes
                ),
                Shard(ranks, rank, interleave if ranks > 1 else 1),
                mine,
                first_position=first_position,
            )
            needed = -(-(end - first_position) // pool.widened_page_tokens)
            page_count = needed + draw(st.integers(1, 3))
            pages = draw(st.permutations(range(page_count)))[:needed]
            pools.append(replace(pool, page_count=page_count, pages=tuple(pages)))
    return tuple(pools)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Small requests: any (N, I, P1) -> (M, J, P2), heads, drafts, prefixes and page orders."""

    def shape() -> tuple[int, int, int]:
        interleave = draw(st.sampled_from((1, 1, 2, 3)))
        return draw(st.sampled_from((1, 2, 3, 4))), interleave, interleave * draw(st.integers(1, 3))

    source_shape, destination_shape = shape(), shape()
    total_heads = draw(st.sampled_from((0, 0, 1, 2, 4)))
    group_sizes = st.sampled_from((1, total_heads, 2 * total_heads))
    source_heads = Heads(total_heads, draw(group_sizes)) if total_heads else None
    destination_heads = Heads(total_heads, draw(group_sizes)) if total_heads else None
    layers = draw(st.integers(1, 2))
    head_bytes = draw(st.sampled_from((1, 3))) if total_heads else 0
    source_planes = draw(_planes(layers, head_bytes, is_source=True))
    destination_planes = draw(_planes(layers, head_bytes, is_source=False))
    if draw(st.booleans()) and not total_heads:
        draft = PlaneSpec(layers, "VALUE", 2)
        source_planes.append(replace(draft, is_replicated=source_shape[0] > 1))
        destination_planes.append(replace(draft, is_replicated=True))
    source_widened = source_shape[0] * source_shape[2]
    destination_widened = destination_shape[0] * destination_shape[2]
    prefix = destination_widened * draw(st.integers(0, 2))
    end = prefix + draw(st.integers(0, 2 * max(source_widened, destination_widened) + 1))
    first = source_widened * draw(st.integers(0, prefix // source_widened))
    return Request(
        _pools(draw, source_planes, source_shape, source_heads, first, end),
        _pools(draw, destination_planes, destination_shape, destination_heads, prefix, end),
        prefix,
        end,
    )
