# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The transfer manager of one worker rank."""

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Executor

from numpy.typing import ArrayLike

from kvxfer import Error, InvalidArgumentError, PageTable
from kvxfer.errors import DeadlineError
from kvxfer.transfer.asking import Wanted
from kvxfer.transfer.control import ControlChannel
from kvxfer.transfer.copies import HostCopies, InlineExecutor, RowCopies
from kvxfer.transfer.gauges import counters_of
from kvxfer.transfer.mailer import Mailer
from kvxfer.transfer.messages import Hello, Identity
from kvxfer.transfer.options import LandingMode, TransferOptions
from kvxfer.transfer.pack_ring import Slot, Spares
from kvxfer.transfer.peers import PeerTable
from kvxfer.transfer.pool import LocalPool, MemorySpan
from kvxfer.transfer.receiver import ReceiverRoom
from kvxfer.transfer.room import RoomState, check_room_id
from kvxfer.transfer.router import Router
from kvxfer.transfer.sender import SenderRoom
from kvxfer.transfer.services import Buffers, Services, make_slot
from kvxfer.transfer.state import StateComponent
from kvxfer.transfer.terms import PoolTerms
from kvxfer.transports.protocol import Transport

__all__ = ["TransferManager"]

# Deadlines are looked at this often, not in every poll.
_SWEEP_INTERVAL_S = 0.05


