# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a scheduler asks before it forms a batch: pages of the pool, and room in a scratch slot."""

from collections import deque
from collections.abc import Iterable

from kvxfer._core import CapacityError, GatherShape, InvalidArgumentError, scratch_demand

__all__ = ["PageAllocator", "ScratchBudget"]


class ScratchBudget:
    """Room that the requests of one batch take of a scratch slot.

    Examples
    --------
    >>> from kvxfer.sharded import ScratchBudget, make_gather_shape
    >>> shape = make_gather_shape(
    ...     ranks=2, page_size=16, logical_page_count=128, context_tokens=100, chunk_tokens=40
    ... )
    >>> budget = ScratchBudget(shape)
    >>> budget.admit(prefix_tokens=80, new_tokens=20), budget.admit(prefix_tokens=0, new_tokens=20)
    (True, False)
    """

    def __init__(self, shape: GatherShape) -> None:
        self._shape = shape
        self.prefix_pages_left = shape.prefix_region_pages
        self.chunk_pages_left = shape.chunk_region_pages

    def admit(self, prefix_tokens: int, new_tokens: int) -> bool:
        """Take a request's room if the slot has it.

        Parameters
        ----------
        prefix_tokens : int
            Cached tokens, whole pages. A prefix that requests share counts for each of them: a
            rank's block is sized before shared pages are left out.
        new_tokens : int
            Tokens of the request in this batch.

        Returns
        -------
        bool
            Whether the request is in. If not, it waits for a later batch.

        Raises
        ------
        CapacityError
            When no empty slot would hold it.
        InvalidArgumentError
            For negative counts or a prefix that is not whole pages.
        """
        demand = scratch_demand(self._shape, prefix_tokens=prefix_tokens, new_tokens=new_tokens)
        prefix_pages_left = self.prefix_pages_left - demand.prefix_region_pages
        chunk_pages_left = self.chunk_pages_left - demand.chunk_region_pages
        if prefix_pages_left < 0 or chunk_pages_left < 0:
            return False
        self.prefix_pages_left, self.chunk_pages_left = prefix_pages_left, chunk_pages_left
        return True


class PageAllocator:
    """Logical pages of a page-sharded pool, dealt so that the owners of a request go round.

    Every rank runs it on the same calls, so all hold the same tables. Local page 0 of each rank is
    never dealt: padding is read from it.

    Parameters
    ----------
    ranks : int
        Of the shard group.
    local_page_count : int
        Pages of each rank's stripe.

    Notes
    -----
    Source: sgl-project/sglang #37614.

    Examples
    --------
    >>> from kvxfer.sharded import PageAllocator
    >>> allocator = PageAllocator(ranks=2, local_page_count=8)
    >>> pages = allocator.allocate(3)
    >>> pages, allocator.allocate(2, after=pages[-1])
    ([2, 3, 4], [5, 6])
    """

    def __init__(self, ranks: int, local_page_count: int) -> None:
        if ranks < 1 or local_page_count < 1:
            raise InvalidArgumentError(
                "expected at least 1 rank and 1 page of each, got "
                f"{ranks} ranks and {local_page_count} pages"
            )
        self._ranks = ranks
        self._dealt: set[int] = set()
        self._free = [
            deque(page * ranks + rank for page in range(1, local_page_count))
            for rank in range(ranks)
        ]

    @property
    def available_pages(self) -> int:
        """Pages that a request gets for certain, whichever rank it starts on."""
        return self._ranks * min(map(len, self._free))

    @property
    def free_pages(self) -> int:
        """Pages that are free on any rank."""
        return sum(map(len, self._free))

    def allocate(self, page_count: int, *, after: int | None = None) -> list[int]:
        """Deal pages whose owners go round.

        Parameters
        ----------
        page_count : int
            How many.
        after : int, optional
            Last page of the request so far: the owners go on from there. Without it they start at
            the rank with the most free pages.

        Returns
        -------
        list of int
            Logical pages in position order.

        Raises
        ------
        CapacityError
            When a rank has too few; nothing is dealt then.
        InvalidArgumentError
            For a negative count.
        """
        if page_count < 0:
            raise InvalidArgumentError(f"expected page_count >= 0, got {page_count}")
        first = max(range(self._ranks), key=lambda rank: (len(self._free[rank]), -rank))
        if after is not None:
            first = (after + 1) % self._ranks
        owners = [(first + k) % self._ranks for k in range(page_count)]
        for rank, free in enumerate(self._free):
            if (wanted := owners.count(rank)) > len(free):
                raise CapacityError(f"expected {wanted} free pages on rank {rank}, got {len(free)}")
        pages = [self._free[owner].popleft() for owner in owners]
        self._dealt.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Take pages back that nothing reads any more.

        Raises
        ------
        InvalidArgumentError
            For a page that was not dealt, or is named twice; nothing is taken back then.
        """
        given = list(pages)
        named: set[int] = set()
        for page in given:
            if page not in self._dealt or page in named:
                raise InvalidArgumentError(f"expected pages that were dealt, got {page}")
            named.add(page)
        self._dealt -= named
        for page in given:
            self._free[page % self._ranks].append(page)
