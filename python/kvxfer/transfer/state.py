# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""State that travels beside the rows, once, with the final segment: recurrent and sparse state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.transfer.terms import StateTerms

__all__ = ["StateComponent", "present", "state_writes", "total_bytes"]


@dataclass(frozen=True, kw_only=True)
class StateComponent:
    """One rank's part of one state of a request.

    A state is a number of blocks (one for a request slot, one per page for paged state), each of
    ``row_count`` rows. With ``ranks`` > 1 every row is dealt over the ranks of a group in equal
    slices, as channels over tensor-parallel ranks are; a source and a destination with different
    groups then share exactly the bytes in which their slices overlap.

    Attributes
    ----------
    kind : str
        What it is; compared between the two sides.
    addresses : tuple of int
        Where each block begins.
    row_bytes : int
        Bytes of a row on this rank. A component of zero bytes is skipped on either side.
    row_count : int
        Rows of a block before the sliced axis.
    ranks, rank : int
        The group over which rows are sliced, and this rank in it.
    replica : int
        On a source: which copy of the slice this is. Only replica 0 is sent.
    """

    kind: str
    addresses: tuple[int, ...]
    row_bytes: int
    row_count: int = 1
    ranks: int = 1
    rank: int = 0
    replica: int = 0

    def __post_init__(self) -> None:
        if self.row_bytes < 0 or self.row_count < 0 or self.replica < 0:
            raise InvalidArgumentError(
                f"state {self.kind}: row_bytes {self.row_bytes}, row_count {self.row_count}, "
                f"replica {self.replica}: expected none below 0"
            )
        if not 0 <= self.rank < self.ranks:
            raise InvalidArgumentError(
                f"state {self.kind}: rank {self.rank}, expected 0 to {self.ranks - 1}"
            )

    @classmethod
    def paged(
        cls, kind: str, base: int, page_bytes: int, pages: Sequence[int], page_count: int
    ) -> Self:
        """Return a state of whole pages, clamped to the pages that the prompt fills.

        Parameters
        ----------
        base, page_bytes : int
            Where page 0 begins and how long a page is.
        pages : sequence of int
            The request's page ids; may be longer, as it is when a sampled token has a page already.
        page_count : int
            Pages of the prompt: its exact token count over the page size, rounded up.

        Raises
        ------
        InvalidArgumentError
            If there are fewer page ids than that.
        """
        if len(pages) < page_count:
            raise InvalidArgumentError(
                f"state {kind}: {len(pages)} pages given, expected at least {page_count}"
            )
        addresses = tuple(base + int(page) * page_bytes for page in pages[:page_count])
        return cls(kind=kind, addresses=addresses, row_bytes=page_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on this rank."""
        return self.row_bytes * self.row_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the component on this rank."""
        return self.block_bytes * len(self.addresses)

    def terms(self) -> StateTerms:
        """Return what the receiver tells its sources."""
        return StateTerms(
            kind=self.kind,
            addresses=list(self.addresses),
            row_bytes=self.row_bytes,
            row_count=self.row_count,
            ranks=self.ranks,
            rank=self.rank,
        )

    @classmethod
    def from_terms(cls, terms: StateTerms) -> Self:
        """Return the component that a receiver described."""
        return cls(
            kind=terms.kind,
            addresses=tuple(terms.addresses),
            row_bytes=terms.row_bytes,
            row_count=terms.row_count,
            ranks=terms.ranks,
            rank=terms.rank,
        )


def present(components: Sequence[StateComponent]) -> list[StateComponent]:
    """Return the components that have bytes, in order."""
    return [component for component in components if component.size_bytes]


def total_bytes(components: Sequence[StateComponent]) -> int:
    """Return the bytes of all components on this rank."""
    return sum(component.size_bytes for component in components)


def state_writes(
    source: Sequence[StateComponent], destination: Sequence[StateComponent]
) -> NDArray[np.int64]:
    """Return the writes that move a source's slices into a destination's.

    Returns
    -------
    int64 array, shape (write_count, 3)
        Source address, destination address, bytes; no write is empty.

    Raises
    ------
    InvalidArgumentError
        If the two sides do not list the same components; names them and both values.
    """
    have, want = present(source), present(destination)
    if [c.kind for c in have] != [c.kind for c in want]:
        raise InvalidArgumentError(
            f"state components of the source are {_names(have)}, "
            f"but the destination asked for {_names(want)}"
        )
    parts = [_component_writes(s, d) for s, d in zip(have, want, strict=True)]
    return np.concatenate([np.empty((0, 3), dtype=np.int64), *parts])


def _component_writes(source: StateComponent, destination: StateComponent) -> NDArray[np.int64]:
    _check_same_state(source, destination)
    if source.replica > 0:
        return np.empty((0, 3), dtype=np.int64)
    first_source, first_destination = (c.rank * c.row_bytes for c in (source, destination))
    begin = max(first_source, first_destination)
    size_bytes = min(first_source + source.row_bytes, first_destination + destination.row_bytes)
    size_bytes -= begin
    if size_bytes <= 0:
        return np.empty((0, 3), dtype=np.int64)
    rows = np.arange(source.row_count, dtype=np.int64)[None, :]
    writes = np.empty((len(source.addresses), source.row_count, 3), dtype=np.int64)
    for column, component, first in (
        (0, source, first_source),
        (1, destination, first_destination),
    ):
        blocks = np.array(component.addresses, dtype=np.int64)[:, None]
        writes[:, :, column] = blocks + rows * component.row_bytes + (begin - first)
    writes[:, :, 2] = size_bytes
    if size_bytes == source.row_bytes == destination.row_bytes:
        writes = writes[:, :1]
        writes[:, :, 2] = source.block_bytes
    return writes.reshape(-1, 3)


def _check_same_state(source: StateComponent, destination: StateComponent) -> None:
    for what, have, want in (
        ("blocks", len(source.addresses), len(destination.addresses)),
        ("rows of a block", source.row_count, destination.row_count),
        (
            "bytes of a whole row",
            source.row_bytes * source.ranks,
            destination.row_bytes * destination.ranks,
        ),
    ):
        if have != want:
            raise InvalidArgumentError(
                f"state {source.kind}: the source has {have} {what}, the destination {want}"
            )


def _names(components: Sequence[StateComponent]) -> str:
    return "[" + ", ".join(component.kind for component in components) + "]"
