# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that prefill a small model over a page-sharded pool, and the same on one process.

Every rank computes every token, as attention does whose KV would be replicated, and keeps the pages
that it owns. Attention sees a store alone: rows by request and position.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kvxfer.demo import model as demo_model
from kvxfer.sharded import (
    BlockOrder,
    ExecutorLane,
    GatherLane,
    GatherPlan,
    HostPrefixAllgather,
    PageAllocator,
    ScratchBudget,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    ShardedPool,
    make_gather_shape,
)
from support.sharded_lanes import DeferredLane, UnwaitedLane
from support.sharded_world import Inbox

RANKS, PAGE, LOCAL_PAGES = 3, 4, 12
HEADS, HEAD_SIZE = 2, 16
ROW_BYTES = HEADS * HEAD_SIZE * 4
LAYERS = {"main": 5, "draft": 1}
KINDS = ("key", "value")
POISON = 0xFF  # as float32 no number, which spoils every sum that it enters
SHARED = 16
FAULTY_RANK = 1
ATTENTION = "kvxfer_test_store"

_rng = np.random.default_rng(11)
_FIRST = _rng.integers(0, 96, 43)
TOKENS = {"a": _FIRST, "b": np.concatenate([_FIRST[:SHARED], _rng.integers(0, 96, 30 - SHARED)])}
SHAPE = make_gather_shape(
    ranks=RANKS,
    page_size=PAGE,
    logical_page_count=RANKS * LOCAL_PAGES,
    context_tokens=44,
    context_count=2,
    chunk_tokens=24,
)


@dataclass(frozen=True)
class Piece:
    """Positions [begin, end) of a request that a batch computes; before them lies its prefix."""

    request: str
    begin: int
    end: int


# "b" finds its first pages in the cache that "a" left; both end inside a page.
BATCHES = [
    [Piece("a", 0, 20)],
    [Piece("a", 20, 32), Piece("b", SHARED, 24)],
    [Piece("a", 32, 43), Piece("b", 24, 30)],
]


