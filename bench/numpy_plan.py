# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The plan of a segment token by token in NumPy, as planners in Python do it: the baseline."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class NumpyPlanner:
    """Plans segments from one source rank to one destination rank.

    Sharded by single tokens, pages of equal size on both sides, planes of equal row bytes. Page
    ids are those of the whole request, ``plane_addresses`` those of the destination.
    """

    page_size: int
    ranks: int
    rank: int
    row_bytes: int
    source_pages: Int64s
    destination_pages: Int64s
    plane_addresses: Int64s

    def rows(self, begin: int, end: int) -> tuple[Int64s, Int64s]:
        """Source and destination row of every token that the rank owns in [begin, end)."""
        first = begin + (self.rank - begin) % self.ranks
        positions = np.arange(first, end, self.ranks, dtype=np.int64)
        source = self.source_pages[positions // self.page_size]
        source_rows = source * self.page_size + positions % self.page_size
        local = positions // self.ranks
        destination = self.destination_pages[local // self.page_size]
        return source_rows, destination * self.page_size + local % self.page_size

    def writes(self, begin: int, end: int, region_address: int) -> Int64s:
        """Write list of one segment: packed rows at the region to final rows, on every plane."""
        source_rows, destination_rows = self.rows(begin, end)
        row_count = len(source_rows)
        packed = np.arange(row_count, dtype=np.int64)
        breaks = np.flatnonzero(np.diff(destination_rows) != 1) + 1
        starts = np.concatenate(([0], breaks))
        lengths = np.diff(np.concatenate((starts, [row_count])))
        plane_count = len(self.plane_addresses)
        plane_regions = region_address + np.arange(plane_count) * row_count * self.row_bytes
        runs = np.empty((plane_count, len(starts), 3), dtype=np.int64)
        runs[:, :, 0] = plane_regions[:, None] + packed[starts] * self.row_bytes
        runs[:, :, 1] = self.plane_addresses[:, None] + destination_rows[starts] * self.row_bytes
        runs[:, :, 2] = lengths * self.row_bytes
        return runs.reshape(-1, 3)
