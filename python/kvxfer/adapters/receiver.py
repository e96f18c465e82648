# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A request at its destination, with the verbs of a decode scheduler."""

from collections.abc import Sequence

from numpy.typing import ArrayLike

from kvxfer import Error, InvalidArgumentError
from kvxfer.adapters.manager import RankManager
from kvxfer.adapters.memory import StateItems
from kvxfer.adapters.request import Request
from kvxfer.transfer import ReceiverRoom, RoomState
from kvxfer.transfer.options import LandingMode

__all__ = ["RequestReceiver"]


class RequestReceiver(Request):
    """Receives one request's rows, state and metadata.

    A scheduler calls ``init`` with the addresses of the source ranks, allocates pages, calls
    ``send_metadata`` with them, and polls until Success or Failed.

    Parameters
    ----------
    manager : RankManager
    room : int
        Id that both sides give the request, in [1, 2**64).
    """

    def __init__(self, manager: RankManager, room: int) -> None:
        super().__init__(manager, room)
        self._room: ReceiverRoom | None = None
        self._sources: tuple[str, ...] = ()
        self._metadata_item: int | None = None
        self._is_delivered = False

    # -- what a scheduler calls -----------------------------------------------------------------

    def init(self, sources: Sequence[str]) -> None:
        """Name the source ranks; their connections are made while pages are allocated.

        Parameters
        ----------
        sources : sequence of str
            Control addresses of every source rank that serves this rank, the first one being that
            which sends the metadata.

        Raises
        ------
        InvalidArgumentError
            If none is named.
        """
        if not sources:
            raise InvalidArgumentError(f"room {self.room}: no sources given, expected at least one")
        self._sources = tuple(sources)
        if self._own_failure is None:
            self._manager.connect(*sources)

    def send_metadata(
        self,
        pages: ArrayLike,
        end: int,
        *,
        prefix_tokens: int = 0,
        metadata_item: int | None = None,
        state_items: StateItems | None = None,
        landing: LandingMode | None = None,
    ) -> None:
        """Ask the sources for the request: everything from here on is theirs.

        Parameters
        ----------
        pages : int array, shape (page_count,), host
            This rank's pages from position ``prefix_tokens`` on.
        end : int
            One past the last position of the request, exact.                        [unit: tokens]
        prefix_tokens : int
            Tokens that this side holds already: a multiple of page size x ranks.
        metadata_item : int, optional
            Item of the engine's metadata arrays to fill.
        state_items : StateItems, optional
            Items of the engine's state arrays to fill.
        landing : {"auto", "in_place", "landing"}, optional
            How rows land; the manager's option when omitted.

        Raises
        ------
        InvalidArgumentError
            If it is called before ``init`` or twice, or an item does not exist.
        """
        if self._own_failure is not None:
            return
        if not self._sources or self._room is not None:
            raise InvalidArgumentError(
                f"room {self.room}: send_metadata is called once, after init"
            )
        memory = self._manager.memory
        self._metadata_item = metadata_item
        metadata_bytes = 0 if metadata_item is None else memory.metadata_bytes
        state = memory.components(state_items)
        try:
            self._room = self._manager.admit(
                "receiver",
                lambda transfers: transfers.open_receiver(
                    self.room,
                    self._sources,
                    pages,
                    prefix=prefix_tokens,
                    end=end,
                    state=state,
                    metadata_bytes=metadata_bytes,
                    landing=landing,
                ),
            )
        except Error as error:
            self._fail_with(error)

    def poll(self) -> RoomState:
        """Return the state of the request; with Success everything is in the engine's memory."""
        if self._own_failure is not None:
            return RoomState.FAILED
        if self._room is None:
            return RoomState.WAITING_FOR_INPUT if self._sources else RoomState.BOOTSTRAPPING
        state = self._room.state
        if state is RoomState.SUCCESS and not self._is_delivered:
            return self._deliver(self._room)
        return RoomState.WAITING_FOR_INPUT if state is RoomState.BOOTSTRAPPING else state

    @property
    def is_abort_release_safe(self) -> bool:
        """Whether no write can reach the pages any more: they may be given to another request."""
        return not self.pages_held

    def abort(self, message: str = "aborted by the engine") -> None:
        """Fail the request and tell its sources, also those that were not asked for rows yet."""
        if self._own_failure is not None or self.poll() is RoomState.SUCCESS:
            return
        if self._room is None and self._sources:
            self.send_metadata([], 0)
        if self._room is None:
            self._fail("aborted", message)
        else:
            self._room.abort(message)
            self._manager.wake()

    # -- own ------------------------------------------------------------------------------------

    @property
    def _opened(self) -> ReceiverRoom | None:
        return self._room

    def _deliver(self, room: ReceiverRoom) -> RoomState:
        """Put the metadata into the engine's arrays, once, before the engine sees Success."""
        self._is_delivered = True
        if self._metadata_item is not None:
            try:
                self._manager.memory.write_metadata(self._metadata_item, room.metadata or b"")
            except InvalidArgumentError as error:
                self._fail("protocol", str(error), ", ".join(room.result().modes))
                return RoomState.FAILED
        return RoomState.SUCCESS
