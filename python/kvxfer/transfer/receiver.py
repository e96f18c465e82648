# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A receiver's room: asks its sources, counts what arrives, unpacks, and holds its pages."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs

from kvxfer import InvalidArgumentError, Segment
from kvxfer.errors import TransferError
from kvxfer.transfer.asking import Wanted, agree_with_all, request_to
from kvxfer.transfer.completion import Completion
from kvxfer.transfer.copies import start
from kvxfer.transfer.landing import Region, RegionHolder
from kvxfer.transfer.messages import Abort, Credit, clipped
from kvxfer.transfer.metadata import MetadataInbox
from kvxfer.transfer.peers import Link, LinkState, Peer
from kvxfer.transfer.room import ActiveTime, Room, RoomResult, RoomState
from kvxfer.transfer.services import Services
from kvxfer.transfer.source import Source
from kvxfer.transfer.state import kinds_of, mark_of_all, present, sum_of_marks, total_bytes
from kvxfer.transfer.unpacking import Unpack

__all__ = ["ReceiverRoom"]


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
        self._state_mark = mark_of_all(wanted.state)
        self._failed_at: float | None = None
        self._unpacks: list[Unpack] = []
        self._time = ActiveTime()
        self._inbox = MetadataInbox(
            services.buffers.inbox,
            room,
            wanted.metadata_bytes,
            services.options.metadata_slot_bytes,
        )
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

    def on_want(self, source: Source, grant_count: int) -> None:
        """Queue a source that has a segment ready and no region to write it into."""
        if source.lands and not source.is_complete and not self.state.is_over:
            self._services.buffers.landing.want(source.holder, grant_count)

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

    def peer_known(self, peer: Peer) -> None:
        """Ask a peer that is back for the end of its writes; those of an earlier life are over.

        Only a peer at the same address is certain to have replaced the earlier life.
        """
        if self.state is not RoomState.FAILED:
            return
        for source in self.sources_named(peer.name):
            earlier = source.peer
            if earlier is not None and earlier.generation != peer.generation:
                if earlier.address == peer.address:
                    self._settle(source)
            elif source.may_write:
                self._send_abort(source)

    def ask_for_drain(self) -> None:
        """Tell the sources that may still write that the room has failed."""
        for source in self._sources:
            if source.may_write:
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
        elif not self.state.is_over and waited_s > options.waiting_deadline_s and self._unpacks:
            message = f"{len(self._unpacks)} unpacks did not end within"
            self.fail("deadline", "", f"{message} {options.waiting_deadline_s:g} s")
        elif not self.state.is_over and waited_s > options.waiting_deadline_s:
            missing = [s for s in self._sources if not s.is_complete]
            what = "segment" if missing else "metadata"
            message = f"no {what} for {options.waiting_deadline_s:g} s"
            self._fail_missing(missing or self._sources[:1], message)
        elif (
            self._failed_at is not None
            and not self.drain_expired
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
        """Agree with every source, then ask all of them, or none."""
        try:
            agree_with_all(self._services, self.room, self._wanted, self._sources)
        except TransferError as error:
            self.fail(error.kind, error.peer, error.message)
            return
        for source in self._sources:
            try:
                self._send_request(source)
            except InvalidArgumentError as error:
                self.fail("refused", source.name, str(error))
                return
        self.advance_to(RoomState.WAITING_FOR_INPUT)

    def _send_request(self, source: Source) -> None:
        landing = self._services.buffers.landing
        request = structs.replace(
            request_to(source, self.room, self.generation, self._wanted),
            metadata=self._inbox.target if source.index == 0 else None,
            grants=[r.grant() for r in (landing.reserve(source.holder) if source.lands else [])],
        )
        self._services.mailer.send(source.link.address, request)
        source.was_asked = True

    def _unpack(self, source: Source, completion: Completion, region: Region) -> None:
        assert source.relayout is not None
        source.unpacking_count += 1
        segment = Segment(completion.begin, completion.end, completion.is_final)
        started_s = self._clock()
        future = start(
            self._services.executor,
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
        if source.index == 0:
            self._inbox.give_back()

    def _check_complete(self) -> None:
        if self.state.is_over or self.state is RoomState.BOOTSTRAPPING:
            return
        for source in self._sources:
            if source.is_complete and source.holder.held:
                self._services.buffers.landing.release_all(source.holder)
        if not all(source.is_complete for source in self._sources):
            return
        if not self._is_state_whole():
            return
        if self._inbox.target is not None and not self._take_metadata():
            return
        self.advance_to(RoomState.SUCCESS)
        self._services.counters["succeeded"] += 1
        for source in self._sources:
            self._settle(source)

    def _is_state_whole(self) -> bool:
        """Check that the sources have sent every byte of the state, and none of it twice."""
        finals = [source.final for source in self._sources if source.final is not None]
        got, wanted_bytes = sum(f.state_bytes for f in finals), total_bytes(self._wanted.state)
        if got != wanted_bytes:
            reason = f"state has {got} bytes, expected {wanted_bytes}"
        elif sum_of_marks(f.state_mark for f in finals) != self._state_mark:
            reason = (
                f"slices of state {kinds_of(present(self._wanted.state))} overlap and leave gaps, "
                f"in {got} bytes: expected each byte once; check ranks, rank and replica there"
            )
        else:
            return True
        names = ", ".join(source.name for source in self._sources)
        self.fail("protocol", names, reason)
        return False

    def _take_metadata(self) -> bool:
        """Copy the metadata out; return False while the slot holds no room, or another one."""
        final = self._sources[0].final
        if final is None or self._inbox.holder() == 0:
            return False
        try:
            self.metadata = self._inbox.take(final.metadata_bytes)
        except InvalidArgumentError as error:
            self.fail("protocol", self._sources[0].name, str(error))
            return False
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
                message=clipped(self.failure.message),
                is_drained=False,
                was_asked=source.was_asked,
            ),
        )
