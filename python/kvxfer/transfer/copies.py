# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Who packs and unpacks rows: host memory here, a stream elsewhere."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from kvxfer import (
    PackBufferLayout,
    PackPlan,
    PageTable,
    Relayout,
    Segment,
    pack_rows,
    unpack_rows,
)

__all__ = ["HostCopies", "InlineExecutor", "Ready", "RowCopies", "failure_of", "start"]

P = ParamSpec("P")
R = TypeVar("R")


class Ready(Protocol):
    """Something that happens once, such as a CUDA event."""

    def query(self) -> bool:
        """Return whether it has happened, without waiting."""
        ...


class RowCopies(Protocol):
    """Packs and unpacks rows of one kind of memory.

    A call may block until its bytes have moved and return None, or only enqueue and return what to
    ask whether they have.
    """

    def allocate(self, size_bytes: int) -> Any:
        """Return an object that owns memory and that ``kvxfer.memory_view`` takes."""
        ...

    def pack(
        self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any
    ) -> Ready | None:
        """Pack the rows of a plan into a buffer."""
        ...

    def unpack(
        self, relayout: Relayout, segment: Segment, region: Any, table: PageTable
    ) -> Ready | None:
        """Unpack a segment's rows from a region into their pages."""
        ...


class HostCopies:
    """Host memory: blocks until the rows have moved, without the GIL."""

    def allocate(self, size_bytes: int) -> Any:
        """Return a uint8 array of shape (size_bytes,)."""
        return np.zeros(size_bytes, dtype=np.uint8)

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> None:
        """Pack the rows of a plan into a buffer."""
        pack_rows(layout, plan, table, buffer)

    def unpack(self, relayout: Relayout, segment: Segment, region: Any, table: PageTable) -> None:
        """Unpack a segment's rows from a region into their pages."""
        unpack_rows(relayout, segment, region, table)


class InlineExecutor(Executor):
    """Runs what is submitted at once, on the caller's thread."""

    def submit(  # noqa: D102
        self, fn: "Any", /, *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def start(executor: Executor, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
    """Submit a call; an executor that takes none makes a future that has failed."""
    try:
        return executor.submit(fn, *args, **kwargs)
    except Exception as error:
        future: Future[R] = Future()
        future.set_exception(error)
        return future


def failure_of(future: "Future[Any]") -> BaseException | None:
    """Return what a call that is over raised; one that was cancelled has failed as well."""
    try:
        return future.exception()
    except CancelledError as error:
        return error
