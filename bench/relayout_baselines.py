# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a user would run without kvxfer, beside kvxfer from Python, in one run on one GPU.

Baselines: torch.index_select for each plane and rank, and a Triton row gather written here, with
bytes and with 16-byte-friendly 4-byte words, indices made on the host and uploaded for each rank.
Prints one JSON object a line: kernel time by events, host call to ready by wall clock.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

import kvxfer
import kvxfer.cuda
from kvxfer import PackBufferLayout, PageTable, Plane, PlaneKind, PoolLayout, Relayout, Sharding

PAGE_SIZE = 64
SAMPLES = 50


# Triton resolves annotations in a kernel, so that only its own stand here.
@triton.jit  # type: ignore[misc]
def row_gather(  # type: ignore[no-untyped-def]
    planes, rows, out, row_count, row_words: tl.constexpr, block: tl.constexpr
):
    plane = tl.program_id(0)
    i = tl.program_id(1)
    source = tl.load(planes + plane).to(tl.pointer_type(out.dtype.element_ty))
    row = tl.load(rows + i)
    offsets = tl.arange(0, block)
    mask = offsets < row_words
    values = tl.load(source + row * row_words + offsets, mask=mask)
    target = (plane.to(tl.int64) * row_count + i) * row_words
    tl.store(out + target + offsets, values, mask=mask)


@dataclass
class Workload:
    name: str
    row_bytes: int
    plane_count: int
    tokens: int
    ranks: int


