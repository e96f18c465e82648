# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Plans and layouts of a gathered prefix, against an oracle that moves bytes page by page."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

import kvxfer
from kvxfer.sharded import (
    BlockLayout,
    BlockOrder,
    BlockSpan,
    GatherPlan,
    GatherShape,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    largest_spec,
    make_gather_shape,
    scratch_demand,
)

WORKED = make_gather_shape(
    ranks=2, page_size=16, logical_page_count=128, context_tokens=100, chunk_tokens=40
)
LOCATIONS = [805, 121, 208, 911, 353, 147, 960, 529]


@dataclass(frozen=True)
class Batch:
    shape: GatherShape
    prefix_pages: list[list[int]]
    chunk_pages: list[int]


def random_batch(seed: int) -> Batch:
    """Requests whose owners go round, half of them continuing the prefix of an earlier one."""
    rng = random.Random(seed)
    ranks, page_size, local_pages = rng.randint(1, 8), rng.choice([1, 4, 16]), 48
    free = [rng.sample(range(1, local_pages), local_pages - 1) for _ in range(ranks)]

    def chain(count: int, owner: int) -> list[int]:
        owners = [(owner + k) % ranks for k in range(count)]
        return [free[o].pop() * ranks + o for o in owners]

    requests: list[list[int]] = []
    for _ in range(rng.randint(0, 4)):
        parent = rng.choice(requests) if requests and rng.random() < 0.5 else []
        shared = parent[: rng.randint(0, len(parent))]
        owner = (shared[-1] + 1) % ranks if shared else rng.randrange(ranks)
        requests.append(shared + chain(rng.randint(0, 3 * ranks), owner))
    chunk = chain(rng.randint(0, 2 * ranks), 0)
    blocks = sum(-(-len(request) // ranks) for request in requests)
    shape = GatherShape(
        ranks=ranks,
        page_size=page_size,
        logical_page_count=ranks * local_pages,
        prefix_region_pages=ranks * (blocks + rng.randint(0, 2)),
        chunk_region_pages=len(chunk) + rng.randint(0, 2),
    )
    return Batch(shape, requests, chunk)


def gathered_views(plan: GatherPlan, layout: ScratchLayout, slot: int) -> list[NDArray[np.int64]]:
    """Rank 0's view of each tensor after the gather: the logical page in each page, -1 for none."""
    blocks = BlockLayout(layout, plan.block_pages)
    ranks = layout.spec.ranks
    windows = np.full((ranks, layout.bytes), -1, dtype=np.int64)
    for rank in range(ranks):
        for i, tensor in enumerate(layout.spec.tensors):
            begin = blocks.block_offset_bytes(slot, i, rank)
            pages = plan.send_pages(rank) * ranks + rank
            windows[rank, begin : begin + len(pages) * tensor.page_bytes] = np.repeat(
                pages + 1000 * i, tensor.page_bytes
            )
    for span in blocks.spans(slot):
        for rank in range(1, ranks):
            begin = span.offset_bytes + rank * span.stride_bytes
            windows[0, begin : begin + span.bytes] = windows[rank, begin : begin + span.bytes]
    views = []
    for i in range(len(layout.spec.tensors)):
        view = layout.view(slot, i)
        end = view.offset_bytes + view.page_count * view.page_bytes
        pages = windows[0, view.offset_bytes : end].reshape(view.page_count, view.page_bytes)
        views.append(pages)
    return views


@pytest.mark.parametrize(
    ("prefix", "block_pages", "sent", "rows"),
    [
        (
            [[50, 7, 40, 13, 56]],
            3,
            [[20, 25, 28], [3, 6, 0]],
            [21, 57, 64, 47, 1073, 1027, 1040, 1073],
        ),
        (
            [[50, 7, 40, 13, 56], [50, 7, 22]],
            5,
            [[11, 20, 25, 28, 0], [3, 6, 0, 0, 0]],
            [37, 89, 96, 63, 1, 1027, 1040, 1073],
        ),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_worked_batches(
    prefix: list[list[int]],
    block_pages: int,
    sent: list[list[int]],
    rows: list[int],
    dtype: type[np.signedinteger],
) -> None:
    plan = GatherPlan(
        WORKED, [np.array(pages, dtype) for pages in prefix], np.array([9, 60], dtype)
    )
    assert plan.block_pages == block_pages
    assert [plan.send_pages(rank).tolist() for rank in range(2)] == sent
    translated = plan.translate(np.array(LOCATIONS, dtype).reshape(2, 4))
    assert translated.dtype == np.int64
    assert translated.shape == (2, 4)
    assert translated.reshape(-1).tolist() == rows


def test_a_chain_that_begins_at_the_second_owner() -> None:
    shape = GatherShape(
        ranks=2, page_size=4, logical_page_count=8, prefix_region_pages=4, chunk_region_pages=0
    )
    plan = GatherPlan(shape, [[1, 2, 3]])
    assert plan.translate(np.arange(4, 14)).tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 12, 13]


@pytest.mark.parametrize("seed", range(60))
def test_translation_leads_to_the_rows_that_were_sent(seed: int) -> None:
    batch = random_batch(seed)
    plan = GatherPlan(batch.shape, batch.prefix_pages, batch.chunk_pages)
    rng = random.Random(seed)
    tensors = [ScratchTensor(str(i), rng.randint(1, 24)) for i in range(rng.randint(1, 3))]
    order = rng.choice(list(BlockOrder))
    layout = ScratchLayout(ScratchSpec(tensors, batch.shape, order=order))
    blocks = BlockLayout(layout, plan.block_pages)
    slot = rng.randrange(2)
    page_size = batch.shape.page_size
    for i, view in enumerate(gathered_views(plan, layout, slot)):
        page_map = blocks.page_map(i)
        for pages in batch.prefix_pages:
            locations = np.array(pages, dtype=np.int64) * page_size + page_size - 1
            rows = plan.translate(locations, page_map)
            assert (rows % page_size == page_size - 1).all()
            assert (view[rows // page_size] == np.array(pages).reshape(-1, 1) + 1000 * i).all()
        chunk = plan.translate(np.array(batch.chunk_pages, dtype=np.int64) * page_size, page_map)
        expected = page_map.chunk_page + np.arange(len(batch.chunk_pages))
        assert (chunk == expected * page_size).all()
        assert (view[page_map.chunk_page :] == -1).all(), "the gather wrote outside the prefix"


@pytest.mark.parametrize("seed", range(20))
def test_translation_gives_every_placed_location_a_row_of_its_own(seed: int) -> None:
    batch = random_batch(seed)
    plan = GatherPlan(batch.shape, batch.prefix_pages, batch.chunk_pages)
    location_count = batch.shape.logical_page_count * batch.shape.page_size
    rows = plan.translate(np.arange(location_count, dtype=np.int32))
    trash_row = plan.page_map.trash_page * batch.shape.page_size
    placed = {page for request in batch.prefix_pages for page in request} | set(batch.chunk_pages)
    kept = rows[rows < trash_row]
    assert len(set(kept.tolist())) == len(kept) == len(placed) * batch.shape.page_size
    assert rows.max(initial=0) < trash_row + batch.shape.page_size


def test_admission_counts_whole_rounds() -> None:
    demand = scratch_demand(WORKED, prefix_tokens=5 * 16, new_tokens=33)
    assert (demand.prefix_region_pages, demand.chunk_region_pages) == (6, 3)
    with pytest.raises(kvxfer.CapacityError, match="prefix of at most 64 pages"):
        scratch_demand(WORKED, prefix_tokens=65 * 16, new_tokens=0)
    with pytest.raises(kvxfer.InvalidArgumentError, match="multiple of page_size 16"):
        scratch_demand(WORKED, prefix_tokens=17, new_tokens=0)


@pytest.mark.parametrize("seed", range(20))
def test_what_admission_lets_in_has_a_plan(seed: int) -> None:
    batch = random_batch(seed)
    tokens = [len(pages) * batch.shape.page_size for pages in batch.prefix_pages]
    demands = [scratch_demand(batch.shape, prefix_tokens=t, new_tokens=0) for t in tokens]
    asked = sum(demand.prefix_region_pages for demand in demands)
    plan = GatherPlan(batch.shape, batch.prefix_pages)
    assert asked == plan.block_pages * batch.shape.ranks <= batch.shape.prefix_region_pages


def test_refusals_say_what_was_expected() -> None:
    with pytest.raises(kvxfer.CapacityError, match="do not go round the ranks"):
        GatherPlan(WORKED, [[2, 4, 6]])
    with pytest.raises(kvxfer.CapacityError, match=r"at most 3 pages in the chunk region, got 4"):
        GatherPlan(WORKED, [], [2, 3, 4, 5])
    with pytest.raises(kvxfer.InvalidArgumentError, match=r"\[0, 128\), got 128"):
        GatherPlan(WORKED, [[128]])
    with pytest.raises(kvxfer.InvalidArgumentError, match=r"\[0, 2048\), got 2048"):
        GatherPlan(WORKED, []).translate([2048])
    with pytest.raises(kvxfer.InvalidArgumentError, match="integer type, got float64"):
        GatherPlan(WORKED, []).translate([1.5])


def test_slots_and_tensors_start_at_multiples_of_4096() -> None:
    shape = GatherShape(
        ranks=1, page_size=1, logical_page_count=1, prefix_region_pages=0, chunk_region_pages=0
    )
    small = ScratchSpec([ScratchTensor("a", 4000), ScratchTensor("b", 100)], shape, slot_count=1)
    large = ScratchSpec([ScratchTensor("a", 5000), ScratchTensor("b", 1)], shape, slot_count=1)
    layout = ScratchLayout(largest_spec([small, large]))
    assert [layout.view(0, i).offset_bytes for i in range(2)] == [0, 8192]
    assert layout.bytes == 12288
    assert layout.fingerprint == ScratchLayout(largest_spec([large, small])).fingerprint
    assert layout.fingerprint != ScratchLayout(large).fingerprint


def test_joined_tensors_need_one_gather() -> None:
    tensors = [ScratchTensor("k", 4096), ScratchTensor("v", 4096)]
    dense = ScratchLayout(ScratchSpec(tensors, WORKED))
    joined = ScratchLayout(ScratchSpec(tensors, WORKED, order=BlockOrder.JOINED))
    assert len(BlockLayout(dense, 3).spans(0)) == 2
    spans = BlockLayout(joined, 3).spans(1)
    assert spans == [spans[0]]
    assert isinstance(spans[0], BlockSpan)
    assert (spans[0].offset_bytes, spans[0].stride_bytes) == (joined.slot_bytes, 6 * 4096)
    with pytest.raises(kvxfer.CapacityError, match="at most 32 pages"):
        BlockLayout(joined, 33)
