# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
# Written by `make stubs`; a test compares it with the module.
from __future__ import annotations
import collections.abc
import kvxfer
import kvxfer._collective
import kvxfer._core
import typing

__all__: list[str] = [
    "CompletionWords",
    "CopyTables",
    "CudaError",
    "PackTables",
    "UnpackTables",
    "copy_rows",
    "pack_rows",
    "stream_calls",
    "unpack_rows",
]

class CudaError(kvxfer.Error): ...

class CompletionWords:
    def __init__(self, count: typing.SupportsIndex) -> None: ...
    def __len__(self) -> int: ...
    def read(self, index: typing.SupportsIndex) -> int: ...
    def set(self, index: typing.SupportsIndex, value: typing.SupportsIndex) -> None: ...
    def wait(
        self, index: typing.SupportsIndex, value: typing.SupportsIndex, *, stream: typing.Any
    ) -> None: ...
    def write(
        self, index: typing.SupportsIndex, value: typing.SupportsIndex, *, stream: typing.Any
    ) -> None: ...

class PackTables:
    def __init__(
        self,
        layout: kvxfer._core.PackBufferLayout,
        source_addresses: collections.abc.Sequence[typing.SupportsIndex],
    ) -> None: ...
    @property
    def layout(self) -> kvxfer._core.PackBufferLayout: ...

class UnpackTables:
    def __init__(
        self,
        relayouts: collections.abc.Sequence[kvxfer._core.Relayout],
        destination_addresses: collections.abc.Sequence[typing.SupportsIndex],
    ) -> None: ...

class CopyTables:
    def __init__(
        self,
        relayout: kvxfer._core.Relayout,
        source_addresses: collections.abc.Sequence[typing.SupportsIndex],
        destination_addresses: collections.abc.Sequence[typing.SupportsIndex],
    ) -> None: ...

def copy_rows(
    tables: CopyTables,
    segment: kvxfer._core.Segment,
    source: kvxfer._core.PageTable,
    destination: kvxfer._core.PageTable,
    *,
    stream: typing.Any,
    max_ctas: typing.SupportsIndex = 0,
    after: typing.Any = None,
) -> None: ...
def pack_rows(
    tables: PackTables,
    plan: kvxfer._core.PackPlan,
    source: kvxfer._core.PageTable,
    buffer: typing.Any,
    *,
    stream: typing.Any,
    max_ctas: typing.SupportsIndex = 0,
    after: typing.Any = None,
) -> None: ...
def stream_calls() -> kvxfer._collective.StreamCalls: ...
def unpack_rows(
    tables: UnpackTables,
    regions: collections.abc.Sequence[
        tuple[typing.SupportsIndex, kvxfer._core.Segment, typing.Any]
    ],
    destination: kvxfer._core.PageTable,
    *,
    stream: typing.Any,
    max_ctas: typing.SupportsIndex = 0,
    after: typing.Any = None,
) -> None: ...