class Rig:
    """Pools, page tables and pack buffers, enough of each to be larger than the L2 cache."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        payload = workload.tokens * workload.row_bytes * workload.plane_count
        self.rotations = max(2, min(16, (512 << 20) // payload))
        pages = -(-workload.tokens // PAGE_SIZE)
        total_pages = pages * self.rotations
        self.pool = torch.randint(
            0,
            256,
            (workload.plane_count, total_pages * PAGE_SIZE, workload.row_bytes),
            dtype=torch.uint8,
            device="cuda",
        )
        order = np.random.default_rng(1).permutation(total_pages).astype(np.int64)
        self.pages = order.reshape(self.rotations, pages)
        self.addresses = [self.pool[p].data_ptr() for p in range(workload.plane_count)]
        self.source = self._layout(total_pages, Sharding())
        relayouts = [
            Relayout(self.source, self._layout(total_pages, Sharding(workload.ranks, rank)))
            for rank in range(workload.ranks)
        ]
        self.layout = PackBufferLayout(relayouts, pages * PAGE_SIZE)
        self.plan = self.layout.plan(kvxfer.Segment(0, workload.tokens, True))
        self.tables = [
            PageTable(self.source, ids, plane_addresses=self.addresses) for ids in self.pages
        ]
        self.packer = kvxfer.cuda.PackTables(self.layout, self.addresses)
        self.buffers = [
            torch.full((self.layout.bytes,), 165, dtype=torch.uint8, device="cuda")
            for _ in range(self.rotations)
        ]
        self.plane_table = torch.tensor(self.addresses, dtype=torch.int64, device="cuda")
        self.stream = torch.cuda.current_stream()

    def _layout(self, pages: int, sharding: Sharding) -> PoolLayout:
        planes = [
            Plane(layer, PlaneKind.LATENT, self.workload.row_bytes)
            for layer in range(self.workload.plane_count)
        ]
        return PoolLayout(PAGE_SIZE, pages, planes, sharding=sharding)

    def host_rows(self, i: int, rank: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        positions = np.arange(rank, self.workload.tokens, self.workload.ranks, dtype=np.int64)
        pages = self.pages[i % self.rotations]
        return pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def region(self, i: int, rank: int) -> torch.Tensor:
        region = self.plan.regions[rank]
        buffer = self.buffers[i % self.rotations]
        return buffer[region.offset_bytes : region.offset_bytes + region.bytes]

    def kvxfer_pack(self, i: int) -> None:
        k = i % self.rotations
        kvxfer.cuda.pack_rows(
            self.packer, self.plan, self.tables[k], self.buffers[k], stream=self.stream
        )

    def index_select(self, i: int, rank: int, rows: torch.Tensor) -> None:
        out = self.region(i, rank).view(self.workload.plane_count, -1, self.workload.row_bytes)
        for plane in range(self.workload.plane_count):
            torch.index_select(self.pool[plane], 0, rows, out=out[plane])

    def triton_gather(self, i: int, rank: int, rows: torch.Tensor, word: torch.dtype) -> None:
        words = self.workload.row_bytes // word.itemsize
        row_gather[(self.workload.plane_count, rows.numel())](
            self.plane_table,
            rows,
            self.region(i, rank).view(word),
            rows.numel(),
            row_words=words,
            block=triton.next_power_of_2(words),
        )


def kernel_us(run: Callable[[int], None]) -> float:
    """Median device time of `run(i)`, the stream kept busy so that launches do not show."""
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(SAMPLES)
    ]
    for i in range(3):
        run(i)
    torch.cuda._sleep(40_000_000)  # about 20 ms
    for i, (begin, end) in enumerate(events):
        begin.record()
        run(i)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(1000 * begin.elapsed_time(end) for begin, end in events)


def ready_us(run: Callable[[int], None]) -> float:
    times = []
    for i in range(SAMPLES):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        run(i)
        times.append((time.perf_counter_ns() - begin) / 1000)
    return statistics.median(times)


def upload(rig: Rig, i: int, rank: int) -> torch.Tensor:
    return torch.from_numpy(rig.host_rows(i, rank)).to("cuda")


def measure(workload: Workload) -> None:
    rig = Rig(workload)
    ranks = range(workload.ranks)
    resident = [[upload(rig, i, rank) for rank in ranks] for i in range(rig.rotations)]
    gathers: dict[str, Callable[[int, int, torch.Tensor], None]] = {
        "torch index_select": rig.index_select,
        "triton bytes": lambda i, r, rows: rig.triton_gather(i, r, rows, torch.uint8),
        "triton words": lambda i, r, rows: rig.triton_gather(i, r, rows, torch.int32),
    }
    rig.kvxfer_pack(0)
    torch.cuda.synchronize()
    expected = rig.buffers[0].clone()
    for name, gather in gathers.items():
        rig.buffers[0].fill_(165)
        for rank in ranks:
            gather(0, rank, resident[0][rank])
        torch.cuda.synchronize()
        differing = int((rig.buffers[0] != expected).sum())

        def on_device(i: int, gather: Any = gather) -> None:
            for rank in ranks:
                gather(i, rank, resident[i % rig.rotations][rank])

        def from_host(i: int, gather: Any = gather) -> None:
            for rank in ranks:
                gather(i, rank, upload(rig, i, rank))
                rig.stream.synchronize()

        def one_from_host(i: int, gather: Any = gather) -> None:
            gather(i, 0, upload(rig, i, 0))
            rig.stream.synchronize()

        report(
            workload,
            name,
            kernel_us=kernel_us(on_device),
            one_rank_ready_us=ready_us(one_from_host),
            ready_us=ready_us(from_host),
            differing_bytes=differing,
        )
    measure_kvxfer(workload, rig)


def measure_kvxfer(workload: Workload, rig: Rig) -> None:
    def call(i: int) -> None:
        rig.kvxfer_pack(i)
        rig.stream.synchronize()

    def copy(i: int) -> None:
        rig.buffers[i % rig.rotations].copy_(rig.buffers[(i + 1) % rig.rotations])

    report(workload, "plain copy", kernel_us=kernel_us(copy))
    report(workload, "kvxfer", kernel_us=kernel_us(rig.kvxfer_pack), ready_us=ready_us(call))
    report(workload, "kvxfer call", host_us=ready_us(rig.kvxfer_pack))
    stop = threading.Event()

    def spin() -> None:
        x = 0
        while not stop.is_set():
            x += 1

    thread = threading.Thread(target=spin)
    thread.start()
    report(workload, "kvxfer call beside a busy thread", host_us=ready_us(rig.kvxfer_pack))
    stop.set()
    thread.join(timeout=10)


def report(workload: Workload, way: str, **figures: float) -> None:
    rounded = {name: round(value, 2) for name, value in figures.items()}
    print(
        json.dumps(
            {
                "baseline": way,
                "workload": workload.name,
                "tokens": workload.tokens,
                "ranks": workload.ranks,
                **rounded,
            }
        ),
        flush=True,
    )


def main() -> None:
    torch.manual_seed(1)
    torch.cuda.init()
    measure(Workload("kimi-fp8", 576, 7, 8192, 4))
    measure(Workload("kimi-fp8", 576, 7, 83264, 4))
    measure(Workload("deepseek-v3-bf16", 1152, 61, 8192, 8))


if __name__ == "__main__":
    main()
