# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's pack of a segment, done by kvxfer's row copies from the page list."""

import importlib
import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

import kvxfer
from kvxfer import Error, PackBufferLayout, PageTable, Plane, PlaneKind, PoolLayout, Relayout
from kvxfer.adapters.sglang._rows import PlannedRows, RowSource, page_count_for


@lru_cache(maxsize=256)
def _layout(
    page_size: int, sharding: Any, widths: tuple[tuple[int, int], ...], buffer_bytes: int
) -> PackBufferLayout:
    count = page_count_for(page_size)
    source = PoolLayout(
        page_size,
        count,
        [
            Plane(number, PlaneKind.LATENT, row_bytes, row_stride_bytes=stride_bytes)
            for number, (row_bytes, stride_bytes) in enumerate(widths)
        ],
    )
    planes = [
        Plane(number, PlaneKind.LATENT, row_bytes) for number, (row_bytes, _) in enumerate(widths)
    ]
    relayout = Relayout(source, PoolLayout(page_size, count, planes, sharding=sharding))
    capacity_tokens = PackBufferLayout.capacity_for([relayout], buffer_bytes)
    return PackBufferLayout([relayout], capacity_tokens)


@lru_cache(maxsize=256)
def _device_tables(layout: PackBufferLayout, addresses: tuple[int, ...], device: str) -> Any:
    del device  # of the tables: the current one
    return importlib.import_module("kvxfer.cuda").PackTables(layout, addresses)


def _producer_stream(buffer: Any, cuda: Any) -> Any:
    """Return what the pack follows; SGLang 0.5.22 has no method for it."""
    known = getattr(buffer, "producer_stream", None)
    return cuda.default_stream(buffer.buffer.device) if known is None else known()


class PackRows:
    """Stands in for ``try_pack_dcp_src``; what kvxfer cannot pack, SGLang packs itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.packed = 0
        self.handed_back = 0

    def __call__(self, original: Callable[..., Any], **given: Any) -> Any:
        """Return the address of each packed plane and the dense rows, as SGLang's function does."""
        rows = given["src_token_indices"]
        source = rows.source if isinstance(rows, PlannedRows) else None
        try:
            result = None if source is None else self._pack(source, given)
        except Error:
            result = None
        with self._lock:
            self.packed += result is not None
            self.handed_back += result is None
        return original(**given) if result is None else result

    def _pack(self, source: RowSource, given: dict[str, Any]) -> Any:
        """Pack one region; None where it is empty or does not fit."""
        buffer, count = given["pack_buffer"], given["src_token_indices"].size
        widths = [int(width) for width in given["token_item_lens"]]
        strides = [int(width) for width in given.get("src_token_item_lens") or widths]
        begin, size = given.get("pack_offset_bytes", 0), count * sum(widths)
        room = given.get("pack_capacity_bytes")
        if count == 0 or not buffer.fits(begin + size) or (room is not None and size > room):
            return None
        pairs = tuple(zip(widths, strides, strict=True))
        layout = _layout(source.page_size, source.sharding, pairs, buffer.get_size())
        addresses = tuple(int(address) for address in given["kv_data_ptrs"])
        table = PageTable(
            layout.relayouts[0].source,
            source.pages,
            first_position=source.begin,
            plane_addresses=addresses,
        )
        plan = layout.plan(kvxfer.Segment(source.begin, source.end, is_final=False))
        _copy(buffer, (begin, size), layout, plan, table, addresses)
        starts = accumulate((count * width for width in widths[:-1]), initial=0)
        base = buffer.get_ptr() + begin
        return [base + start for start in starts], np.arange(count, dtype=np.int64)


def _copy(
    buffer: Any,
    span: tuple[int, int],
    layout: PackBufferLayout,
    plan: kvxfer.PackPlan,
    table: PageTable,
    addresses: tuple[int, ...],
) -> None:
    """Copy on the host, or on the buffer's own stream and wait for it, as SGLang does."""
    region = buffer.buffer.narrow(0, *span)
    if region.device.type == "cpu":
        kvxfer.pack_rows(layout, plan, table, region)
        return
    cuda = importlib.import_module("torch").cuda
    with cuda.device(region.device):
        tables = _device_tables(layout, addresses, str(region.device))
        stream = buffer.get_gather_stream()
        stream.wait_stream(_producer_stream(buffer, cuda))
        importlib.import_module("kvxfer.cuda").pack_rows(tables, plan, table, region, stream=stream)
        stream.synchronize()