class Tables:
    """Pages of the requests; every rank holds the same."""

    def __init__(self) -> None:
        self._allocator = PageAllocator(RANKS, LOCAL_PAGES)
        self.pages: dict[str, list[int]] = {"a": []}

    def plan(self, batch: list[Piece]) -> GatherPlan:
        budget = ScratchBudget(SHAPE)
        prefixes, chunk = [], []
        for piece in batch:
            assert budget.admit(piece.begin, piece.end - piece.begin)
            held = self.pages.setdefault(piece.request, self.pages["a"][: SHARED // PAGE])
            assert len(held) * PAGE == piece.begin
            prefixes.append(list(held))
            count = -(-piece.end // PAGE) - len(held)
            chunk += self._allocator.allocate(count, after=held[-1] if held else None)
            held += chunk[len(chunk) - count :]
        return GatherPlan(SHAPE, prefixes, chunk)

    def locations(self, piece: Piece, begin: int) -> NDArray[np.int64]:
        positions = np.arange(begin, piece.end)
        return np.array(self.pages[piece.request])[positions // PAGE] * PAGE + positions % PAGE


# --- the model ---------------------------------------------------------------------------------


class Store(Protocol):
    """Keys and values of one batch, as attention sees them."""

    batch: list[Piece]

    def put(self, layer: int, rows: tuple[torch.Tensor, torch.Tensor]) -> None: ...

    def get(self, layer: int, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]: ...


def make_model(pool: str) -> Any:
    """A Llama of random weights, large enough to tell tokens apart."""
    from transformers import LlamaConfig, LlamaForCausalLM

    demo_model.prepare_torch()
    torch.manual_seed(LAYERS[pool])
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS[pool],
        num_attention_heads=4,
        num_key_value_heads=HEADS,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **others: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention of each request of the batch over the rows that its store has."""
    store: Store = others["kv_store"]
    new = tuple(rows[0].transpose(0, 1).contiguous() for rows in (key, value))
    store.put(module.layer_idx, (new[0], new[1]))
    outputs, first = [], 0
    for piece in store.batch:
        count = piece.end - piece.begin
        keys, values = (
            rows.transpose(0, 1).repeat_interleave(query.shape[1] // HEADS, dim=0)
            for rows in store.get(module.layer_idx, piece)
        )
        scores = query[0, :, first : first + count] @ keys.transpose(1, 2) * others["scaling"]
        hidden = torch.arange(piece.end)[None] > torch.arange(piece.begin, piece.end)[:, None]
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        outputs.append(weights @ values)
        first += count
    return torch.cat(outputs, dim=1).transpose(0, 1)[None].contiguous(), None


def run_batch(model: Any, store: Store) -> NDArray[np.float32]:
    """Logits after the last token of each piece, shape (pieces, vocabulary)."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    model.set_attn_implementation(ATTENTION)
    ids = np.concatenate([TOKENS[p.request][p.begin : p.end] for p in store.batch])
    positions = np.concatenate([np.arange(p.begin, p.end) for p in store.batch])
    ends = np.cumsum([p.end - p.begin for p in store.batch]) - 1
    with torch.inference_mode():
        output = model(
            torch.from_numpy(ids)[None],
            position_ids=torch.from_numpy(positions)[None],
            use_cache=False,
            kv_store=store,
        )
    logits: NDArray[np.float32] = output.logits[0, torch.from_numpy(ends)].numpy()
    return logits


class PlainStore:
    """One process: each request's rows in one tensor."""

    def __init__(self) -> None:
        self.batch: list[Piece] = []
        self.rows: dict[tuple[int, str], list[torch.Tensor]] = {}

    def put(self, layer: int, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
        first = 0
        for piece in self.batch:
            held = self.rows.get((layer, piece.request))
            if held is None:
                shared = self.rows.get((layer, "a"), [row[:0] for row in rows])
                held = [row[: piece.begin] for row in shared]
            count = piece.end - piece.begin
            new = [row[first : first + count] for row in rows]
            joined = [torch.cat(pair) for pair in zip(held, new, strict=True)]
            self.rows[layer, piece.request] = joined
            first += count

    def get(self, layer: int, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.rows[layer, piece.request]
        return keys, values


class ScratchStore:
    """A rank: new rows go to the pool, all are read through the translated scratch."""

    def __init__(self, pool: ShardedPool, tables: Tables, batch: list[Piece]) -> None:
        self.batch = batch
        self._pool = pool
        self._tables = tables
        self._new = np.concatenate([tables.locations(piece, piece.begin) for piece in batch])

    def put(self, layer: int, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
        for kind, data in zip(KINDS, rows, strict=True):
            self._pool.write(layer, kind, self._new, data.numpy())

    def get(self, layer: int, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        views = self._pool.read(layer)
        locations = self._tables.locations(piece, 0)
        keys, values = (
            views[kind].reshape(-1, ROW_BYTES)[self._pool.rows(kind, locations)] for kind in KINDS
        )
        return _as_rows(keys), _as_rows(values)


def _as_rows(rows: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(rows.view(np.float32)).reshape(-1, HEADS, HEAD_SIZE).clone()


# --- the ranks ---------------------------------------------------------------------------------


class MisplacingPool(ShardedPool):
    """Keeps new pages where another rank should."""

    def _places(self, locations: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        owner, rows = super()._places(locations)
        return (owner + 1) % RANKS, rows


class ForgetfulAllgather(HostPrefixAllgather):
    """Leaves an older layer's pages in its block once."""

    packed = 0

    def pack(self, *args: Any) -> None:
        self.packed += 1
        if self.packed != 4:
            super().pack(*args)


@dataclass(frozen=True)
class ModelJob:
    """What the ranks do one after another: prefill, each time with one fault."""

    faults: tuple[str, ...]
    ranks: int = RANKS
    wrong: str = ""


@dataclass(frozen=True)
class Prefilled:
    """What a rank has after the batches."""

    logits: dict[str, list[NDArray[np.float32]]]  # by pool, of each batch
    stripes: dict[str, list[dict[str, NDArray[np.uint8]]]]  # by pool, of each layer


class Rank:
    """Two pools of one rank and their models."""

    def __init__(self, rank: int, inbox: Inbox, fault: str, lane: GatherLane) -> None:
        self._is_faulty = rank == FAULTY_RANK
        self._fault = fault if self._is_faulty else ""
        self.stripes: dict[str, list[dict[str, NDArray[np.uint8]]]] = {}
        self.pools = {
            "main": self._pool("main", rank, inbox, BlockOrder.DENSE, lane),
            "draft": self._pool("draft", rank, inbox, BlockOrder.JOINED, None),
        }

    def _pool(
        self, name: str, rank: int, inbox: Inbox, order: BlockOrder, lane: GatherLane | None
    ) -> ShardedPool:
        tensors = [ScratchTensor(kind, PAGE * ROW_BYTES) for kind in KINDS]
        layout = ScratchLayout(ScratchSpec(tensors, SHAPE, order=order))
        forgets = self._fault == "stale slot" and name == "main"
        gather_type = ForgetfulAllgather if forgets else HostPrefixAllgather
        allgather = gather_type(layout, rank, inbox.exchange, bound_seconds=30.0)
        for slot in range(2):
            for tensor in range(len(tensors)):
                allgather.view(slot, tensor)[:] = POISON
        self.stripes[name] = [
            {kind: np.full((LOCAL_PAGES, PAGE * ROW_BYTES), POISON, np.uint8) for kind in KINDS}
            for _ in range(LAYERS[name])
        ]
        pool_type = MisplacingPool if self._fault == "wrong owner" else ShardedPool
        return pool_type(self.stripes[name], SHAPE, allgather, lane=lane)


def _prefill(models: dict[str, Any], rank: int, inbox: Inbox, fault: str) -> Prefilled:
    with ExitStack() as stack:
        lane: Any = ExecutorLane(stack.enter_context(ThreadPoolExecutor(1)), bound_seconds=60.0)
        if fault == "late gathers":
            lane = DeferredLane()
        if fault == "skipped wait" and rank == FAULTY_RANK:
            lane = UnwaitedLane()
        side = Rank(rank, inbox, fault, lane)
        tables = Tables()
        logits: dict[str, list[NDArray[np.float32]]] = {name: [] for name in models}
        for batch in BATCHES:
            plan = tables.plan(batch)
            for name, pool in side.pools.items():
                with pool.batch(plan):
                    store = ScratchStore(pool, tables, batch)
                    logits[name].append(run_batch(models[name], store))
                    if isinstance(lane, UnwaitedLane):
                        lane.flush()
        for pool in side.pools.values():
            pool.close()
    return Prefilled(logits, side.stripes)


def prefill(job: ModelJob, rank: int, inbox: Inbox) -> dict[str, Prefilled]:
    """Run all batches once for each fault of the job."""
    models = {name: make_model(name) for name in LAYERS}
    return {fault: _prefill(models, rank, inbox, fault) for fault in job.faults}


def rows_in_order(
    ranks: Sequence[Prefilled], pool: str, layer: int, kind: str, pages: list[int], count: int
) -> NDArray[np.uint8]:
    """A request's rows from the stripes of the ranks that own its pages."""
    parts = [ranks[page % RANKS].stripes[pool][layer][kind][page // RANKS] for page in pages]
    return np.concatenate(parts).reshape(-1, ROW_BYTES)[:count]
