# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

from collections.abc import Sequence
from typing import Any

from kvxfer._core import (
    Error,
    PackBufferLayout,
    PackPlan,
    PageTable,
    Relayout,
    Segment,
)

class CudaError(Error):
    code: int

class CompletionWords:
    def __init__(self, count: int) -> None: ...
    def write(self, index: int, value: int, *, stream: Any) -> None: ...
    def wait(self, index: int, value: int, *, stream: Any) -> None: ...
    def read(self, index: int) -> int: ...
    def set(self, index: int, value: int) -> None: ...
    def __len__(self) -> int: ...

class PackTables:
    def __init__(self, layout: PackBufferLayout, source_addresses: Sequence[int]) -> None: ...
    @property
    def layout(self) -> PackBufferLayout: ...

class UnpackTables:
    def __init__(
        self, relayouts: Sequence[Relayout], destination_addresses: Sequence[int]
    ) -> None: ...

class CopyTables:
    def __init__(
        self,
        relayout: Relayout,
        source_addresses: Sequence[int],
        destination_addresses: Sequence[int],
    ) -> None: ...

def pack_rows(
    tables: PackTables,
    plan: PackPlan,
    source: PageTable,
    buffer: Any,
    *,
    stream: Any,
    max_ctas: int = 0,
    after: Any = None,
) -> None: ...
def unpack_rows(
    tables: UnpackTables,
    regions: Sequence[tuple[int, Segment, Any]],
    destination: PageTable,
    *,
    stream: Any,
    max_ctas: int = 0,
    after: Any = None,
) -> None: ...
def copy_rows(
    tables: CopyTables,
    segment: Segment,
    source: PageTable,
    destination: PageTable,
    *,
    stream: Any,
    max_ctas: int = 0,
    after: Any = None,
) -> None: ...
