# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Times the planner through Python beside a NumPy plan of the same writes, in one run.

Every case is timed twice: alone, and with a second Python thread that never waits. Before a case
is timed, the two plans are compared run by run.
"""

import argparse
import contextlib
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy_plan import NumpyPlanner

import kvxfer

PAGE_SIZE = 64
ROW_BYTES = 576
RANKS = 4
CAPACITY_TOKENS = 8_192
REQUEST_TOKENS = 163_840
POOL_PAGES = 4_096
REGION_ADDRESS = 1 << 40
SEED = 1

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One row of the table: the same result from both planners."""

    name: str
    ours: Call
    numpy: Call | None = None


class Request:
    """One request to the first of four decode ranks, planned both ways."""

    def __init__(self, plane_count: int, *, is_shuffled: bool) -> None:
        planes = [
            kvxfer.Plane(layer, kvxfer.PlaneKind.LATENT, ROW_BYTES) for layer in range(plane_count)
        ]
        pages = np.arange(POOL_PAGES)
        if is_shuffled:
            np.random.default_rng(SEED).shuffle(pages)
        source_pages = pages[: REQUEST_TOKENS // PAGE_SIZE]
        destination_pages = pages[: REQUEST_TOKENS // PAGE_SIZE // RANKS]
        source = kvxfer.PoolLayout(PAGE_SIZE, POOL_PAGES, planes)
        decode = [
            kvxfer.PoolLayout(PAGE_SIZE, POOL_PAGES, planes, sharding=kvxfer.Sharding(RANKS, rank))
            for rank in range(RANKS)
        ]
        relayouts = [kvxfer.Relayout(source, layout) for layout in decode]
        plane_bytes = POOL_PAGES * PAGE_SIZE * ROW_BYTES
        addresses = REGION_ADDRESS + np.arange(1, plane_count + 1) * plane_bytes
        self.pack_buffer = kvxfer.PackBufferLayout(relayouts, CAPACITY_TOKENS)
        self.relayout = relayouts[0]
        self.layout = decode[0]
        self.pages = destination_pages
        self.table = kvxfer.PageTable(decode[0], destination_pages, plane_addresses=addresses)
        self.numpy = NumpyPlanner(
            PAGE_SIZE, RANKS, 0, ROW_BYTES, source_pages, destination_pages, addresses
        )
        self.segment = kvxfer.Segment(CAPACITY_TOKENS, 2 * CAPACITY_TOKENS, False)

    def split(self) -> list[kvxfer.Segment]:
        """Cut the request into its 20 segments."""
        return kvxfer.split_segments(
            0,
            REQUEST_TOKENS,
            is_final=True,
            prefix=0,
            alignment_tokens=PAGE_SIZE,
            capacity_tokens=CAPACITY_TOKENS,
        )

    def plan_segment(self) -> Any:
        """Write list of one segment."""
        return kvxfer.packed_writes(self.relayout, [self.segment], REGION_ADDRESS, self.table).runs

    def plan_request(self) -> Any:
        """Segments and write lists of the whole request."""
        return kvxfer.packed_writes(self.relayout, self.split(), REGION_ADDRESS, self.table).runs

    def numpy_segment(self) -> Any:
        """As plan_segment, in NumPy."""
        return self.numpy.writes(self.segment.begin, self.segment.end, REGION_ADDRESS)

    def numpy_request(self) -> Any:
        """As plan_request, in NumPy: each segment when it is sent."""
        return [
            self.numpy.writes(begin, begin + CAPACITY_TOKENS, REGION_ADDRESS)
            for begin in range(0, REQUEST_TOKENS, CAPACITY_TOKENS)
        ]


def cases() -> Iterator[Case]:
    """All rows of the table."""
    small = Request(7, is_shuffled=True)
    yield Case("split the request into 20 segments", small.split)
    yield Case("pack plan of a segment, 4 regions", lambda: small.pack_buffer.plan(small.segment))
    yield Case("page table of the request", lambda: kvxfer.PageTable(small.layout, small.pages))
    yield Case(
        "landing write of a segment",
        lambda: kvxfer.landing_write(small.relayout, small.segment, REGION_ADDRESS, 0).runs,
    )
    for plane_count in (7, 61):
        for is_shuffled in (False, True):
            request = Request(plane_count, is_shuffled=is_shuffled)
            kind = f"{plane_count} planes, {'shuffled' if is_shuffled else 'contiguous'} pages"
            yield Case(f"segment, {kind}", request.plan_segment, request.numpy_segment)
            yield Case(f"request, {kind}", request.plan_request, request.numpy_request)


def expect_same(case: Case) -> None:
    """Compare the two plans of a case run by run."""
    if case.numpy is None:
        return
    expected = case.numpy()
    if isinstance(expected, list):
        expected = np.concatenate(expected)
    np.testing.assert_array_equal(case.ours(), expected)


@contextlib.contextmanager
def busy_thread(is_wanted: bool) -> Iterator[None]:
    """Keep a second Python thread computing meanwhile."""
    is_over = threading.Event()

    def compute() -> None:
        value = 1
        while not is_over.is_set():
            for _ in range(1000):
                value = value * 3 % 1_000_003

    thread = threading.Thread(target=compute)
    if is_wanted:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if is_wanted:
            thread.join()


def call_times_us(call: Call, seconds: float) -> list[float]:
    """Time of each call, for so long but at least once. [unit: microseconds]"""
    times = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def row(case: Case, seconds: float, *, with_busy_thread: bool) -> str:
    """One line of the table."""
    columns = []
    medians = []
    with busy_thread(with_busy_thread):
        for call in (case.ours, case.numpy):
            if call is None:
                columns += ["", ""]
                continue
            times = call_times_us(call, seconds)
            medians.append(statistics.median(times))
            tail = sorted(times)[int(len(times) * 0.99)]
            columns += [f"{medians[-1]:,.2f}", f"{tail:,.1f}"]
    ratio = f"{medians[1] / medians[0]:,.0f}" if len(medians) == 2 else ""
    return f"| {case.name} | {' | '.join(columns)} | {ratio} |"


def machine() -> str:
    """Processor, cores and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    build = kvxfer.build_info()
    return (
        f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, "
        f"Python {build['python']}, numpy {np.__version__}, kvxfer {build['version']} "
        f"({build['compiler']}, {build['build_type']}), load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each number")
    options = parser.parse_args()
    print(machine())
    for with_busy_thread in (False, True):
        print(f"\n{'beside a busy Python thread' if with_busy_thread else 'alone'}, times in us\n")
        print("| call | kvxfer median | p99 | NumPy median | p99 | NumPy / kvxfer |")
        print("|---|---:|---:|---:|---:|---:|")
        for case in cases():
            expect_same(case)
            print(row(case, options.seconds, with_busy_thread=with_busy_thread), flush=True)


if __name__ == "__main__":
    main()
