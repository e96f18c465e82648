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
