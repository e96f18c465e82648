# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Times a layer's gather between processes of one host, alone and beside compute, in one run.

Beside it: gloo's allgather of the same tensors, one after the other, and a plain copy of the bytes
that reach a rank. Every byte is compared before a case is timed. Nothing runs on a GPU, so the
figures say what the host's memory and cores give, and nothing about a link between GPUs.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from kvxfer.sharded import (
    BlockLayout,
    BlockOrder,
    ExecutorLane,
    GatherShape,
    HostPrefixAllgather,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    torch_exchange,
)

BLOCK_PAGES = 16
TENSORS = 2
PUBLISHED_MIB = [0.0625, 1.0, 16.0, 64.0]
MATRIX = 384


@dataclass(frozen=True)
class Row:
    """Microseconds of the slowest rank, medians over rounds; ``_beside`` has compute at once."""

    mib_per_rank_and_tensor: float
    gather_us: float
    gloo_us: float
    copy_us: float
    compute_us: float
    gather_beside_us: float
    gloo_beside_us: float

    def overlap(self, alone_us: float, beside_us: float) -> float:
        """Part of the shorter of gather and compute that the other one hid."""
        hidden = alone_us + self.compute_us - beside_us
        return max(0.0, min(1.0, hidden / min(alone_us, self.compute_us)))


class Rank:
    """One process of the group, and one size."""

    def __init__(self, rank: int, ranks: int, mib: float, executor: ThreadPoolExecutor) -> None:
        self.rank, self.ranks = rank, ranks
        page_bytes = int(mib * 2**20) // BLOCK_PAGES
        shape = GatherShape(
            ranks=ranks,
            page_size=1,
            logical_page_count=ranks * BLOCK_PAGES,
            prefix_region_pages=ranks * BLOCK_PAGES,
            chunk_region_pages=1,
        )
        tensors = [ScratchTensor(f"tensor {i}", page_bytes) for i in range(TENSORS)]
        layout = ScratchLayout(ScratchSpec(tensors, shape, order=BlockOrder.JOINED))
        self.blocks = BlockLayout(layout, BLOCK_PAGES)
        self.world = HostPrefixAllgather(layout, rank, torch_exchange())
        self.lane = ExecutorLane(executor)
        block_bytes = page_bytes * BLOCK_PAGES
        self.sent = [torch.full((block_bytes,), self.value(rank, i)) for i in range(TENSORS)]
        self.received = [
            torch.zeros(ranks * block_bytes, dtype=torch.uint8) for _ in range(TENSORS)
        ]
        for tensor in range(TENSORS):
            self.world.block(self.blocks, 0, tensor)[:] = self.sent[tensor][0].item()
        self.sent = [tensor.to(torch.uint8) for tensor in self.sent]
        self.copied = np.zeros((ranks - 1) * TENSORS * block_bytes, np.uint8)
        self.copy_source = np.ones_like(self.copied)
        self.matrix = torch.rand(MATRIX, MATRIX)

    @staticmethod
    def value(rank: int, tensor: int) -> int:
        return 1 + rank * TENSORS + tensor

    def gather(self) -> None:
        self.world.gather(0, self.world.next_tag(0), self.blocks)
        self.world.release(0)

    def gloo(self) -> None:
        for sent, received in zip(self.sent, self.received, strict=True):
            dist.all_gather_into_tensor(received, sent)

    def copy(self) -> None:
        np.copyto(self.copied, self.copy_source)

    def compute(self) -> None:
        for _ in range(20):
            self.matrix @ self.matrix

    def gather_beside(self) -> None:
        ready = self.lane.submit(self.gather)
        self.compute()
        ready()

    def gloo_beside(self) -> None:
        pairs = list(zip(self.sent, self.received, strict=True))
        works: list[Any] = [
            dist.all_gather_into_tensor(received, sent, async_op=True) for sent, received in pairs
        ]
        self.compute()
        for work in works:
            work.wait()

    def compare(self) -> None:
        """Hold that both gathers brought every byte of every rank."""
        self.gather()
        self.gloo()
        for tensor in range(TENSORS):
            view = self.world.view(0, tensor)
            page_map = self.blocks.page_map(tensor)
            gloo = self.received[tensor].reshape(self.ranks, -1)
            for owner in range(self.ranks):
                first = page_map.first_page + owner * page_map.owner_stride_pages
                expected = self.value(owner, tensor)
                assert (view[first : first + BLOCK_PAGES] == expected).all(), (owner, tensor)
                assert bool((gloo[owner] == expected).all()), (owner, tensor)

    def median_us(self, call: Callable[[], None], rounds: int) -> float:
        """Median over rounds of the slowest rank's time."""
        times = []
        for _ in range(rounds):
            dist.barrier()
            begin = time.perf_counter()
            call()
            slowest = torch.tensor(time.perf_counter() - begin)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(1e6 * float(slowest))
        return statistics.median(times)

    def measure(self, mib: float, rounds: int) -> Row:
        self.compare()
        calls = (self.gather, self.gloo, self.copy, self.compute)
        alone = [self.median_us(call, rounds) for call in calls]
        beside = [self.median_us(call, rounds) for call in (self.gather_beside, self.gloo_beside)]
        return Row(mib, *alone, *beside)


def run_rank(rank: int, options: argparse.Namespace, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.ranks)
    rows = []
    with ThreadPoolExecutor(1) as executor:
        for mib in options.mib:
            side = Rank(rank, options.ranks, mib, executor)
            rows.append(side.measure(mib, options.rounds))
            side.world.close()
    if rank == 0:
        results.put(rows)
    dist.destroy_process_group()


def run(options: argparse.Namespace) -> list[Row]:
    """Run every rank in a process of its own; the rows of rank 0."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ranks = [
            context.Process(target=run_rank, args=(rank, options, store, results))
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        try:
            rows: list[Row] = results.get(timeout=options.timeout_seconds)
        finally:
            for process in ranks:
                process.join(timeout=20)
                if process.is_alive():
                    process.kill()
    return rows


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| MiB per rank and tensor | gather us | gloo us | copy us | gather, % of the copy's rate "
        "| beside compute: gather us | gloo us | hidden: gather | gloo |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            f"{row.mib_per_rank_and_tensor:g}",
            *(f"{us:.0f}" for us in (row.gather_us, row.gloo_us, row.copy_us)),
            f"{100 * row.copy_us / row.gather_us:.0f}",
            *(f"{us:.0f}" for us in (row.gather_beside_us, row.gloo_beside_us)),
            f"{row.overlap(row.gather_us, row.gather_beside_us):.2f}",
            f"{row.overlap(row.gloo_us, row.gloo_beside_us):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=float, nargs="+", default=PUBLISHED_MIB)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--timeout-seconds", type=float, default=600.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = run(options)
    print(
        f"{options.ranks} processes of one host, {os.cpu_count()} cores, {platform.machine()}, "
        f"{TENSORS} tensors, torch {torch.__version__}; no GPU, so no link is measured\n"
    )
    print("\n".join(table(rows)))
    if options.json is not None:
        described = {"ranks": options.ranks, "tensors": TENSORS, "cores": os.cpu_count()}
        text = json.dumps({**described, "rows": [asdict(row) for row in rows]}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
