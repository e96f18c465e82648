# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Steps of a run: a bar on a terminal where rich is installed, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
from types import TracebackType
from typing import Any, TextIO


class Progress:
    """Shows which step of how many is running.

    Parameters
    ----------
    step_count : int
        Steps that will be announced.
    stream : text stream
        Where to show them.
    """

    def __init__(self, step_count: int, stream: TextIO) -> None:
        self._step_count = step_count
        self._begun_count = 0
        self._stream = stream
        self._stack = contextlib.ExitStack()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._stream.isatty() and importlib.util.find_spec("rich") is not None:
            self._bar = self._stack.enter_context(_make_bar(self._stream))
            self._task = self._bar.add_task("", total=float(self._step_count))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None and error is None:
            self._show(float(self._step_count), "done")
        self._stack.close()

    def step(self, what: str) -> None:
        """Say that a step begins; the one before it is over."""
        self._begun_count += 1
        if self._bar is None:
            print(f"[{self._begun_count}/{self._step_count}] {what}", file=self._stream, flush=True)
        else:
            self._show(float(self._begun_count - 1), what)

    def part(self, share: float) -> None:
        """Say how much of the running step is done, between 0 and 1; silent without a bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._begun_count - 1 + share, refresh=True)

    def _show(self, completed: float, what: str) -> None:
        self._bar.update(self._task, completed=completed, description=what, refresh=True)


def _make_bar(stream: TextIO) -> Any:
    """Return a rich bar that is drawn only when told to: it starts no thread."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Bar(*columns, console=Console(file=stream), auto_refresh=False)
