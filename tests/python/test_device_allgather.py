# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The gather on devices over a fake NCCL: host memory for the device's, threads for ranks."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kvxfer
from kvxfer.errors import TransferError
from kvxfer.sharded import (
    BlockLayout,
    BlockOrder,
    DeviceCalls,
    DevicePrefixAllgather,
    FallbackReason,
    GatherPath,
    GatherPlan,
    RankConditions,
    ScratchLayout,
    ScratchSpec,
    ShardedPool,
    StreamLane,
    make_gather_shape,
)
from support.device_gather import (
    ALL,
    LAYERS,
    PAGE,
    PLAN,
    RANKS,
    SHAPE,
    TENSORS,
    FakeCuda,
    make_layout,
    make_pool,
    numpy_calls,
    read_all,
    ready,
    take,
    torch_calls,
)
from support.fake_nccl import COMPILER, FakeNccl, Rank, build, run_ranks

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ that builds the fake libnccl"),
    pytest.mark.timeout(150),
]
COPY_ENGINE = (GatherPath.COPY_ENGINE, FallbackReason.NONE)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture(scope="module")
def bare_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bare"), "FAKE_NCCL_WITHOUT_OPTIONAL")


def open_pool(
    mine: Rank, order: BlockOrder, calls: DeviceCalls, conditions: RankConditions, api: Any
) -> ShardedPool:
    allgather = DevicePrefixAllgather(
        make_layout(order), mine.rank, mine.exchange, calls, conditions=conditions, nccl=api
    )
    return make_pool(allgather, calls.from_dlpack)


def run_pools(
    nccl: FakeNccl, order: BlockOrder = BlockOrder.DENSE, calls: Any = numpy_calls, **of_rank_1: Any
) -> list[Any]:
    """Right pages, path, reason and ranks of the verdict on each rank."""

    def body(mine: Rank) -> tuple[Any, ...]:
        found = of_rank_1 if mine.rank == 1 else {}
        conditions = ready(mine.api.version_code, **found)
        pool = open_pool(mine, order, calls(), conditions, mine.api)
        verdict = pool.verdict
        right = read_all(pool)
        pool.close()
        return right, verdict.path, verdict.reason, verdict.ranks

    found = run_ranks(nccl, RANKS, body)
    gc.collect()
    return found


@pytest.mark.parametrize("calls", [numpy_calls, torch_calls])
@pytest.mark.parametrize("order", list(BlockOrder))
def test_every_page_of_every_layer_comes_by_copy_engines(
    library: Path, order: BlockOrder, calls: Any
) -> None:
    nccl = FakeNccl(library)
    assert run_pools(nccl, order, calls) == [(ALL, *COPY_ENGINE, [])] * RANKS
    gathers = 2 * LAYERS * (1 if order is BlockOrder.JOINED else len(TENSORS))
    assert nccl.count("all_gather") == RANKS * gathers
    assert nccl.count("init policy 2") == RANKS
    for call in ("alloc", "register", "deregister", "free", "destroy"):
        assert nccl.count(call) == RANKS, call


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"is_switched_on": False}, FallbackReason.SWITCHED_OFF),
        ({"has_memory_saver": True}, FallbackReason.MEMORY_SAVER),
        ({"has_custom_pool": True}, FallbackReason.CUSTOM_POOL),
        ({"node": "another"}, FallbackReason.SEVERAL_NODES),
        ({"driver_version": 12040}, FallbackReason.DRIVER_TOO_OLD),
        ({"nccl_cumem_enable": "0"}, FallbackReason.CUMEM_OFF),
    ],
)
def test_what_one_rank_finds_decides_for_all(
    library: Path, found: dict[str, Any], reason: FallbackReason
) -> None:
    nccl = FakeNccl(library)
    assert run_pools(nccl, **found) == [(ALL, GatherPath.SM, reason, [1])] * RANKS
    assert (nccl.count("init"), nccl.count("init policy 2")) == (RANKS, 0)
    assert (nccl.count("alloc"), nccl.count("register")) == (0, 0)


def test_an_old_library_gathers_by_kernels(bare_library: Path) -> None:
    nccl = FakeNccl(bare_library, version=22809)
    expected = (ALL, GatherPath.SM, FallbackReason.NCCL_TOO_OLD, [0, 1, 2])
    assert run_pools(nccl) == [expected] * RANKS


def test_one_null_window_is_used_by_kernels_everywhere(library: Path) -> None:
    nccl = FakeNccl(library, null_window_rank=2)
    assert run_pools(nccl) == [(ALL, GatherPath.SM, FallbackReason.NULL_WINDOW, [2])] * RANKS
    assert (nccl.count("deregister"), nccl.count("free")) == (2, 3)


@pytest.mark.parametrize("script", [{"failing_window_rank": 1}, {"failing_alloc_rank": 1}])
def test_one_failed_registration_is_everybodys(library: Path, script: dict[str, int]) -> None:
    nccl = FakeNccl(library, **script)
    expected = (ALL, GatherPath.SM, FallbackReason.REGISTRATION_FAILED, [1])
    assert run_pools(nccl, BlockOrder.JOINED) == [expected] * RANKS
    assert nccl.count("free") == nccl.count("alloc")
    assert nccl.count("destroy") == RANKS


def test_a_rank_without_nccl_is_named_on_all(library: Path) -> None:
    def body(mine: Rank) -> ShardedPool:
        api = None if mine.rank == 2 else mine.api
        conditions = ready(0 if api is None else 23102)
        return open_pool(mine, BlockOrder.DENSE, numpy_calls(), conditions, api)

    found = run_ranks(FakeNccl(library), RANKS, body)
    assert [type(error) for error in found] == [kvxfer.UnsupportedError] * RANKS
    assert all("got none on ranks [2]" in str(error) for error in found)


