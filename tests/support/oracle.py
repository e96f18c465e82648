# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the core must compute, found by looking at every token position on its own.

Slow and written from the definitions: no periods, no cells, no closed forms, so that it shares no
mistake with the core. A row of the oracle is found through the page that its position falls into;
the core goes through the rank's local index instead.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# In the order in which planes of one layer are packed.
KINDS = (
    "KEY",
    "VALUE",
    "LATENT",
    "ROPE",
    "INDEX_KEY",
    "INDEX_SCALE",
    "KEY_SCALE",
    "VALUE_SCALE",
)


class Shard(NamedTuple):
    """How tokens are divided, and which rank this is."""

    ranks: int = 1
    rank: int = 0
    interleave: int = 1

    def owner(self, position: int) -> int:
        return position // self.interleave % self.ranks if self.ranks > 1 else 0

    def holds(self, position: int) -> bool:
        return self.owner(position) == self.rank

    def local_index(self, position: int) -> int:
        """Tokens of the position's owner before it."""
        owner = self.owner(position)
        return sum(self.owner(before) == owner for before in range(position))


WHOLE = Shard()


class Heads(NamedTuple):
    """Which KV heads a rank of a tensor-parallel group holds."""

    total: int
    ranks: int = 1
    rank: int = 0

    def holders(self, head: int) -> list[int]:
        if self.ranks <= self.total:
            return [head // (self.total // self.ranks)]
        return [rank for rank in range(self.ranks) if rank // (self.ranks // self.total) == head]

    def held(self) -> list[int]:
        return [head for head in range(self.total) if self.rank in self.holders(head)]

    def writer(self, destination: "Heads", head: int) -> int:
        """Rank of this group that writes the head into the destination."""
        writers = self.holders(head)
        return writers[destination.holders(head).index(destination.rank) % len(writers)]


@dataclass(frozen=True)
class PlaneSpec:
    """A plane; a stride of 0 is the dense one."""

    layer: int
    kind: str
    row_bytes: int
    row_stride_bytes: int = 0
    page_stride_bytes: int = 0
    page_offset_bytes: int = 0
    head_bytes: int = 0
    is_replicated: bool = False

    @property
    def row_stride(self) -> int:
        return self.row_stride_bytes or self.row_bytes


@dataclass(frozen=True)
class Pool:
    """One rank of one side, and the pages of one request there."""

    page_size: int
    planes: tuple[PlaneSpec, ...]
    shard: Shard = WHOLE
    heads: Heads | None = None
    page_count: int = 64
    pages: tuple[int, ...] = ()
    first_position: int = 0
    plane_addresses: tuple[int, ...] = ()

    @property
    def widened_page_tokens(self) -> int:
        return self.page_size * self.shard.ranks

    def holds(self, plane: int, position: int) -> bool:
        return self.planes[plane].is_replicated or self.shard.holds(position)

    def page_rows(self, plane: int) -> int:
        return self.widened_page_tokens if self.planes[plane].is_replicated else self.page_size

    def page_stride(self, plane: int) -> int:
        spec = self.planes[plane]
        return spec.page_stride_bytes or self.page_rows(plane) * spec.row_stride

    def page_of(self, position: int) -> int:
        assert position >= self.first_position
        return self.pages[(position - self.first_position) // self.widened_page_tokens]

    def row_of(self, position: int) -> int:
        """Row number in the sharded planes."""
        page_begin = position - position % self.widened_page_tokens
        before = sum(self.shard.holds(p) for p in range(page_begin, position))
        return self.page_of(position) * self.page_size + before

    def address_of(self, plane: int, position: int) -> int:
        spec = self.planes[plane]
        page_begin = position - position % self.widened_page_tokens
        row = sum(self.holds(plane, p) for p in range(page_begin, position))
        page = self.page_of(position)
        return (
            self.plane_addresses[plane]
            + page * self.page_stride(plane)
            + spec.page_offset_bytes
            + row * spec.row_stride
        )


class Slice(NamedTuple):
    """Bytes of a row that move between two planes."""

    source_plane: int
    destination_plane: int
    source_offset_bytes: int
    destination_offset_bytes: int
    row_bytes: int


class Run(NamedTuple):
    source: int
    destination: int
    size_bytes: int


def _joint_period(source: Shard, destination: Shard) -> int:
    """Some period after which both ownerships repeat; not the shortest."""
    return source.ranks * source.interleave * destination.ranks * destination.interleave


def share_a_token(source: Shard, destination: Shard) -> bool:
    period = range(_joint_period(source, destination))
    return any(source.holds(p) and destination.holds(p) for p in period)


def writes_replicated(source: Shard, destination: Shard) -> bool:
    """Whether this is the first rank of its group that shares a token with the destination."""
    group = (source._replace(rank=rank) for rank in range(source.ranks))
    return source == next(shard for shard in group if share_a_token(shard, destination))


def writes_undivided(source: Heads | None, destination: Heads | None) -> bool:
    """Whether this is the lowest rank that writes the destination a head.

    It also writes the rows that are not divided by head.
    """
    if not source or not destination:
        return True
    writers = {source.writer(destination, head) for head in destination.held()}
    return source.rank == min(writers)


def _cut_to_heads(whole: Slice, source: Heads, destination: Heads, head_bytes: int) -> Slice | None:
    moving = [
        (source.held().index(head), place)
        for place, head in enumerate(destination.held())
        if head in source.held() and source.writer(destination, head) == source.rank
    ]
    if not moving:
        return None
    (first, place), count = moving[0], len(moving)
    return whole._replace(
        source_offset_bytes=first * head_bytes,
        destination_offset_bytes=place * head_bytes,
        row_bytes=count * head_bytes,
    )


def slices_of(source: Pool, destination: Pool) -> list[Slice]:
    """What moves, in packed order.

    Replicated planes come behind the others, then planes that share their tokens stay together,
    then layer and kind decide.
    """
    found: list[tuple[tuple[int, int], Slice]] = []
    for i, plane in enumerate(source.planes):
        for j, other in enumerate(destination.planes):
            if (plane.layer, plane.kind) != (other.layer, other.kind):
                continue
            if plane.is_replicated and not writes_replicated(source.shard, destination.shard):
                continue
            slice_: Slice | None = Slice(i, j, 0, 0, plane.row_bytes)
            if not plane.head_bytes and not writes_undivided(source.heads, destination.heads):
                continue
            if plane.head_bytes and slice_:
                assert source.heads
                assert destination.heads
                slice_ = _cut_to_heads(slice_, source.heads, destination.heads, plane.head_bytes)
            period = range(_joint_period(source.shard, destination.shard))
            if slice_ and any(moves(source, destination, slice_, p) for p in period):
                found.append(((plane.layer, KINDS.index(plane.kind)), slice_))
    found.sort()

    def tokens(slice_: Slice) -> tuple[bool, bool]:
        by_page = source.planes[slice_.source_plane].is_replicated and source.shard.ranks > 1
        return destination.planes[slice_.destination_plane].is_replicated, by_page

    groups = list(dict.fromkeys(tokens(slice_) for _, slice_ in found))
    groups.sort(key=lambda group: group[0])
    return [slice_ for group in groups for _, slice_ in found if tokens(slice_) == group]


def moves(source: Pool, destination: Pool, slice_: Slice, position: int) -> bool:
    return source.holds(slice_.source_plane, position) and destination.holds(
        slice_.destination_plane, position
    )


def shared_positions(source: Pool, destination: Pool, begin: int, end: int) -> list[int]:
    return [p for p in range(begin, end) if source.shard.holds(p) and destination.shard.holds(p)]


def bytes_at(source: Pool, destination: Pool, slices: list[Slice], position: int) -> int:
    return sum(s.row_bytes for s in slices if moves(source, destination, s, position))


def segment_bytes(source: Pool, destination: Pool, begin: int, end: int) -> int:
    slices = slices_of(source, destination)
    return sum(bytes_at(source, destination, slices, p) for p in range(begin, end))


def max_window_bytes(source: Pool, destination: Pool, window_tokens: int) -> int:
    """Most packed bytes of so many consecutive positions: the window slides over every start."""
    slices = slices_of(source, destination)
    period = _joint_period(source.shard, destination.shard)
    at = [bytes_at(source, destination, slices, p) for p in range(period + window_tokens)]
    most = held = sum(at[:window_tokens])
    for start in range(period):
        held += at[start + window_tokens] - at[start]
        most = max(most, held)
    return most


def rows_of(source: Pool, destination: Pool, begin: int, end: int) -> Iterator[tuple[Slice, int]]:
    """Every (slice, position) that moves, in packed order."""
    for slice_ in slices_of(source, destination):
        for position in range(begin, end):
            if moves(source, destination, slice_, position):
                yield slice_, position


def packed_bytes(source: Pool, destination: Pool, begin: int, end: int) -> bytes:
    """The packed region of one segment, read from the source's memory."""
    return b"".join(
        ctypes.string_at(
            source.address_of(s.source_plane, position) + s.source_offset_bytes, s.row_bytes
        )
        for s, position in rows_of(source, destination, begin, end)
    )


def runs_of(
    source: Pool, destination: Pool, begin: int, end: int, region_address: int | None = None
) -> list[Run]:
    """Writes of one segment, rows joined where both sides continue inside a plane.

    With a region address the source rows lie packed there.
    """
    runs: list[Run] = []
    packed = region_address
    last: Slice | None = None
    for slice_, position in rows_of(source, destination, begin, end):
        if packed is None:
            here = source.address_of(slice_.source_plane, position) + slice_.source_offset_bytes
        else:
            here, packed = packed, packed + slice_.row_bytes
        there = destination.address_of(slice_.destination_plane, position)
        run = Run(here, there + slice_.destination_offset_bytes, slice_.row_bytes)
        before = runs[-1] if runs else None
        if (
            before
            and slice_ == last
            and before.source + before.size_bytes == run.source
            and before.destination + before.size_bytes == run.destination
        ):
            runs[-1] = before._replace(size_bytes=before.size_bytes + run.size_bytes)
        else:
            runs.append(run)
        last = slice_
    return runs


def execute(runs: list[Run]) -> None:
    """Carry writes out in this process."""
    for run in runs:
        ctypes.memmove(run.destination, run.source, run.size_bytes)


def split(
    begin: int, end: int, *, is_final: bool, prefix: int, alignment: int, capacity: int | None
) -> list[tuple[int, int, bool]]:
    """Segments by walking: one ends before every position that lies on the grid."""
    while not is_final and end > begin and (end - prefix) % alignment:
        end -= 1
    if not is_final and end <= begin:
        return []
    starts = [begin] + [
        p for p in range(begin + 1, end) if capacity is not None and (p - prefix) % capacity == 0
    ]
    ends = [*starts[1:], end]
    final = [False] * (len(starts) - 1) + [is_final]
    return list(zip(starts, ends, final, strict=True))
