# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Takes messages in and hands each to the room or peer that it is for.

Nothing that a peer sends can raise out of here: what is malformed is counted and ignored, what does
not fit a room fails that room.
"""

import logging

from msgspec import structs

from kvxfer.transfer.completion import BadCompletionError, Completion
from kvxfer.transfer.early import EarlyStore
from kvxfer.transfer.messages import (
    Abort,
    Credit,
    Drained,
    ForeignVersionError,
    Hello,
    Identity,
    MalformedFrameError,
    Message,
    Ping,
    Pong,
    Refused,
    Request,
    Want,
    clipped,
    decode_frame,
)
from kvxfer.transfer.peers import Peer, PeerTable
from kvxfer.transfer.receiver import ReceiverRoom
from kvxfer.transfer.refusals import Refusals
from kvxfer.transfer.room import RoomState
from kvxfer.transfer.room_table import RoomTable
from kvxfer.transfer.sender import SenderRoom
from kvxfer.transfer.services import Services

__all__ = ["Router"]

_LOG = logging.getLogger("kvxfer.transfer")


class Router:
    """Routes control messages and completion messages of one manager."""

    def __init__(self, services: Services, peers: PeerTable) -> None:
        options = services.options
        self.senders: RoomTable[SenderRoom] = RoomTable(options.early_message_count)
        self.receivers: RoomTable[ReceiverRoom] = RoomTable(options.early_message_count)
        self.early_asks: EarlyStore[tuple[Identity, Request | Abort]] = EarlyStore(
            options.early_message_count, options.early_message_ttl_s, options.clock
        )
        self.early_completions: EarlyStore[tuple[str, Completion]] = EarlyStore(
            options.early_message_count, options.early_message_ttl_s, options.clock
        )
        self.refusals = Refusals(
            options.early_message_count, options.early_message_ttl_s, options.clock
        )
        self._services = services
        self._peers = peers

    def take_frame(self, frame: bytes) -> None:
        """Take in one control message."""
        counters = self._services.counters
        try:
            identity, message = decode_frame(frame)
        except ForeignVersionError as error:
            counters["frames_of_other_version"] += 1
            self._peers.on_foreign_version(error.identity, str(error))
            return
        except MalformedFrameError:
            counters["frames_malformed"] += 1
            return
        try:
            self._take_message(identity, message)
        except Exception:
            # Whatever a peer's message causes, the messages of the others have to be read.
            counters["frames_failed"] += 1
            _LOG.exception("message %s of %s", type(message).__name__, identity.name)

    def take_notification(self, name: str, line: bytes) -> None:
        """Take in one completion message."""
        try:
            completion = Completion.decode(line)
        except BadCompletionError:
            self._services.counters["completions_malformed"] += 1
            return
        try:
            self._take_completion(name, completion)
        except Exception:
            # As above: the batch holds completions of other rooms.
            self._services.counters["completions_failed"] += 1
            _LOG.exception("completion of room %d of %s", completion.room, name)

    def sweep(self) -> None:
        """Let go of rooms that are over."""
        for room in self.senders:
            self._note_refusals(room)
        self.senders.sweep()
        self.receivers.sweep()

    def expire(self) -> None:
        """Drop early messages that are too old."""
        self.early_asks.expire()
        self.early_completions.expire()
        self.refusals.expire()

    def opened_sender(self, room: SenderRoom) -> None:
        """Give a new room what came for it before it was opened."""
        for ended in self.senders.of_id(room.room):
            if ended is not room:
                ended.take_refusal()
        self.refusals.forget(room.room)
        for identity, message in self.early_asks.take(room.room):
            if isinstance(message, Abort):
                room.on_early_abort(identity.name, message)
            elif room.state.is_over:
                self._take_request(identity, message)
            else:
                self._request(room, identity, message)

    def advance_all(self) -> None:
        """Let every room go on that can."""
        for sender in self.senders:
            if sender.is_busy:
                sender.advance()
        for receiver in self.receivers:
            if receiver.is_busy:
                self.advance(receiver)

    def advance(self, receiver: ReceiverRoom) -> None:
        """Let a room go on; one that has just asked its sources gets what came early for it."""
        was_bootstrapping = receiver.state is RoomState.BOOTSTRAPPING
        receiver.advance()
        if was_bootstrapping and receiver.state is not RoomState.BOOTSTRAPPING:
            self._give_early_completions(receiver)

    def peer_known(self, peer: Peer) -> None:
        """Go on with what waited for a peer; ask again for the end of writes it had under way."""
        for receiver in self.receivers:
            receiver.peer_known(peer)
        if not len(self.early_asks):
            return
        for room in self.senders:
            if room.state is not RoomState.BOOTSTRAPPING:
                continue
            asks = self.early_asks.take(room.room, lambda ask: ask[0].name == peer.name)
            for identity, message in asks:
                if isinstance(message, Request) and identity.generation == peer.generation:
                    self._request(room, identity, message)

    def peer_lost(self, peer: Peer, reason: str, is_dead: bool) -> None:
        """End the rooms of a peer."""
        for sender in self.senders:
            sender.peer_lost(peer, reason)
        for receiver in self.receivers:
            receiver.peer_lost(peer, reason, is_dead)

    def address_refused(self, address: str, reason: str) -> None:
        """Let rooms that wait for an address see that it was refused."""
        for receiver in self.receivers:
            if receiver.state is RoomState.BOOTSTRAPPING:
                self.advance(receiver)

    def _take_completion(self, name: str, completion: Completion) -> None:
        rooms = self.receivers.of_id(completion.room)
        room = next((r for r in rooms if r.generation == completion.room_generation), None)
        if room is not None and room.state is not RoomState.BOOTSTRAPPING:
            self._complete(room, name, completion)
        elif room is None and (rooms or self.receivers.was_closed(completion.room)):
            self._services.counters["completions_late"] += 1
        else:
            self.early_completions.put(completion.room, (name, completion))

    def _give_early_completions(self, room: ReceiverRoom) -> None:
        for name, completion in self.early_completions.take(room.room):
            if completion.room_generation == room.generation:
                self._complete(room, name, completion)
            else:
                self._services.counters["completions_late"] += 1

    def _take_message(self, identity: Identity, message: Message) -> None:
        match message:
            case Hello():
                self._peers.on_hello(identity, message)
            case Refused():
                self._peers.on_refused(identity, message.message)
            case Ping():
                self._peers.on_ping(identity)
            case Pong():
                self._peers.on_pong(identity)
            case _:
                self._peers.heard(identity)
                self._take_room_message(identity, message)

    def _take_room_message(
        self, identity: Identity, message: Request | Want | Credit | Abort | Drained
    ) -> None:
        match message:
            case Request():
                self._take_request(identity, message)
            case Want():
                self._take_want(identity, message)
            case Credit():
                self._take_credit(identity, message)
            case Abort() if message.is_to_source:
                self._take_abort_of_receiver(identity, message)
            case Abort():
                self._take_abort_of_source(identity, message)
            case Drained():
                self._take_drained(identity, message)

    def _take_request(self, identity: Identity, request: Request) -> None:
        own = self._services.mailer.identity
        if request.source_generation != own.generation:
            self._refuse(
                identity,
                request,
                f"request is for generation {request.source_generation} of {own.name}, "
                f"expected {own.generation}: it was restarted",
            )
            self._peers.ask(identity.address)
            return
        room = self.senders.active(request.room)
        if room is not None:
            self._request(room, identity, request)
            return
        for ended in self.senders.of_id(request.room):
            self._note_refusals(ended)
        failure = self.refusals.answer(request.room, identity.name, request.room_generation)
        if failure is not None:
            self._refuse(identity, request, failure.message, failure.kind)
            return
        self._take_early(identity, request.room, None)
        self.early_asks.put(request.room, (identity, request))

    def _request(self, room: SenderRoom, identity: Identity, request: Request) -> None:
        peer = self._peers.by_identity(identity)
        if peer is None:
            # It was dropped here and does not know: its hello is asked for, the request waits.
            self.early_asks.put(request.room, (identity, request))
            self._peers.ask(identity.address)
        else:
            room.on_request(peer, request)

    def _note_refusals(self, room: SenderRoom) -> None:
        """Remember to answer the receivers that a failed room was still waiting for."""
        refusal = room.take_refusal()
        if refusal is not None:
            self.refusals.put(room.room, refusal)

    def _refuse(
        self, identity: Identity, request: Request, message: str, kind: str = "refused"
    ) -> None:
        self._services.counters["requests_refused"] += 1
        abort = Abort(
            room=request.room,
            room_generation=request.room_generation,
            is_to_source=False,
            kind=kind,
            message=clipped(message),
            is_drained=True,
        )
        self._services.mailer.send(identity.address, abort)

    def _take_want(self, identity: Identity, want: Want) -> None:
        for room in self._receiver_rooms(want.room, want.room_generation):
            for source in room.sources_named(identity.name):
                room.on_want(source, want.grant_count)

    def _take_credit(self, identity: Identity, credit: Credit) -> None:
        """Give regions to the room, or to the request that waits for the room to open."""
        for room in self.senders.of_id(credit.room):
            destination = room.destination(identity.name, credit.room_generation)
            if destination is not None:
                if not room.state.is_over:
                    room.on_credit(destination, credit)
                return
        for asker, ask in self._take_early(identity, credit.room, credit.room_generation):
            if isinstance(ask, Request):
                more = structs.replace(ask, grants=[*ask.grants, *credit.grants])
                self.early_asks.put(credit.room, (asker, more))

    def _take_abort_of_receiver(self, identity: Identity, abort: Abort) -> None:
        """End what the receiver gave up, and answer whether its writes are over.

        A receiver that never asked aborts as well: it has found that it cannot work with us. One
        whose request is not waiting here means an earlier use of the room's id, which is over.
        """
        for room in self.senders.of_id(abort.room):
            destination = room.destination(identity.name, abort.room_generation)
            if destination is not None:
                room.on_abort(destination, abort)
                return
        self._services.mailer.send(
            identity.address, Drained(abort.room, abort.room_generation, is_drained=True)
        )
        if self._peers.by_name(identity.name) is None:
            return
        waiting = self._take_early(identity, abort.room, abort.room_generation)
        if abort.was_asked and not waiting:
            return
        active = self.senders.active(abort.room)
        if active is not None and active.state is RoomState.BOOTSTRAPPING:
            active.on_early_abort(identity.name, abort)
        elif active is None and not self.senders.was_closed(abort.room):
            self.early_asks.put(abort.room, (identity, abort))
        elif active is None:
            # It has ended the failed use by itself, so that its next request means another one.
            self.refusals.answer(abort.room, identity.name, abort.room_generation)

    def _take_abort_of_source(self, identity: Identity, abort: Abort) -> None:
        for room in self._receiver_rooms(abort.room, abort.room_generation):
            for source in room.sources_named(identity.name):
                room.on_abort(source, abort)

    def _take_drained(self, identity: Identity, drained: Drained) -> None:
        rooms = self._receiver_rooms(drained.room, drained.room_generation)
        if not rooms:
            self._services.counters["drains_late"] += 1
        for room in rooms:
            for source in room.sources_named(identity.name):
                room.on_drained(source, drained.is_drained)

    def _receiver_rooms(self, room: int, generation: int) -> list[ReceiverRoom]:
        return [r for r in self.receivers.of_id(room) if r.generation == generation]

    def _complete(self, room: ReceiverRoom, name: str, completion: Completion) -> None:
        source = room.source_of(completion.source_index, name)
        if source is None or completion.source != name:
            self._services.counters["completions_of_strangers"] += 1
        else:
            room.on_completion(source, completion)

    def _take_early(
        self, identity: Identity, room: int, generation: int | None
    ) -> list[tuple[Identity, Request | Abort]]:
        """Take what a peer sent early for a room: all of it, or one use of the room's id."""
        return self.early_asks.take(
            room,
            lambda entry: (
                entry[0].name == identity.name and generation in (None, entry[1].room_generation)
            ),
        )
