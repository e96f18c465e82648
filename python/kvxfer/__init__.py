# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Moves the KV cache of large language models between workers that shard it differently."""

from kvxfer._core import (
    CapacityError,
    Error,
    HeadSharding,
    InvalidArgumentError,
    MemoryView,
    PackBufferLayout,
    PackPlan,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    Sharding,
    UnsupportedError,
    WriteList,
    compiled_facts,
    copy_rows,
    direct_writes,
    landing_write,
    memory_view,
    pack_rows,
    packed_writes,
    split_segments,
    unpack_rows,
)
from kvxfer.build_info import build_info
from kvxfer.errors import DeadlineError, TransferError

__version__: str = compiled_facts()["version"]

__all__ = [
    "CapacityError",
    "DeadlineError",
    "Error",
    "HeadSharding",
    "InvalidArgumentError",
    "MemoryView",
    "PackBufferLayout",
    "PackPlan",
    "PageTable",
    "Plane",
    "PlaneKind",
    "PoolLayout",
    "Relayout",
    "Segment",
    "Sharding",
    "TransferError",
    "UnsupportedError",
    "WriteList",
    "build_info",
    "copy_rows",
    "direct_writes",
    "landing_write",
    "memory_view",
    "pack_rows",
    "packed_writes",
    "split_segments",
    "unpack_rows",
]
