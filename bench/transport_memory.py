# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Memory of one kind and what packs its rows: host memory with NumPy, GPU memory with torch.

``make_copies`` also gives the published way of packing as a baseline: for each destination rank the
row numbers are made on the host, token by token, and the rows gathered with them before the next
rank's turn.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvxfer import PackBufferLayout, PackPlan, PageTable, Relayout, Segment
from kvxfer.transfer import HostCopies, RowCopies

Kind: TypeAlias = Literal["host", "cuda"]
Packing: TypeAlias = Literal["kvxfer", "published"]
Bytes: TypeAlias = NDArray[np.uint8]

POISON = 0xA5


class Memory(Protocol):
    """One allocation. ``to_host`` and ``from_host`` are the same array where it is host memory."""

    address: int

    def to_host(self) -> Bytes: ...

    def from_host(self, content: Bytes) -> None: ...


class HostMemory:
    def __init__(self, size_bytes: int) -> None:
        self._bytes = np.full(size_bytes, POISON, np.uint8)
        self.address = self._bytes.ctypes.data

    def to_host(self) -> Bytes:
        return self._bytes

    def from_host(self, content: Bytes) -> None:
        if content is not self._bytes:
            self._bytes[:] = content


class CudaMemory:
    """Bytes on GPU 0."""

    def __init__(self, size_bytes: int) -> None:
        import torch

        self._torch: Any = torch
        self._bytes: Any = torch.full((size_bytes,), POISON, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.address: int = self._bytes.data_ptr()

    def to_host(self) -> Bytes:
        self._torch.cuda.synchronize()
        content: Bytes = self._bytes.cpu().numpy()
        return content

    def from_host(self, content: Bytes) -> None:
        self._bytes.copy_(self._torch.from_numpy(content))
        self._torch.cuda.synchronize()


class CudaCopies:
    """kvxfer's kernels on a stream of their own; nothing waits for them here."""

    def __init__(self, plane_addresses: tuple[int, ...]) -> None:
        import torch

        self._torch: Any = torch
        self._addresses = plane_addresses
        self._stream: Any = torch.cuda.Stream()
        self._tables: dict[Any, Any] = {}

    def allocate(self, size_bytes: int) -> Any:
        memory = self._torch.zeros(size_bytes, dtype=self._torch.uint8, device="cuda")
        self._torch.cuda.synchronize()
        return memory

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> Any:
        import kvxfer.cuda

        ranks = tuple(relayout.destination.sharding.rank for relayout in layout.relayouts)
        key = (layout.capacity_tokens, ranks)
        if key not in self._tables:
            self._tables[key] = kvxfer.cuda.PackTables(layout, self._addresses)
        kvxfer.cuda.pack_rows(self._tables[key], plan, table, buffer, stream=self._stream)
        return self._stream.record_event()

    def unpack(self, relayout: Relayout, segment: Segment, region: Any, table: PageTable) -> Any:
        import kvxfer.cuda

        key = relayout.destination.sharding.rank
        if key not in self._tables:
            self._tables[key] = kvxfer.cuda.UnpackTables([relayout], self._addresses)
        regions = [(0, segment, region)]
        kvxfer.cuda.unpack_rows(self._tables[key], regions, table, stream=self._stream)
        return self._stream.record_event()


def rows_of(relayout: Relayout, segment: Segment, table: PageTable) -> NDArray[np.int64]:
    """Source rows that a destination rank gets of a segment, in position order, token by token."""
    sharding = relayout.destination.sharding
    positions = np.arange(segment.begin, segment.end, dtype=np.int64)
    owned = positions[positions // sharding.interleave % sharding.ranks == sharding.rank]
    page_size = relayout.source.page_size
    pages = np.asarray(table.pages)[(owned - table.first_position) // page_size]
    rows: NDArray[np.int64] = pages * page_size + owned % page_size
    return rows


class PublishedHostCopies(HostCopies):
    """The published way with NumPy: one gather for each rank and plane."""

    def __init__(self, planes: list[Bytes]) -> None:
        self._planes = planes

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> None:
        for region in plan.regions:
            rows = rows_of(layout.relayouts[region.index], plan.segment, table)
            packed = buffer[region.offset_bytes : region.offset_bytes + region.bytes]
            for plane, out in zip(
                self._planes, packed.reshape(len(self._planes), len(rows), -1), strict=True
            ):
                np.take(plane, rows, axis=0, out=out, mode="clip")


class PublishedCudaCopies(CudaCopies):
    """The published way on a GPU: index upload, one Triton launch and one wait for each rank."""

    def __init__(self, plane_addresses: tuple[int, ...], row_bytes: int) -> None:
        super().__init__(plane_addresses)
        torch = self._torch
        self._row_bytes = row_bytes
        self._planes = torch.tensor(plane_addresses, dtype=torch.int64, device="cuda")

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> Any:
        import triton
        from relayout_baselines import row_gather

        words = self._row_bytes // 4
        for region in plan.regions:
            rows = rows_of(layout.relayouts[region.index], plan.segment, table)
            packed = buffer[region.offset_bytes : region.offset_bytes + region.bytes]
            row_gather[(len(self._planes), len(rows))](
                self._planes,
                self._torch.from_numpy(rows).to("cuda"),
                packed.view(self._torch.int32),
                len(rows),
                row_words=words,
                block=triton.next_power_of_2(words),
            )
            self._torch.cuda.current_stream().synchronize()


def make_memory(kind: Kind, size_bytes: int) -> Memory:
    return HostMemory(size_bytes) if kind == "host" else CudaMemory(size_bytes)


def make_copies(
    kind: Kind, packing: Packing, memory: Memory, plane_addresses: tuple[int, ...], row_bytes: int
) -> RowCopies:
    """Return what packs the rows of planes that lie one behind the other in a memory."""
    if kind == "cuda":
        if packing == "published":
            return PublishedCudaCopies(plane_addresses, row_bytes)
        return CudaCopies(plane_addresses)
    if packing == "kvxfer":
        return HostCopies()
    planes = memory.to_host().reshape(len(plane_addresses), -1, row_bytes)
    return PublishedHostCopies(list(planes))
