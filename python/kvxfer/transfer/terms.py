# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What two peers must agree about, as fields that travel and can be compared by name.

Both sides compute the terms of a room from the two pool layouts. A difference is refused with the
name of the field and both values, before the first write; the digest of the terms stands in every
completion message.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kvxfer import (
    HeadSharding,
    InvalidArgumentError,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Sharding,
)

__all__ = [
    "Landing",
    "Mode",
    "Pair",
    "PairTerms",
    "PlaneTerms",
    "PoolTerms",
    "RelayoutTerms",
    "SideTerms",
    "StateTerms",
    "plane_list",
]

Int: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name: TypeAlias = Annotated[str, Meta(max_length=64)]


# Version of what the terms mean; it changes with the protocol's.
TERMS_VERSION = 1

Mode: TypeAlias = Literal["in_place", "landing", "none"]


@dataclass(frozen=True)
class Landing:
    """How the rows of one room land: fixed when the receiver asks, the same on both sides.

    ``mode`` is "none" where no row is owed; ``region_bytes`` is 0 unless it is "landing".
    """

    mode: Mode
    region_bytes: int = 0


class PlaneTerms(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One plane of a pool and where it begins."""

    layer: Int
    kind: Name
    row_bytes: Int
    dtype: Name
    row_stride_bytes: Int
    page_stride_bytes: Int
    page_offset_bytes: Int
    head_bytes: Int
    is_replicated: bool
    address: Int


class SideTerms(Struct, forbid_unknown_fields=True, frozen=True):
    """How one side shards tokens and heads."""

    page_size: Int
    ranks: Int
    rank: Int
    interleave: Int
    heads: tuple[Int, Int, Int] | None

    @classmethod
    def of(cls, layout: PoolLayout) -> Self:
        """Return the terms of a layout; heads are (total, ranks, rank)."""
        sharding, heads = layout.sharding, layout.heads
        return cls(
            page_size=layout.page_size,
            ranks=sharding.ranks,
            rank=sharding.rank,
            interleave=sharding.interleave,
            heads=(heads.total_heads, heads.ranks, heads.rank) if heads else None,
        )


class PoolTerms(Struct, forbid_unknown_fields=True, frozen=True):
    """A whole pool: geometry and plane addresses."""

    side: SideTerms
    page_count: Int
    planes: Annotated[list[PlaneTerms], Meta(max_length=65536)]

    @classmethod
    def of(cls, layout: PoolLayout, plane_addresses: tuple[int, ...]) -> Self:
        """Return the terms of a layout whose planes begin at the given addresses."""
        planes = [
            PlaneTerms(
                plane.layer,
                plane.kind.name,
                plane.row_bytes,
                plane.dtype,
                plane.row_stride_bytes,
                plane.page_stride_bytes,
                plane.page_offset_bytes,
                plane.head_bytes,
                plane.is_replicated,
                address,
            )
            for plane, address in zip(layout.planes, plane_addresses, strict=True)
        ]
        return cls(side=SideTerms.of(layout), page_count=layout.page_count, planes=planes)

    def layout(self) -> PoolLayout:
        """Return the layout, checked as any other.

        Raises
        ------
        InvalidArgumentError
            For terms that no layout has.
        """
        side = self.side
        return PoolLayout(
            side.page_size,
            self.page_count,
            [_plane(terms) for terms in self.planes],
            sharding=Sharding(side.ranks, side.rank, side.interleave),
            heads=HeadSharding(*side.heads) if side.heads else None,
        )


def _plane(terms: PlaneTerms) -> Plane:
    kind = PlaneKind.__members__.get(terms.kind)
    if kind is None:
        raise InvalidArgumentError(
            f"plane kind is {terms.kind!r}, expected one of {', '.join(PlaneKind.__members__)}"
        )
    return Plane(
        terms.layer,
        kind,
        terms.row_bytes,
        dtype=terms.dtype,
        row_stride_bytes=terms.row_stride_bytes,
        page_stride_bytes=terms.page_stride_bytes,
        page_offset_bytes=terms.page_offset_bytes,
        head_bytes=terms.head_bytes,
        is_replicated=terms.is_replicated,
    )


class PairTerms(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One plane that both sides hold, and the slice of its rows that this pair moves."""

    layer: Int
    kind: Name
    source_row_bytes: Int
    destination_row_bytes: Int
    source_offset_bytes: Int
    destination_offset_bytes: Int
    slice_bytes: Int
    is_replicated: bool


class RelayoutTerms(Struct, forbid_unknown_fields=True, frozen=True):
    """Terms of one room between one source and one destination.

    ``region_bytes`` is the size of the receiver's landing regions, 0 where rows land in place.
    """

    version: Int
    source: SideTerms
    destination: SideTerms
    planes: Annotated[list[PairTerms], Meta(max_length=65536)]
    prefix: Int
    end: Int
    owed_bytes: Int
    mode: Mode
    region_bytes: Int

    def differences(self, other: "RelayoutTerms") -> list[str]:
        """Return one text per field in which ``other`` differs: its name and both values."""
        return [
            f"{name}: expected {_shown(mine)}, got {_shown(theirs)}"
            for name in self.__struct_fields__
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
        ]

    def digest(self) -> str:
        """Return 16 hexadecimal digits that differ between different terms."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:16]


class Pair:
    """A relayout, and the part of its terms that is the same in every room.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        If there is no such relayout.
    """

    def __init__(self, source: PoolLayout, destination: PoolLayout) -> None:
        self.relayout = Relayout(source, destination)
        self._source = SideTerms.of(source)
        self._destination = SideTerms.of(destination)
        self._planes = _pair_terms(self.relayout)

    def terms(self, prefix: int, end: int, landing: Landing) -> RelayoutTerms:
        """Return the terms of one room, as each side computes them."""
        return RelayoutTerms(
            version=TERMS_VERSION,
            source=self._source,
            destination=self._destination,
            planes=self._planes,
            prefix=prefix,
            end=end,
            owed_bytes=self.relayout.segment_bytes(prefix, end),
            mode=landing.mode,
            region_bytes=landing.region_bytes,
        )


def plane_list(layout: PoolLayout) -> str:
    """Return words for the planes of a layout, for messages."""
    planes = ", ".join(f"layer {p.layer} {p.kind.name} {p.row_bytes} B" for p in layout.planes)
    return f"[{planes}]"


def _pair_terms(relayout: Relayout) -> list[PairTerms]:
    source, destination = relayout.source.planes, relayout.destination.planes
    return [
        PairTerms(
            source[pair.source_plane].layer,
            source[pair.source_plane].kind.name,
            source[pair.source_plane].row_bytes,
            destination[pair.destination_plane].row_bytes,
            pair.source_offset_bytes,
            pair.destination_offset_bytes,
            pair.bytes,
            pair.is_replicated,
        )
        for pair in relayout.planes
    ]


def _shown(value: object) -> str:
    if isinstance(value, SideTerms):
        return ", ".join(f"{name} {getattr(value, name)}" for name in value.__struct_fields__)
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, PairTerms):
        return f"layer {value.layer} {value.kind} {value.slice_bytes} of {value.source_row_bytes} B"
    return str(value)


class StateTerms(Struct, forbid_unknown_fields=True, frozen=True):
    """One state component at the destination; see ``StateComponent``."""

    kind: Name
    addresses: Annotated[list[Int], Meta(max_length=65536)]
    row_bytes: Int
    row_count: Int
    ranks: Int
    rank: Int
