# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A fixed number of equal pieces of one allocation, leased one at a time and in order of asking."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from kvxfer import InvalidArgumentError

__all__ = ["Slot", "SlotRing"]


@dataclass(eq=False)
class Slot:
    """One piece; ``memory`` keeps the allocation alive."""

    index: int
    address: int
    size_bytes: int
    memory: Any


class SlotRing:
    """Leases slots. A slot comes back only when nothing reads or writes it any more.

    Owners that find no slot free queue up; a slot goes to the one that has waited longest, so that
    a long request cannot keep the others away.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.slot_count = len(slots)
        self._free = list(reversed(slots))
        self._leased: set[Slot] = set()
        self._waiting: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def leased_count(self) -> int:
        """Slots that are in use or held for writes that may still run."""
        return len(self._leased)

    @property
    def waiting_count(self) -> int:
        """Owners that wait for a slot."""
        return len(self._waiting)

    def lease(self, owner: Hashable) -> Slot | None:
        """Return a slot, or None and a place in the queue."""
        is_first = not self._waiting or next(iter(self._waiting)) == owner
        if not self._free or not is_first:
            self._waiting.setdefault(owner, None)
            return None
        self._waiting.pop(owner, None)
        slot = self._free.pop()
        self._leased.add(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Return a leased slot, exactly once."""
        if slot not in self._leased:
            raise InvalidArgumentError(f"slot {slot.index} is not leased")
        self._leased.remove(slot)
        self._free.append(slot)

    def withdraw(self, owner: Hashable) -> None:
        """Leave the queue."""
        self._waiting.pop(owner, None)
