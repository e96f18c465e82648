# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One request's rows on their way into or out of a worker, as its scheduler follows them."""

import asyncio

from kvxfer.bench.engine.setting import Ended
from kvxfer.errors import TransferError

__all__ = ["Transfer"]


class Transfer:
    """One request's rows on their way into or out of a worker's ranks."""

    def __init__(self, request: int, rank_count: int) -> None:
        self.request = request
        loop = asyncio.get_running_loop()
        self.computed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[list[Ended]] = loop.create_future()
        self.settled: asyncio.Future[None] = loop.create_future()
        self.stepped: asyncio.Future[tuple[int, float]] | None = None
        self._ends: list[Ended | None] = [None] * rank_count
        self._unsettled = rank_count

    def on_ended(self, rank: int, ended: Ended) -> None:
        """Note that one rank is through; the first failure is that of the request."""
        self._ends[rank] = ended
        if ended.failure is not None:
            self.fail(TransferError("peer_lost", f"rank {rank}", None, ended.failure))
        ends = [end for end in self._ends if end is not None]
        if len(ends) == len(self._ends) and not self.ended.done():
            self.ended.set_result(ends)

    def on_settled(self) -> None:
        """Note that one rank holds no page of the request any more."""
        self._unsettled -= 1
        if self._unsettled == 0:
            self.settle()

    def settle(self) -> None:
        """Nothing of the request is under way any more."""
        if not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: TransferError) -> None:
        """Fail whatever is waited for."""
        for future in (self.computed, self.ended, self.stepped):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting
