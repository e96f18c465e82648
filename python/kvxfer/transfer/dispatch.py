# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""When a segment leaves, for which receivers, and what follows the last one."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kvxfer import InvalidArgumentError, PackBufferLayout, PageTable, Segment, direct_writes
from kvxfer.transfer.copies import Ready
from kvxfer.transfer.destination import Destination, no_runs
from kvxfer.transfer.epilogue import Epilogue
from kvxfer.transfer.flight import Flight, FlightEvents, Outgoing
from kvxfer.transfer.messages import Grant, Want
from kvxfer.transfer.pack_ring import Slot
from kvxfer.transfer.room import RoomMetrics
from kvxfer.transfer.services import Services
from kvxfer.transfer.writes import Runs, row_write_count

__all__ = ["Departures", "PlannedSegment"]


@dataclass(frozen=True)
class PlannedSegment:
    """One segment, the pages that hold it, and what it waits for."""

    segment: Segment
    table: PageTable
    ready: Ready | None

    @property
    def is_ready(self) -> bool:
        """Whether its rows may be read."""
        return self.ready is None or self.ready.query()


class DepartureEvents(FlightEvents, Protocol):
    """What departures need of their room."""

    room: int
    metrics: RoomMetrics

    @property
    def destinations(self) -> list[Destination]:
        """Receivers of the room."""
        ...

    def touch(self) -> None:
        """Note progress."""
        ...

    def fail(self, kind: str, peer: str, message: str) -> None:
        """Fail the room."""
        ...


