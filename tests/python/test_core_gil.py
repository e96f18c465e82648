# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Who may run while the core works: copies let other threads in, planning keeps the lock.

Threads switch only where somebody gives the lock up, because the switch interval is set beyond the
length of the test. So a counting thread that moves during a call proves that the call gave the lock
up, and one that stands still proves that it did not.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvxfer import (
    PackBufferLayout,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    Sharding,
    copy_rows,
    direct_writes,
    pack_rows,
    packed_writes,
    split_segments,
    unpack_rows,
)

TOKENS = 65_536
TRIES = 200


class Counter:
    """A thread that counts whenever it gets the lock, and gives it up after each step."""

    def __init__(self) -> None:
        self.count = 0
        self.stopping = False
        self.thread = threading.Thread(target=self.run, name="counter", daemon=True)

    def run(self) -> None:
        while not self.stopping:
            self.count += 1
            time.sleep(0)

    def steps_during(self, call: Callable[[], object]) -> int:
        before = self.count
        call()
        return self.count - before


@pytest.fixture
def counter() -> Iterator[Counter]:
    interval = sys.getswitchinterval()
    counter = Counter()
    counter.thread.start()
    sys.setswitchinterval(1000)
    try:
        yield counter
    finally:
        sys.setswitchinterval(interval)
        counter.stopping = True
        counter.thread.join(30)
        assert not counter.thread.is_alive()


class Job:
    """One long segment of one plane, its memory, and a buffer that holds it."""

    def __init__(self) -> None:
        planes = [Plane(0, PlaneKind.LATENT, 128)]
        source = PoolLayout(64, TOKENS // 64, planes)
        destination = PoolLayout(64, TOKENS // 128, planes, sharding=Sharding(2, 1))
        self.source_memory = np.ones(source.plane_bytes(0), np.uint8)
        self.memory = np.zeros(destination.plane_bytes(0), np.uint8)
        self.relayout = Relayout(source, destination)
        self.layout = PackBufferLayout([self.relayout], TOKENS)
        self.wide_layout = PackBufferLayout([self.relayout] * 20_000, TOKENS)
        self.segment = Segment(0, TOKENS, True)
        self.plan = self.layout.plan(self.segment)
        self.buffer = np.ones(self.layout.bytes, np.uint8)
        self.source = PageTable(
            source, np.arange(TOKENS // 64)[::-1], plane_addresses=[self.source_memory.ctypes.data]
        )
        self.destination = PageTable(
            destination, np.arange(TOKENS // 128)[::-1], plane_addresses=[self.memory.ctypes.data]
        )

    def pack(self) -> None:
        pack_rows(self.layout, self.plan, self.source, self.buffer)

    def unpack(self) -> None:
        unpack_rows(self.relayout, self.segment, self.buffer, self.destination)

    def copy(self) -> None:
        copy_rows(self.relayout, self.segment, self.source, self.destination)

    # Planning is made long enough here for a waiting thread to wake up if it could.

    def split(self) -> None:
        split_segments(
            0, 64 * TOKENS, is_final=True, prefix=0, alignment_tokens=64, capacity_tokens=64
        )

    def plan_segment(self) -> None:
        self.wide_layout.plan(self.segment)

    def write_packed(self) -> None:
        packed_writes(self.relayout, [self.segment] * 1000, 0, self.destination)

    def write_direct(self) -> None:
        direct_writes(self.relayout, [self.segment] * 16, self.source, self.destination)


@pytest.mark.parametrize("name", ["pack", "unpack", "copy"])
def test_other_threads_run_while_rows_are_copied(counter: Counter, name: str) -> None:
    call = getattr(Job(), name)
    assert any(counter.steps_during(call) > 0 for _ in range(TRIES))


@pytest.mark.parametrize("name", ["split", "plan_segment", "write_packed", "write_direct"])
def test_planning_keeps_the_lock(counter: Counter, name: str) -> None:
    call = getattr(Job(), name)
    call()
    assert [counter.steps_during(call) for _ in range(20)] == [0] * 20
