# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One rank's KV pool in host memory, and where the rows of a request lie in it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvxfer import Plane, PoolLayout, Sharding
from kvxfer.transfer import LocalPool

__all__ = ["KvPool"]

# As float32 it is no number: a row that was never written shows in whatever is computed from it.
_POISON = 0xFF


class KvPool:
    """Planes of rows, in pages; every byte is poison until it is written.

    Parameters
    ----------
    planes : sequence of Plane
        Dense planes.
    page_size, page_count : int
        Rows of a page, and pages.
    sharding : Sharding
        Which positions this rank holds.
    """

    def __init__(
        self, planes: Sequence[Plane], page_size: int, page_count: int, sharding: Sharding
    ) -> None:
        self.layout = PoolLayout(page_size, page_count, list(planes), sharding=sharding)
        rows = page_size * page_count
        self.arrays = [np.full((rows, plane.row_bytes), _POISON, np.uint8) for plane in planes]

    @property
    def local(self) -> LocalPool:
        """The pool as the transfers see it."""
        return LocalPool.from_arrays(self.layout, self.arrays)

    @property
    def page_tokens(self) -> int:
        """Tokens of a page on all ranks together."""
        return self.layout.widened_page_tokens

    def positions(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the positions of [begin, end) that this rank holds, rising."""
        sharding = self.layout.sharding
        first = begin + (sharding.rank - begin) % sharding.ranks
        return np.arange(first, end, sharding.ranks, dtype=np.int64)

    def rows(self, pages: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the rows of own positions lie, the same in every plane.

        Parameters
        ----------
        pages : int64 array, shape (page_count,)
            Pages of the request from position 0 on.
        positions : int64 array, shape (row_count,)
            As ``positions`` returns them.
        """
        local = positions // self.layout.sharding.ranks
        page_size = self.layout.page_size
        found: NDArray[np.int64] = pages[local // page_size] * page_size + local % page_size
        return found
