# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The manager that a worker rank's scheduler holds."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from kvxfer import InvalidArgumentError
from kvxfer.adapters.memory import EngineMemory
from kvxfer.adapters.metrics import Side, TransferTotals
from kvxfer.adapters.ranges import AnnotatedCopies, find_annotate
from kvxfer.adapters.worker import WorkerThread
from kvxfer.transfer import (
    ControlChannel,
    LocalPool,
    ReceiverRoom,
    SenderRoom,
    TransferManager,
    TransferOptions,
)
from kvxfer.transfer.copies import HostCopies, RowCopies
from kvxfer.transports.protocol import Transport

__all__ = ["RankManager"]

R = TypeVar("R", SenderRoom, ReceiverRoom)

_log = logging.getLogger("kvxfer")

_BUSY_INTERVAL_S = 0.0002
_IDLE_INTERVAL_S = 0.002
# A transport that cannot be polled so many times in a row will not come back.
_FAILED_POLL_LIMIT = 50


class RankManager:
    """One rank's transfers, whatever the transport. Constructing one starts its one thread.

    The thread, named after the transport's agent, polls, packs, unpacks and posts; engine threads
    only say what they want and look how it stands, and never wait for a peer. Requests to peers of
    any shape live on one manager: each is cut, packed and written as its own peers need it.

    Parameters
    ----------
    pool : LocalPool
        The engine's planes of this rank.
    transport : Transport
        This rank's agent; stays the caller's, to be closed after the manager.
    channel : ControlChannel
        Carries control messages; stays the caller's, too.
    options : TransferOptions, optional
        ``pack_tokens`` is the token budget that pack buffers and landing regions are sized for.
        Metadata slots are made large and many enough for ``memory``.
    memory : EngineMemory, optional
        State and metadata of the engine beside the pool.
    copies : RowCopies, optional
        Packs and unpacks; host memory when omitted.

    Examples
    --------
    See ``kvxfer.adapters``.
    """

    def __init__(
        self,
        pool: LocalPool,
        transport: Transport,
        channel: ControlChannel,
        options: TransferOptions | None = None,
        *,
        memory: EngineMemory | None = None,
        copies: RowCopies | None = None,
    ) -> None:
        self._memory = memory or EngineMemory()
        self._annotate = find_annotate()
        self._lock = threading.Lock()
        self._is_closing = False
        self._failed_poll_count = 0
        self._failed_polls_in_a_row = 0
        self._tracked: dict[SenderRoom | ReceiverRoom, Side] = {}
        self._totals: dict[Side, TransferTotals] = {
            "sender": TransferTotals(),
            "receiver": TransferTotals(),
        }
        self._worker = WorkerThread(
            f"kvxfer {transport.agent_name}", self._annotate, _BUSY_INTERVAL_S, _IDLE_INTERVAL_S
        )
        self._transport = transport
        self._transfers = TransferManager(
            pool,
            transport,
            channel,
            _options_for(options or TransferOptions(), self._memory),
            executor=self._worker,
            copies=AnnotatedCopies(copies or HostCopies(), self._annotate),
        )
        try:
            for span in self._memory.state_spans:
                self._transfers.register_memory(span.address, span.size_bytes)
        except BaseException:
            self._transfers.close()
            raise
        self._worker.start(self._poll)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- peers ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name under which peers know this rank: its transport agent's."""
        return self._transfers.name

    @property
    def address(self) -> str:
        """Where peers reach this rank: its control channel's address."""
        return self._transfers.address

    @property
    def pool(self) -> LocalPool:
        """The engine's planes of this rank."""
        return self._transfers.pool

    @property
    def memory(self) -> EngineMemory:
        """State and metadata of the engine."""
        return self._memory

    @property
    def peer_names(self) -> list[str]:
        """Names of the peers that are known and alive."""
        return self._transfers.peer_names

    def connect(self, *addresses: str) -> None:
        """Meet peers ahead of their first request; they may also come later, by themselves."""
        for address in addresses:
            self._transfers.connect(address)
        self._worker.wake()

    def forget_peer(self, address: str) -> None:
        """Fail the requests of a peer, drop its connection and stop asking for it."""
        self._transfers.forget_peer(address)

    def declare_dead(self, name: str) -> None:
        """State that a peer's process is gone: pages that were held for its writes are free."""
        self._transfers.declare_dead(name)

    # -- what senders and receivers call ----------------------------------------------------------

    def admit(self, side: Side, open_room: Callable[[TransferManager], R]) -> R:
        """Open a room and follow it to its end.

        Raises
        ------
        InvalidArgumentError
            Once ``close`` was called, or as ``open_room`` does.
        """
        with self._lock:
            if self._is_closing:
                raise InvalidArgumentError(f"manager {self.name!r} was closed")
            room = open_room(self._transfers)
            self._tracked[room] = side
        self._worker.wake()
        return room

    def sent(self) -> None:
        """Count a send of the engine, and let the thread see it at once."""
        with self._lock:
            self._totals["sender"].sends += 1
        self._worker.wake()

    def wake(self) -> None:
        """Let the thread see at once what an engine thread did."""
        self._worker.wake()

    # -- how it goes ------------------------------------------------------------------------------

    @property
    def worker_name(self) -> str:
        """Name of the manager's thread."""
        return self._worker.name

    @property
    def counters(self) -> dict[str, int]:
        """Counters and gauges of the transfers, the transport's as ``transport_<name>``."""
        transport = {f"transport_{name}": n for name, n in self._transport.counters.items()}
        counts = {"failed_polls": self._failed_poll_count}
        return {**self._transfers.counters, **transport, **counts}

    @property
    def totals(self) -> dict[Side, TransferTotals]:
        """Sums over the requests that have ended and whose writes are over, by side."""
        with self._lock:
            return {side: replace(total) for side, total in self._totals.items()}

    def close(self, timeout_s: float = 10.0) -> None:
        """End every request, wait until nothing is under way, take memory back, end the thread.

        Idempotent. Transport and channel stay open.

        Raises
        ------
        DeadlineError
            If writes are not over in time; names the rooms. The thread goes on, memory stays
            registered, and ``close`` may be called again.
        """
        with self._lock:
            self._is_closing = True
        if not self._worker.is_alive:
            return
        deadline = time.monotonic() + timeout_s
        self._transfers.close(timeout_s)
        self._collect()
        self._worker.stop(max(1.0, deadline - time.monotonic()))

    def _poll(self) -> bool:
        """Poll once; return whether anything is open. Called by the thread alone."""
        try:
            with self._annotate("poll"):
                self._transfers.poll()
        except Exception as error:
            self._poll_failed(error)
        else:
            self._failed_polls_in_a_row = 0
        self._collect()
        return self._transfers.open_room_count > 0

    def _poll_failed(self, error: Exception) -> None:
        """Go on after a fault of the transport, or fail what is open where it stays."""
        self._failed_poll_count += 1
        self._failed_polls_in_a_row += 1
        if self._failed_polls_in_a_row == 1:
            _log.error("manager %s: poll failed", self.name, exc_info=error)
        if self._failed_polls_in_a_row % _FAILED_POLL_LIMIT == 0:
            with self._lock:
                rooms = list(self._tracked)
            for room in rooms:
                room.abort(
                    f"{_FAILED_POLL_LIMIT} polls in a row failed: {type(error).__name__}: {error}"
                )

    def _collect(self) -> None:
        """Add up the requests that are over."""
        with self._lock:
            for room in [room for room in self._tracked if room.is_settled]:
                self._totals[self._tracked.pop(room)].add(room.result().metrics)


def _options_for(options: TransferOptions, memory: EngineMemory) -> TransferOptions:
    """Return options whose metadata slots hold what the engine has."""
    return replace(
        options,
        metadata_slot_bytes=max(options.metadata_slot_bytes, memory.metadata_bytes),
        metadata_slot_count=max(options.metadata_slot_count, memory.metadata_item_count),
    )
