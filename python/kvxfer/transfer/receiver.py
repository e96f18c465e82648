# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A receiver's room: asks its sources, counts what arrives, unpacks, and holds its pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvxfer import Error, InvalidArgumentError, PageTable, Relayout, Segment
from kvxfer.transfer.completion import Completion
from kvxfer.transfer.coverage import check_coverage
from kvxfer.transfer.landing import Region, RegionHolder
from kvxfer.transfer.messages import Abort, Credit, Request
from kvxfer.transfer.options import LandingMode
from kvxfer.transfer.pack_ring import Slot
from kvxfer.transfer.peers import Link, LinkState, Peer
from kvxfer.transfer.room import ActiveTime, Room, RoomResult, RoomState
from kvxfer.transfer.services import METADATA_HEADER_BYTES, Services
from kvxfer.transfer.source import Source, choose_landing, source_terms
from kvxfer.transfer.state import StateComponent, present, total_bytes
from kvxfer.transfer.terms import plane_list
from kvxfer.transfer.unpacking import Unpack

__all__ = ["ReceiverRoom", "Wanted"]


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


class ReceiverRoom(Room):
    """One request at its destination. Made by ``TransferManager.open_receiver``.

    The room waits for its sources' handshakes (Bootstrapping), then for the first segment
    (WaitingForInput), then for the rest (Transferring). It is Success only after the last unpack,
    state and metadata. Its pages may be reused only when ``pages_held`` is false, also after a
    failure: until then a source may still write into them.
    """

    def __init__(
        self, services: Services, room: int, generation: int, wanted: Wanted, links: Sequence[Link]
    ) -> None:
        super().__init__(room, services.options.clock)
        self.generation = generation
        self.metadata: bytes | None = None
        self.drain_expired = False
        self._services = services
        self._wanted = wanted
        self._failed_at: float | None = None
        self._unpacks: list[Unpack] = []
        self._time = ActiveTime()
        self._slot: Slot | None = self._lease_slot()
        self._sources = [
            Source(index, link, RegionHolder(self._granter(index)))
            for index, link in enumerate(links)
        ]

    # -- what the engine calls ------------------------------------------------------------------

    def abort(self, message: str = "aborted by the engine") -> None:
        """Fail the room and tell its sources. Pages stay held until their writes are over."""
        with self._services.lock:
            self.fail("aborted", "", message)

    @property
    def pages_held(self) -> bool:
        """Whether pages of the room may still be written: they must not be reused."""
        with self._services.lock:
            if self._unpacks:
                return True
            if self.state is RoomState.SUCCESS or self.drain_expired:
                return False
            if self.state is RoomState.FAILED:
                return any(source.may_write for source in self._sources)
            return True

    def result(self) -> RoomResult:
        """Return how the room stands or ended."""
        with self._services.lock:
            metrics = replace(
                self.metrics, active_s=self._time.seconds, span_s=self._time.span_seconds
            )
            modes: dict[str, str] = {
                s.name: s.terms.mode for s in self._sources if s.terms is not None
            }
            return RoomResult(self.room, self.state, modes, metrics, self.failure)

    # -- what the manager calls -----------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do for ``advance`` before a message arrives."""
        if self.state is RoomState.BOOTSTRAPPING or self._unpacks:
            return True
        return not self.state.is_over and all(source.is_complete for source in self._sources)

    @property
    def is_settled(self) -> bool:
        """Whether the room is over and nothing may write for it any more."""
        return (
            self.state.is_over
            and not self._unpacks
            and not any(source.may_write for source in self._sources)
        )

    def source_of(self, index: int, name: str) -> Source | None:
        """Return a source by its place, if it is the one of that name."""
        if index < len(self._sources) and self._sources[index].name == name:
            return self._sources[index]
        return None

    def sources_named(self, name: str) -> list[Source]:
        """Return the sources that are this peer."""
        return [source for source in self._sources if source.name == name]

    def on_completion(self, source: Source, completion: Completion) -> None:
        """Take up a segment. One that does not fit fails the room; a repeat changes nothing."""
        if self.state.is_over:
            if completion.is_final and completion.is_drained and self.state is RoomState.FAILED:
                self._settle(source)
            return
        try:
            if not source.add(completion):
                self._services.counters["completions_repeated"] += 1
                return
        except InvalidArgumentError as error:
            self.fail("protocol", source.name, str(error))
            return
        self.advance_to(RoomState.TRANSFERRING)
        self.metrics.segments += 1
        region = source.region_of(completion)
        if region is not None:
            self._services.buffers.landing.landed(region)
            self._unpack(source, completion, region)
        else:
            self.metrics.bytes += completion.size_bytes
        self._check_complete()

    def on_want(self, source: Source) -> None:
        """Queue a source that has a segment ready and no region to write it into."""
        if source.lands and not source.is_complete and not self.state.is_over:
            self._services.buffers.landing.want(source.holder)

    def on_abort(self, source: Source, abort: Abort) -> None:
        """Fail the room because a source gave up."""
        if abort.is_drained:
            self._settle(source)
        self.fail(abort.kind, source.name, abort.message)

    def on_drained(self, source: Source, is_drained: bool) -> None:
        """Note a source's word on its writes."""
        if is_drained and self.state is RoomState.FAILED:
            self._settle(source)

    def peer_lost(self, peer: Peer, reason: str, is_dead: bool) -> None:
        """Fail the room if it needs the peer; certain death also ends the peer's writes."""
        for source in self._sources:
            if source.peer is peer:
                if not source.is_complete:
                    self.fail("peer_lost", peer.name, f"source {peer.name} {reason}")
                if is_dead and self.state is RoomState.FAILED:
                    self._settle(source)

    def ask_for_drain(self, peer: Peer | None = None) -> None:
        """Tell sources that may still write, those of one peer or all, that the room failed."""
        for source in self._sources:
            if source.may_write and (peer is None or source.name == peer.name):
                self._send_abort(source)

    def advance(self) -> None:
        """Go on as far as possible without waiting."""
        for unpack in [u for u in self._unpacks if u.is_done()]:
            self._end_unpack(unpack)
        if self.state is RoomState.BOOTSTRAPPING:
            self._bootstrap()
        self._check_complete()

    def check_deadlines(self) -> None:
        """Fail the room where a wait has run out, and bound how long pages are held."""
        options, waited_s = self._services.options, self.waited_s()
        if self.state is RoomState.BOOTSTRAPPING and waited_s > options.bootstrap_deadline_s:
            missing = [s for s in self._sources if s.peer is None]
            self._fail_missing(missing, f"no handshake within {options.bootstrap_deadline_s:g} s")
        elif not self.state.is_over and waited_s > options.waiting_deadline_s:
            missing = [s for s in self._sources if not s.is_complete]
            self._fail_missing(missing, f"no segment for {options.waiting_deadline_s:g} s")
        elif (
            self._failed_at is not None
            and self.pages_held
            and self._clock() - self._failed_at > options.drain_deadline_s
        ):
            self.drain_expired = True
            self._services.counters["drains_expired"] += 1

    def fail(self, kind: str, peer: str, message: str) -> None:
        """Fail the room for the first reason given, and tell every source that is not done with it.

        A source that was not asked yet is told as well, or its room would wait for the request.
        """
        if not self.record_failure(kind, peer, message):
            return
        self._failed_at = self._clock()
        assert self.failure is not None
        self._services.counters[f"failed_{self.failure.kind}"] += 1
        for source in self._sources:
            is_reachable = source.link.state in (LinkState.ASKED, LinkState.KNOWN)
            if source.may_write or (not source.was_asked and is_reachable):
                self._send_abort(source)
            self._services.buffers.landing.withdraw(source.holder)
            if not source.may_write:
                self._settle(source)

    # -- own ------------------------------------------------------------------------------------

    def _lease_slot(self) -> Slot | None:
        if self._wanted.metadata_bytes == 0:
            return None
        inbox, options = self._services.buffers.inbox, self._services.options
        if self._wanted.metadata_bytes > options.metadata_slot_bytes:
            raise InvalidArgumentError(
                f"metadata_bytes is {self._wanted.metadata_bytes}, expected at most "
                f"metadata_slot_bytes = {options.metadata_slot_bytes}"
            )
        slot = inbox.lease(self)
        if slot is None:
            inbox.withdraw(self)
            raise InvalidArgumentError(
                f"room {self.room}: all {inbox.slot_count} metadata slots are in use, "
                "expected metadata_slot_count to cover the rooms that are open at once"
            )
        slot.memory[:METADATA_HEADER_BYTES] = 0
        return slot

    def _granter(self, index: int) -> Callable[[list[Region]], None]:
        """Return what tells a source of regions that are granted later."""

        def tell(regions: list[Region]) -> None:
            source = self._sources[index]
            assert source.peer is not None
            grants = [region.grant() for region in regions]
            self._services.mailer.send(
                source.peer.address, Credit(self.room, self.generation, grants)
            )

        return tell

    def _bootstrap(self) -> None:
        for source in self._sources:
            link = source.link
            if link.state in (LinkState.DOWN, LinkState.REFUSED):
                kind = "peer_lost" if link.state is LinkState.DOWN else "refused"
                self.fail(kind, link.address, f"source at {link.address}: {link.reason}")
                return
            source.peer = link.peer
        if all(source.peer is not None for source in self._sources):
            self._ask()

    def _ask(self) -> None:
        """Compute the terms with every source, then ask all of them or none."""
        table = self._wanted.table
        for source in self._sources:
            assert source.peer is not None
            try:
                self._agree(source, source.peer)
            except Error as error:
                self.fail("refused", source.name, str(error))
                return
        try:
            relayouts = [s.relayout for s in self._sources if s.relayout is not None]
            check_coverage(relayouts, table.layout)
        except InvalidArgumentError as error:
            self.fail("refused", ", ".join(s.name for s in self._sources), str(error))
            return
        for source in self._sources:
            self._send_request(source)
        self.advance_to(RoomState.WAITING_FOR_INPUT)

    def _agree(self, source: Source, peer: Peer) -> None:
        services, wanted = self._services, self._wanted
        try:
            relayout = Relayout(peer.layout, services.pool.layout)
        except Error as error:
            raise InvalidArgumentError(
                f"{error}; source planes {plane_list(peer.layout)}, "
                f"destination planes {plane_list(services.pool.layout)}"
            ) from error
        span = Segment(wanted.prefix, wanted.end, True)
        region_bytes = services.buffers.landing.region_bytes
        landing = choose_landing(
            services.options,
            wanted.landing,
            relayout,
            wanted.table,
            span,
            region_bytes,
            peer.write_cost_us,
        )
        if landing.mode == "landing":
            needed_bytes = relayout.max_segment_bytes(relayout.alignment_tokens)
            if needed_bytes > region_bytes:
                raise InvalidArgumentError(
                    f"rows must land, and the smallest segment of {relayout.alignment_tokens} "
                    f"tokens has {needed_bytes} bytes, but landing regions have {region_bytes}"
                )
        source.agree(peer, relayout, source_terms(relayout, span, landing))

    def _send_request(self, source: Source) -> None:
        assert source.peer is not None
        assert source.terms is not None
        wanted = self._wanted
        regions = self._services.buffers.landing.reserve(source.holder) if source.lands else []
        has_slot = source.index == 0 and self._slot is not None
        request = Request(
            room=self.room,
            room_generation=self.generation,
            source_generation=source.peer.generation,
            source_index=source.index,
            source_count=len(self._sources),
            terms=source.terms,
            first_position=wanted.table.first_position,
            pages=wanted.table.pages.astype("<i8").tobytes(),
            state=[component.terms() for component in present(wanted.state)],
            metadata=(self._slot.address, self._slot.size_bytes)
            if has_slot and self._slot
            else None,
            grants=[region.grant() for region in regions],
        )
        source.was_asked = True
        self._services.mailer.send(source.peer.address, request)

    def _unpack(self, source: Source, completion: Completion, region: Region) -> None:
        assert source.relayout is not None
        source.unpacking_count += 1
        segment = Segment(completion.begin, completion.end, completion.is_final)
        started_s = self._clock()
        future = self._services.executor.submit(
            self._services.copies.unpack,
            source.relayout,
            segment,
            region.memory,
            self._wanted.table,
        )
        unpack = Unpack(source, region, completion, started_s, future)
        self._unpacks.append(unpack)
        if unpack.is_done():
            self._end_unpack(unpack)

    def _end_unpack(self, unpack: Unpack) -> None:
        """Give the region back: to the same source while it has more to send."""
        self._unpacks.remove(unpack)
        source = unpack.source
        source.unpacking_count -= 1
        self._time.add(unpack.started_s, self._clock())
        self.touch()
        landing = self._services.buffers.landing
        if unpack.error is not None:
            self.fail("unpack", source.name, unpack.error)
        else:
            self.metrics.bytes += unpack.completion.size_bytes
        if self.state is RoomState.FAILED:
            if not source.may_write:
                self._settle(source)
        elif source.final is None:
            landing.renew(source.holder, unpack.region, has_more=unpack.completion.has_more)
        else:
            landing.release(source.holder, unpack.region)

    def _settle(self, source: Source) -> None:
        """Take back what a source can no longer write; regions under an unpack follow it."""
        source.is_drained = True
        if source.unpacking_count == 0:
            self._services.buffers.landing.release_all(source.holder)
        if source.index == 0 and self._slot is not None:
            self._services.buffers.inbox.give_back(self._slot)
            self._slot = None

    def _check_complete(self) -> None:
        if self.state.is_over or self.state is RoomState.BOOTSTRAPPING:
            return
        for source in self._sources:
            if source.is_complete and source.holder.held:
                self._services.buffers.landing.release_all(source.holder)
        if not all(source.is_complete for source in self._sources):
            return
        got = sum(s.final.state_bytes for s in self._sources if s.final is not None)
        wanted_bytes = total_bytes(self._wanted.state)
        if got != wanted_bytes:
            self.fail("protocol", "", f"state has {got} bytes, expected {wanted_bytes}")
            return
        if self._slot is not None and not self._take_metadata(self._slot):
            return
        self.advance_to(RoomState.SUCCESS)
        self._services.counters["succeeded"] += 1
        for source in self._sources:
            self._settle(source)

    def _take_metadata(self, slot: Slot) -> bool:
        """Copy the metadata out; return False while the slot holds no room."""
        header = slot.memory[:METADATA_HEADER_BYTES].tobytes()
        holder = int.from_bytes(header, "little")
        if holder == 0:
            return False
        if holder != self.room:
            self.fail(
                "protocol", "", f"metadata slot {slot.index} holds room {holder}, not {self.room}"
            )
            return False
        final = self._sources[0].final
        assert final is not None
        begin = METADATA_HEADER_BYTES
        self.metadata = slot.memory[begin : begin + final.metadata_bytes].tobytes()
        return True

    def _fail_missing(self, missing: list[Source], message: str) -> None:
        names = ", ".join(source.name for source in missing)
        self.fail("deadline", names, f"{message} from {names}")

    def _send_abort(self, source: Source) -> None:
        assert self.failure is not None
        self._services.mailer.send(
            source.link.address,
            Abort(
                room=self.room,
                room_generation=self.generation,
                is_to_source=True,
                kind=self.failure.kind[:32],
                message=self.failure.message[:4096],
                is_drained=False,
            ),
        )
