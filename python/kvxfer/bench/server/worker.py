# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A worker as its scheduler sees it: rank processes, their pages, and transfers under way."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer import CapacityError
from kvxfer.bench.engine.decode_rank import run_decode
from kvxfer.bench.engine.page_cache import PageCache
from kvxfer.bench.engine.prefill_rank import run_prefill
from kvxfer.bench.engine.setting import RankSetting, Ready
from kvxfer.bench.server.transfer import Transfer
from kvxfer.demo.processes import Crew, Wire
from kvxfer.errors import TransferError

__all__ = ["Worker", "start_decode", "start_prefill"]

_log = logging.getLogger("kvxfer")

_START_DEADLINE_S = 300.0
_REPORT_DEADLINE_S = 30.0
_EVENTS = ("computed", "ended", "settled", "stepped", "report")

Starter = Callable[[Crew, str], Sequence[Wire]]
"""Starts the ranks of a worker in a crew; the text tells this start from earlier ones."""


def start_prefill(crew: Crew, life: str, setting: RankSetting) -> Sequence[Wire]:
    """Start the prefill process."""
    named = _renamed(setting, f"prefill{life}", 0)
    return [crew.start(named.name, functools.partial(run_prefill, setting=named))]


def start_decode(crew: Crew, life: str, setting: RankSetting) -> Sequence[Wire]:
    """Start the processes of all decode ranks, each with a pipe to rank 0."""
    pairs = [Pipe() for _ in range(setting.ranks - 1)]
    links: list[list[Connection]] = [[ours for ours, _ in pairs], *([end] for _, end in pairs)]
    wires = []
    for rank, own in enumerate(links):
        named = _renamed(setting, f"decode{life}-{rank}", rank)
        entry = functools.partial(run_decode, setting=named, links=own)
        wires.append(crew.start(named.name, entry))
    for link in (link for own in links for link in own):
        link.close()
    return wires


def _renamed(setting: RankSetting, name: str, rank: int) -> RankSetting:
    return replace(setting, name=name, rank=rank)


