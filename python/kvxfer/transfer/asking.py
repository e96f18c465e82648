# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a receiver asks of its sources: terms with every one of them, or with none."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvxfer import Error, InvalidArgumentError, PageTable, Relayout, Segment, packed_writes
from kvxfer.errors import TransferError
from kvxfer.transfer.coverage import check_coverage
from kvxfer.transfer.messages import Request
from kvxfer.transfer.options import LandingMode
from kvxfer.transfer.peers import Peer
from kvxfer.transfer.services import Services
from kvxfer.transfer.source import Source
from kvxfer.transfer.state import StateComponent, present
from kvxfer.transfer.terms import Landing, plane_list

__all__ = ["Wanted", "agree_with_all", "request_to"]


@dataclass(frozen=True)
class Wanted:
    """What a receiver wants of its sources.

    Attributes
    ----------
    table : PageTable
        Pages of this rank for the positions to receive; with plane addresses.
    prefix, end : int
        Positions to receive: [prefix, end).                                      [unit: tokens]
    state : sequence of StateComponent
        Where state goes; the same kinds in the same order as the sources'.
    metadata_bytes : int
        Most bytes of metadata that the first source sends; 0: none.
    landing : {"auto", "in_place", "landing"}
        How rows land.
    """

    table: PageTable
    prefix: int
    end: int
    state: Sequence[StateComponent] = field(default=())
    metadata_bytes: int = 0
    landing: LandingMode = "auto"

    @property
    def span(self) -> Segment:
        """The positions as one segment."""
        return Segment(self.prefix, self.end, True)

    @property
    def needed_pages(self) -> NDArray[np.int64]:
        """Page ids of the span alone, int64, shape (page_count,): the first holds ``prefix``."""
        page_tokens = self.table.layout.widened_page_tokens
        first = (self.prefix - self.table.first_position) // page_tokens
        count = -(-(self.end - self.prefix) // page_tokens)
        return self.table.pages[first : first + count] if count else self.table.pages[:0]


def agree_with_all(
    services: Services, room: int, wanted: Wanted, sources: Sequence[Source]
) -> None:
    """Compute the terms with every source; each has its peer by now.

    Raises
    ------
    TransferError
        Of kind "refused" for the first source that cannot be worked with, or for sources that
        together do not have every row.
    """
    for source in sources:
        assert source.peer is not None
        try:
            _agree(services, wanted, source, source.peer)
        except Error as error:
            raise TransferError("refused", source.name, room, str(error)) from error
    relayouts = [source.relayout for source in sources if source.relayout is not None]
    try:
        check_coverage(relayouts, wanted.table.layout)
    except InvalidArgumentError as error:
        names = ", ".join(source.name for source in sources)
        raise TransferError("refused", names, room, str(error)) from error


def request_to(source: Source, room: int, room_generation: int, wanted: Wanted) -> Request:
    """Return the request to a source, without what the receiver grants it."""
    assert source.peer is not None
    assert source.terms is not None
    return Request(
        room=room,
        room_generation=room_generation,
        source_generation=source.peer.generation,
        source_index=source.index,
        terms=source.terms,
        first_position=wanted.prefix,
        pages=wanted.needed_pages.astype("<i8").tobytes(),
        state=[component.terms() for component in present(wanted.state)],
        metadata=None,
        grants=[],
    )


def _agree(services: Services, wanted: Wanted, source: Source, peer: Peer) -> None:
    own = services.pool.layout
    try:
        pair = peer.pair_to(own)
    except Error as error:
        raise InvalidArgumentError(
            f"{error}; source planes {plane_list(peer.layout)}, destination planes "
            f"{plane_list(own)}"
        ) from error
    relayout = pair.relayout
    landing = _choose_landing(services, wanted, relayout, peer.write_cost_us)
    if landing.mode == "landing":
        needed_bytes = relayout.max_segment_bytes(relayout.alignment_tokens)
        if needed_bytes > landing.region_bytes:
            raise InvalidArgumentError(
                f"rows must land, and the smallest segment of {relayout.alignment_tokens} tokens "
                f"has {needed_bytes} bytes, but landing regions have {landing.region_bytes}"
            )
    source.agree(peer, relayout, pair.terms(wanted.prefix, wanted.end, landing))


def _choose_landing(
    services: Services, wanted: Wanted, relayout: Relayout, write_cost_us: float
) -> Landing:
    """Return how the rows of a room land, and refuse what cannot.

    Where both ways are possible, "auto" compares the cost of the writes in place with one write and
    one unpack per segment. A relayout that needs no packing is never cut, so "auto" leaves it in
    place.
    """
    span, told = wanted.span, wanted.landing
    row_bytes = relayout.segment_bytes(span.begin, span.end)
    region_bytes = services.buffers.landing.region_bytes
    if row_bytes == 0:
        return Landing("none")
    if relayout.needs_unpacking and told == "in_place":
        raise InvalidArgumentError(
            "landing is 'in_place', but the destination rows of this relayout are strided: "
            "expected 'auto' or 'landing'"
        )
    if relayout.needs_unpacking or told == "landing":
        return Landing("landing", region_bytes)
    may_choose = told == "auto" and relayout.needs_packing and region_bytes > 0
    if not may_choose or write_cost_us == 0:
        return Landing("in_place")
    options = services.options
    segment_count = -(-row_bytes // region_bytes)
    in_place_us = len(packed_writes(relayout, [span], 0, wanted.table)) * write_cost_us
    landing_us = segment_count * (write_cost_us + options.unpack_launch_us)
    landing_us += row_bytes / options.unpack_bytes_per_us
    return Landing("landing", region_bytes) if landing_us < in_place_us else Landing("in_place")
