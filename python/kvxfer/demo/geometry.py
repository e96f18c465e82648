# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Paged pools of the demo, and where each position's rows lie in them.

The arithmetic here is deliberately a second one, in plain numpy over positions, written without the
native core: the demo's checks would prove little if they asked the code under test where a row is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Rows: TypeAlias = list[Bytes]
"""One uint8 array of shape (tokens, row_bytes) for each plane, in position order."""

SOURCE_POISON = 0xC3
DESTINATION_POISON = 0x5A


@dataclass(frozen=True)
class PlaneSpec:
    """One plane of a pool: a layer, what it holds, the bytes of a row."""

    layer: int
    kind: str
    row_bytes: int

    def __str__(self) -> str:
        return f"layer {self.layer} {self.kind}"


@dataclass(frozen=True)
class PoolGeometry:
    """Planes, pages and token sharding of one rank's pool, and the pages of the demo's request.

    Tokens go round robin over the ranks: position ``p`` belongs to rank ``p % ranks`` and is that
    rank's row number ``p // ranks``. Planes lie behind each other in one block of memory, dense.
    """

    planes: tuple[PlaneSpec, ...]
    page_size: int
    page_count: int
    pages: tuple[int, ...]
    ranks: int = 1
    rank: int = 0

    @property
    def plane_bytes(self) -> list[int]:
        """Bytes of each plane."""
        return [self.page_count * self.page_size * plane.row_bytes for plane in self.planes]

    @property
    def plane_offset_bytes(self) -> list[int]:
        """Offset of each plane in the pool's memory, in bytes."""
        sizes = self.plane_bytes
        return [sum(sizes[:index]) for index in range(len(sizes))]

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool."""
        return sum(self.plane_bytes)

    def positions(self, begin: int, end: int) -> NDArray[np.int64]:
        """Positions in [begin, end) that this rank holds, rising."""
        first = begin + (self.rank - begin) % self.ranks
        return np.arange(first, end, self.ranks, dtype=np.int64)

    def row_indices(self, begin: int, end: int) -> NDArray[np.int64]:
        """Row index of each of ``positions(begin, end)``, the same in every plane."""
        local = self.positions(begin, end) // self.ranks
        pages = np.asarray(self.pages, dtype=np.int64)
        row_indices: NDArray[np.int64] = (
            pages[local // self.page_size] * self.page_size + local % self.page_size
        )
        return row_indices

    def plane_view(self, memory: Bytes, index: int) -> Bytes:
        """Plane ``index`` of a pool's memory, shape (page_count * page_size, row_bytes)."""
        offset = self.plane_offset_bytes[index]
        size = self.plane_bytes[index]
        return memory[offset : offset + size].reshape(-1, self.planes[index].row_bytes)


def make_geometry(
    planes: Sequence[PlaneSpec], page_size: int, tokens: int, *, rank_of: tuple[int, int], seed: int
) -> PoolGeometry:
    """Choose shuffled pages for a request, in a pool that has more pages than it needs.

    Parameters
    ----------
    planes : sequence of PlaneSpec
        Planes of the pool.
    page_size : int
        Rows in a page.                                                 [unit: rows]
    tokens : int
        Length of the request, whatever the ranks.                      [unit: tokens]
    rank_of : tuple of int
        (rank, ranks) of the pool in its DCP group.
    seed : int
        Seed of the shuffle.

    Examples
    --------
    >>> plane = PlaneSpec(0, "latent", 8)
    >>> geometry = make_geometry([plane], 4, 33, rank_of=(1, 2), seed=0)
    >>> len(geometry.pages), geometry.positions(0, 7).tolist()
    (5, [1, 3, 5])
    """
    rank, ranks = rank_of
    needed = -(-tokens // (page_size * ranks))
    page_count = needed + max(2, needed // 4)
    pages = random.Random(f"{seed}/{rank}/{ranks}").sample(range(page_count), needed)
    return PoolGeometry(tuple(planes), page_size, page_count, tuple(pages), ranks, rank)


class PagedPool:
    """One rank's pool in host memory, poisoned until rows are put into it."""

    def __init__(self, geometry: PoolGeometry, poison: int) -> None:
        self.geometry = geometry
        self.memory: Bytes = np.full(geometry.pool_bytes, poison, dtype=np.uint8)

    def fill(self, begin: int, rows: Rows) -> None:
        """Put the rows of positions from ``begin`` on into their pages.

        Parameters
        ----------
        begin : int
            Position of the first row.
        rows : list of uint8 arrays, shape (tokens, row_bytes)
            One array for each plane; every position, also those of other ranks.
        """
        geometry = self.geometry
        end = begin + len(rows[0])
        places = geometry.row_indices(begin, end)
        own = geometry.positions(begin, end) - begin
        for index, plane_rows in enumerate(rows):
            geometry.plane_view(self.memory, index)[places] = plane_rows[own]

    def plane_addresses(self) -> list[int]:
        """Return the base address of each plane."""
        base = int(self.memory.ctypes.data)
        return [base + offset for offset in self.geometry.plane_offset_bytes]


@dataclass(frozen=True)
class PoolSnapshot:
    """The bytes of a rank's whole pool, as they were gathered after the transfer."""

    geometry: PoolGeometry
    memory: Bytes

    def rows(self, tokens: int) -> Rows:
        """Rows that this rank holds of positions [0, tokens), in position order."""
        places = self.geometry.row_indices(0, tokens)
        planes = range(len(self.geometry.planes))
        return [self.geometry.plane_view(self.memory, index)[places] for index in planes]


def reassemble_rows(shards: Sequence[PoolSnapshot], tokens: int) -> Rows:
    """Join the rows of all ranks of a DCP group, in position order.

    Parameters
    ----------
    shards : sequence of PoolSnapshot
        One for each rank of the group.
    tokens : int
        Length of the request.                                          [unit: tokens]

    Returns
    -------
    list of uint8 arrays, shape (tokens, row_bytes)
        One for each plane.
    """
    planes = shards[0].geometry.planes
    joined: Rows = [np.zeros((tokens, plane.row_bytes), dtype=np.uint8) for plane in planes]
    for shard in shards:
        positions = shard.geometry.positions(0, tokens)
        for plane_rows, own in zip(joined, shard.rows(tokens), strict=True):
            plane_rows[positions] = own
    return joined