def test_ranks_with_other_layouts_are_named_on_all(library: Path) -> None:
    def body(mine: Rank) -> ShardedPool:
        order = BlockOrder.JOINED if mine.rank == 1 else BlockOrder.DENSE
        return open_pool(mine, order, numpy_calls(), ready(), mine.api)

    nccl = FakeNccl(library)
    found = run_ranks(nccl, RANKS, body)
    assert [(type(error), error.peer) for error in found] == [(TransferError, "rank 1")] * RANKS
    assert nccl.count("init") == 0


def lone_gather(calls: DeviceCalls, **found: Any) -> DevicePrefixAllgather:
    shape = make_gather_shape(
        ranks=1, page_size=PAGE, logical_page_count=8, context_tokens=16, chunk_tokens=4
    )
    layout = ScratchLayout(ScratchSpec(TENSORS, shape))
    conditions = ready(0, **found)
    return DevicePrefixAllgather(layout, 0, lambda text: [text], calls, conditions=conditions)


def test_one_rank_needs_no_nccl() -> None:
    gather = lone_gather(numpy_calls())
    blocks = BlockLayout(gather.layout, 2)
    assert (gather.verdict.path, gather.verdict.reason) == (
        GatherPath.NONE,
        FallbackReason.ONE_RANK,
    )
    with pytest.raises(kvxfer.InvalidArgumentError, match="expected gather 1 of slot 0, got 2"):
        gather.gather(0, 2, blocks)
    assert gather.gather(0, 1, blocks) is GatherPath.NONE
    gather.check()
    gather.close()
    gather.close()
    with pytest.raises(kvxfer.InvalidArgumentError, match="got a closed one"):
        gather.view(0, 0)


def test_pools_on_the_host_have_a_gather_of_their_own(library: Path) -> None:
    def body(mine: Rank) -> ShardedPool:
        conditions = ready(is_host_pool=True)
        return open_pool(mine, BlockOrder.DENSE, numpy_calls(), conditions, mine.api)

    found = run_ranks(FakeNccl(library), RANKS, body)
    assert [type(error) for error in found] == [kvxfer.InvalidArgumentError] * RANKS


def test_gathers_run_on_their_stream_in_the_published_order(library: Path) -> None:
    def body(mine: Rank) -> tuple[list[str], list[str], list[str]]:
        cuda = FakeCuda()
        layout = ScratchLayout(ScratchSpec(TENSORS, SHAPE))

        def logged(stripe: Any, pages: Any, block: Any) -> None:
            cuda.log.append(f"pack {block.shape[1]}")
            take(stripe, pages, block)

        def stream() -> int:
            cuda.log.append("gather")
            return 0x40

        calls = replace(numpy_calls(), take=logged, stream=stream)
        gather = DevicePrefixAllgather(
            layout, mine.rank, mine.exchange, calls, conditions=ready(), nccl=mine.api
        )
        stripes = [
            {tensor.name: np.zeros((8, tensor.page_bytes), np.uint8) for tensor in TENSORS}
            for _ in range(LAYERS)
        ]
        lane = StreamLane(cuda, cuda=cuda)
        loaded = [cuda.log.append]
        pool = ShardedPool(
            stripes, SHAPE, gather, lane=lane, loaded=lambda layer: loaded[0](f"loaded {layer}")
        )
        logs = []
        pool.begin(PLAN)
        for step in (0, 1):
            logs.append(list(cuda.log))
            cuda.log.clear()
            pool.read(step)
        logs.append(list(cuda.log))
        pool.close()
        return logs[0], logs[1], logs[2]

    packed = ["pack 32", "pack 12", "gather"]
    for first, second, third in run_ranks(FakeNccl(library), RANKS, body):
        assert first == ["wait compute", "enter", "loaded 0", *packed, "record ready", "exit"]
        assert second == ["wait ready", *(w.replace("loaded 0", "loaded 1") for w in first)]
        assert third == ["wait ready", *(w.replace("loaded 0", "loaded 2") for w in first)]


def test_views_keep_the_memory_after_the_gather(library: Path) -> None:
    nccl = FakeNccl(library)

    def body(mine: Rank) -> tuple[int, int]:
        pool = open_pool(mine, BlockOrder.DENSE, numpy_calls(), ready(), mine.api)
        pool.begin(PLAN)
        views = pool.read(0)
        pool.close()
        del pool
        gc.collect()
        before = nccl.calls_of(mine.rank).count("free")
        views["kv"][0] = 7
        assert int(views["kv"][0, 0]) == 7
        views.clear()
        gc.collect()
        return before, nccl.calls_of(mine.rank).count("free")

    assert run_ranks(nccl, RANKS, body) == [(0, 1)] * RANKS


def test_new_rows_are_written_by_a_kernel() -> None:
    gather = lone_gather(torch_calls())
    shape = make_gather_shape(
        ranks=1, page_size=PAGE, logical_page_count=8, context_tokens=16, chunk_tokens=4
    )
    stripes = [{"kv": torch.zeros((8, PAGE * 8), dtype=torch.uint8)}]
    pool = ShardedPool(stripes, shape, gather)
    pool.begin(GatherPlan(shape, [[]], [3]))
    with pytest.raises(kvxfer.UnsupportedError, match="got one on a device"):
        pool.write(0, "kv", [12], np.zeros((1, 8), np.uint8))
