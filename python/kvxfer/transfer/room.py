# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a sender's and a receiver's room have in common: states, failure, clocks and result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from kvxfer import InvalidArgumentError
from kvxfer.errors import DeadlineError, TransferError

__all__ = ["ActiveTime", "Failure", "Room", "RoomMetrics", "RoomResult", "RoomState"]


FAILURE_KINDS = (
    "aborted",  # an engine gave up
    "capacity",  # a buffer or region does not hold the smallest segment
    "deadline",  # a wait ran out
    "peer_lost",  # a peer stopped answering or was restarted
    "protocol",  # a peer said something that does not fit
    "refused",  # the two sides do not agree
    "transport",  # a pack or a post failed
    "unpack",  # rows could not be taken out of a region
)


class RoomState(IntEnum):
    """State of a room. Failed is terminal; otherwise a room only moves to a higher state."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4

    @property
    def is_over(self) -> bool:
        """Whether the room has ended."""
        return self in (RoomState.FAILED, RoomState.SUCCESS)


@dataclass(frozen=True)
class Failure:
    """Why a room failed: the first reason, which no later one replaces."""

    kind: str
    peer: str
    room: int
    message: str

    def as_error(self) -> TransferError:
        """Return it as an exception."""
        error = DeadlineError if self.kind == "deadline" else TransferError
        return error(self.kind, self.peer, self.room, self.message)


class ActiveTime:
    """Intervals in any order, and the length of their union."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []

    def add(self, begin_s: float, end_s: float) -> None:
        """Add an interval."""
        self._intervals.append((begin_s, end_s))

    @property
    def seconds(self) -> float:
        """Seconds in which at least one interval runs.

        Examples
        --------
        >>> time = ActiveTime()
        >>> time.add(0, 2); time.add(7, 9); time.add(8, 10)
        >>> time.seconds, time.span_seconds
        (5.0, 10.0)
        """
        total, reached = 0.0, float("-inf")
        for begin, end in sorted(self._intervals):
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    @property
    def span_seconds(self) -> float:
        """Seconds from the first begin to the last end."""
        if not self._intervals:
            return 0.0
        return float(max(end for _, end in self._intervals) - min(self._intervals)[0])


@dataclass
class RoomMetrics:
    """What a room did. Bytes and writes are those of the write lists, over all destinations.

    Attributes
    ----------
    bytes : int
        Bytes of rows that have arrived.
    failed_bytes : int
        Bytes of rows whose write failed.
    state_bytes, metadata_bytes : int
        Bytes of state and metadata that have arrived.
    segments : int
        Segments that were sent or received, counted once per peer.
    writes : int
        Writes that were posted.
    packed_writes : int
        Those of them that read a pack buffer.
    row_by_row_writes : int
        Those of them that took rows one by one, though packing would have joined them: 0 unless the
        manager was told ``packing="row_by_row"``.
    row_writes : int
        Writes that the same rows would take one by one: the cost of not packing.
    active_s : float
        Seconds in which at least one write was under way.
    span_s : float
        Seconds from the first post to the last completion.
    buffer_wait_s : float
        Seconds in which the next segment waited for a pack buffer or a landing region.
    """

    bytes: int = 0
    failed_bytes: int = 0
    state_bytes: int = 0
    metadata_bytes: int = 0
    segments: int = 0
    writes: int = 0
    packed_writes: int = 0
    row_by_row_writes: int = 0
    row_writes: int = 0
    active_s: float = 0.0
    span_s: float = 0.0
    buffer_wait_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes over active seconds; 0 where no time was measured."""
        return self.bytes / self.active_s if self.active_s else 0.0


@dataclass(frozen=True)
class RoomResult:
    """How a room stands or ended.

    Attributes
    ----------
    room : int
    state : RoomState
    modes : dict of str to str
        Per peer: "in_place", "landing", or "none" where the peer's share is empty; at a sender that
        was told so, "row_by_row".
    metrics : RoomMetrics
    failure : Failure or None
    """

    room: int
    state: RoomState
    modes: dict[str, str] = field(default_factory=dict)
    metrics: RoomMetrics = field(default_factory=RoomMetrics)
    failure: Failure | None = None


def check_room_id(room: int) -> int:
    """Return a room id.

    Raises
    ------
    InvalidArgumentError
        Unless it lies in [1, 2**64). 0 marks a metadata slot that holds no room.
    """
    if isinstance(room, bool) or not isinstance(room, int) or not 1 <= room < 2**64:
        raise InvalidArgumentError(f"room is {room!r}, expected an integer in [1, 2**64)")
    return room


class Room:
    """One request's transfer at one side."""

    def __init__(self, room: int, clock: Callable[[], float]) -> None:
        self.room = check_room_id(room)
        self.failure: Failure | None = None
        self.metrics = RoomMetrics()
        self._clock = clock
        self._state = RoomState.BOOTSTRAPPING
        self._since = clock()

    @property
    def state(self) -> RoomState:
        """State of the room."""
        return self._state

    @property
    def error(self) -> TransferError | None:
        """The failure as an exception, None while there is none."""
        return self.failure.as_error() if self.failure else None

    def advance_to(self, state: RoomState) -> None:
        """Move to a state, by the rule of ``RoomState``."""
        if self._state is RoomState.FAILED:
            return
        self._state = state if state is RoomState.FAILED else max(self._state, state)
        self.touch()

    def touch(self) -> None:
        """Note progress: the clock of the current wait starts again."""
        self._since = self._clock()

    def waited_s(self) -> float:
        """Return the seconds since the last progress."""
        return self._clock() - self._since

    def record_failure(self, kind: str, peer: str, message: str) -> bool:
        """Fail the room, unless it has ended. Return whether this was its end.

        A kind that is not ours came from a peer, which aborted the room for a reason of its own.
        """
        if self._state.is_over:
            return False
        kind = kind if kind in FAILURE_KINDS else "aborted"
        self.failure = Failure(kind, peer, self.room, message)
        self.advance_to(RoomState.FAILED)
        return True
