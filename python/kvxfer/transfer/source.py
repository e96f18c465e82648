# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One source of a receiver's room: what it owes, what has arrived, what is still open."""

from kvxfer import InvalidArgumentError, Relayout
from kvxfer.transfer.completion import NO_REGION, Completion
from kvxfer.transfer.landing import Region, RegionHolder
from kvxfer.transfer.peers import Link, Peer
from kvxfer.transfer.terms import RelayoutTerms

__all__ = ["Source"]


class Source:
    """Counts what one source delivers: by segment number, never by list length."""

    def __init__(self, index: int, link: Link, holder: RegionHolder) -> None:
        self.index = index
        self.link = link
        self.holder = holder
        self.peer: Peer | None = None
        self.relayout: Relayout | None = None
        self.terms: RelayoutTerms | None = None
        self.digest = ""
        self.was_asked = False
        self.unpacking_count = 0
        self.is_drained = False
        self.segments: dict[int, Completion] = {}
        self.final: Completion | None = None

    @property
    def name(self) -> str:
        """Name of the peer, or its address while it is not known."""
        return self.peer.name if self.peer is not None else self.link.address

    @property
    def lands(self) -> bool:
        """Whether rows come through landing regions."""
        return self.terms is not None and self.terms.mode == "landing"

    @property
    def is_complete(self) -> bool:
        """Whether every segment has arrived and is in its rows."""
        return (
            self.final is not None
            and len(self.segments) == self.final.segment + 1
            and self.unpacking_count == 0
        )

    @property
    def may_write(self) -> bool:
        """Whether the source may still write for this room."""
        return self.was_asked and not self.is_drained

    def agree(self, peer: Peer, relayout: Relayout, terms: RelayoutTerms) -> None:
        """Fix what the source is asked for."""
        self.peer, self.relayout, self.terms = peer, relayout, terms
        self.digest = terms.digest()

    def add(self, completion: Completion) -> bool:
        """Take up a completion message; return False for a repeat of one that was taken up.

        Raises
        ------
        InvalidArgumentError
            If the message does not fit what was agreed or what came before.
        """
        known = self.segments.get(completion.segment)
        if known == completion:
            return False
        if known is not None:
            raise InvalidArgumentError(
                f"segment {completion.segment} was completed twice, with different fields"
            )
        self._check(completion)
        self.segments[completion.segment] = completion
        if completion.is_final:
            self.final = completion
        if self.final is not None and len(self.segments) == self.final.segment + 1:
            self._check_tiling()
            self.is_drained = self.final.is_drained
        return True

    def _check(self, completion: Completion) -> None:
        assert self.terms is not None
        assert self.relayout is not None
        terms = self.terms
        if completion.digest != self.digest:
            raise InvalidArgumentError(
                f"terms of segment {completion.segment} have digest {completion.digest}, "
                f"expected {self.digest}"
            )
        if not terms.prefix <= completion.begin <= completion.end <= terms.end:
            raise InvalidArgumentError(
                f"segment {completion.segment} is [{completion.begin}, {completion.end}), "
                f"expected a part of [{terms.prefix}, {terms.end})"
            )
        if self.final is not None and (
            completion.is_final or completion.segment > self.final.segment
        ):
            raise InvalidArgumentError(
                f"segment {completion.segment} came after the final segment {self.final.segment}"
            )
        if completion.is_final and not completion.is_drained:
            raise InvalidArgumentError("final segment came before the other writes were over")
        owed_bytes = self._bytes_of(completion)
        if completion.size_bytes != owed_bytes:
            raise InvalidArgumentError(
                f"segment {completion.segment} has {completion.size_bytes} bytes, "
                f"expected {owed_bytes}"
            )
        self._check_region(completion)

    def _check_region(self, completion: Completion) -> None:
        needs_region = self.lands and completion.size_bytes > 0
        if not needs_region:
            if completion.region != NO_REGION:
                raise InvalidArgumentError(
                    f"segment {completion.segment} names landing region {completion.region}, "
                    "expected none"
                )
            return
        region = self.holder.held.get(completion.region)
        generation = region.generation if region is not None else None
        if generation != completion.region_generation:
            raise InvalidArgumentError(
                f"segment {completion.segment} names landing region {completion.region} of "
                f"generation {completion.region_generation}, expected one that it was granted: "
                + str({r.index: r.generation for r in self.holder.held.values()})
            )
        if region is not None and region.has_landed:
            raise InvalidArgumentError(
                f"segment {completion.segment} names landing region {completion.region} of "
                f"generation {completion.region_generation}, which holds an earlier segment"
            )

    def _bytes_of(self, completion: Completion) -> int:
        assert self.relayout is not None
        if completion.begin == completion.end:
            return 0
        return self.relayout.segment_bytes(completion.begin, completion.end)

    def _check_tiling(self) -> None:
        """Check that the segments, in order, cover what was asked for without gap or overlap."""
        assert self.terms is not None
        reached = self.terms.prefix
        for number in range(len(self.segments)):
            segment = self.segments[number]
            if segment.begin != reached:
                raise InvalidArgumentError(
                    f"segment {number} begins at position {segment.begin}, expected {reached}"
                )
            reached = segment.end
        if reached != self.terms.end:
            raise InvalidArgumentError(
                f"segments end at position {reached}, expected {self.terms.end}"
            )
        got_bytes = sum(segment.size_bytes for segment in self.segments.values())
        if got_bytes != self.terms.owed_bytes:
            raise InvalidArgumentError(
                f"segments have {got_bytes} bytes, expected {self.terms.owed_bytes}"
            )

    def region_of(self, completion: Completion) -> Region | None:
        """Return the region that holds a segment's rows, None where they are in place."""
        return self.holder.held.get(completion.region)
