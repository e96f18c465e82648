# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The prefix gather between processes of one host, on memory that they share."""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from kvxfer._core import (
    BlockLayout,
    GatherPath,
    GatherPlan,
    GatherVerdict,
    HandshakeBoards,
    HostAllgather,
    InvalidArgumentError,
    RankConditions,
    ScratchLayout,
    decide_gather_path,
)
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.sharded._group import Exchange, agree, map_shared, named
from kvxfer.sharded._protocol import spans_of

_PAGE = 4096


class HostPrefixAllgather:
    """One rank's scratch slots and the gathers that fill them.

    Every rank of the group constructs it, gathers the same slots in the same order and closes it.
    The scratch of all ranks lies in one memory file that rank 0 makes; nothing stays behind in the
    file system. One thread at a time, apart from view() and from release() of a slot that
    is not being gathered.

    Parameters
    ----------
    layout : ScratchLayout
        Of the slots; equal on all ranks.
    rank : int
        Of this process.
    exchange : callable
        Takes this rank's text and returns those of all ranks, in rank order; called twice, once for
        each agree(), and in close(). It has its own bound.
    bound_seconds : float
        Of each wait for peers inside a gather.

    Raises
    ------
    TransferError
        On every rank, when layouts differ or a rank cannot map the memory.
    """

    def __init__(
        self, layout: ScratchLayout, rank: int, exchange: Exchange, *, bound_seconds: float = 30.0
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._exchange = exchange
        self._bound_seconds = bound_seconds
        self._side: HostAllgather | None = None
        conditions = RankConditions()
        conditions.is_host_pool = True
        self._verdict = decide_gather_path([conditions] * layout.spec.ranks)
        boards = HandshakeBoards(layout.spec.ranks, layout.spec.slot_count)
        begin, window_bytes = -(-boards.bytes // _PAGE) * _PAGE, layout.bytes

        def prepare(memory: NDArray[np.uint8]) -> None:
            windows = [
                memory[begin + r * window_bytes :][:window_bytes] for r in range(boards.ranks)
            ]
            self._window = windows[rank]
            self._side = HostAllgather(boards, rank, memory[: boards.bytes], windows)

        size_bytes = begin + boards.ranks * window_bytes
        map_shared(exchange, rank, size_bytes, str(layout.fingerprint), prepare)

    @property
    def layout(self) -> ScratchLayout:
        """Of the slots."""
        return self._layout

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._rank

    @property
    def verdict(self) -> GatherVerdict:
        """Copies on the host; nothing for one rank."""
        return self._verdict

    def agree(self, words: str) -> None:
        """Hold that all ranks say the same words; collective.

        Raises
        ------
        TransferError
            On every rank, with the ranks that say something else than rank 0.
        """
        agree(self._exchange, words)

    def view(self, slot: int, tensor: int) -> NDArray[np.uint8]:
        """Pages of a tensor in a slot: uint8, shape (page_count, page_bytes), no copy."""
        view = self._layout.view(slot, tensor)
        end = view.offset_bytes + view.page_count * view.page_bytes
        pages = self._window[view.offset_bytes : end]
        return pages.reshape(view.page_count, view.page_bytes)

    def block(self, blocks: BlockLayout, slot: int, tensor: int) -> NDArray[np.uint8]:
        """Pages that this rank packs before a gather: uint8, shape (block_pages, page_bytes)."""
        page_bytes = self._layout.view(slot, tensor).page_bytes
        begin = blocks.block_offset_bytes(slot, tensor, self._rank)
        pages = self._window[begin : begin + blocks.block_pages * page_bytes]
        return pages.reshape(blocks.block_pages, page_bytes)

    def send_pages(self, plan: GatherPlan) -> NDArray[np.int64]:
        """Local pages that this rank packs: int64, shape (plan.block_pages,)."""
        return plan.send_pages(self._rank)

    def pack(
        self,
        slot: int,
        blocks: BlockLayout,
        stripes: Mapping[int, NDArray[np.uint8]],
        pages: NDArray[np.int64],
    ) -> None:
        """Copy pages of this rank's stripe into its blocks of a slot.

        Parameters
        ----------
        slot : int
            Released since its last gather.
        blocks : BlockLayout
            Of the batch.
        stripes : mapping from int to uint8 array, shape (pages, page_bytes), host
            By the tensor's number in the layout.
        pages : int64 array, shape (blocks.block_pages,)
            As send_pages() made them.
        """
        for tensor, stripe in stripes.items():
            np.take(stripe, pages, axis=0, out=self.block(blocks, slot, tensor), mode="clip")

    def next_tag(self, slot: int) -> int:
        """Count of the slot's next gather, from 1."""
        return self._open_side().next_tag(slot)

    def gather(
        self, slot: int, tag: int, blocks: BlockLayout, *, tensors: Collection[int] | None = None
    ) -> GatherPath:
        """Bring the blocks of all ranks into the slot, all tensors under one handshake.

        Parameters
        ----------
        slot : int
            Released since its last gather.
        tag : int
            The caller's own count of the slot's gathers, so that one it left out is seen.
        blocks : BlockLayout
            Of the batch; the own block is packed.
        tensors : collection of int, optional
            Numbers of those to bring, equal on all ranks; all of them without it. Joined blocks
            come whole.

        Returns
        -------
        GatherPath
            How it ran.

        Raises
        ------
        DeadlineError
            When peers do not come within the bound, with their ranks.
        TransferError
            When a peer is at another gather.
        InvalidArgumentError
            For a gather out of turn, or after one that failed.
        """
        side, spans = self._open_side(), spans_of(self._layout, blocks, slot, tensors)
        report = side.gather(slot, tag, spans, self._bound_seconds)
        where = f"gather {tag} of slot {slot}"
        if report.skipped_ranks:
            peers = named(report.skipped_ranks)
            message = f"expected {peers} to be at {where}, got another: one was left out"
            raise TransferError("protocol", peers, None, message)
        if report.missing_ranks:
            peers = named(report.missing_ranks)
            message = f"expected {peers} at {where} within {self._bound_seconds} s, got no word"
            raise DeadlineError("deadline", peers, None, message)
        return self.verdict.path

    def release(self, slot: int) -> None:
        """Let peers write the slot's next gather: its rows are no longer read here."""
        self._open_side().release(slot)

    def close(self) -> None:
        """Wait until no rank gathers any more and let go of the memory; once."""
        if self._side is None:
            return
        self._side = None
        try:
            self._exchange("")
        finally:
            del self._window

    def _open_side(self) -> HostAllgather:
        if self._side is None:
            raise InvalidArgumentError("expected an open gather, got a closed one")
        return self._side
