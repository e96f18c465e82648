# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Rooms of one side: those that are open, and ended ones whose writes are not over yet."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from kvxfer.errors import TransferError
from kvxfer.transfer.room import RoomState

__all__ = ["RoomTable"]


class _Room(Protocol):
    room: int

    @property
    def state(self) -> RoomState: ...

    @property
    def is_settled(self) -> bool: ...


R = TypeVar("R", bound=_Room)


class RoomTable(Generic[R]):
    """Finds rooms by id. At most one room of an id is active; ended ones may linger.

    Parameters
    ----------
    closed_limit_count : int
        How many closed room ids are remembered, so that late messages are told from early ones.
    """

    def __init__(self, closed_limit_count: int) -> None:
        self._active: dict[int, R] = {}
        self._lingering: list[R] = []
        self._closed: OrderedDict[int, RoomState] = OrderedDict()
        self._closed_limit_count = closed_limit_count

    def __len__(self) -> int:
        return len(self._active) + len(self._lingering)

    def __iter__(self) -> Iterator[R]:
        return iter([*self._active.values(), *self._lingering])

    @property
    def lingering_count(self) -> int:
        """Ended rooms whose writes may still run."""
        return len(self._lingering)

    def check_free(self, room: int) -> None:
        """Refuse an id that an active room has.

        Raises
        ------
        TransferError
            Of kind "duplicate"; the active room is not disturbed.
        """
        active = self._active.get(room)
        if active is not None and not active.state.is_over:
            raise TransferError(
                "duplicate", "", room, f"is open already, in state {active.state.name}"
            )

    def add(self, room: R) -> None:
        """Make a room the active one of its id, which is free."""
        self._retire(room.room)
        self._closed.pop(room.room, None)
        self._active[room.room] = room

    def active(self, room: int) -> R | None:
        """Return the room of an id that has not ended."""
        found = self._active.get(room)
        return found if found is not None and not found.state.is_over else None

    def of_id(self, room: int) -> list[R]:
        """Return all rooms of an id, the active one first."""
        active = self._active.get(room)
        rooms = [active] if active is not None else []
        return rooms + [other for other in self._lingering if other.room == room]

    def state(self, room: int) -> RoomState:
        """Return the state of the latest use of an id, Failed for an unknown one."""
        active = self._active.get(room)
        return active.state if active is not None else self._closed.get(room, RoomState.FAILED)

    def was_closed(self, room: int) -> bool:
        """Return whether a room of this id has ended lately, and none has been opened since."""
        active = self._active.get(room)
        return active.state.is_over if active is not None else room in self._closed

    def sweep(self) -> None:
        """Let go of rooms that have ended and whose writes are over."""
        for room_id in [i for i, room in self._active.items() if room.state.is_over]:
            self._retire(room_id)
        self._lingering = [room for room in self._lingering if not room.is_settled]

    def _retire(self, room_id: int) -> None:
        room = self._active.pop(room_id, None)
        if room is None:
            return
        self._closed[room_id] = room.state
        self._closed.move_to_end(room_id)
        if len(self._closed) > self._closed_limit_count:
            self._closed.popitem(last=False)
        if not room.is_settled:
            self._lingering.append(room)
