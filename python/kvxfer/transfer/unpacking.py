# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One segment on its way from a landing region into its pages."""

from concurrent.futures import Future

from kvxfer.transfer.completion import Completion
from kvxfer.transfer.copies import Ready, failure_of
from kvxfer.transfer.landing import Region
from kvxfer.transfer.source import Source

__all__ = ["Unpack"]


class Unpack:
    """Follows one unpack to its end."""

    def __init__(
        self,
        source: Source,
        region: Region,
        completion: Completion,
        started_s: float,
        future: "Future[Ready | None]",
    ) -> None:
        self.source = source
        self.region = region
        self.completion = completion
        self.started_s = started_s
        self.error: str | None = None
        self._future = future

    def is_done(self) -> bool:
        """Return whether the rows are in their pages, or never will be: then ``error`` says why."""
        if not self._future.done():
            return False
        error = failure_of(self._future)
        if error is None:
            ready = self._future.result()
            try:
                return ready is None or ready.query()
            except Exception as raised:
                error = raised
        self.error = f"unpack failed: {type(error).__name__}: {error}"
        return True
