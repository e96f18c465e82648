# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of a page-sharded pool as processes, each reading every layer through its own scratch."""

import multiprocessing
import os
import queue
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer.errors import DeadlineError
from kvxfer.sharded import (
    BlockLayout,
    BlockOrder,
    GatherPlan,
    HostPrefixAllgather,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    make_gather_shape,
)

TENSORS = [ScratchTensor("kv", 4 * 24), ScratchTensor("index_k", 4 * 9)]
PREFIXES = [[8, 3, 10, 5, 12, 1, 14], [8, 3, 10, 9]]


@dataclass(frozen=True)
class Job:
    """What the ranks do, and what one of them does wrong."""

    ranks: int = 2
    layers: int = 7
    batches: int = 2
    order: BlockOrder = BlockOrder.DENSE
    wrong_rank: int = -1
    wrong: str = ""
    bound_seconds: float = 20.0


@dataclass
class Inbox:
    """Texts between the processes of a group; bounded, and names who is missing."""

    rank: int
    queues: list[Any]
    bound_seconds: float = 60.0
    step: int = 0
    early: list[tuple[int, int, str]] = field(default_factory=list)

    def exchange(self, text: str) -> list[str]:
        for other in self.queues:
            other.put((self.step, self.rank, text))
        found: dict[int, str] = {}
        deadline = time.monotonic() + self.bound_seconds
        while len(found) < len(self.queues):
            for step, rank, words in [m for m in self.early if m[0] == self.step]:
                self.early.remove((step, rank, words))
                found[rank] = words
            if len(found) == len(self.queues):
                break
            try:
                timeout = max(0.0, deadline - time.monotonic())
                self.early.append(self.queues[self.rank].get(timeout=timeout))
            except queue.Empty:
                missing = [str(r) for r in range(len(self.queues)) if r not in found]
                raise DeadlineError("deadline", ", ".join(missing), None, "no text") from None
        self.step += 1
        return [found[rank] for rank in range(len(self.queues))]


def page_bytes(batch: int, layer: int, tensor: int, page: int) -> NDArray[np.uint8]:
    """The rows of a logical page; no two pages of a run are alike."""
    seed = ((batch * 64 + layer) * 4 + tensor) * 256 + page
    return np.random.default_rng(seed).integers(0, 256, TENSORS[tensor].page_bytes, np.uint8)


class Reader:
    """One rank: packs its pages, gathers a layer ahead and compares what it reads."""

    def __init__(self, job: Job, rank: int, inbox: Inbox) -> None:
        prefixes = PREFIXES if job.ranks == 2 else [[3 * j + j % 3 for j in range(1, 8)]]
        shape = make_gather_shape(
            ranks=job.ranks, page_size=4, logical_page_count=64, context_tokens=40, chunk_tokens=8
        )
        self.job, self.rank = job, rank
        self.plan = GatherPlan(shape, prefixes, [20])
        layout = ScratchLayout(ScratchSpec(TENSORS, shape, order=job.order))
        self.blocks = BlockLayout(layout, self.plan.block_pages)
        self.world = HostPrefixAllgather(
            layout, rank, inbox.exchange, bound_seconds=job.bound_seconds
        )
        self.rng = random.Random(rank)
        self.tags = [0, 0]

    def read_all(self) -> int:
        compared = 0
        for batch in range(self.job.batches):
            self.gather(batch, 0)
            for layer in range(self.job.layers):
                if layer + 1 < self.job.layers:
                    self.gather(batch, layer + 1)
                compared += self.compare(batch, layer)
                self.world.release(layer % 2)
        self.world.close()
        return compared

    def gather(self, batch: int, layer: int) -> None:
        is_wrong = self.rank == self.job.wrong_rank and (batch, layer) == (1, 3)
        wrong = self.job.wrong if is_wrong else ""
        if wrong == "dies":
            os._exit(0)
        slot = layer % 2
        self.tags[slot] += 1
        self.pack(batch, layer, wrong)
        time.sleep(0.3 if wrong == "late" else self.rng.random() * 0.002)
        if wrong != "leaves out":
            self.world.gather(slot, self.tags[slot], self.blocks)

    def pack(self, batch: int, layer: int, wrong: str) -> None:
        for tensor in range(len(TENSORS)):
            own = self.world.block(self.blocks, layer % 2, tensor)
            for index, local in enumerate(self.plan.send_pages(self.rank).tolist()):
                page = local * self.job.ranks + self.rank
                is_stale = wrong == "stale" and index == 0
                own[index] = page_bytes(batch, layer - 2 * is_stale, tensor, page)

    def compare(self, batch: int, layer: int) -> int:
        for tensor in range(len(TENSORS)):
            view = self.world.view(layer % 2, tensor)
            for gathered in self.plan.gathered_pages:
                row = self.plan.translate([gathered.page * 4], self.blocks.page_map(tensor))[0]
                expected = page_bytes(batch, layer, tensor, gathered.page)
                if not np.array_equal(view[row // 4], expected):
                    raise AssertionError(f"batch {batch}, layer {layer}, page {gathered.page}")
        return len(TENSORS) * len(self.plan.gathered_pages)


def read_prefixes(job: Job, rank: int, inbox: Inbox) -> int:
    """Read every layer of every batch as attention would; how many pages were compared."""
    return Reader(job, rank, inbox).read_all()


def _child(target: Callable[..., Any], job: Any, rank: int, inbox: Inbox, results: Any) -> None:
    try:
        results.put((rank, target(job, rank, inbox)))
    except BaseException as error:
        traceback.print_exc()
        results.put((rank, f"{type(error).__name__}: {error}"))


def run(
    job: Any, timeout_seconds: float = 40.0, target: Callable[..., Any] = read_prefixes
) -> dict[int, Any]:
    """What `target` returned on every rank, or the words of what it raised; a rank that died is
    absent."""
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue() for _ in range(job.ranks)]
    results = context.Queue()
    children = [
        context.Process(target=_child, args=(target, job, rank, Inbox(rank, queues), results))
        for rank in range(job.ranks)
    ]
    for child in children:
        child.start()
    expected = job.ranks - (1 if job.wrong == "dies" else 0)
    found: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_seconds
    try:
        while len(found) < expected:
            rank, result = results.get(timeout=max(0.1, deadline - time.monotonic()))
            found[rank] = result
    finally:
        for child in children:
            child.join(timeout=5)
            if child.is_alive():
                child.kill()
                child.join()
    return found
