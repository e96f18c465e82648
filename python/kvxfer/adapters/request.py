# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a sender and a receiver of one request have in common."""

from abc import ABC, abstractmethod
from typing import Protocol

from kvxfer import Error, InvalidArgumentError
from kvxfer.adapters.manager import RankManager
from kvxfer.errors import TransferError
from kvxfer.transfer import Failure, RoomMetrics, RoomResult, RoomState
from kvxfer.transfer.room import check_room_id

__all__ = ["Request"]


class _Opened(Protocol):
    """What either kind of room offers."""

    @property
    def pages_held(self) -> bool: ...

    @property
    def error(self) -> TransferError | None: ...

    def result(self) -> RoomResult: ...


class Request(ABC):
    """One request of a scheduler. What is wrong with it shows in ``poll``, never as an exception.

    A room id comes from a client: one that is taken or out of range fails this request and no
    other. What the scheduler itself does wrong raises ``InvalidArgumentError``.
    """

    def __init__(self, manager: RankManager, room: int) -> None:
        self._manager = manager
        self._room_id = room
        self._own_failure: Failure | None = None
        try:
            check_room_id(room)
        except InvalidArgumentError as error:
            self._fail("refused", str(error))

    # -- what a scheduler calls -----------------------------------------------------------------

    @property
    def room(self) -> int:
        """Id that both sides give the request."""
        return self._room_id

    @abstractmethod
    def poll(self) -> RoomState:
        """Return the state of the request. Costs a look at a field: progress is the thread's."""

    @property
    def failure_reason(self) -> str | None:
        """Why the request failed, with room and peer; None while it has not."""
        error = self._error
        return None if error is None else str(error)

    def failure_exception(self) -> None:
        """Raise why the request failed; nothing happens where it has not.

        Raises
        ------
        TransferError
            Kind, peer and room are its fields; ``DeadlineError`` where a wait ran out.
        """
        error = self._error
        if error is not None:
            raise error

    @property
    def pages_held(self) -> bool:
        """Whether the transfer may still read or write the request's pages: do not reuse them."""
        opened = self._opened
        return opened is not None and opened.pages_held

    @property
    def result(self) -> RoomResult:
        """How the request stands or ended: landing mode per peer, metrics, failure."""
        opened = self._opened
        result = RoomResult(self._room_id, self.poll()) if opened is None else opened.result()
        if self._own_failure is None:
            return result
        return RoomResult(
            self._room_id, RoomState.FAILED, result.modes, result.metrics, self._own_failure
        )

    @property
    def transfer_metrics(self) -> RoomMetrics:
        """Bytes, writes, segments and seconds of the request so far."""
        return self.result.metrics

    @abstractmethod
    def abort(self, message: str = "aborted by the engine") -> None:
        """Fail the request and tell its peers. Pages stay held until their writes are over."""

    def clear(self) -> None:
        """Let go of the request; one that is not over is aborted."""
        if not self.poll().is_over:
            self.abort("given up by the engine")

    # -- own ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _opened(self) -> "_Opened | None":
        """The room, once there is one."""

    @property
    def _error(self) -> TransferError | None:
        if self._own_failure is not None:
            return self._own_failure.as_error()
        return None if self._opened is None else self._opened.error

    def _fail(self, kind: str, message: str, peer: str = "") -> None:
        """Note a failure of a request that has no room, or whose room does not know of it."""
        if self._own_failure is None:
            self._own_failure = Failure(kind, peer, self._room_id, message)

    def _fail_with(self, error: Error) -> None:
        if isinstance(error, TransferError):
            self._fail(error.kind, error.message, error.peer)
        else:
            self._fail("refused", str(error))
