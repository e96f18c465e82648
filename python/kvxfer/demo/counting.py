# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""How many writes the demo's transfer takes, counted from the library's own write lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import kvxfer
from kvxfer.demo.geometry import PoolGeometry


def make_layout(geometry: PoolGeometry) -> kvxfer.PoolLayout:
    """Describe a pool of the demo to the library."""
    planes = [
        kvxfer.Plane(plane.layer, kvxfer.PlaneKind[plane.kind.upper()], plane.row_bytes)
        for plane in geometry.planes
    ]
    return kvxfer.PoolLayout(
        geometry.page_size,
        geometry.page_count,
        planes,
        sharding=kvxfer.Sharding(geometry.ranks, geometry.rank),
    )


@dataclass(frozen=True)
class WriteCounts:
    """Writes that the same segments take, by the way they are done.

    ``row_by_row`` reads the source's rows where they lie, without a pack buffer; ``packed`` writes
    from the pack buffer to the final rows; ``landing`` writes each segment in one piece into a
    region from which the receiver unpacks it.
    """

    row_by_row: int
    packed: int
    landing: int


def count_writes(
    source: PoolGeometry,
    destinations: Sequence[PoolGeometry],
    segments: Sequence[kvxfer.Segment],
) -> WriteCounts:
    """Count the writes of a request's segments to all destination ranks.

    Parameters
    ----------
    source : PoolGeometry
        The source rank's pool.
    destinations : sequence of PoolGeometry
        The pools of the destination ranks.
    segments : sequence of Segment
        Of the whole request.

    Notes
    -----
    Runs are merged by address, so every plane gets addresses of its own, behind each other as in
    the pools of the run; only the pools' bases are made up.
    """
    source_layout = make_layout(source)
    source_table = _make_table(source_layout, source)
    row_by_row = packed = landing = 0
    whole = list(segments)
    for geometry in destinations:
        layout = make_layout(geometry)
        relayout = kvxfer.Relayout(source_layout, layout)
        table = _make_table(layout, geometry)
        row_by_row += len(kvxfer.direct_writes(relayout, whole, source_table, table))
        packed += len(kvxfer.packed_writes(relayout, whole, _BASE_ADDRESS, table))
        landing += sum(relayout.segment_bytes(s.begin, s.end) > 0 for s in whole)
    return WriteCounts(row_by_row, packed, landing)


_BASE_ADDRESS = 1 << 32


def _make_table(layout: kvxfer.PoolLayout, geometry: PoolGeometry) -> kvxfer.PageTable:
    return kvxfer.PageTable(
        layout,
        np.asarray(geometry.pages, dtype=np.int64),
        plane_addresses=[_BASE_ADDRESS + offset for offset in geometry.plane_offset_bytes],
    )
