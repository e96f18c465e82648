# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Equal pieces of memory, leased one at a time and in order of asking."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvxfer import InvalidArgumentError

__all__ = ["Slot", "SlotRing", "Spares"]


@dataclass(eq=False)
class Slot:
    """One piece; ``memory`` keeps the allocation alive."""

    index: int
    address: int
    size_bytes: int
    memory: Any


@dataclass(frozen=True)
class Spares:
    """Slots that are made once every other is held by writes that do not end.

    A posted write cannot be taken back, so a peer that is frozen holds its slots until it goes on
    or dies. Spares keep the others served meanwhile. ``make`` returns None where memory is short.
    """

    make: Callable[[], Slot | None]
    count: int
    patience_s: float
    clock: Callable[[], float]


@dataclass(frozen=True)
class _Lease:
    peers: frozenset[str]
    since_s: float


class SlotRing:
    """Leases slots. A slot comes back only when nothing reads or writes it any more.

    Owners that find no slot free queue up; a slot goes to the one that has waited longest, so that
    a long request cannot keep the others away. A peer is stuck while it holds a slot for longer
    than the patience of the spares; all stuck peers together hold no more slots than the ring began
    with, and what waits for them is passed over.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.slot_count = len(slots)
        self._first_count = len(slots)
        self._spares: Spares | None = None
        self._free = list(reversed(slots))
        self._leased: dict[Slot, _Lease] = {}
        self._waiting: OrderedDict[Hashable, frozenset[str]] = OrderedDict()

    @property
    def leased_count(self) -> int:
        """Slots that are in use or held for writes that may still run."""
        return len(self._leased)

    @property
    def waiting_count(self) -> int:
        """Owners that wait for a slot."""
        return len(self._waiting)

    def add_spares(self, spares: Spares) -> None:
        """Allow slots beside the first ones."""
        self._spares = spares

    def lease(self, owner: Hashable, peers: Iterable[str] = ()) -> Slot | None:
        """Return a slot, or None and a place in the queue; ``peers`` are those it is written to."""
        stuck = self._stuck_peers()
        self._waiting.setdefault(owner, frozenset(peers))
        first = next(
            (o for o, names in self._waiting.items() if self._is_served(names, stuck)), None
        )
        if first != owner or not (self._free or self._make_spare(self._waiting[owner], stuck)):
            return None
        slot = self._free.pop()
        self._leased[slot] = _Lease(self._waiting.pop(owner), self._now())
        return slot

    def give_back(self, slot: Slot) -> None:
        """Return a leased slot, exactly once."""
        if slot not in self._leased:
            raise InvalidArgumentError(f"slot {slot.index} is not leased")
        del self._leased[slot]
        self._free.append(slot)

    def withdraw(self, owner: Hashable) -> None:
        """Leave the queue."""
        self._waiting.pop(owner, None)

    def _now(self) -> float:
        return self._spares.clock() if self._spares is not None else 0.0

    def _stuck_peers(self) -> frozenset[str]:
        if self._spares is None:
            return frozenset()
        latest = self._now() - self._spares.patience_s
        return frozenset().union(*(i.peers for i in self._leased.values() if i.since_s < latest))

    def _is_served(self, names: frozenset[str], stuck: frozenset[str]) -> bool:
        if not names & stuck:
            return True
        return sum(bool(i.peers & stuck) for i in self._leased.values()) < self._first_count

    def _make_spare(self, names: frozenset[str], stuck: frozenset[str]) -> bool:
        """Add a slot where only stuck peers keep one from being free."""
        if self._spares is None or not stuck or names & stuck:
            return False
        if self.slot_count >= self._first_count + self._spares.count:
            return False
        slot = self._spares.make()
        if slot is None:
            self._spares = replace(self._spares, count=self.slot_count - self._first_count)
            return False
        self._free.append(slot)
        self.slot_count += 1
        return True
