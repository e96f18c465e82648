# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The engine's memory of one rank, as a manager sees it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from kvxfer import InvalidArgumentError, PageTable, PoolLayout, memory_view

__all__ = ["LocalPool", "MemorySpan", "merge_spans"]


@dataclass(frozen=True, order=True)
class MemorySpan:
    """A stretch of this process's memory."""

    address: int
    size_bytes: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.address + self.size_bytes


@dataclass(frozen=True)
class LocalPool:
    """The planes of this rank: their layout and where each begins.

    The memory stays the engine's; it must be mapped as long as a manager holds the pool.

    Parameters
    ----------
    layout : PoolLayout
    plane_addresses : tuple of int
        Base address of each plane of the layout, in its order. Planes of one page-structured array
        have the same base.
    """

    layout: PoolLayout
    plane_addresses: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.plane_addresses) != len(self.layout.planes):
            raise InvalidArgumentError(
                f"{len(self.plane_addresses)} plane addresses given, "
                f"expected {len(self.layout.planes)}, one per plane"
            )

    @classmethod
    def from_arrays(cls, layout: PoolLayout, arrays: Sequence[Any]) -> Self:
        """Take one memory object per plane: a buffer, a DLPack or a CUDA array object.

        Raises
        ------
        InvalidArgumentError
            If an object is smaller than its plane; names the plane.
        """
        views = [memory_view(array) for array in arrays]
        pool = cls(layout, tuple(view.address for view in views))
        for index, view in enumerate(views):
            needed_bytes = layout.plane_bytes(index)
            if view.size_bytes < needed_bytes:
                raise InvalidArgumentError(
                    f"array of plane {index} has {view.size_bytes} bytes, expected {needed_bytes}"
                )
        return pool

    def table(self, pages: ArrayLike, first_position: int = 0) -> PageTable:
        """Return the page table of one request over this pool.

        Parameters
        ----------
        pages : int array, shape (page_count,), host
            The rank's page ids from ``first_position`` on.
        """
        ids = np.ascontiguousarray(pages, dtype=np.int64)
        return PageTable(
            self.layout,
            ids,
            first_position=first_position,
            plane_addresses=list(self.plane_addresses),
        )

    @property
    def spans(self) -> list[MemorySpan]:
        """Memory of all planes as disjoint spans, in address order."""
        return merge_spans(
            MemorySpan(address, self.layout.plane_bytes(index))
            for index, address in enumerate(self.plane_addresses)
        )


def merge_spans(spans: Iterable[MemorySpan]) -> list[MemorySpan]:
    """Return disjoint spans that cover the same bytes; spans that only touch stay apart.

    Spans that touch may be two allocations, which a transport cannot register as one.
    """
    merged: list[MemorySpan] = []
    for span in sorted(spans):
        if merged and span.address < merged[-1].end:
            last = merged[-1]
            merged[-1] = MemorySpan(last.address, max(last.end, span.end) - last.address)
        else:
            merged.append(span)
    return merged
