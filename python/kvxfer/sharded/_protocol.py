# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a sharded pool needs of a gather, on host memory or on devices."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kvxfer._core import (
    BlockLayout,
    BlockOrder,
    BlockSpan,
    GatherPath,
    GatherPlan,
    GatherVerdict,
    ScratchLayout,
)

__all__ = ["PrefixAllgather", "spans_of"]


class PrefixAllgather(Protocol):
    """One rank's scratch slots and the gathers that fill them.

    Every rank gathers the same slots in the same order. Arrays are NumPy's on the host and the
    framework's on devices, where pack, gather and release only enqueue, on the current stream.
    """

    @property
    def layout(self) -> ScratchLayout:
        """Of the slots."""
        ...

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    @property
    def verdict(self) -> GatherVerdict:
        """Which path gathers take, and why; the same on every rank."""
        ...

    def agree(self, words: str) -> None:
        """Hold that all ranks say the same words; collective."""
        ...

    def view(self, slot: int, tensor: int) -> Any:
        """Pages of a tensor in a slot: uint8, shape (page_count, page_bytes), no copy."""
        ...

    def send_pages(self, plan: GatherPlan) -> Any:
        """Make what pack() takes of a batch's plan, once a batch."""
        ...

    def pack(self, slot: int, blocks: BlockLayout, stripes: Mapping[int, Any], pages: Any) -> None:
        """Copy pages of this rank's stripe into its blocks of a slot."""
        ...

    def gather(
        self, slot: int, tag: int, blocks: BlockLayout, *, tensors: Collection[int] | None = None
    ) -> GatherPath:
        """Bring the blocks of all ranks into the slot; return how."""
        ...

    def release(self, slot: int) -> None:
        """Let peers write the slot's next gather: its rows are no longer read here."""
        ...

    def close(self) -> None:
        """Let go of the memory; collective, once."""
        ...


def spans_of(
    layout: ScratchLayout, blocks: BlockLayout, slot: int, tensors: Collection[int] | None
) -> list[BlockSpan]:
    """Blocks that a gather of some tensors brings: joined blocks come whole."""
    spans = blocks.spans(slot)
    if tensors is None or layout.spec.order is BlockOrder.JOINED:
        return spans
    return [span for tensor, span in enumerate(spans) if tensor in tensors]