class TransferManager:
    """One rank's end of every transfer, as sender, receiver or both.

    Many rooms and many peers of different shapes live on one manager. It starts no thread: call
    ``poll`` while any room is open, on both sides. Without an executor, packing, unpacking and
    posting happen inside ``poll`` and the opening calls. Any thread may call any method.

    Parameters
    ----------
    pool : LocalPool
        The engine's planes of this rank.
    transport : Transport
        This rank's agent; its name is the manager's and unlike that of every other manager that
        its peers meet: a peer refuses the second of two with one name. The manager registers the
        pool and its own buffers with it.
    channel : ControlChannel
        Carries control messages.
    options : TransferOptions, optional
    executor : concurrent.futures.Executor, optional
        Where rows are packed and unpacked and writes are posted.
    copies : RowCopies, optional
        Packs and unpacks; host memory when omitted.
    """

    def __init__(
        self,
        pool: LocalPool,
        transport: Transport,
        channel: ControlChannel,
        options: TransferOptions | None = None,
        *,
        executor: Executor | None = None,
        copies: RowCopies | None = None,
    ) -> None:
        self._options = options or TransferOptions()
        self._channel = channel
        self._spans: list[MemorySpan] = []
        self._hello_parts: tuple[bytes, list[tuple[int, int]]] | None = None
        self._generation_count = secrets.randbits(62)
        self._next_sweep = 0.0
        self._next_drain_ask = 0.0
        identity = Identity(transport.agent_name, channel.address, secrets.randbits(62))
        self._mailer = Mailer(channel, identity)
        chosen = copies or HostCopies()
        self._services = Services(
            options=self._options,
            pool=pool,
            transport=transport,
            mailer=self._mailer,
            copies=chosen,
            executor=executor or InlineExecutor(),
            buffers=Buffers.allocate(self._options, pool, chosen),
        )
        self._lock = self._services.lock
        self._peers = PeerTable(transport, self._mailer, self._options)
        self._router = Router(self._services, self._peers)
        self._peers.begin(self._hello, self._router)
        self._register_all([*pool.spans, *self._services.buffers.spans])
        self._services.buffers.ring.add_spares(
            Spares(
                self._make_pack_buffer,
                self._options.spare_pack_buffer_count,
                self._options.spare_patience_s,
                self._options.clock,
            )
        )

    # -- set-up ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name under which peers know this manager: its transport agent's."""
        return self._mailer.identity.name

    @property
    def address(self) -> str:
        """Where peers reach this manager: its control channel's address."""
        return self._mailer.identity.address

    @property
    def pool(self) -> LocalPool:
        """The engine's planes of this rank."""
        return self._services.pool

    def register_memory(self, address: int, size_bytes: int) -> None:
        """Make memory beside the pool known, such as state buffers.

        Raises
        ------
        InvalidArgumentError
            Once a peer has been told what is registered, or as the transport says.
        """
        with self._lock:
            if self._hello_parts is not None:
                raise InvalidArgumentError(
                    "memory is registered before the first peer is met, but the registered "
                    "memory was described already"
                )
            self._services.transport.register_memory(address, size_bytes)
            self._spans.append(MemorySpan(address, size_bytes))

    def connect(self, address: str) -> None:
        """Meet a peer ahead of its first room."""
        with self._lock:
            self._peers.link(address)

    def forget_peer(self, address: str) -> None:
        """Fail the rooms of a peer, drop its connection and stop asking for it."""
        with self._lock:
            self._peers.forget(address)

    def declare_dead(self, name: str) -> None:
        """State that a peer's process is gone: its writes are over, held pages are free.

        Heartbeats cannot tell death from a pause; whoever started the process can.
        """
        with self._lock:
            peer = self._peers.by_name(name)
            if peer is not None:
                self._peers.drop(peer.address, "was declared dead", is_dead=True)
            for room in self._router.receivers:
                for source in room.sources_named(name):
                    if source.peer is not None:
                        room.peer_lost(source.peer, "was declared dead", is_dead=True)

    @property
    def peer_names(self) -> list[str]:
        """Names of the peers that are known and alive."""
        with self._lock:
            return [peer.name for peer in self._peers.peers()]

    # -- rooms ----------------------------------------------------------------------------------

    def open_sender(self, room: int, destination_count: int = 1) -> SenderRoom:
        """Open a room at its source.

        Parameters
        ----------
        room : int
            Id that both sides give the request, in [1, 2**64).
        destination_count : int
            Receivers that will ask this rank for the room.

        Raises
        ------
        TransferError
            Of kind "duplicate" if the id is open already; that room is not disturbed.
        """
        with self._lock:
            if not self._options.sends:
                raise InvalidArgumentError("this manager has role 'receiver' and cannot send")
            self._router.senders.check_free(check_room_id(room))
            sender = SenderRoom(self._services, room, destination_count)
            self._router.senders.add(sender)
            self._router.opened_sender(sender)
            return sender

    def open_receiver(
        self,
        room: int,
        sources: Sequence[str],
        pages: PageTable | ArrayLike,
        *,
        end: int,
        prefix: int = 0,
        state: Sequence[StateComponent] = (),
        metadata_bytes: int = 0,
        landing: LandingMode | None = None,
    ) -> ReceiverRoom:
        """Open a room at its destination and ask its sources.

        Parameters
        ----------
        room : int
            Id that both sides give the request, in [1, 2**64).
        sources : sequence of str
            Control addresses of every source rank that serves this rank. The first one sends the
            metadata.
        pages : PageTable, or int array of shape (page_count,)
            This rank's pages of the request; an array begins at position ``prefix``.
        end : int
            One past the last position of the request.                               [unit: tokens]
        prefix : int
            Positions that this side holds already: a multiple of page size x ranks. [unit: tokens]
        state : sequence of StateComponent
            Where the request's state goes.
        metadata_bytes : int
            Most bytes of metadata; 0: none is sent.
        landing : {"auto", "in_place", "landing"}, optional
            How rows land; the manager's option when omitted.

        Raises
        ------
        TransferError
            Of kind "duplicate" if the id is open already; that room is not disturbed.
        InvalidArgumentError
            If the prefix is not aligned, pages are missing, a source is named twice, or no metadata
            slot is free.
        """
        with self._lock:
            if not self._options.receives:
                raise InvalidArgumentError("this manager has role 'sender' and cannot receive")
            self._router.receivers.check_free(check_room_id(room))
            table = self._receiver_table(pages, prefix, end)
            if not sources or len(set(sources)) != len(sources):
                raise InvalidArgumentError(
                    f"sources are {list(sources)}, expected at least one, each once"
                )
            wanted = Wanted(
                table, prefix, end, tuple(state), metadata_bytes, landing or self._options.landing
            )
            self._generation_count += 1
            links = [self._peers.link(address) for address in sources]
            receiver = ReceiverRoom(self._services, room, self._generation_count, wanted, links)
            self._router.receivers.add(receiver)
            self._router.advance(receiver)
            return receiver

    def sender_state(self, room: int) -> RoomState:
        """Return the state of a sender's room, Failed for an id that is not known here.

        The states of rooms that have ended are remembered up to ``early_message_count`` of them.
        """
        with self._lock:
            return self._router.senders.state(room)

    def receiver_state(self, room: int) -> RoomState:
        """Return the state of a receiver's room; see ``sender_state``."""
        with self._lock:
            return self._router.receivers.state(room)

    # -- driving --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Go on with everything that can go on. Never waits for a peer, never raises for one."""
        self._lock.give_way()
        with self._lock:
            for frame in self._channel.receive():
                self._router.take_frame(frame)
            for name, line in self._services.transport.drain_notifications():
                self._router.take_notification(name, line)
            self._router.advance_all()
            self._sweep()
            for address, reason in self._mailer.take_stalled().items():
                self._peers.drop(address, f"takes no control messages: {reason}")

    def close(self, timeout_s: float = 10.0) -> None:
        """End every room, wait until nothing is under way, and take the memory back.

        The transport and the channel stay the caller's.

        Raises
        ------
        DeadlineError
            If writes are not over in time; names the rooms. Memory stays registered, and ``close``
            may be called again.
        """
        for room in [*self._router.senders, *self._router.receivers]:
            room.abort("the manager was closed")
        deadline = time.monotonic() + timeout_s
        while True:
            self.poll()
            with self._lock:
                held = [room.room for room in self._router.senders]
                held += [room.room for room in self._router.receivers]
            if not held:
                break
            if time.monotonic() > deadline:
                raise DeadlineError(
                    "deadline",
                    "",
                    None,
                    f"writes of rooms {held[:8]}"
                    + (f" and {len(held) - 8} others" if len(held) > 8 else "")
                    + f" were not over within {timeout_s:g} s",
                )
            time.sleep(0.001)
        with self._lock:
            spans, self._spans = self._spans, []
            for span in spans:
                self._services.transport.deregister_memory(span.address)

    @property
    def open_room_count(self) -> int:
        """Rooms of both sides that have not ended, or whose writes may still run."""
        with self._lock:
            return len(self._router.senders) + len(self._router.receivers)

    @property
    def counters(self) -> dict[str, int]:
        """Counters of everything that happened, and gauges of what is held."""
        with self._lock:
            return counters_of(self._services, self._peers, self._router, self._mailer)

    # -- own --------------------------------------------------------------------------------------

    def _register_all(self, spans: list[MemorySpan]) -> None:
        """Register all spans or, where one cannot be, none; the error is the transport's."""
        try:
            for span in spans:
                self.register_memory(span.address, span.size_bytes)
        except BaseException:
            for span in self._spans:
                self._services.transport.deregister_memory(span.address)
            raise

    def _make_pack_buffer(self) -> Slot | None:
        """Make and register a spare. Peers need not know it: only own posts read it."""
        services = self._services
        index, size_bytes = (
            services.buffers.ring.slot_count,
            self._options.pack_bytes(self.pool.layout),
        )
        try:
            slot = make_slot(services.copies, index, size_bytes)
            services.transport.register_memory(slot.address, size_bytes)
        except (Error, MemoryError):
            services.counters["spare_pack_buffers_refused"] += 1
            return None
        self._spans.append(MemorySpan(slot.address, size_bytes))
        services.counters["spare_pack_buffers"] += 1
        return slot

    def _receiver_table(self, pages: PageTable | ArrayLike, prefix: int, end: int) -> PageTable:
        layout = self.pool.layout
        if prefix < 0 or prefix % layout.widened_page_tokens:
            raise InvalidArgumentError(
                f"prefix is {prefix}, expected a multiple of {layout.widened_page_tokens}, "
                f"page size {layout.page_size} x {layout.sharding.ranks} ranks"
            )
        if end < prefix:
            raise InvalidArgumentError(f"end is {end}, expected at least the prefix {prefix}")
        table = pages if isinstance(pages, PageTable) else self.pool.table(pages, prefix)
        if end > prefix and not (table.first_position <= prefix and end <= table.end_position):
            raise InvalidArgumentError(
                f"pages cover positions [{table.first_position}, {table.end_position}), "
                f"expected [{prefix}, {end})"
            )
        return table

    def _hello(self, is_reply_wanted: bool) -> Hello:
        if self._hello_parts is None:
            memory = [(span.address, span.size_bytes) for span in self._spans]
            self._hello_parts = self._services.transport.describe(), memory
        description, memory = self._hello_parts
        transport, pool = self._services.transport, self._services.pool
        return Hello(
            is_reply_wanted=is_reply_wanted,
            transport=transport.name,
            description=description,
            write_cost_us=transport.write_cost_us,
            pool=PoolTerms.of(pool.layout, pool.plane_addresses),
            memory=memory,
        )

    def _sweep(self) -> None:
        """Look at deadlines and heartbeats, and let go of rooms that are over."""
        self._router.sweep()
        now = self._options.clock()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_INTERVAL_S
        for sender in self._router.senders:
            sender.check_deadlines()
        for receiver in self._router.receivers:
            receiver.check_deadlines()
        if now >= self._next_drain_ask:
            self._next_drain_ask = now + self._options.heartbeat_interval_s
            for receiver in self._router.receivers:
                if receiver.state is RoomState.FAILED:
                    receiver.ask_for_drain()
        self._router.expire()
        self._peers.beat()
