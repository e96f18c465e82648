# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One receiver of a sender's room: its request, checked by field, and how far it is served."""

from collections import deque
from dataclasses import replace

import numpy as np

from kvxfer import InvalidArgumentError, PageTable, Segment, landing_write, packed_writes
from kvxfer.transfer.completion import NO_REGION, Completion
from kvxfer.transfer.messages import Grant, Request
from kvxfer.transfer.options import PackingMode
from kvxfer.transfer.peers import Peer
from kvxfer.transfer.pool import LocalPool
from kvxfer.transfer.state import StateComponent, present
from kvxfer.transfer.terms import Landing
from kvxfer.transfer.writes import NO_RUNS, Runs

__all__ = ["Destination"]


class Destination:
    """What one receiver asked for.

    Every number of the request has been compared with the peer's registered layout and with the own
    computation; nothing is posted for a request that differs in any of them.

    Raises
    ------
    InvalidArgumentError
        If a field differs or is out of bounds; names the field and both values.
    """

    def __init__(
        self, pool: LocalPool, peer: Peer, request: Request, packing: PackingMode = "auto"
    ) -> None:
        self.peer = peer
        self.packing = packing
        self.room_generation = request.room_generation
        self.source_index = request.source_index
        pair = peer.pair_from(pool.layout)
        self.relayout = pair.relayout
        terms = request.terms
        self.landing = Landing(terms.mode, terms.region_bytes)
        own_terms = pair.terms(terms.prefix, terms.end, self.landing)
        if differences := own_terms.differences(terms):
            raise InvalidArgumentError(
                f"terms for positions [{terms.prefix}, {terms.end}) differ: "
                + "; ".join(differences)
            )
        self.prefix, self.end, self.owed_bytes = terms.prefix, terms.end, terms.owed_bytes
        self.digest = own_terms.digest()
        self.table = self._checked_table(request)
        self._check_mode()
        self.state = [self._checked_state(StateComponent.from_terms(s)) for s in request.state]
        self.metadata = self._checked_metadata(request)
        self.credits: deque[Grant] = deque()
        self.grant_count = 0
        self.has_asked = False  # for a region, since one was granted
        self.add_credits(request.grants)

        self.cursor = 0  # segments that have been started
        self.outstanding = 0  # posts that have not ended
        self.is_final_started = False
        self.is_over = False
        self.awaits_drain = False
        self.final_completion: Completion | None = None

    @property
    def packs(self) -> bool:
        """Whether its rows go through a pack buffer."""
        if self.is_row_by_row:
            return False
        return self.owed_bytes > 0 and (self.relayout.needs_packing or self.lands)

    @property
    def is_row_by_row(self) -> bool:
        """Whether its rows go one by one though packing would join them: asked for by name."""
        is_asked_for = self.packing == "row_by_row"
        return is_asked_for and self.owed_bytes > 0 and self.relayout.needs_packing

    @property
    def lands(self) -> bool:
        """Whether its rows go into landing regions."""
        return self.landing.mode == "landing"

    def add_credits(self, grants: list[Grant]) -> None:
        """Take up regions that may be written.

        Raises
        ------
        InvalidArgumentError
            If a region is not inside memory that the peer registered.
        """
        for grant in grants:
            if not self.lands:
                raise InvalidArgumentError(f"landing region {grant.region} granted to {self.mode}")
            self._check_inside(
                f"landing region {grant.region}", grant.address, self.landing.region_bytes
            )
        self.credits.extend(grants)
        self.grant_count += len(grants)
        self.has_asked = False

    @property
    def mode(self) -> str:
        """How its rows travel: as they land, or "row_by_row"."""
        return "row_by_row" if self.is_row_by_row else self.landing.mode

    def packed_runs(self, segment: Segment, address: int, grant: Grant | None) -> Runs:
        """Return the writes of a packed segment: into a region, or to the final rows."""
        if grant is not None:
            return landing_write(self.relayout, segment, address, grant.address).runs
        return packed_writes(self.relayout, [segment], address, self.table).runs

    def completion(
        self, room: int, source: str, segment: Segment, grant: Grant | None, has_more: bool = False
    ) -> Completion:
        """Return the completion message of the segment that the cursor is at."""
        return Completion(
            room=room,
            room_generation=self.room_generation,
            source_index=self.source_index,
            segment=self.cursor,
            begin=segment.begin,
            end=segment.end,
            size_bytes=self.segment_bytes(segment),
            region=NO_REGION if grant is None else grant.region,
            region_generation=0 if grant is None else grant.generation,
            has_more=has_more,
            digest=self.digest,
            source=source,
        )

    def final_notification(
        self, state_bytes: int = 0, state_mark: int = 0, metadata_bytes: int = 0
    ) -> bytes:
        """Return the completion message of the final segment, for which nothing else is left."""
        assert self.final_completion is not None
        return replace(
            self.final_completion,
            is_final=True,
            is_drained=True,
            state_count=len(present(self.state)),
            state_bytes=state_bytes,
            state_mark=state_mark,
            metadata_bytes=metadata_bytes,
        ).encode()

    def segment_bytes(self, segment: Segment) -> int:
        """Return the bytes of rows that it gets of a segment."""
        if segment.begin == segment.end:
            return 0
        return self.relayout.segment_bytes(segment.begin, segment.end)

    def _checked_table(self, request: Request) -> PageTable:
        widened_tokens = self.peer.layout.widened_page_tokens
        if self.prefix % widened_tokens:
            raise InvalidArgumentError(
                f"prefix is {self.prefix}, expected a multiple of {widened_tokens}, "
                "the destination's page size x ranks"
            )
        if self.end < self.prefix:
            raise InvalidArgumentError(
                f"end is {self.end}, expected at least the prefix {self.prefix}"
            )
        if len(request.pages) % 8:
            raise InvalidArgumentError(
                f"page list has {len(request.pages)} bytes, expected a multiple of 8"
            )
        table = PageTable(
            self.peer.layout,
            np.frombuffer(request.pages, dtype="<i8"),
            first_position=request.first_position,
            plane_addresses=list(self.peer.plane_addresses),
        )
        is_covered = table.first_position <= self.prefix and self.end <= table.end_position
        if self.end > self.prefix and not is_covered:
            raise InvalidArgumentError(
                f"destination pages cover positions [{table.first_position}, "
                f"{table.end_position}), expected [{self.prefix}, {self.end})"
            )
        return table

    def _check_mode(self) -> None:
        mode = self.landing.mode
        if (mode == "none") != (self.owed_bytes == 0):
            raise InvalidArgumentError(
                f"landing mode is {mode!r}, but {self.owed_bytes} bytes are owed"
            )
        if self.lands and self.packing == "row_by_row":
            raise InvalidArgumentError(
                "landing mode is 'landing', but the source packs nothing (packing is "
                "'row_by_row'): expected 'in_place'"
            )
        if mode == "in_place" and self.relayout.needs_unpacking:
            raise InvalidArgumentError(
                "landing mode is 'in_place', but the destination rows are strided: "
                "expected 'landing'"
            )
        if self.lands != (self.landing.region_bytes > 0):
            raise InvalidArgumentError(
                f"landing regions have {self.landing.region_bytes} bytes in mode {mode!r}"
            )

    def _checked_state(self, component: StateComponent) -> StateComponent:
        for address in component.addresses if present([component]) else ():
            self._check_inside(f"state {component.kind}", address, component.block_bytes)
        return component

    def _checked_metadata(self, request: Request) -> tuple[int, int] | None:
        if request.metadata is not None:
            self._check_inside("metadata", *request.metadata)
        return request.metadata

    def _check_inside(self, what: str, address: int, size_bytes: int) -> None:
        if not self.peer.describes(address, size_bytes):
            raise InvalidArgumentError(
                f"{what} at {address:#x} with {size_bytes} bytes is not inside one region that "
                f"{self.peer.name} registered"
            )


def no_runs() -> Runs:
    """Return a write list without writes."""
    return NO_RUNS
