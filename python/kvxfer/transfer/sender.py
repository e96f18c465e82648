# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A sender's room: splits what the engine hands over, packs, posts, completes."""

from collections.abc import Sequence
from dataclasses import replace

from numpy.typing import ArrayLike

from kvxfer import CapacityError, Error, InvalidArgumentError, PageTable
from kvxfer.transfer.copies import Ready
from kvxfer.transfer.destination import Destination
from kvxfer.transfer.dispatch import Departures
from kvxfer.transfer.flight import Outgoing
from kvxfer.transfer.messages import Abort, Credit, Drained, Request, clipped
from kvxfer.transfer.peers import Peer
from kvxfer.transfer.refusals import Refusal
from kvxfer.transfer.room import ActiveTime, Room, RoomResult, RoomState
from kvxfer.transfer.send_queue import Send, SendQueue, check_extras
from kvxfer.transfer.services import Services
from kvxfer.transfer.state import StateComponent

__all__ = ["SenderRoom"]


class SenderRoom(Room):
    """One request at its source. Made by ``TransferManager.open_sender``.

    The room waits for the requests of its receivers (Bootstrapping), then for rows
    (WaitingForInput), and is over when every receiver has everything (Success) or when anything
    went wrong (Failed; ``error`` says what). Nothing blocks; ``TransferManager.poll`` drives it.
    """

    def __init__(self, services: Services, room: int, destination_count: int) -> None:
        super().__init__(room, services.options.clock)
        if destination_count < 1:
            raise InvalidArgumentError(f"destination_count is {destination_count}, expected >= 1")
        self._services = services
        self._destination_count = destination_count
        self._destinations: list[Destination] = []
        self._sends = SendQueue()
        self._asked: dict[str, int] = {}
        self._has_refusal = False
        self._time = ActiveTime()
        self._departures = Departures(services, self)

    # -- what the engine calls ------------------------------------------------------------------

    def send(
        self,
        pages: PageTable | ArrayLike,
        end: int,
        *,
        is_final: bool,
        state: Sequence[StateComponent] = (),
        metadata: bytes | None = None,
        ready: Ready | None = None,
    ) -> None:
        """Hand over the rows up to a position; nothing happens in a room that has ended.

        Sends follow each other without gaps, the first from the receivers' prefix on. The end of a
        send that is not final is lowered to whole pages; the rest goes with the next one. Source
        pages must stay unchanged while ``pages_held``.

        Parameters
        ----------
        pages : PageTable, or int array of shape (page_count,)
            This rank's pages of the request; an array begins at position 0.
        end : int
            One past the last position that is ready; exact for the final send.       [unit: tokens]
        is_final : bool
            No send follows.
        state : sequence of StateComponent
            State of the request, read after all rows have arrived. With the final send only.
        metadata : bytes, optional
            At most the ``metadata_bytes`` that the receiver gave. With the final send only.
        ready : object with ``query()``, optional
            Asked before any row of this send is read; for instance a CUDA event.

        Raises
        ------
        InvalidArgumentError
            If a final send was made before, the end goes back, pages are missing, or state or
            metadata come with a send that is not final.
        """
        with self._services.lock:
            if self.state.is_over:
                return
            table = pages if isinstance(pages, PageTable) else self._services.pool.table(pages)
            check_extras(is_final, bool(state) or metadata is not None)
            self._sends.add(Send(table, end, is_final, ready))
            if is_final:
                self._departures.epilogue.set(tuple(state), metadata)
            self.touch()
            self._plan_sends()

    def abort(self, message: str = "aborted by the engine") -> None:
        """Fail the room and tell its receivers. What is under way runs to its end."""
        with self._services.lock:
            self.fail("aborted", "", message)

    @property
    def pages_held(self) -> bool:
        """Whether source pages of the room may still be read."""
        with self._services.lock:
            is_queued = not self._sends.is_empty or self._departures.is_pending
            return (is_queued and not self.state.is_over) or self._departures.reads_source

    @property
    def prefix(self) -> int | None:
        """Positions that the receivers hold already; None while Bootstrapping."""
        return self._destinations[0].prefix if self._is_ready else None

    @property
    def capacity_tokens(self) -> int | None:
        """Most tokens of one segment for this room's receivers; None where nothing is cut."""
        return self._departures.capacity_tokens

    def result(self) -> RoomResult:
        """Return how the room stands or ended."""
        with self._services.lock:
            metrics = replace(
                self.metrics,
                active_s=self._time.seconds,
                span_s=self._time.span_seconds,
                buffer_wait_s=self._departures.wait_s,
            )
            modes = {d.peer.name: d.mode for d in self._destinations}
            return RoomResult(self.room, self.state, modes, metrics, self.failure)

    # -- what the manager calls -----------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do for ``advance`` before a message arrives."""
        return self._departures.has_flights or (
            not self.state.is_over and self._departures.is_pending
        )

    @property
    def is_settled(self) -> bool:
        """Whether the room is over and nothing of it is under way."""
        return self.state.is_over and not self._departures.has_flights

    def take_refusal(self) -> Refusal | None:
        """Return, once, what receivers are told that had not asked when the room failed."""
        if self.failure is None or not self._has_refusal:
            return None
        self._has_refusal = False
        missing_count = self._destination_count - len(self._asked)
        return Refusal(self.failure, missing_count, dict(self._asked))

    def destination(self, name: str, room_generation: int) -> Destination | None:
        """Return the receiver with this name and use of the room id."""
        for destination in self._destinations:
            if (destination.peer.name, destination.room_generation) == (name, room_generation):
                return destination
        return None

    def on_request(self, peer: Peer, request: Request) -> None:
        """Take up one receiver; the last one makes the room ready. A bad request fails the room."""
        if self.destination(peer.name, request.room_generation) is not None:
            return
        if not self._is_ready:
            self._asked[peer.name] = request.room_generation
        try:
            self._destinations.append(self._checked_destination(peer, request))
        except (Error, OverflowError) as error:
            self._refuse(peer, request, str(error))
            return
        self.touch()
        if self._is_ready:
            self._make_ready()

    def on_credit(self, destination: Destination, credit: Credit) -> None:
        """Take up landing regions."""
        try:
            destination.add_credits(credit.grants)
        except InvalidArgumentError as error:
            self.fail("refused", destination.peer.name, str(error))
        self.touch()

    def on_abort(self, destination: Destination, abort: Abort) -> None:
        """End the room because a receiver gave up, and say whether its writes are over."""
        self._tell_drained(destination)
        destination.awaits_drain = destination.outstanding > 0
        self.fail(abort.kind, destination.peer.name, abort.message, told=destination)

    def on_early_abort(self, name: str, abort: Abort) -> None:
        """End the room because a receiver gave up that will not ask for it any more."""
        if not self._is_ready:
            self._asked[name] = abort.room_generation
        self.fail(abort.kind, name, abort.message)

    def peer_lost(self, peer: Peer, reason: str) -> None:
        """Fail the room if it needs the peer."""
        if any(d.peer is peer and not d.is_over for d in self._destinations):
            self.fail("peer_lost", peer.name, f"destination {peer.name} {reason}")

    def advance(self) -> None:
        """Go on as far as possible without waiting."""
        self._departures.poll()
        if self.state.is_over:
            return
        self._departures.start()
        if self._destinations and all(d.is_over for d in self._destinations):
            self.advance_to(RoomState.SUCCESS)

    def check_deadlines(self) -> None:
        """Fail the room where a wait has run out; names who is missing."""
        if self.state.is_over:
            return
        options, waited_s = self._services.options, self.waited_s()
        if self.state is RoomState.BOOTSTRAPPING:
            if waited_s > options.bootstrap_deadline_s:
                names = ", ".join(d.peer.name for d in self._destinations) or "none"
                self.fail(
                    "deadline",
                    "",
                    f"{len(self._destinations)} of {self._destination_count} receivers asked "
                    f"within {options.bootstrap_deadline_s:g} s: {names}",
                )
        elif late := self._departures.late():
            self.fail("deadline", *late)
        elif self._departures.is_pending:
            if waited_s > options.transfer_deadline_s:
                self.fail("deadline", *self._departures.missing())
        elif waited_s > options.waiting_deadline_s and not self._departures.has_flights:
            self.fail("deadline", "", f"no send for {options.waiting_deadline_s:g} s")

    def fail(self, kind: str, peer: str, message: str, told: Destination | None = None) -> None:
        """Fail the room for the first reason given and tell every receiver that is not served."""
        if not self.record_failure(kind, peer, message):
            return
        assert self.failure is not None
        self._services.counters[f"failed_{self.failure.kind}"] += 1
        self._has_refusal = True
        self._sends.clear()
        self._departures.drop()
        for destination in self._destinations:
            if destination is told or destination.is_over:
                continue
            destination.awaits_drain = destination.outstanding > 0
            self._send_abort(
                destination.peer, destination.room_generation, not destination.awaits_drain
            )

    # -- what departures call -------------------------------------------------------------------

    def is_wanted(self) -> bool:
        """Return whether what is not posted yet should be posted."""
        return self.state is not RoomState.FAILED

    def outgoing_posted(self, outgoing: Outgoing, is_packed: bool) -> None:
        """Count a post."""
        assert outgoing.handle is not None
        self.metrics.writes += outgoing.handle.write_count
        if is_packed:
            self.metrics.packed_writes += outgoing.handle.write_count
        elif outgoing.row_bytes and outgoing.destination.is_row_by_row:
            self.metrics.row_by_row_writes += outgoing.handle.write_count
        self.touch()

    def outgoing_ended(self, outgoing: Outgoing, is_done: bool) -> None:
        """Count what arrived; tell a waiting receiver that its last write is over."""
        destination = outgoing.destination
        if outgoing.handle is not None:
            self._time.add(outgoing.posted_s, self._clock())
        if is_done:
            self.metrics.bytes += outgoing.row_bytes
            self.touch()
        else:
            self.metrics.failed_bytes += outgoing.row_bytes
        if outgoing.is_final and is_done:
            destination.is_over = True
            self._departures.epilogue.count(destination, self.metrics)
        if destination.awaits_drain and destination.outstanding == 0:
            destination.awaits_drain = False
            self._tell_drained(destination)

    def flight_troubled(self, peer: str, message: str) -> None:
        """Fail the room: a pack or a post went wrong."""
        self.fail("transport", peer, message)

    @property
    def destinations(self) -> list[Destination]:
        """Receivers that have asked."""
        return self._destinations

    # -- own ------------------------------------------------------------------------------------

    @property
    def _is_ready(self) -> bool:
        return len(self._destinations) == self._destination_count

    def _checked_destination(self, peer: Peer, request: Request) -> Destination:
        services = self._services
        if self._is_ready:
            raise InvalidArgumentError(
                f"room has its {self._destination_count} receivers already: "
                + ", ".join(d.peer.name for d in self._destinations)
            )
        if any(d.peer.name == peer.name for d in self._destinations):
            raise InvalidArgumentError(f"receiver {peer.name} has asked for this room already")
        destination = Destination(services.pool, peer, request, services.options.packing)
        for other in self._destinations:
            for what in ("prefix", "end"):
                mine, theirs = getattr(other, what), getattr(destination, what)
                if mine != theirs:
                    raise InvalidArgumentError(
                        f"{what} is {theirs} for {peer.name}, but {mine} for {other.peer.name}"
                    )
        return destination

    def _refuse(self, peer: Peer, request: Request, message: str) -> None:
        """Fail the room on both sides at once, unless the request is one too many."""
        self._services.counters["requests_refused"] += 1
        self._services.mailer.send(
            peer.address,
            Abort(
                room=self.room,
                room_generation=request.room_generation,
                is_to_source=False,
                kind="refused",
                message=clipped(message),
                is_drained=True,
            ),
        )
        if not self._is_ready:
            self.fail("refused", peer.name, message)

    def _make_ready(self) -> None:
        try:
            self._departures.set_capacity()
        except CapacityError as error:
            self.fail("capacity", "", str(error))
            return
        self.advance_to(RoomState.WAITING_FOR_INPUT)
        self._plan_sends()

    def _plan_sends(self) -> None:
        """Cut what was handed over into segments, once it is known for whom."""
        if not self._is_ready:
            return
        try:
            planned = self._sends.cut(self._destinations, self.capacity_tokens)
        except InvalidArgumentError as error:
            self.fail("refused", "", str(error))
            return
        if planned:
            self._departures.add(planned)
            self.advance_to(RoomState.TRANSFERRING)

    def _tell_drained(self, destination: Destination) -> None:
        self._services.mailer.send(
            destination.peer.address,
            Drained(
                room=self.room,
                room_generation=destination.room_generation,
                is_drained=destination.outstanding == 0,
            ),
        )

    def _send_abort(self, peer: Peer, room_generation: int, is_drained: bool) -> None:
        assert self.failure is not None
        self._services.mailer.send(
            peer.address,
            Abort(
                room=self.room,
                room_generation=room_generation,
                is_to_source=False,
                kind=self.failure.kind[:32],
                message=clipped(self.failure.message),
                is_drained=is_drained,
            ),
        )
