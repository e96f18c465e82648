# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""State that travels beside the rows, once, with the final segment: recurrent and sparse state."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.transfer.terms import StateTerms

__all__ = [
    "StateComponent",
    "kinds_of",
    "mark_of_all",
    "mark_of_sent",
    "present",
    "state_writes",
    "sum_of_marks",
    "total_bytes",
]

_MARK_MODULUS = 2**63


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


def kinds_of(components: Sequence[StateComponent]) -> str:
    """Return words for the kinds of components, for messages."""
    return "[" + ", ".join(component.kind for component in components) + "]"


def mark_of_sent(source: Sequence[StateComponent], destination: Sequence[StateComponent]) -> int:
    """Return the mark of the slices that ``state_writes`` of the same components moves.

    The mark of a byte range is a hash of its end less a hash of its begin, so that the marks of
    ranges add up to that of a whole row where, and by any likelihood only where, they cover every
    byte of it once: inner ends cancel out. Fixed in size, it travels in a completion message.
    """
    pairs = enumerate(zip(present(source), present(destination), strict=True))
    return sum_of_marks(
        _mark(index, *_overlap(have, want)) for index, (have, want) in pairs if have.replica == 0
    )


def mark_of_all(destination: Sequence[StateComponent]) -> int:
    """Return what the marks of all sources add up to when every byte has been sent once."""
    pairs = enumerate(present(destination))
    return sum_of_marks(_mark(index, *_overlap(own, own)) for index, own in pairs)


def sum_of_marks(marks: Iterable[int]) -> int:
    """Return the mark of several disjoint sets of slices, in [0, 2**63)."""
    return sum(marks) % _MARK_MODULUS


def _mark(component_index: int, begin: int, size_bytes: int) -> int:
    if size_bytes <= 0:
        return 0
    return _hash(component_index, begin + size_bytes) - _hash(component_index, begin)


def _hash(component_index: int, offset_bytes: int) -> int:
    packed = struct.pack("<QQ", component_index, offset_bytes)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def _overlap(source: StateComponent, destination: StateComponent) -> tuple[int, int]:
    """Return where the bytes of a whole row begin that both hold, and how many they are."""
    first_source, first_destination = (c.rank * c.row_bytes for c in (source, destination))
    begin = max(first_source, first_destination)
    end = min(first_source + source.row_bytes, first_destination + destination.row_bytes)
    return begin, end - begin


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
            f"state components of the source are {kinds_of(have)}, "
            f"but the destination asked for {kinds_of(want)}"
        )
    parts = [_component_writes(s, d) for s, d in zip(have, want, strict=True)]
    return np.concatenate([np.empty((0, 3), dtype=np.int64), *parts])


def _component_writes(source: StateComponent, destination: StateComponent) -> NDArray[np.int64]:
    _check_same_state(source, destination)
    if source.replica > 0:
        return np.empty((0, 3), dtype=np.int64)
    begin, size_bytes = _overlap(source, destination)
    if size_bytes <= 0:
        return np.empty((0, 3), dtype=np.int64)
    rows = np.arange(source.row_count, dtype=np.int64)[None, :]
    writes = np.empty((len(source.addresses), source.row_count, 3), dtype=np.int64)
    for column, component in ((0, source), (1, destination)):
        first = component.rank * component.row_bytes
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
