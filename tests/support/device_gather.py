# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Pools whose device is host memory, over the fake NCCL, and what their ranks read."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from kvxfer.sharded import (
    BlockOrder,
    DeviceCalls,
    DevicePrefixAllgather,
    GatherPlan,
    RankConditions,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    ShardedPool,
    StreamLane,
    make_gather_shape,
    torch_device_calls,
)

RANKS, PAGE, LAYERS = 3, 4, 4
TENSORS = [ScratchTensor("kv", PAGE * 8), ScratchTensor("index_k", PAGE * 3)]
SHAPE = make_gather_shape(
    ranks=RANKS, page_size=PAGE, logical_page_count=8 * RANKS, context_tokens=40, chunk_tokens=8
)
PLAN = GatherPlan(SHAPE, [[3, 10, 5, 9, 13], [3, 10, 17]], [20])
PREFIX = [3, 10, 5, 9, 13, 17]


def take(stripe: Any, pages: Any, block: Any) -> None:
    block[:] = stripe[pages]


def numpy_calls() -> DeviceCalls:
    return DeviceCalls(
        device="cpu",
        allocate=lambda size_bytes: np.empty(size_bytes, np.uint8),
        from_dlpack=np.from_dlpack,
        upload=lambda pages: pages,
        take=take,
        stream=lambda: 0x40,
        synchronize=lambda: None,
        is_capturing=lambda: False,
    )


def torch_calls() -> DeviceCalls:
    return replace(
        torch_device_calls("cpu"),
        stream=lambda: 0x40,
        synchronize=lambda: None,
        is_capturing=lambda: False,
    )


def ready(code: int = 23102, **found: Any) -> RankConditions:
    conditions = RankConditions()
    conditions.nccl_code, conditions.driver_version = code, 13000
    for name, value in found.items():
        setattr(conditions, name, value)
    return conditions


class FakeCuda:
    """Streams that run at once and write down how they are ordered."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.entered = "compute"

    def current_stream(self) -> "FakeCuda":
        return self

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.log.append("enter")
        yield
        self.log.append("exit")

    def wait_stream(self, stream: Any) -> None:
        self.log.append("wait compute")

    def record_event(self) -> str:
        self.log.append("record ready")
        return "ready"

    def wait_event(self, event: str) -> None:
        self.log.append(f"wait {event}")


def page(layer: int, tensor: int, number: int) -> Any:
    seed = (layer * 2 + tensor) * 64 + number
    return np.random.default_rng(seed).integers(0, 256, TENSORS[tensor].page_bytes, np.uint8)


def make_layout(order: BlockOrder) -> ScratchLayout:
    return ScratchLayout(ScratchSpec(TENSORS, SHAPE, order=order))


def make_pool(allgather: DevicePrefixAllgather, from_dlpack: Callable[[Any], Any]) -> ShardedPool:
    """A pool over the gather whose pages hold what page() says."""
    stripes = [
        {
            tensor.name: from_dlpack(
                np.stack([page(layer, i, local * RANKS + allgather.rank) for local in range(8)])
            )
            for i, tensor in enumerate(TENSORS)
        }
        for layer in range(LAYERS)
    ]
    cuda = FakeCuda()
    return ShardedPool(stripes, SHAPE, allgather, lane=StreamLane(cuda, cuda=cuda))


def read_all(pool: ShardedPool) -> int:
    """Compare every page of every layer of two batches; how many were right."""
    right = 0
    for _ in range(2):
        with pool.batch(PLAN):
            for layer in range(LAYERS):
                views = pool.read(layer)
                for i, tensor in enumerate(TENSORS):
                    for number in PREFIX:
                        row = int(pool.rows(tensor.name, [number * PAGE])[0])
                        found = np.asarray(views[tensor.name][row // PAGE])
                        right += bool(np.array_equal(found, page(layer, i, number)))
    return right


ALL = 2 * LAYERS * len(TENSORS) * len(PREFIX)
