# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Write lists as arrays, and what the same rows would cost one by one."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvxfer import Relayout, Segment

__all__ = ["NO_RUNS", "Runs", "row_write_count"]

Runs: TypeAlias = NDArray[np.int64]
"""int64 array, shape (write_count, 3): source address, destination address, bytes."""

NO_RUNS: Runs = np.empty((0, 3), dtype=np.int64)
NO_RUNS.flags.writeable = False


def row_write_count(relayout: Relayout, segment: Segment) -> int:
    """Return the writes that a segment takes at one per row and plane.

    Rows of a plane that both sides replicate are all tokens of the segment; where only the source
    does, they are the destination's own.
    """
    source_planes = relayout.source.planes
    sharded_rows = relayout.row_count(segment.begin, segment.end)
    own_rows = relayout.destination.sharding.local_count(segment.begin, segment.end)
    count = 0
    for pair in relayout.planes:
        if pair.is_replicated:
            count += segment.end - segment.begin
        elif source_planes[pair.source_plane].is_replicated:
            count += own_rows
        else:
            count += sharded_rows
    return count
