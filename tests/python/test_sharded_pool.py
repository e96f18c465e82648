# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Order, residency and rows of a sharded pool, on one rank whose every call is written down."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvxfer import CapacityError, InvalidArgumentError
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.sharded import (
    BlockOrder,
    ExecutorLane,
    GatherPlan,
    GatherShape,
    HostPrefixAllgather,
    PageAllocator,
    ScratchBudget,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    ShardedPool,
    make_gather_shape,
)
from support.sharded_lanes import DeferredLane

PAGE = 4
WIDTHS = {"kv": 8, "index_k": 3}
LAYERS = 5
SHAPE = make_gather_shape(
    ranks=1, page_size=PAGE, logical_page_count=32, context_tokens=40, chunk_tokens=12
)
POISON = 0xEE


class LoggedAllgather(HostPrefixAllgather):
    """One rank that writes down what it is asked."""

    def __init__(self, layout: ScratchLayout, log: list[str]) -> None:
        super().__init__(layout, 0, lambda text: [text])
        self.log = log
        self.fails_at = -1
        self.brought: list[list[int]] = []
        for slot in range(layout.spec.slot_count):
            for tensor in range(len(layout.spec.tensors)):
                self.view(slot, tensor)[:] = POISON

    def pack(self, slot: int, blocks: Any, stripes: Any, pages: Any) -> None:
        self.log += [f"pack {self.layout.spec.tensors[index].name}" for index in stripes]
        super().pack(slot, blocks, stripes, pages)

    def gather(self, slot: int, tag: int, blocks: Any, *, tensors: Any = None) -> Any:
        self.log.append(f"gather {slot} {tag}")
        self.brought.append(list(tensors))
        if tag == self.fails_at:
            raise TransferError("peer_lost", "rank 7", None, "a peer died")
        return super().gather(slot, tag, blocks, tensors=tensors)

    def release(self, slot: int) -> None:
        self.log.append(f"release {slot}")
        super().release(slot)


