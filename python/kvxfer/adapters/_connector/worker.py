# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The worker side of a connector on one rank: takes orders, says what has ended."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvxfer import Error
from kvxfer.adapters._connector.offer import Offer
from kvxfer.adapters._connector.orders import GroupPages, LoadOrder, SendOrder, StepOrders
from kvxfer.adapters._connector.record import TransferRecord
from kvxfer.adapters._connector.shape import EngineShape
from kvxfer.adapters.manager import RankManager
from kvxfer.adapters.receiver import RequestReceiver
from kvxfer.transfer import RoomState, SenderRoom

__all__ = ["ConnectorWorker", "Ended"]

_log = logging.getLogger("kvxfer")


@dataclass
class Ended:
    """Requests that this rank is done with since the last look.

    Attributes
    ----------
    sent : set of str
        Their pages may be reused here.
    received : set of str
        No write can reach their pages any more, whether rows have arrived or not.
    failed : dict of str to str
        Those of ``received`` whose rows have not arrived, and why.
    """

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class _Load:
    receivers: list[RequestReceiver]
    started_s: float
    refusal: str = ""


class ConnectorWorker:
    """One rank's transfers. Every call returns at once; the managers' threads do the work.

    Parameters
    ----------
    shape : EngineShape
        Of this engine.
    tp_rank : int
    managers : sequence of RankManager
        One per group of layers; stay the caller's.
    page_sizes : sequence of int
        Rows of a page as the scheduler counts, per group: a multiple of the pool's page size,
        where the memory has several pages for one of the scheduler's.
    """

    def __init__(
        self,
        shape: EngineShape,
        tp_rank: int,
        managers: Sequence[RankManager],
        page_sizes: Sequence[int],
    ) -> None:
        self._shape = shape
        self._tp_rank = tp_rank
        self._managers = list(managers)
        self._splits = [
            size // manager.pool.layout.page_size
            for size, manager in zip(page_sizes, managers, strict=True)
        ]
        self._sends: dict[str, list[SenderRoom]] = {}
        self._loads: dict[str, _Load] = {}
        self._released: list[RequestReceiver] = []
        self._ended = Ended()
        self.record = TransferRecord()

    def apply(self, orders: StepOrders) -> None:
        """Begin what a step orders."""
        for send in orders.sends:
            self._send(send)
        for load in orders.loads:
            self._load(load)
        for offer in orders.releases:
            self._release(offer)
        for request_id in orders.aborts:
            for receiver in self._loads[request_id].receivers if request_id in self._loads else ():
                receiver.abort()

    def collect(self) -> Ended:
        """Return what has ended since the last call."""
        for request_id, rooms in list(self._sends.items()):
            if all(room.state.is_over and not room.pages_held for room in rooms):
                del self._sends[request_id]
                self._note_sent(request_id, rooms)
        for request_id, load in list(self._loads.items()):
            if self._has_ended(load):
                del self._loads[request_id]
                self._note_received(request_id, load)
        self._released = [r for r in self._released if not r.poll().is_over or r.pages_held]
        ended, self._ended = self._ended, Ended()
        return ended

    @property
    def open_count(self) -> int:
        """Requests and released offers that have not ended."""
        return len(self._sends) + len(self._loads) + len(self._released)

    # -- own ------------------------------------------------------------------------------------

    def _send(self, order: SendOrder) -> None:
        """Hand the rows over before anyone asks: the first segment leaves when the last rank has.

        A rank whose rows all come from a neighbour that holds the same is done at once.
        """
        asker_count = self._shape.asker_count(order.receivers, self._tp_rank)
        rooms: list[SenderRoom] = []
        self._sends[order.request_id] = rooms
        if asker_count == 0:
            return
        for index, (manager, group) in enumerate(zip(self._managers, order.groups, strict=True)):
            try:
                room = manager.admit(
                    "sender", lambda transfers: transfers.open_sender(order.room, asker_count)
                )
            except Error as error:
                _log.error("request %s cannot be sent: %s", order.request_id, error)
                continue
            rooms.append(room)
            table = manager.pool.table(self._split(index, group), group.first_position)
            room.send(table, group.end, is_final=True)
            manager.sent()

    def _load(self, order: LoadOrder) -> None:
        load = _Load([], time.monotonic(), order.refusal)
        self._loads[order.request_id] = load
        if order.refusal or order.offer is None:
            if order.offer is not None:
                self._release(order.offer)
            return
        load.receivers = self._receivers(order.offer)
        for index, (receiver, group) in enumerate(zip(load.receivers, order.groups, strict=True)):
            receiver.send_metadata(
                self._split(index, group), group.end, prefix_tokens=group.first_position
            )

    def _split(self, group: int, pages: GroupPages) -> NDArray[np.int64]:
        """Return the pool's pages for those of the scheduler."""
        split = self._splits[group]
        ids = np.asarray(pages.pages, dtype=np.int64)
        split_ids: NDArray[np.int64] = (ids[:, None] * split + np.arange(split)).ravel()
        return split_ids

    def _release(self, offer: Offer) -> None:
        """Tell the prefill ranks that nobody wants the rows."""
        for receiver in self._receivers(offer):
            receiver.abort("not wanted any more")
            self._released.append(receiver)

    def _receivers(self, offer: Offer) -> list[RequestReceiver]:
        """Return one receiver per group, with its sources named."""
        ranks = offer.shape.sources_for(self._shape, self._tp_rank)
        receivers = []
        for group, manager in enumerate(self._managers[: len(offer.groups)]):
            receiver = RequestReceiver(manager, offer.room)
            receiver.init(offer.sources(group, ranks))
            receivers.append(receiver)
        return receivers

    def _has_ended(self, load: _Load) -> bool:
        """Whether no write can reach the load's pages; one failed group ends the others."""
        states = [receiver.poll() for receiver in load.receivers]
        if RoomState.FAILED in states:
            for receiver in load.receivers:
                receiver.abort("another group of the request failed")
        return all(
            receiver.poll().is_over and not receiver.pages_held for receiver in load.receivers
        )

    def _note_sent(self, request_id: str, rooms: list[SenderRoom]) -> None:
        self._ended.sent.add(request_id)
        if not rooms:
            return
        self.record.sent([room.result() for room in rooms])
        for room in rooms:
            if room.failure is not None and room.failure.kind != "aborted":
                _log.error("request %s was not sent: %s", request_id, room.error)

    def _note_received(self, request_id: str, load: _Load) -> None:
        self._ended.received.add(request_id)
        reasons = [reason for r in load.receivers if (reason := r.failure_reason) is not None]
        results = [receiver.result for receiver in load.receivers]
        if load.refusal or reasons:
            reason = load.refusal or reasons[0]
            self._ended.failed[request_id] = reason
            kinds = [r.failure.kind for r in results if r.failure is not None] or ["refused"]
            self.record.failed(kinds)
            if kinds != ["aborted"] * len(kinds):
                _log.error("request %s was not loaded: %s", request_id, reason)
        else:
            self.record.received(results, time.monotonic() - load.started_s)
