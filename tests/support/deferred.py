# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Events and copies that happen when a test says so."""

from typing import Any

from kvxfer import PackBufferLayout, PackPlan, PageTable, Relayout, Segment
from kvxfer.transfer.copies import HostCopies


class Event:
    """Happens when a test says so."""

    def __init__(self) -> None:
        self.has_happened = False

    def query(self) -> bool:
        return self.has_happened


class DeferredCopies(HostCopies):
    """Enqueues copies as a stream does: they run when their event is let happen."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Event, Any]] = []

    def pack(
        self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any
    ) -> Event:  # type: ignore[override]
        return self._defer(lambda: HostCopies.pack(self, layout, plan, table, buffer))

    def unpack(self, relayout: Relayout, segment: Segment, region: Any, table: PageTable) -> Event:  # type: ignore[override]
        return self._defer(lambda: HostCopies.unpack(self, relayout, segment, region, table))

    def run_one(self) -> None:
        event, work = self.waiting.pop(0)
        work()
        event.has_happened = True

    def _defer(self, work: Any) -> Event:
        event = Event()
        self.waiting.append((event, work))
        return event
