# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Damage to a transferred cache that the demo's checks have to notice.

Every function returns damaged copies. Exchanging whole rows is damage that a model with full
attention cannot see, and only the comparison of bytes does; a missing page, or keys beside another
page's values, are damage that the model has to show.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvxfer.demo.geometry import PlaneSpec, PoolSnapshot, Rows


def drop_pages(rows: Rows, pages: Iterable[int], page_size: int) -> Rows:
    """Zero all planes' rows of logical pages: positions page * page_size and on."""
    damaged = [plane_rows.copy() for plane_rows in rows]
    for page in pages:
        for plane_rows in damaged:
            plane_rows[page * page_size : (page + 1) * page_size] = 0
    return damaged


def exchange_values(
    rows: Rows, planes: tuple[PlaneSpec, ...], pages: tuple[int, int], page_size: int
) -> Rows:
    """Exchange the values of two whole logical pages and leave their keys in place."""
    left, right = (slice(page * page_size, (page + 1) * page_size) for page in pages)
    damaged = [plane_rows.copy() for plane_rows in rows]
    for plane, plane_rows in zip(planes, damaged, strict=True):
        if plane.kind == "value":
            plane_rows[left], plane_rows[right] = plane_rows[right].copy(), plane_rows[left].copy()
    return damaged


def swap_rows(shard: PoolSnapshot, local_rows: tuple[int, int]) -> PoolSnapshot:
    """Exchange two of a rank's rows, in all planes together."""
    left, right = _places(shard)[list(local_rows)]
    memory = shard.memory.copy()
    for index in range(len(shard.geometry.planes)):
        plane = shard.geometry.plane_view(memory, index)
        plane[[left, right]] = plane[[right, left]]
    return PoolSnapshot(shard.geometry, memory)


def shift_page(shard: PoolSnapshot, page_index: int) -> PoolSnapshot:
    """Shift the rows of the request's page number ``page_index`` by one, in all planes."""
    geometry = shard.geometry
    begin = geometry.pages[page_index] * geometry.page_size
    memory = shard.memory.copy()
    for index in range(len(geometry.planes)):
        page = geometry.plane_view(memory, index)[begin : begin + geometry.page_size]
        page[:] = np.roll(page, 1, axis=0)
    return PoolSnapshot(geometry, memory)


def drop_segment(shard: PoolSnapshot, segment: tuple[int, int], poison: int) -> PoolSnapshot:
    """Poison a rank's rows of positions [begin, end), as if that segment had never come."""
    places = shard.geometry.row_indices(*segment)
    memory = shard.memory.copy()
    for index in range(len(shard.geometry.planes)):
        shard.geometry.plane_view(memory, index)[places] = poison
    return PoolSnapshot(shard.geometry, memory)


def write_outside(shard: PoolSnapshot, tokens: int) -> PoolSnapshot:
    """Change one byte of the first plane in a row that the request does not own."""
    geometry = shard.geometry
    owned = set(geometry.row_indices(0, tokens).tolist())
    outside = next(r for r in range(geometry.page_count * geometry.page_size) if r not in owned)
    memory = shard.memory.copy()
    geometry.plane_view(memory, 0)[outside, 0] ^= 0xFF
    return PoolSnapshot(geometry, memory)


def _places(shard: PoolSnapshot) -> NDArray[np.int64]:
    """Return row indices of all the request's pages, in the rank's local order."""
    geometry = shard.geometry
    return geometry.row_indices(0, len(geometry.pages) * geometry.page_size * geometry.ranks)
