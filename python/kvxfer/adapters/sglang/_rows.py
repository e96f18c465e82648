# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's row plan, made by kvxfer; the rows remember the pages that they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer import PageTable, Plane, PlaneKind, PoolLayout, Relayout, Sharding

_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class RowSource:
    """Pages of a source rank, and whose tokens of [begin, end) the rows are."""

    pages: NDArray[np.int64]
    page_size: int
    sharding: Sharding
    begin: int
    end: int


class PlannedRows(np.ndarray[Any, np.dtype[np.int64]]):
    """Row numbers, int64; a view or a copy of them has no source."""

    source: RowSource | None = None

    def __array_finalize__(self, original: Any) -> None:
        self.source = None


def page_count_for(page_size: int) -> int:
    """Return as many pages as a pool can have: SGLang does not tell a plan how many there are."""
    return _MOST_ROWS // page_size


@lru_cache(maxsize=256)
def _relayout(page_size: int, ranks: int, rank: int) -> Relayout:
    planes = [Plane(0, PlaneKind.LATENT, 1)]
    count = page_count_for(page_size)
    target = PoolLayout(page_size, count, planes, sharding=Sharding(ranks, rank))
    return Relayout(PoolLayout(page_size, count, planes), target)


class RowPlan:
    """What SGLang's plan offers; rows of draft planes are listed when they are asked for.

    Raises
    ------
    InvalidArgumentError
        For pages that are negative, too few or listed twice, or a prefix inside a widened page.
    """

    def __init__(self, source: RowSource, destination_pages: Any, prefix: int) -> None:
        self._source, self._pages, self._prefix = source, destination_pages, prefix
        sharding = source.sharding
        relayout = _relayout(source.page_size, sharding.ranks, sharding.rank)
        self.target_src_token_indices, self.target_dst_token_indices = self._rows(relayout, source)

    def _rows(
        self, relayout: Relayout, source: RowSource
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        given = PageTable(relayout.source, source.pages, first_position=source.begin)
        taken = PageTable(relayout.destination, self._pages, first_position=self._prefix)
        rows = relayout.source_rows(source.begin, source.end, given).view(PlannedRows)
        rows.source = source
        return rows, relayout.destination_rows(source.begin, source.end, taken)

    @cached_property
    def _draft(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every rank keeps every token of a draft plane, in widened pages."""
        at = self._source
        target = _relayout(at.page_size, at.sharding.ranks, at.sharding.rank)
        width = target.destination.widened_page_tokens
        planes = [Plane(0, PlaneKind.LATENT, 1)]
        wide = Relayout(target.source, PoolLayout(width, page_count_for(width), planes))
        return self._rows(wide, RowSource(at.pages, at.page_size, Sharding(), at.begin, at.end))

    @property
    def draft_src_token_indices(self) -> NDArray[np.int64]:
        """Source rows of all tokens."""
        return self._draft[0]

    @property
    def draft_dst_token_indices(self) -> NDArray[np.int64]:
        """Destination rows of all tokens."""
        return self._draft[1]

    def empty(self) -> bool:
        """Return whether there is no token."""
        return self._source.begin == self._source.end


def plan_rows(
    original: Callable[..., Any],
    src_page_indices: Any,
    dst_page_indices: Any,
    *,
    physical_page_size: int,
    dcp_size: int,
    dcp_rank: int,
    src_page_offset: int = 0,
    decode_prefix_len: int = 0,
    num_kv_tokens: int | None = None,
) -> Any:
    """Stand in for ``build_dcp_token_transfer_plan``; what kvxfer refuses, SGLang plans itself."""
    begin = decode_prefix_len + src_page_offset * physical_page_size
    pages = np.asarray(src_page_indices, dtype=np.int64)
    tokens = len(pages) * physical_page_size if num_kv_tokens is None else num_kv_tokens
    try:
        sharding = Sharding(dcp_size, dcp_rank)
        source = RowSource(pages, physical_page_size, sharding, begin, begin + tokens)
        return RowPlan(source, np.asarray(dst_page_indices, dtype=np.int64), decode_prefix_len)
    except ValueError:
        return original(
            src_page_indices,
            dst_page_indices,
            physical_page_size=physical_page_size,
            dcp_size=dcp_size,
            dcp_rank=dcp_rank,
            src_page_offset=src_page_offset,
            decode_prefix_len=decode_prefix_len,
            num_kv_tokens=num_kv_tokens,
        )
