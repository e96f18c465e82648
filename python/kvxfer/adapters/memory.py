# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What an engine holds for its requests beside the pool: state and metadata, addressed by item."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from kvxfer import InvalidArgumentError, memory_view
from kvxfer.transfer import StateComponent
from kvxfer.transfer.pool import MemorySpan, merge_spans

__all__ = ["EngineMemory", "MetadataArray", "StateArray", "StateItems"]

StateItems: TypeAlias = Sequence[Iterable[int] | None]
"""Per group of state arrays the items of a request, in order; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class StateArray:
    """One tensor of state: equal items, one per request slot, per page or per row.

    Attributes
    ----------
    kind : str
        What it is, with its layer; sender and receiver list the same kinds in the same order.
    address : int
        Where item 0 begins.
    item_bytes, item_count : int
        Size and number of the items, which lie side by side.
    row_count : int
        Rows of an item before the sliced axis.
    ranks, rank, replica : int
        The group over which rows are sliced, and this rank in it: see ``StateComponent``.
    """

    kind: str
    address: int
    item_bytes: int
    item_count: int
    row_count: int = 1
    ranks: int = 1
    rank: int = 0
    replica: int = 0

    def __post_init__(self) -> None:
        for name, least in (("item_bytes", 0), ("item_count", 1), ("row_count", 1)):
            if getattr(self, name) < least:
                raise InvalidArgumentError(
                    f"state {self.kind}: {name} is {getattr(self, name)}, expected >= {least}"
                )
        if self.item_bytes % self.row_count:
            raise InvalidArgumentError(
                f"state {self.kind}: item_bytes is {self.item_bytes}, expected a multiple of "
                f"row_count {self.row_count}"
            )

    @property
    def span(self) -> MemorySpan:
        """Memory of all items."""
        return MemorySpan(self.address, self.item_bytes * self.item_count)

    def component(self, items: Iterable[int]) -> StateComponent:
        """Return the named items as a component of a request.

        Raises
        ------
        InvalidArgumentError
            For an item that the array does not have; names it and the number of items.
        """
        return StateComponent(
            kind=self.kind,
            addresses=tuple(
                self.address + self.item_bytes * _checked_item(self.kind, item, self.item_count)
                for item in items
            ),
            row_bytes=self.item_bytes // self.row_count,
            row_count=self.row_count,
            ranks=self.ranks,
            rank=self.rank,
            replica=self.replica,
        )


@dataclass(frozen=True)
class MetadataArray:
    """One host array of metadata with an item per slot, such as output ids or log probabilities.

    The array is the engine's and must outlive the manager. It is read when the last send of a
    request is made, and written before a receiver says Success.
    """

    address: int
    item_bytes: int
    item_count: int

    @classmethod
    def of(cls, array: Any) -> Self:
        """Take a contiguous host array of shape (item_count, ...).

        Raises
        ------
        InvalidArgumentError
            If it is not in host memory, or its bytes are not a multiple of its length.
        """
        view = memory_view(array)
        count = len(array)
        if view.device != "cpu" or count == 0 or view.size_bytes % count:
            raise InvalidArgumentError(
                f"metadata array has {view.size_bytes} bytes in {count} items on {view.device}, "
                "expected equal items in host memory"
            )
        return cls(view.address, view.size_bytes // count, count)


@dataclass(frozen=True)
class EngineMemory:
    """State and metadata of one rank.

    Attributes
    ----------
    state : sequence of sequence of StateArray
        Groups of arrays that are addressed by the same items, as a state type of an engine is.
    metadata : sequence of MetadataArray
        The parts of a request's metadata, in the same order and with the same sizes on both sides.
    """

    state: Sequence[Sequence[StateArray]] = ()
    metadata: Sequence[MetadataArray] = ()

    @property
    def state_spans(self) -> list[MemorySpan]:
        """Memory that state is read from and written to."""
        arrays = [array for group in self.state for array in group]
        return merge_spans(array.span for array in arrays if array.span.size_bytes)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of one request's metadata."""
        return sum(array.item_bytes for array in self.metadata)

    @property
    def metadata_item_count(self) -> int:
        """Requests for which every metadata array has an item."""
        return min((array.item_count for array in self.metadata), default=0)

    def components(self, items: StateItems | None) -> list[StateComponent]:
        """Return the state of one request.

        Raises
        ------
        InvalidArgumentError
            If there is not one entry per group, or an item does not exist.
        """
        if items is None:
            return []
        if len(items) != len(self.state):
            raise InvalidArgumentError(
                f"state items of {len(items)} groups given, expected {len(self.state)}"
            )
        return [
            array.component(group_items)
            for group, group_items in zip(self.state, map(_as_list, items), strict=True)
            if group_items is not None
            for array in group
        ]

    def read_metadata(self, item: int) -> bytes:
        """Return a copy of one request's metadata."""
        self._check_metadata_item(item)
        return b"".join(
            ctypes.string_at(array.address + item * array.item_bytes, array.item_bytes)
            for array in self.metadata
        )

    def write_metadata(self, item: int, content: bytes) -> None:
        """Put one request's metadata into its items.

        Raises
        ------
        InvalidArgumentError
            If the content has another size; nothing is written.
        """
        self._check_metadata_item(item)
        if len(content) != self.metadata_bytes:
            raise InvalidArgumentError(
                f"metadata has {len(content)} bytes, expected {self.metadata_bytes}"
            )
        begin = 0
        for array in self.metadata:
            part = content[begin : begin + array.item_bytes]
            ctypes.memmove(array.address + item * array.item_bytes, part, array.item_bytes)
            begin += array.item_bytes

    def _check_metadata_item(self, item: int) -> None:
        for array in self.metadata:
            _checked_item("metadata", item, array.item_count)


def _as_list(items: Iterable[int] | None) -> list[int] | None:
    return None if items is None else [int(item) for item in items]


def _checked_item(kind: str, item: int, item_count: int) -> int:
    if not 0 <= item < item_count:
        raise InvalidArgumentError(f"{kind}: item {item}, expected 0 to {item_count - 1}")
    return item
