# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Engines of any shape for connector tests: real schedulers, workers and transports, fake models.

Every byte of a cache says which layer, head and position it belongs to, or that nobody wrote it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvxfer.adapters._connector.caches import CacheArray, make_pool
from kvxfer.adapters._connector.ends import RankEnds
from kvxfer.adapters._connector.offer import GroupTerms, RankReport
from kvxfer.adapters._connector.scheduler import ConnectorScheduler, RequestView
from kvxfer.adapters._connector.settings import ConnectorSettings
from kvxfer.adapters._connector.shape import EngineShape
from kvxfer.adapters._connector.worker import ConnectorWorker, Ended
from support.adapter_world import wait_until

POISON = 0xEE
# How a layout orders layer, page, head and row in memory.
ORDERS = {"LBHN": (0, 1, 2, 3), "LBNH": (0, 1, 3, 2), "BLHN": (1, 0, 2, 3), "BLNH": (1, 0, 3, 2)}


@dataclass(frozen=True)
class Model:
    """Layers of each group, and bytes of a head's row."""

    groups: tuple[tuple[int, ...], ...] = ((0, 1),)
    row_bytes: int = 8


@dataclass
class Rank:
    """One worker: its caches as pages x heads x rows x bytes, and its connector."""

    stage: int
    tp_rank: int
    caches: dict[int, NDArray[np.uint8]]
    ends: RankEnds
    worker: ConnectorWorker
    memory: list[NDArray[np.uint8]] = field(default_factory=list)


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is made of; sizes of pages are the same for all groups."""

    shape: EngineShape
    page_size: int = 4
    page_count: int = 32
    order: str = "LBHN"
    kernel_page_size: int = 0  # rows of a page in memory; 0: page_size
    has_whole_pages: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


class FakeEngine:
    """One engine: a scheduler side, and one worker side for each rank."""

    def __init__(self, name: str, model: Model, spec: EngineSpec, receivers: EngineShape) -> None:
        self.spec, self.model, self.shape = spec, model, spec.shape
        self.scheduler = ConnectorScheduler(spec.shape, receivers)
        self._closing = contextlib.ExitStack()
        self.ranks = [
            self._make_rank(name, stage, tp_rank)
            for stage in range(spec.shape.pp_size)
            for tp_rank in range(spec.shape.tp_size)
        ]
        self.scheduler.set_ranks(
            {(r.stage, r.tp_rank): self._report(r) for r in self.ranks},
        )
        self.ended = [Ended() for _ in self.ranks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.close()

    # -- what an engine does --------------------------------------------------------------------

    def step(self) -> None:
        """One engine step of every worker."""
        orders = self.scheduler.take_orders()
        for rank, ended in zip(self.ranks, self.ended, strict=True):
            rank.worker.apply(orders)
            now = rank.worker.collect()
            ended.sent |= now.sent
            ended.received |= now.received
            ended.failed |= now.failed

    def is_sent(self, request_id: str) -> bool:
        return all(request_id in ended.sent for ended in self.ended)

    def is_received(self, request_id: str) -> bool:
        return all(request_id in ended.received for ended in self.ended)

    def failures(self, request_id: str) -> list[str]:
        return [e.failed[request_id] for e in self.ended if request_id in e.failed]

    def prefill(self, name: str, tokens: int, pages: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Compute a prompt and finish it; returns what a router carries on."""
        self.write(pages, 0, tokens)
        view = RequestView(name, {"do_remote_decode": True}, tokens, tokens)
        params = self.scheduler.finished(view, pages, is_complete=True)
        assert params is not None
        return params

    def load(
        self, name: str, params: dict[str, Any], tokens: int, pages: Sequence[Sequence[int]],
        computed: int = 0,
    ) -> int:  # fmt: skip
        """Allocate pages for a load and order it; returns the tokens to load."""
        view = RequestView(name, params, tokens, computed)
        count = self.scheduler.external_tokens(view)
        self.scheduler.allocated(view, pages, count)
        return count

    # -- bytes ----------------------------------------------------------------------------------

    def write(self, pages: Sequence[Sequence[int]], begin: int, end: int) -> None:
        """Write the rows of [begin, end) on every rank that owns them."""
        for rank, layer, head, rows in self._rows(pages, begin, end):
            for position, page, row in rows:
                local = head - self.shape.heads(rank.tp_rank).start
                rank.caches[layer][page, local, row] = content(
                    layer, head, position, self.model.row_bytes
                )

    def expected(self, written: Sequence[tuple[Sequence[Sequence[int]], int, int]]) -> list[Any]:
        """Return every rank's caches as they are if only (pages, begin, end) were written."""
        clean = [
            {layer: np.full_like(cache, POISON) for layer, cache in rank.caches.items()}
            for rank in self.ranks
        ]
        index = {id(rank): i for i, rank in enumerate(self.ranks)}
        for pages, begin, end in written:
            for rank, layer, head, rows in self._rows(pages, begin, end):
                for position, page, row in rows:
                    local = head - self.shape.heads(rank.tp_rank).start
                    clean[index[id(rank)]][layer][page, local, row] = content(
                        layer, head, position, self.model.row_bytes
                    )
        return clean

    def check(self, *written: tuple[Sequence[Sequence[int]], int, int]) -> None:
        """Compare every byte of every rank."""
        for rank, caches in zip(self.ranks, self.expected(written), strict=True):
            for layer, cache in caches.items():
                where = f"stage {rank.stage} rank {rank.tp_rank} layer {layer}"
                np.testing.assert_array_equal(rank.caches[layer], cache, err_msg=where)

    # -- own ------------------------------------------------------------------------------------

    def _rows(self, pages: Sequence[Sequence[int]], begin: int, end: int) -> Any:
        """Yield (rank, layer, head, [(position, page, row)]), page and row in memory's terms.

        Ownership is written here once more, by vLLM's rule, not asked of the product.
        """
        shape, size = self.shape, self.spec.page_size
        kernel = self.spec.kernel_page_size or size
        for rank in self.ranks:
            for group, layers in enumerate(self.model.groups):
                rows = []
                for position in range(begin, end):
                    if (
                        position // shape.interleave % shape.dcp_size
                        != rank.tp_rank % shape.dcp_size
                    ):
                        continue
                    period = shape.interleave * shape.dcp_size
                    local = position // period * shape.interleave + position % shape.interleave
                    page = pages[group][position // (size * shape.dcp_size)]
                    row = local % size
                    rows.append((position, page * (size // kernel) + row // kernel, row % kernel))
                for layer in layers:
                    if layer in rank.caches:
                        for head in shape.heads(rank.tp_rank):
                            yield rank, layer, head, rows

    def _make_rank(self, name: str, stage: int, tp_rank: int) -> Rank:
        spec, shape = self.spec, self.shape
        all_layers = sorted(layer for layers in self.model.groups for layer in layers)
        share = -(-len(all_layers) // shape.pp_size)
        layers = all_layers[stage * share : (stage + 1) * share]
        kernel = spec.kernel_page_size or spec.page_size
        sizes = (
            len(layers),
            spec.page_count * (spec.page_size // kernel),
            len(shape.heads(tp_rank)),
            kernel,
        )
        order = ORDERS[spec.order]
        memory = np.full([sizes[axis] for axis in order] + [self.model.row_bytes], POISON, np.uint8)
        logical = memory.transpose([*np.argsort(order), 4])
        caches = {layer: logical[i] for i, layer in enumerate(layers)}
        pools = [
            make_pool(
                [_array(layer, caches[layer]) for layer in group if layer in caches],
                shape.heads(tp_rank),
                shape.total_heads,
                shape.sharding(tp_rank),
            )
            for group in self.model.groups
        ]
        settings = ConnectorSettings.of(
            {**spec.settings, "options": {"pack_tokens": 16, **spec.settings.get("options", {})}}
        )
        ends = self._closing.enter_context(RankEnds(f"{name}-{stage}-{tp_rank}", pools, settings))
        worker = ConnectorWorker(
            shape, tp_rank, ends.managers, [spec.page_size] * len(self.model.groups)
        )
        return Rank(stage, tp_rank, caches, ends, worker, [memory])

    def _report(self, rank: Rank) -> RankReport:
        groups = [
            GroupTerms(
                self.spec.page_size,
                tuple(layer for layer in layers if layer in rank.caches),
                self.spec.has_whole_pages,
            )
            for layers in self.model.groups
        ]
        return RankReport(rank.ends.addresses, tuple(groups))


def content(layer: int, head: int, position: int, row_bytes: int) -> NDArray[np.uint8]:
    """Bytes of a row, unlike those of any other row nearby."""
    key = (layer * 131 + head) * 1009 + position
    return np.frombuffer(key.to_bytes(row_bytes - 1, "little") + b"\x11", np.uint8)


def drive(engines: Sequence[FakeEngine], is_done: Callable[[], bool]) -> None:
    """Step engines until something holds."""

    def step() -> bool:
        for engine in engines:
            engine.step()
        return is_done()

    wait_until(step)


def _array(layer: int, cache: NDArray[np.uint8]) -> CacheArray:
    page_count, head_count, page_size, row_bytes = cache.shape
    return CacheArray(
        layer=layer,
        address=cache.ctypes.data,
        page_count=page_count,
        head_count=head_count,
        page_size=page_size,
        row_bytes=row_bytes,
        page_stride_bytes=cache.strides[0],
        head_stride_bytes=cache.strides[1],
        row_stride_bytes=cache.strides[2],
        dtype="uint8",
    )
