# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Takes requests, gives each a room, and leads it through prefill and decode."""

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvxfer.bench.engine.page_cache import PageCache
from kvxfer.bench.engine.sampled import Sampled
from kvxfer.bench.engine.setting import Ended, PrefillJob, ReceiveJob, StepJob
from kvxfer.bench.server.transfer import Transfer
from kvxfer.bench.server.worker import Worker
from kvxfer.errors import DeadlineError

__all__ = ["Generated", "Router"]

_REQUEST_DEADLINE_S = 1800.0


@dataclass(frozen=True)
class Generated:
    """One token of an answer, and what is known of its request.

    Attributes
    ----------
    sampled : Sampled
    is_end : bool
        The model ended its text with this token.
    cached_tokens : int
        Tokens of the prompt that prefill held already.
    prefix_tokens : int
        Tokens of the prompt that decode held already.
    room : int
    ends : list of Ended
        How each decode rank received the prompt.
    """

    sampled: Sampled
    is_end: bool
    cached_tokens: int
    prefix_tokens: int
    room: int
    ends: list[Ended]


@dataclass
class _Slot:
    """A request's place on the decode worker."""

    owner: PageCache
    pages: list[int]
    prefix_tokens: int
    transfer: Transfer

    @property
    def page_ids(self) -> NDArray[np.int64]:
        return np.array(self.pages, dtype=np.int64)


class Router:
    """Leads requests. Prompts are computed one after the other, in the order in which they come.

    Parameters
    ----------
    prefill, decode : Worker
    """

    def __init__(self, prefill: Worker, decode: Worker) -> None:
        self.prefill = prefill
        self.decode = decode
        self._requests = itertools.count(1)
        self._computing = asyncio.Lock()
        prefill.on_restart = functools.partial(_tell_dead, decode)
        decode.on_restart = functools.partial(_tell_dead, prefill)

    async def generate(
        self, token_ids: NDArray[np.int64], token_count: int, *, ignores_end: bool
    ) -> AsyncIterator[Generated]:
        """Yield the tokens that follow a prompt. Leaving early gives the request up.

        Parameters
        ----------
        token_ids : int64 array, shape (prompt_tokens,)
        token_count : int
            Most tokens to generate.
        ignores_end : bool
            Go on after the model's end-of-text token.

        Raises
        ------
        CapacityError
            If a pool is too small for the request.
        TransferError
            If it failed; says where.
        """
        request = next(self._requests)
        end_token = None if ignores_end else self.decode.ready[0].end_token
        try:
            async with asyncio.timeout(_REQUEST_DEADLINE_S):
                slot = await self._admit(request, token_ids, token_count)
                try:
                    async for generated in self._lead(slot, token_ids, token_count):
                        is_end = generated.sampled.token == end_token
                        yield replace(generated, is_end=is_end)
                        if is_end:
                            return
                finally:
                    self.decode.abort(slot.transfer)
                    self.decode.give_back(slot.owner, slot.pages, slot.transfer)
        except TimeoutError as error:
            if isinstance(error, DeadlineError):
                raise
            said = f"no end within {_REQUEST_DEADLINE_S:g} s"
            raise DeadlineError("deadline", "prefill or decode", request, said) from error

    async def _admit(self, request: int, token_ids: NDArray[np.int64], token_count: int) -> _Slot:
        owner, pages, prefix_tokens = await self.decode.take_pages(
            token_ids, len(token_ids) + token_count, len(token_ids)
        )
        return _Slot(owner, pages, prefix_tokens, self.decode.open_transfer(request))

    async def _lead(
        self, slot: _Slot, token_ids: NDArray[np.int64], token_count: int
    ) -> AsyncIterator[Generated]:
        request = slot.transfer.request
        sources = tuple(ready.address for ready in self.prefill.ready)
        self.decode.send(
            "receive",
            ReceiveJob(request, request, sources, token_ids, slot.page_ids, slot.prefix_tokens),
        )
        prefilling = asyncio.create_task(self._prefill(request, token_ids))
        try:
            ends, cached_tokens = await asyncio.gather(slot.transfer.ended, prefilling)
        finally:
            prefilling.cancel()
        slot.owner.insert(token_ids, slot.pages)
        sampled = Sampled(ends[0].token, ends[0].logprob)
        for position in itertools.count(len(token_ids)):
            yield Generated(sampled, False, cached_tokens, slot.prefix_tokens, request, ends)
            if position - len(token_ids) + 1 == token_count:
                return
            sampled = await self._step(slot, sampled.token, position)

    async def _step(self, slot: _Slot, token: int, position: int) -> Sampled:
        """Have all decode ranks run one token, in the same order as every other request's."""
        slot.transfer.stepped = asyncio.get_running_loop().create_future()
        self.decode.send("step", StepJob(slot.transfer.request, token, position, slot.page_ids))
        return Sampled(*await slot.transfer.stepped)

    async def _prefill(self, request: int, token_ids: NDArray[np.int64]) -> int:
        """Have a prompt computed and sent; return how many tokens of it were held already.

        At least its last token is computed, since what follows it is wanted.
        """
        worker = self.prefill
        async with self._computing:
            owner, pages, cached_tokens = await worker.take_pages(
                token_ids, len(token_ids), len(token_ids) - 1
            )
            transfer = worker.open_transfer(request)
            try:
                ids = np.array(pages, dtype=np.int64)
                destination_count = len(self.decode.ready)
                worker.send(
                    "prefill",
                    PrefillJob(request, request, token_ids, ids, cached_tokens, destination_count),
                )
                await transfer.computed
                owner.insert(token_ids, pages)
            except BaseException:
                worker.abort(transfer)
                raise
            finally:
                worker.give_back(owner, pages, transfer)
        return cached_tokens


def _tell_dead(worker: Worker, names: list[str]) -> None:
    """Tell a worker that peers of its are gone: pages held for their writes are free."""
    if worker.is_up:
        worker.send("peers_dead", tuple(names))
