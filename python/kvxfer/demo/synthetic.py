# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Generated rows of Kimi Linear geometry, for machines without a model.

Kimi Linear 48B keeps a latent of 512 + 64 values for each token in 7 of its 27 layers; with an FP8
cache that is a row of 576 bytes in each of 7 planes.
"""

from __future__ import annotations

import numpy as np

from kvxfer.demo.geometry import PlaneSpec, Rows

KIMI_LINEAR_PAGE_SIZE = 64
KIMI_LINEAR_PLANES = tuple(PlaneSpec(layer, "latent", 576) for layer in (3, 7, 11, 15, 19, 23, 26))


def make_synthetic_rows(tokens: int, seed: int = 0) -> Rows:
    """Generate rows in which every (plane, position) differs from every other.

    Random bytes, with the position and the plane's number written over the first 6 of them, so that
    a row in the wrong place can never equal the one that belongs there.

    Parameters
    ----------
    tokens : int
        Number of positions.                                            [unit: tokens]
    seed : int
        Seed of the random bytes.

    Returns
    -------
    list of uint8 arrays, shape (tokens, 576)
        One for each plane, in position order.
    """
    generator = np.random.default_rng(seed)
    positions = np.arange(tokens, dtype="<u4").view(np.uint8).reshape(tokens, 4)
    rows: Rows = []
    for index, plane in enumerate(KIMI_LINEAR_PLANES):
        plane_rows = generator.integers(0, 256, (tokens, plane.row_bytes), dtype=np.uint8)
        plane_rows[:, :4] = positions
        plane_rows[:, 4:6] = np.array([index], dtype="<u2").view(np.uint8)
        rows.append(plane_rows)
    return rows
