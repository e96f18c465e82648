# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One segment on its way: packed once, posted once per destination, followed to the end of each.

A posted write cannot be taken back. A flight therefore lives until every one of its posts is proven
over, also after its room has failed, and holds its buffer as long.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from kvxfer import Error
from kvxfer.transfer.copies import Ready, failure_of, start
from kvxfer.transfer.pack_ring import Slot, SlotRing
from kvxfer.transfer.services import Services
from kvxfer.transports.protocol import WriteHandle, WriteState

if TYPE_CHECKING:
    from kvxfer.transfer.destination import Destination

__all__ = ["Flight", "FlightEvents", "Outgoing"]


class Outgoing:
    """What one destination gets of a flight.

    Parameters
    ----------
    destination : Destination
    runs : callable
        Makes the write list, an int64 array of shape (write_count, 3). Runs where posts run.
    notification : bytes
        Completion message that follows the bytes; empty where another post completes the segment.
    row_bytes : int
        Bytes of rows among the writes.
    is_final : bool
        Nothing of the room follows for this destination.
    """

    def __init__(
        self,
        destination: "Destination",
        runs: Callable[[], NDArray[np.int64]],
        notification: bytes,
        row_bytes: int = 0,
        is_final: bool = False,
    ) -> None:
        self.destination = destination
        self.runs = runs
        self.notification = notification
        self.row_bytes = row_bytes
        self.is_final = is_final
        self.handle: WriteHandle | None = None
        self.error: str | None = None
        self.posted_s = 0.0
        self.has_ended = False


class FlightEvents(Protocol):
    """What a room does about its posts."""

    def is_wanted(self) -> bool:
        """Return whether what is not posted yet should be posted."""
        ...

    def outgoing_posted(self, outgoing: Outgoing, is_packed: bool) -> None:
        """Note that a post is under way."""
        ...

    def outgoing_ended(self, outgoing: Outgoing, is_done: bool) -> None:
        """Note the end of a post, or that there was none."""
        ...

    def flight_troubled(self, peer: str, message: str) -> None:
        """Fail the room: a pack or a post of it went wrong."""
        ...


class Flight:
    """Packs, posts, and follows posts to their end. Driven by ``poll``.

    Parameters
    ----------
    services : Services
    events : FlightEvents
    outgoing : list[Outgoing]
    slot_of : (SlotRing, Slot) or None
        Buffer that the posts read; given back when the last of them has ended.
    pack : callable or None
        Fills the buffer first.
    """

    def __init__(
        self,
        services: Services,
        events: FlightEvents,
        outgoing: list[Outgoing],
        slot_of: tuple[SlotRing, Slot] | None = None,
        pack: Callable[[], Ready | None] | None = None,
    ) -> None:
        self._services = services
        self._events = events
        self._outgoing = outgoing
        self._slot_of = slot_of
        self._pack = pack
        self._packed: Ready | None = None
        self._is_posted = False
        self.is_packed = pack is not None
        self.started_s = services.options.clock()
        for item in outgoing:
            item.destination.outstanding += 1
        self._future: Future[Ready | None] | None = start(services.executor, self._run)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the flight is left: its buffer is free again."""
        return self._future is None and self._is_posted and all(o.has_ended for o in self._outgoing)

    @property
    def reads_source(self) -> bool:
        """Whether source pages may still be read by it."""
        if self.is_packed:
            return self._future is not None or self._packed is not None
        return not self.has_ended

    @property
    def waits_for_own(self) -> str:
        """What of this side keeps it from being posted; empty once it is posted."""
        if self._future is not None:
            return "the executor did not finish a pack or a post"
        return "" if self._is_posted else "a pack did not end"

    @property
    def waits_for(self) -> list[str]:
        """Names of the peers whose posts have not ended."""
        return [o.destination.peer.name for o in self._outgoing if not o.has_ended]

    def poll(self) -> bool:
        """Go on as far as possible without waiting; return whether the flight has ended."""
        if self._future is not None and not self._take_future():
            return False
        if self._packed is not None:
            if not self._is_packed():
                return False
            if not self._is_posted:
                self._future = start(self._services.executor, self._post_all)
                if not self._take_future():
                    return False
        for item in self._outgoing:
            if not item.has_ended:
                self._follow(item)
        if self.has_ended and self._slot_of is not None:
            ring, slot = self._slot_of
            ring.give_back(slot)
            self._slot_of = None
        return self.has_ended

    def _run(self) -> Ready | None:
        if self._pack is not None:
            packed = self._pack()
            if packed is not None and not packed.query():
                return packed
        self._post_all()
        return None

    def _is_packed(self) -> bool:
        """Return whether the pack is over; where that cannot be asked, nothing is posted."""
        assert self._packed is not None
        try:
            if not self._packed.query():
                return False
        except Exception as error:
            self._is_posted = True
            self._events.flight_troubled("", f"{type(error).__name__}: {error}")
        self._packed = None
        return True

    def _post_all(self) -> None:
        for item in self._outgoing:
            if not self._events.is_wanted():
                item.error = "the room failed before the post"
                continue
            item.posted_s = self._services.options.clock()
            try:
                item.handle = self._services.transport.post(
                    item.destination.peer.name, item.runs(), item.notification
                )
            except Error as error:
                item.error = str(error)

    def _take_future(self) -> bool:
        """Take the result of the job, if it is there; note what it posted."""
        assert self._future is not None
        if not self._future.done():
            return False
        future, self._future = self._future, None
        error = failure_of(future)
        if error is not None:
            self._events.flight_troubled("", f"{type(error).__name__}: {error}")
        elif (packed := future.result()) is not None:
            self._packed = packed
            return True
        self._is_posted = True
        for item in self._outgoing:
            if item.handle is not None:
                self._events.outgoing_posted(item, self.is_packed)
        return True

    def _follow(self, item: Outgoing) -> None:
        if item.handle is None:
            self._end(item, is_done=False)
            if item.error is not None:
                self._events.flight_troubled(item.destination.peer.name, item.error)
            return
        try:
            state = self._services.transport.poll(item.handle)
        except Error as error:
            state, item.handle.error = WriteState.LOST, str(error)
        if state is WriteState.LOST and item.error is None:
            item.error = item.handle.error or "the write is lost: it may still run"
            self._services.counters["writes_lost"] += 1
            self._events.flight_troubled(item.destination.peer.name, item.error)
        if state.has_ended:
            item.error = item.error or item.handle.error
            self._services.transport.release(item.handle)
            self._end(item, is_done=state is WriteState.DONE)
            if state is not WriteState.DONE:
                self._events.flight_troubled(
                    item.destination.peer.name, item.error or f"write ended {state.value}"
                )

    def _end(self, item: Outgoing, is_done: bool) -> None:
        item.has_ended = True
        item.destination.outstanding -= 1
        self._events.outgoing_ended(item, is_done)
