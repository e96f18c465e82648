# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A request at its source, with the verbs of a prefill scheduler."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvxfer import InvalidArgumentError, split_segments
from kvxfer.adapters.manager import RankManager
from kvxfer.adapters.memory import StateItems
from kvxfer.adapters.request import Request
from kvxfer.errors import TransferError
from kvxfer.transfer import RoomState, SenderRoom
from kvxfer.transfer.copies import Ready

__all__ = ["RequestSender"]


class RequestSender(Request):
    """Sends one request's rows, state and metadata to its receivers.

    A scheduler polls until WaitingForInput, calls ``init`` with the pages that ``prefix_tokens``
    leaves to send, and hands rows over with ``send_bounded`` as they are computed. The send that
    brings the last page is the final one: state and metadata go with it.

    Parameters
    ----------
    manager : RankManager
    room : int
        Id that both sides give the request, in [1, 2**64).
    destination_count : int
        Receivers that will ask this rank for the request.
    """

    def __init__(self, manager: RankManager, room: int, destination_count: int = 1) -> None:
        super().__init__(manager, room)
        self._room: SenderRoom | None = None
        self._page_count: int | None = None
        self._metadata_item: int | None = None
        self._sent_page_count = 0
        self._sent_tokens = 0
        self.send_count = 0
        if self._own_failure is not None:
            return
        try:
            self._room = manager.admit(
                "sender", lambda transfers: transfers.open_sender(room, destination_count)
            )
        except TransferError as error:
            self._fail_with(error)

    # -- what a scheduler calls -----------------------------------------------------------------

    def poll(self) -> RoomState:
        """Return the state of the request."""
        return RoomState.FAILED if self._room is None else self._room.state

    @property
    def prefix_tokens(self) -> int:
        """Tokens that the receivers hold already; 0 until they have asked."""
        prefix = None if self._room is None else self._room.prefix
        return prefix or 0

    @property
    def next_position(self) -> int:
        """Position at which the next send begins."""
        return self.prefix_tokens + self._sent_tokens

    def init(self, page_count: int, metadata_item: int | None = None) -> None:
        """State what will be sent.

        Parameters
        ----------
        page_count : int
            This rank's pages from ``prefix_tokens`` to the end of the request.
        metadata_item : int, optional
            Item of the engine's metadata arrays that goes with the final send.

        Raises
        ------
        InvalidArgumentError
            If a send was made already.
        """
        if self.send_count:
            raise InvalidArgumentError(f"room {self.room}: init comes before the first send")
        if page_count < 0:
            raise InvalidArgumentError(f"page_count is {page_count}, expected >= 0")
        self._page_count, self._metadata_item = page_count, metadata_item

    def get_max_transfer_tokens(self) -> int | None:
        """Return the most tokens of one send, None where a send of any length is one segment.

        It is what the pack buffer, and the landing regions where rows land, hold for the peers of
        this request: other requests of the same manager may have other limits or none.
        """
        if self._room is None or self._room.state.is_over:
            return None
        return self._room.capacity_tokens

    def should_send(self, page_count: int, *, is_final: bool) -> bool:
        """Return whether a send is worth making: one without pages only where it is the final."""
        return page_count > 0 or is_final

    def send(
        self,
        pages: ArrayLike,
        token_count: int,
        *,
        state_items: StateItems | None = None,
        ready: Ready | None = None,
    ) -> None:
        """Hand over the rows that follow those of the last send. Nothing happens once it is over.

        The send that brings the page count of ``init`` is final; every other one covers whole
        pages. Source pages must not change while ``pages_held``. A send beyond
        ``get_max_transfer_tokens`` is cut all the same, on the same grid.

        Parameters
        ----------
        pages : int array, shape (page_count,), host
            This rank's pages from ``next_position`` on.
        token_count : int
            Tokens in them, exact.
        state_items : StateItems, optional
            Items of the engine's state arrays; used with the final send, ignored before it.
        ready : object with ``query()``, optional
            Asked before any row of this send is read; for instance a CUDA event.

        Raises
        ------
        InvalidArgumentError
            If pages and tokens do not fit each other or ``init``, or a page or item does not exist.
        """
        if not self._may_send():
            return
        assert self._room is not None
        ids = np.ascontiguousarray(pages, dtype=np.int64)
        is_final = self._check_send(len(ids), token_count)
        begin = self.next_position
        self._room.send(
            self._manager.pool.table(ids, begin),
            begin + token_count,
            is_final=is_final,
            ready=ready,
            **(self._extras(state_items) if is_final else {}),
        )
        self._sent_page_count += len(ids)
        self._sent_tokens += token_count
        self.send_count += 1
        self._manager.sent()

    def send_bounded(
        self,
        pages: ArrayLike,
        end: int,
        *,
        is_final: bool,
        state_items: StateItems | None = None,
        ready: Ready | None = None,
    ) -> int:
        """Hand over the rows up to a position in sends of at most ``get_max_transfer_tokens``.

        Sends are cut at ``prefix_tokens + k * limit``, the end of a send that is not final is
        lowered to whole pages, state and metadata go with the last, and an empty final send is made
        for them alone. Where there is no limit it is one send.

        Parameters
        ----------
        pages : int array, shape (page_count,), host
            This rank's pages for the positions from ``next_position`` to ``end``.
        end : int
            One past the last position whose row is there.                            [unit: tokens]
        is_final : bool
            The request ends at ``end``.
        state_items, ready
            As in ``send``.

        Returns
        -------
        int
            Where the next send begins: ``end``, or less by what did not fill a page.

        Raises
        ------
        InvalidArgumentError
            As ``send``; also if ``is_final`` does not fit the page count of ``init``.
        """
        if not self._may_send():
            return end
        begin = self.next_position
        segments = split_segments(
            begin,
            end,
            is_final=is_final,
            prefix=self.prefix_tokens,
            alignment_tokens=self._manager.pool.layout.widened_page_tokens,
            capacity_tokens=self.get_max_transfer_tokens(),
        )
        ids = np.ascontiguousarray(pages, dtype=np.int64)
        for segment in segments:
            first, last = (
                self._page_count_of(position - begin) for position in (segment.begin, segment.end)
            )
            if self.should_send(last - first, is_final=segment.is_final):
                self._check_finality(last - first, segment.is_final)
                self.send(
                    ids[first:last],
                    segment.end - segment.begin,
                    state_items=state_items if segment.is_final else None,
                    ready=ready,
                )
        return self.next_position

    def abort(self, message: str = "aborted by the engine") -> None:
        """Fail the request and tell its receivers. What is under way runs to its end."""
        if self._room is not None:
            self._room.abort(message)
            self._manager.wake()

    # -- own ------------------------------------------------------------------------------------

    @property
    def _opened(self) -> SenderRoom | None:
        return self._room

    def _may_send(self) -> bool:
        """Return whether rows may be handed over; a request that cannot be served is ended."""
        if self._room is None or self._room.state.is_over:
            return False
        if self._room.prefix is None or self._page_count is None:
            raise InvalidArgumentError(
                f"room {self.room}: a send in state {self._room.state.name}, expected it after "
                "WAITING_FOR_INPUT and init"
            )
        page_tokens = self._manager.pool.layout.widened_page_tokens
        if self._room.prefix % page_tokens:
            self.abort(
                f"prefix is {self._room.prefix}, expected a multiple of {page_tokens}, "
                "the source's page size x ranks"
            )
            return False
        return True

    def _page_count_of(self, token_count: int) -> int:
        return -(-token_count // self._manager.pool.layout.widened_page_tokens)

    def _check_send(self, page_count: int, token_count: int) -> bool:
        """Check a send and return whether it is the final one."""
        assert self._page_count is not None
        if token_count < 0 or page_count != self._page_count_of(token_count):
            raise InvalidArgumentError(
                f"room {self.room}: {page_count} pages for {token_count} tokens, "
                f"expected {self._page_count_of(max(token_count, 0))}"
            )
        total_count = self._sent_page_count + page_count
        if total_count > self._page_count:
            raise InvalidArgumentError(
                f"room {self.room}: {total_count} pages sent, expected {self._page_count} as told "
                "to init"
            )
        page_tokens = self._manager.pool.layout.widened_page_tokens
        if total_count < self._page_count and token_count % page_tokens:
            raise InvalidArgumentError(
                f"room {self.room}: {token_count} tokens in a send that is not final, "
                f"expected a multiple of {page_tokens}"
            )
        return total_count == self._page_count

    def _check_finality(self, page_count: int, is_final: bool) -> None:
        total_count = self._sent_page_count + page_count
        if is_final != (total_count == self._page_count):
            raise InvalidArgumentError(
                f"room {self.room}: {total_count} of {self._page_count} pages sent with a send "
                f"that is {'' if is_final else 'not '}final"
            )

    def _extras(self, state_items: StateItems | None) -> dict[str, Any]:
        """Return what goes with the final send; metadata is copied at once."""
        memory, item = self._manager.memory, self._metadata_item
        metadata = None if item is None else memory.read_metadata(item)
        return {"state": memory.components(state_items), "metadata": metadata}