class Worker:
    """Ranks and pages of one worker. Ranks that end are started again, with empty pools.

    Parameters
    ----------
    name : str
    start : Starter
    make_pages : callable
        Makes the page ids of a fresh start.
    """

    def __init__(self, name: str, start: Starter, make_pages: Callable[[], PageCache]) -> None:
        self.name = name
        self.pages = make_pages()
        self.is_up = False
        self.ready: list[Ready] = []
        self.on_restart: Callable[[list[str]], None] = lambda names: None
        self._start_ranks = start
        self._make_pages = make_pages
        self._life = 0
        self._crew: Crew | None = None
        self._wires: Sequence[Wire] = ()
        self._transfers: dict[int, Transfer] = {}
        self._pages_changed = asyncio.Event()
        self._allocation = asyncio.Lock()
        self._reporting = asyncio.Lock()
        self._reports: list[asyncio.Future[dict[str, float]]] = []
        self._restart: asyncio.Task[None] | None = None

    # -- processes ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the ranks and wait until all are set up."""
        life = f"{self._life}" if self._life else ""
        self._life += 1
        crew = self._crew = Crew()
        self._wires = await asyncio.to_thread(self._start_ranks, crew, life)
        self.ready = await asyncio.to_thread(crew.receive_all, "ready", _START_DEADLINE_S)
        loop = asyncio.get_running_loop()
        for rank, wire in enumerate(self._wires):
            loop.add_reader(wire.connection.fileno(), self._read, rank, wire)
        self.is_up = True

    async def stop(self) -> None:
        """Let the ranks end, those that do not are ended."""
        if self._restart is not None:
            self._restart.cancel()
        await self._end_crew(None)

    async def _end_crew(self, error: TransferError | None) -> None:
        self.is_up = False
        loop = asyncio.get_running_loop()
        for wire in self._wires:
            if not wire.connection.closed:
                loop.remove_reader(wire.connection.fileno())
        if self._crew is not None:
            kind = None if error is None else type(error)
            await asyncio.to_thread(self._crew.__exit__, kind, error, None)

    def _lose(self, error: TransferError) -> None:
        """Fail everything that the ranks were about, and start them again."""
        if not self.is_up:
            return
        self.is_up = False
        _log.error("%s: lost its ranks, starting them again: %s", self.name, error)
        transfers, self._transfers = self._transfers, {}
        for transfer in transfers.values():
            transfer.fail(error)
            transfer.settle()
        self._pages_changed.set()
        for report in self._reports:
            if not report.done():
                report.set_exception(error)
        self._restart = asyncio.create_task(self._start_again(error))

    async def _start_again(self, error: TransferError) -> None:
        names = [ready.name for ready in self.ready]
        await self._end_crew(error)
        self.on_restart(names)
        self.pages = self._make_pages()
        await self.start()

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks."""
        processes = [] if self._crew is None else self._crew.processes
        return [process.pid or 0 for process in processes]

    # -- messages -------------------------------------------------------------------------------

    def send(self, name: str, value: Any) -> None:
        """Tell every rank.

        Raises
        ------
        TransferError
            If the worker is down, or a rank has just ended.
        """
        self._check_up()
        try:
            for wire in self._wires:
                wire.send(name, value)
        except TransferError as error:
            self._lose(error)
            raise

    def _check_up(self) -> None:
        if not self.is_up:
            raise TransferError("peer_lost", self.name, None, "its ranks are being started")

    async def report(self) -> list[dict[str, float]]:
        """Return the counters of every rank's manager."""
        loop = asyncio.get_running_loop()
        async with self._reporting:
            self._reports = [loop.create_future() for _ in self._wires]
            self.send("report", None)
            return await asyncio.wait_for(asyncio.gather(*self._reports), _REPORT_DEADLINE_S)

    def _read(self, rank: int, wire: Wire) -> None:
        try:
            while self.is_up and wire.connection.poll():
                self._take(rank, *wire.receive_either(*_EVENTS))
        except TransferError as error:
            self._lose(error)

    def _take(self, rank: int, name: str, value: Any) -> None:
        if name == "report":
            self._reports[rank].set_result(value)
            return
        request = value.request if name == "ended" else value[0] if name == "stepped" else value
        transfer = self._transfers.get(request)
        if transfer is None:
            return
        if name == "computed" and not transfer.computed.done():
            transfer.computed.set_result(None)
        elif name == "ended":
            transfer.on_ended(rank, value)
        elif name == "settled":
            transfer.on_settled()
        elif name == "stepped" and transfer.stepped is not None and not transfer.stepped.done():
            transfer.stepped.set_result(value[1:])

    # -- requests -------------------------------------------------------------------------------

    def open_transfer(self, request: int) -> Transfer:
        """Follow a request from here on."""
        transfer = Transfer(request, len(self._wires))
        self._transfers[request] = transfer
        return transfer

    def abort(self, transfer: Transfer) -> None:
        """Give a request up where it is under way."""
        if self.is_up and not transfer.settled.done():
            with contextlib.suppress(TransferError):
                self.send("abort", transfer.request)

    async def take_pages(
        self, tokens: NDArray[np.int64], token_count: int, most_prefix_tokens: int
    ) -> tuple[PageCache, list[int], int]:
        """Return pages for a request, waiting until there are enough.

        The caller opens its transfer before it waits for anything else: a worker that is lost then
        knows of it.

        Parameters
        ----------
        tokens : int64 array, shape (prompt_tokens,)
        token_count : int
            Tokens that the pages must hold.
        most_prefix_tokens : int
            Longest prefix that may be taken from what is held.

        Returns
        -------
        tuple
            The pages' owner, the pages, and how many tokens of the prompt they hold already.

        Raises
        ------
        CapacityError
            If the whole pool is too small.
        TransferError
            If the worker is down, or goes down meanwhile.
        """
        async with self._allocation:
            while True:
                self._check_up()
                pages = self.pages
                count = pages.pages_of(token_count)
                if count > pages.page_count:
                    raise CapacityError(
                        f"{self.name}: a request of {token_count} tokens needs {count} pages, "
                        f"the pool has {pages.page_count}"
                    )
                held = pages.match(tokens, most_prefix_tokens)
                if count - len(held) <= pages.free_count:
                    prefix_tokens = len(held) * pages.page_tokens
                    return pages, held + pages.allocate(count - len(held)), prefix_tokens
                pages.release(held)
                self._pages_changed.clear()
                await self._pages_changed.wait()

    def give_back(self, owner: PageCache, pages: list[int], transfer: Transfer) -> None:
        """Release pages as soon as no transfer can touch them."""

        def release(_: object) -> None:
            owner.release(pages)
            self._transfers.pop(transfer.request, None)
            self._pages_changed.set()

        transfer.settled.add_done_callback(release)
