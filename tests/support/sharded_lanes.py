# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Lanes of gathers that run when somebody waits for them."""

from collections.abc import Callable

Work = Callable[[], None]


class DeferredLane:
    """Runs what was submitted, in order, when a wait needs it: as late as a stream may."""

    def __init__(self) -> None:
        self.pending: list[Work] = []

    def submit(self, work: Work) -> Work:
        self.pending.append(work)

        def wait() -> None:
            while work in self.pending:
                self.pending.pop(0)()

        return wait


class UnwaitedLane(DeferredLane):
    """A stream that nobody waits for: a layer is read before its gather has run."""

    def submit(self, work: Work) -> Work:
        super().submit(work)
        while len(self.pending) > 2:
            self.pending.pop(0)()
        return lambda: None

    def flush(self) -> None:
        while self.pending:
            self.pending.pop(0)()