class LoggedLane:
    """A stream that writes down where it stands; runs the work at once."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def submit(self, work: Callable[[], None]) -> Callable[[], None]:
        self.log += ["wait compute", "enter"]
        work()
        self.log += ["record ready", "exit"]
        return lambda: self.log.append("wait ready")


def make_stripes(layers: int = LAYERS) -> list[dict[str, NDArray[np.uint8]]]:
    """Pages of random bytes; the second layer has no index."""
    rng = np.random.default_rng(5)
    return [
        {
            name: rng.integers(0, 200, (32, PAGE * width), np.uint8)
            for name, width in WIDTHS.items()
            if (layer, name) != (1, "index_k")
        }
        for layer in range(layers)
    ]


class World:
    """A pool of one rank and everything around it."""

    def __init__(self, order: BlockOrder = BlockOrder.DENSE, lane: Any = None) -> None:
        self.log: list[str] = []
        tensors = [ScratchTensor(name, PAGE * width) for name, width in WIDTHS.items()]
        layout = ScratchLayout(ScratchSpec(tensors, SHAPE, order=order))
        self.allgather = LoggedAllgather(layout, self.log)
        self.stripes = make_stripes()
        self.pool = ShardedPool(
            self.stripes,
            SHAPE,
            self.allgather,
            lane=lane or LoggedLane(self.log),
            loaded=lambda layer: self.log.append(f"loaded {layer}"),
        )

    def read_of(self, layer: int) -> list[str]:
        self.log.clear()
        self.pool.read(layer)
        return list(self.log)

    def expect_pages(self, layer: int, pages: list[int]) -> None:
        views = self.pool.read(layer)
        for name, stripe in self.stripes[layer].items():
            rows = self.pool.rows(name, np.array(pages) * PAGE)
            assert np.array_equal(views[name][rows // PAGE], stripe[pages]), (layer, name)


PLAN = GatherPlan(SHAPE, [[9, 3, 20]], [11, 2])


def test_a_gather_is_submitted_in_the_published_order() -> None:
    world = World()
    world.pool.begin(PLAN)
    gathered = ["wait compute", "enter", "loaded 0", "pack kv", "pack index_k", "gather 0 1"]
    assert world.log == [*gathered, "record ready", "exit"]


def test_reading_a_layer_starts_the_next_one() -> None:
    world = World()
    world.pool.begin(PLAN)
    assert world.read_of(0)[0] == "wait ready"
    assert world.log[1:] == [
        *("wait compute", "enter", "loaded 1", "pack kv", "gather 1 1", "record ready", "exit")
    ]
    assert world.read_of(0) == ["wait ready"]
    submitted = world.read_of(1)
    # The slot is given free before its next gather, not earlier.
    assert submitted[4:8] == ["release 0", "pack kv", "pack index_k", "gather 0 2"]
    world.pool.read(2)
    world.pool.read(3)
    assert world.read_of(4) == ["wait ready"]
    assert world.allgather.brought == [[0, 1], [0], [0, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize("order", list(BlockOrder))
def test_every_layer_of_two_batches_is_read_through_the_scratch(order: BlockOrder) -> None:
    world = World(order)
    for plan, pages in [(PLAN, [9, 3, 20]), (GatherPlan(SHAPE, [[3, 9], [3, 5, 7]], []), [3, 5])]:
        with world.pool.batch(plan):
            for layer in range(LAYERS):
                world.expect_pages(layer, pages)
    world.pool.close()


def test_a_slot_is_given_free_early_where_the_reader_says_so() -> None:
    world = World()
    world.pool.begin(PLAN)
    world.pool.read(0)
    world.log.clear()
    world.pool.release(0)
    world.pool.release(0)
    world.pool.release(2)  # not gathered yet
    assert world.log == ["release 0"]
    with pytest.raises(InvalidArgumentError, match="got layer -1"):
        world.pool.read(0)
    assert "release 0" not in world.read_of(1)
    world.expect_pages(2, [9, 3, 20])


def test_layers_are_read_in_order() -> None:
    world = World()
    with pytest.raises(InvalidArgumentError, match="expected a batch that was begun"):
        world.pool.read(0)
    world.pool.begin(PLAN)
    with pytest.raises(InvalidArgumentError, match=r"layer 1 of gathered batch 1 .* got layer -1"):
        world.pool.read(1)
    for layer in (0, 1, 2):
        world.pool.read(layer)
    with pytest.raises(InvalidArgumentError, match=r"layer 1 of gathered batch 1 .* got layer 3"):
        world.pool.read(1)
    with pytest.raises(InvalidArgumentError, match=r"layer in \[0, 5\), got 5"):
        world.pool.read(5)


def test_a_batch_retires_what_the_one_before_gathered() -> None:
    world = World()
    for layer in range(LAYERS):
        if layer == 0:
            world.pool.begin(PLAN)
        world.pool.read(layer)
    with pytest.raises(InvalidArgumentError, match="batch before to have ended"):
        world.pool.begin(PLAN)
    world.pool.end()
    for page in (9, 3, 20):
        world.stripes[0]["kv"][page] ^= 0xFF
    world.pool.begin(PLAN)
    with pytest.raises(InvalidArgumentError, match="got layer 3 of batch 1"):
        world.pool.read(3)
    world.expect_pages(0, [9, 3, 20])


def test_a_batch_without_a_prefix_gathers_nothing() -> None:
    world = World()
    with world.pool.batch(GatherPlan(SHAPE, [[]], [11, 2])):
        assert [sorted(world.pool.read(layer)) for layer in (0, 1, 4)] == [
            ["index_k", "kv"],
            ["kv"],
            ["index_k", "kv"],
        ]
    assert world.log == []


def test_a_batch_that_ends_early_gathers_the_rest() -> None:
    world = World()

    def read_some() -> None:
        with world.pool.batch(PLAN):
            world.pool.read(0)
            world.log.clear()
            raise KeyError

    with pytest.raises(KeyError):
        read_some()
    gathers = [line for line in world.log if line.startswith("gather")]
    assert gathers == ["gather 0 2", "gather 1 2", "gather 0 3"]
    world.log.clear()
    world.pool.begin(PLAN)
    assert "gather 0 4" in world.log
    world.expect_pages(0, [9, 3, 20])


@pytest.mark.parametrize("order", list(BlockOrder))
def test_new_rows_reach_scratch_and_stripe_and_nothing_else(order: BlockOrder) -> None:
    world = World(order)
    before = [{name: stripe.copy() for name, stripe in layer.items()} for layer in world.stripes]
    locations = np.array([11 * PAGE + k for k in range(PAGE)] + [2 * PAGE, 0, 1])
    rows = np.arange(7 * 8, dtype=np.uint8).reshape(7, 8)
    with world.pool.batch(PLAN):
        views = world.pool.read(0)
        world.pool.write(0, "kv", locations, rows)
        found = views["kv"].reshape(-1, 8)[world.pool.rows("kv", locations[:5])]
        assert np.array_equal(found, rows[:5])
        trash = views["kv"].reshape(-1, 8)[world.pool.rows("kv", locations[5:])]
        assert np.array_equal(trash, rows[5:])
        for layer in range(LAYERS):
            world.expect_pages(layer, [9, 3, 20])
    before[0]["kv"].reshape(-1, 8)[locations[:5]] = rows[:5]
    for layer, stripes in enumerate(world.stripes):
        for name, stripe in stripes.items():
            assert np.array_equal(stripe, before[layer][name]), (layer, name)


def test_rows_of_a_cached_prefix_are_not_overwritten() -> None:
    world = World()
    world.pool.begin(PLAN)
    with pytest.raises(InvalidArgumentError, match="new tokens, got a cached 12"):
        world.pool.write(0, "kv", [44, 12], np.zeros((2, 8), np.uint8))
    with pytest.raises(InvalidArgumentError, match="expected 2 C-contiguous rows of 8 bytes"):
        world.pool.write(0, "kv", [44, 45], np.zeros((2, 7), np.uint8))
    with pytest.raises(InvalidArgumentError, match="got 'value'"):
        world.pool.rows("value", [1])


def test_a_gather_that_fails_ends_the_pool() -> None:
    world = World()
    world.allgather.fails_at = 2
    world.pool.begin(PLAN)
    world.pool.read(0)
    with pytest.raises(TransferError, match="a peer died"):
        world.pool.read(1)
    with pytest.raises(InvalidArgumentError, match="after a gather that failed"):
        world.pool.read(2)
    world.log.clear()
    world.pool.end()
    assert world.log == []
    with pytest.raises(InvalidArgumentError, match="after a gather that failed"):
        world.pool.begin(PLAN)
    world.pool.close()


def test_a_first_gather_that_fails_leaves_no_batch() -> None:
    world = World()
    world.allgather.fails_at = 1
    with pytest.raises(TransferError, match="a peer died"):
        world.pool.begin(PLAN)
    with pytest.raises(InvalidArgumentError, match="expected a batch that was begun"):
        world.pool.read(0)
    world.pool.end()


def test_a_read_waits_for_its_gather_and_not_for_the_next() -> None:
    lane = DeferredLane()
    world = World(lane=lane)
    world.pool.begin(PLAN)
    assert (world.log, len(lane.pending)) == ([], 1)
    world.expect_pages(0, [9, 3, 20])
    assert [line for line in world.log if line.startswith("gather")] == ["gather 0 1"]
    assert len(lane.pending) == 1


def test_gathers_overlap_on_an_executor_and_their_failures_arrive() -> None:
    with ThreadPoolExecutor(1) as executor:
        world = World(lane=ExecutorLane(executor))
        with world.pool.batch(PLAN):
            for layer in range(LAYERS):
                world.expect_pages(layer, [9, 3, 20])
        world.allgather.fails_at = 4
        world.pool.begin(PLAN)
        with pytest.raises(TransferError, match="a peer died"):
            world.pool.read(0)


def test_a_wait_on_an_executor_is_bounded_and_says_for_what() -> None:
    may_end = Event()
    with ThreadPoolExecutor(1) as executor:
        ready = ExecutorLane(executor).submit(lambda: None)
        ready()
        ready()
        ready = ExecutorLane(executor, bound_seconds=0.05).submit(lambda: bool(may_end.wait(30)))
        with pytest.raises(DeadlineError, match="expected a gather to end within"):
            ready()
        may_end.set()

        def late() -> None:
            raise DeadlineError("deadline", "rank 3", None, "no word")

        with pytest.raises(DeadlineError, match="rank 3"):
            ExecutorLane(executor).submit(late)()


def test_stripes_that_do_not_fit_are_refused() -> None:
    world = World()
    stripes = make_stripes()
    stripes[2]["kv"] = stripes[2]["kv"][:31]
    with pytest.raises(InvalidArgumentError, match="kv of layer 2 as uint8 of shape"):
        ShardedPool(stripes, SHAPE, world.allgather)
    with pytest.raises(InvalidArgumentError, match="'value' in layer 0"):
        ShardedPool([{"value": np.zeros((32, 32), np.uint8)}], SHAPE, world.allgather)
    with pytest.raises(InvalidArgumentError, match="at least 1 layer"):
        ShardedPool([], SHAPE, world.allgather)
    frozen = make_stripes()
    frozen[0]["kv"].flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="kv of layer 0 writable, got a read-only"):
        ShardedPool(frozen, SHAPE, world.allgather)
    other = make_gather_shape(
        ranks=1, page_size=PAGE, logical_page_count=32, context_tokens=44, chunk_tokens=12
    )
    with pytest.raises(InvalidArgumentError, match="is the shape's"):
        ShardedPool(make_stripes(), other, world.allgather)
    with pytest.raises(InvalidArgumentError, match="expected a plan of"):
        world.pool.begin(GatherPlan(other, [], []))


def test_ranks_with_other_layers_are_named() -> None:
    world = World()
    exchanged = iter([["a", "a", "b"]])
    world.allgather._exchange = lambda text: next(exchanged)
    with pytest.raises(TransferError, match="expected 'a' as on rank 0, got 'b'") as caught:
        ShardedPool(make_stripes(), SHAPE, world.allgather)
    assert caught.value.peer == "rank 2"


# --- admission ---------------------------------------------------------------------------------


def test_a_batch_takes_what_a_slot_holds() -> None:
    shape = GatherShape(
        ranks=2, page_size=4, logical_page_count=64, prefix_region_pages=8, chunk_region_pages=5
    )
    budget = ScratchBudget(shape)
    assert budget.admit(prefix_tokens=12, new_tokens=5)  # 3 pages are 2 rounds of 2 ranks
    assert (budget.prefix_pages_left, budget.chunk_pages_left) == (4, 3)
    assert not budget.admit(prefix_tokens=20, new_tokens=1)
    assert not budget.admit(prefix_tokens=0, new_tokens=13)
    assert budget.admit(prefix_tokens=16, new_tokens=12)
    assert (budget.prefix_pages_left, budget.chunk_pages_left) == (0, 0)
    with pytest.raises(CapacityError):
        ScratchBudget(shape).admit(prefix_tokens=36, new_tokens=1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_owners_of_a_request_go_round(ranks: int) -> None:
    allocator = PageAllocator(ranks, 16)
    rng = np.random.default_rng(ranks)
    held: list[list[int]] = []
    for _ in range(200):
        if held and rng.random() < 0.4:
            allocator.free(held.pop(int(rng.integers(len(held)))))
        after = held[-1][-1] if held and rng.random() < 0.3 else None
        count = int(rng.integers(1, 2 * ranks + 1))
        if count > allocator.available_pages:
            continue
        pages = allocator.allocate(count, after=after)
        owners = [page % ranks for page in pages]
        first = owners[0] if after is None else (after + 1) % ranks
        assert owners == [(first + k) % ranks for k in range(count)]
        held.append(pages)
        taken = [page for pages in held for page in pages]
        assert len(set(taken)) == len(taken)
        assert min(taken) >= ranks  # local page 0 of each rank
        assert len(taken) + allocator.free_pages == 15 * ranks


def test_a_new_request_starts_at_the_rank_with_most_free_pages() -> None:
    allocator = PageAllocator(3, 8)
    assert [page % 3 for page in allocator.allocate(2)] == [0, 1]
    assert [page % 3 for page in allocator.allocate(2)] == [2, 0]
    assert [page % 3 for page in allocator.allocate(1)] == [1]
    assert (allocator.available_pages, allocator.free_pages) == (15, 16)


def test_pages_are_dealt_all_or_none() -> None:
    allocator = PageAllocator(2, 3)
    with pytest.raises(CapacityError, match="expected 3 free pages on rank 0, got 2"):
        allocator.allocate(5)
    assert allocator.free_pages == 4
    pages = allocator.allocate(4)
    with pytest.raises(InvalidArgumentError, match="dealt, got 1"):
        allocator.free([1])
    for bad, named in (([10**6], 10**6), ([pages[0], 1], 1), ([pages[0], pages[0]], pages[0])):
        free_pages = allocator.free_pages
        with pytest.raises(InvalidArgumentError, match=f"dealt, got {named}"):
            allocator.free(bad)
        assert allocator.free_pages == free_pages
    allocator.free(pages)
    with pytest.raises(InvalidArgumentError, match="dealt, got 2"):
        allocator.free([2])