class Departures:
    """The segments of one room and how far each receiver is served.

    Receivers that stand at the same segment leave together: its rows are packed once for all of
    them. One whose landing region is late is waited for briefly and then left behind, to be served
    by itself: a room that held regions of some receivers while it waited for another's could wait
    for a room that does the opposite.
    """

    def __init__(self, services: Services, room: DepartureEvents) -> None:
        self._services = services
        self._room = room
        self._segments: list[PlannedSegment] = []
        self._flights: list[Flight] = []
        self._layouts: dict[tuple[int, ...], PackBufferLayout] = {}
        self._waits_since: float | None = None
        self._late_since: float | None = None
        self.epilogue = Epilogue(services, room.room)
        self.capacity_tokens: int | None = None
        self.wait_s = 0.0

    @property
    def has_flights(self) -> bool:
        """Whether anything is under way."""
        return bool(self._flights)

    @property
    def reads_source(self) -> bool:
        """Whether source pages may be read by what is under way."""
        return any(flight.reads_source for flight in self._flights)

    @property
    def is_pending(self) -> bool:
        """Whether some receiver has not been sent what is planned for it."""
        return bool(self._segments) and any(self._is_behind(d) for d in self._room.destinations)

    def set_capacity(self) -> None:
        """Fix the capacity: what the pack buffer and every landing region hold.

        Raises
        ------
        CapacityError
            If one of them does not hold the smallest segment.
        """
        packing = [d for d in self._room.destinations if d.packs]
        if not packing:
            return
        buffer_bytes = self._services.options.pack_bytes(self._services.pool.layout)
        budget_tokens = self._services.options.budget_tokens(self._services.pool.layout)
        capacities = [PackBufferLayout.capacity_for([d.relayout for d in packing], buffer_bytes)]
        capacities += [budget_tokens] if budget_tokens is not None else []
        capacities += [
            PackBufferLayout.capacity_for([d.relayout], d.landing.region_bytes)
            for d in packing
            if d.lands
        ]
        self.capacity_tokens = min(capacities)

    def add(self, segments: list[PlannedSegment]) -> None:
        """Queue segments, in order."""
        self._segments += segments
        for planned in segments:
            for destination in self._room.destinations:
                if destination.segment_bytes(planned.segment):
                    self._room.metrics.row_writes += row_write_count(
                        destination.relayout, planned.segment
                    )

    def drop(self) -> None:
        """Forget what has not left."""
        self._segments.clear()
        self._services.buffers.ring.withdraw(self)
        self.epilogue.drop()

    def poll(self) -> None:
        """Follow what is under way."""
        self._flights = [flight for flight in self._flights if not flight.poll()]

    def start(self) -> None:
        """Let everything leave that can."""
        groups: dict[int, list[Destination]] = defaultdict(list)
        for destination in self._room.destinations:
            if self._owes_rows(destination):
                groups[destination.cursor].append(destination)
        for cursor in sorted(groups):
            if self._room.is_wanted():
                self._start_segment(self._segments[cursor], groups[cursor])
        for destination in self._room.destinations:
            if self._room.is_wanted():
                self._start_final(destination)

    def late(self) -> tuple[str, str] | None:
        """Return who takes longer than the deadline over what is under way, and words for it."""
        deadline_s = self._services.options.transfer_deadline_s
        latest = self._services.options.clock() - deadline_s
        flights = [flight for flight in self._flights if flight.started_s < latest]
        if not flights:
            return None
        posted = [flight for flight in flights if not flight.waits_for_own]
        what = "writes did not end" if posted else flights[0].waits_for_own
        names = sorted({name for flight in posted for name in flight.waits_for})
        return ", ".join(names), f"{what} within {deadline_s:g} s"

    def missing(self) -> tuple[str, str]:
        """Return who keeps the next segment from leaving, and words for it."""
        buffers, deadline_s = self._services.buffers, self._services.options.transfer_deadline_s
        if not self._is_ready(self._segments[-1]):
            return "", f"the engine's event did not happen within {deadline_s:g} s"
        behind = [d for d in self._room.destinations if self._is_behind(d)]
        with_rows = [d for d in behind if self._owes_rows(d)]
        no_region = [d.peer.name for d in with_rows if d.lands and not d.credits]
        if no_region:
            names = ", ".join(no_region)
            return names, f"no landing region was granted within {deadline_s:g} s"
        what, slots, ring = (
            ("segment", "pack buffers", buffers.ring)
            if with_rows
            else ("metadata", "metadata slots", buffers.outbox)
        )
        return "", (
            f"no {what} left within {deadline_s:g} s: {ring.leased_count} of {ring.slot_count} "
            f"{slots} are in use"
        )

    def _owes_rows(self, destination: Destination) -> bool:
        return destination.owed_bytes > 0 and destination.cursor < len(self._segments)

    def _is_behind(self, destination: Destination) -> bool:
        if destination.is_final_started:
            return False
        return bool(self._segments) and (
            self._owes_rows(destination) or self._segments[-1].segment.is_final
        )

    def _is_ready(self, planned: PlannedSegment) -> bool:
        """Return whether rows may be read; an event that cannot be asked fails the room."""
        try:
            return planned.is_ready
        except Exception as error:
            message = f"the engine's event raised {type(error).__name__}: {error}"
            self._room.fail("transport", "", message)
            return False

    def _start_segment(self, planned: PlannedSegment, group: list[Destination]) -> None:
        """Let a segment leave for the receivers that stand at it."""
        if not self._is_ready(planned):
            return
        empty = [d for d in group if not d.segment_bytes(planned.segment)]
        direct = [d for d in group if d not in empty and not d.packs]
        packed = [d for d in group if d.packs and d not in empty]
        if empty:
            self._depart(planned, [(d, no_runs, None) for d in empty])
        if direct:
            self._depart(planned, [(d, partial(_direct_runs, planned, d), None) for d in direct])
        writable = [d for d in packed if d.credits or not d.lands]
        if writable and (len(writable) == len(packed) or self._is_patience_over()):
            self._pack_and_depart(planned, writable)
        elif packed:
            self._note_wait()
        for destination in packed:
            if destination.lands and destination not in writable:
                self._want_region(destination)

    def _pack_and_depart(self, planned: PlannedSegment, group: list[Destination]) -> None:
        ring = self._services.buffers.ring
        slot = ring.lease(self, [d.peer.name for d in group])
        if slot is None:
            self._note_wait()
            return
        self._end_wait()
        self._late_since = None
        layout = self._layout_of(group)
        plan = layout.plan(planned.segment)
        items: list[tuple[Destination, Callable[[], Runs], Grant | None]] = []
        for region in plan.regions:
            destination = group[region.index]
            grant = destination.credits.popleft() if destination.lands else None
            address = slot.address + region.offset_bytes
            runs = partial(destination.packed_runs, planned.segment, address, grant)
            items.append((destination, runs, grant))
        pack = partial(self._services.copies.pack, layout, plan, planned.table, slot.memory)
        self._depart(planned, items, (slot, pack))

    def _depart(
        self,
        planned: PlannedSegment,
        items: list[tuple[Destination, Callable[[], Runs], Grant | None]],
        packed: tuple[Slot, Callable[[], Ready | None]] | None = None,
    ) -> None:
        outgoing = []
        for destination, runs, grant in items:
            item = self._outgoing(planned.segment, destination, runs, grant)
            destination.cursor += 1
            if item is not None:
                outgoing.append(item)
        self._room.metrics.segments += len(items)
        if not outgoing:
            return
        slot_of = (self._services.buffers.ring, packed[0]) if packed else None
        pack = packed[1] if packed else None
        self._fly(Flight(self._services, self._room, outgoing, slot_of, pack))

    def _outgoing(
        self,
        segment: Segment,
        destination: Destination,
        runs: Callable[[], Runs],
        grant: Grant | None,
    ) -> Outgoing | None:
        """Return the post of one receiver's rows.

        The final segment is completed by a post of its own after everything else has arrived,
        unless nothing else is to arrive.
        """
        row_bytes = destination.segment_bytes(segment)
        following = self._segments[destination.cursor + 1 :][:1]
        has_more = any(self._is_ready(planned) for planned in following)
        completion = destination.completion(
            self._room.room, self._services.transport.agent_name, segment, grant, has_more
        )
        if not segment.is_final:
            return Outgoing(destination, runs, completion.encode(), row_bytes)
        destination.final_completion = completion
        if self.epilogue.has_extras(destination) or destination.outstanding:
            return Outgoing(destination, runs, b"", row_bytes) if row_bytes else None
        destination.is_final_started = True
        notification = destination.final_notification()
        return Outgoing(destination, runs, notification, row_bytes, is_final=True)

    def _start_final(self, destination: Destination) -> None:
        """Send state, metadata and the final completion, after all rows have arrived."""
        if not self._segments or destination.is_final_started or destination.outstanding:
            return
        if not self._segments[-1].segment.is_final:
            return
        if self._owes_rows(destination):
            return
        if destination.owed_bytes == 0 and not self._is_ready(self._segments[-1]):
            return
        self._send_final(destination)

    def _send_final(self, destination: Destination) -> None:
        try:
            made = self.epilogue.make(destination)
        except InvalidArgumentError as error:
            self._room.fail("refused", destination.peer.name, str(error))
            return
        if made is None:
            self._note_wait()
            return
        self._end_wait()
        item, slot = made
        destination.is_final_started = True
        slot_of = (self._services.buffers.outbox, slot) if slot is not None else None
        self._fly(Flight(self._services, self._room, [item], slot_of))

    def _layout_of(self, group: list[Destination]) -> PackBufferLayout:
        """Return the regions of a set of receivers; one set serves nearly every segment."""
        key = tuple(id(destination) for destination in group)
        layout = self._layouts.get(key)
        if layout is None:
            assert self.capacity_tokens is not None
            layout = PackBufferLayout([d.relayout for d in group], self.capacity_tokens)
            self._layouts[key] = layout
        return layout

    def _fly(self, flight: Flight) -> None:
        if not flight.poll():
            self._flights.append(flight)

    def _want_region(self, destination: Destination) -> None:
        if not destination.has_asked:
            destination.has_asked = True
            self._services.mailer.send(
                destination.peer.address,
                Want(self._room.room, destination.room_generation, destination.grant_count),
            )

    def _is_patience_over(self) -> bool:
        """Return whether the regions of some receivers have been late for long enough."""
        now = self._services.options.clock()
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since >= self._services.options.region_patience_s

    def _note_wait(self) -> None:
        if self._waits_since is None:
            self._waits_since = self._services.options.clock()

    def _end_wait(self) -> None:
        if self._waits_since is not None:
            self.wait_s += self._services.options.clock() - self._waits_since
            self._waits_since = None


def _direct_runs(planned: PlannedSegment, destination: Destination) -> Runs:
    return direct_writes(
        destination.relayout, [planned.segment], planned.table, destination.table
    ).runs
