# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges, where the package nvtx is installed; nothing where it is not."""

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from kvxfer import PackBufferLayout, PackPlan, PageTable, Relayout, Segment
from kvxfer.transfer.copies import Ready, RowCopies

__all__ = ["DOMAIN", "Annotate", "AnnotatedCopies", "find_annotate"]

DOMAIN = "kvxfer"

Annotate: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Makes a range of that name; entering and leaving it cost well under a microsecond."""


def _no_range(message: str) -> AbstractContextManager[Any]:
    del message
    return nullcontext()


def find_annotate() -> Annotate:
    """Return what makes ranges in the domain "kvxfer", or ranges that are nothing."""
    if importlib.util.find_spec("nvtx") is None:
        return _no_range
    annotate = importlib.import_module("nvtx").annotate

    def make_range(message: str) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = annotate(message, domain=DOMAIN)
        return found

    return make_range


class AnnotatedCopies:
    """Row copies that show in a profile as "pack" and "unpack"."""

    def __init__(self, copies: RowCopies, annotate: Annotate) -> None:
        self._copies = copies
        self._annotate = annotate

    def allocate(self, size_bytes: int) -> Any:
        """See ``RowCopies.allocate``."""
        return self._copies.allocate(size_bytes)

    def pack(
        self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any
    ) -> Ready | None:
        """See ``RowCopies.pack``."""
        with self._annotate("pack"):
            return self._copies.pack(layout, plan, table, buffer)

    def unpack(
        self, relayout: Relayout, segment: Segment, region: Any, table: PageTable
    ) -> Ready | None:
        """See ``RowCopies.unpack``."""
        with self._annotate("unpack"):
            return self._copies.unpack(relayout, segment, region, table)
