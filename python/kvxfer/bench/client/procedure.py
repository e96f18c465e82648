# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The procedure: warm the shapes, then for every repeat flush, warm the prefix, measure."""

import asyncio
import time
from collections.abc import Callable

from kvxfer.bench.client.endpoint import Connections, ServerError
from kvxfer.bench.client.options import Case, ClientOptions
from kvxfer.bench.client.prompts import Prompts, make_prompts
from kvxfer.bench.client.record import Answer, Expectation, Record, judge
from kvxfer.bench.client.result import CaseResult, Result
from kvxfer.bench.client.summary import Repeat, make_repeat, summarise
from kvxfer.demo.progress import Progress

__all__ = ["count_steps", "measure"]


def count_steps(options: ClientOptions) -> int:
    """Return how many steps a run announces: one for the shapes of a case, one for a repeat."""
    return len(options.cases) * (1 + options.repeats)


async def measure(
    options: ClientOptions, result: Result, progress: Progress, keep: Callable[[Result], None]
) -> None:
    """Measure all cases into ``result``; one that cannot be measured does not stop the others.

    Parameters
    ----------
    options : ClientOptions
        What to ask, and where.
    result : Result
        Takes the cases as they end.
    progress : Progress
        Takes ``count_steps(options)`` steps at most.
    keep : callable
        Called with ``result`` when the servers are found, after every case and at the end.

    Raises
    ------
    ServerError
        If a server is not there.
    """
    servers = dict.fromkeys([options.url, *options.workers])
    async with Connections(options.timeout_s) as connections:
        for url in servers:
            await connections.wait_until_healthy(url, options.wait_s)
        for url in servers:
            result.servers[url] = await connections.describe(url)
    keep(result)
    for case in options.cases:
        result.cases.append(await _CaseRun(case, options, progress).run())
        keep(result)
    result.is_complete = True
    keep(result)


class _CaseRun:
    """One case: its prompts, and the phases that they go through."""

    def __init__(self, case: Case, options: ClientOptions, progress: Progress) -> None:
        self._case = case
        self._options = options
        self._progress = progress
        self._prompts: Prompts = make_prompts(
            case.shape, case.load.requests, options.output_tokens, options.token_ids
        )
        # Encoded before anything is timed.
        self._bodies = [self._prompts.body(request) for request in range(case.load.requests)]

    async def run(self) -> CaseResult:
        """Measure the repeats, up to the first with an answer that is not as expected."""
        repeats: list[Repeat] = []
        problem: str | None = None
        try:
            self._progress.step(f"{self._case}: warm the shapes")
            await self._warm_shapes()
            for repeat in range(self._options.repeats):
                self._progress.step(f"{self._case}: repeat {repeat + 1}")
                await self._flush_workers()
                await self._warm_prefix()
                repeats.append(await self._measure_repeat())
                problem = _problem_of(repeats[-1], repeat)
                if problem is not None:
                    break
        except ServerError as error:
            problem = str(error)
        shape, load = self._case.shape, self._case.load
        cached_tokens = self._options.cached_tokens_of(shape)
        summary = summarise(repeats) if problem is None else None
        return CaseResult(shape, load, cached_tokens, problem, summary, repeats)

    async def _warm_shapes(self) -> None:
        """Send one prompt alone, then as many others at once as will be measured at once."""
        async with self._connections() as connections:
            concurrency = self._case.load.concurrency
            for bodies in (self._bodies[:1], self._bodies[1 : 1 + concurrency]):
                sent = (connections.generate(self._options.url, body) for body in bodies)
                for answer in await asyncio.gather(*sent):
                    _require_answer(answer, "a request that warms the shapes")

    async def _flush_workers(self) -> None:
        async with self._connections() as connections:
            for worker in self._options.workers:
                await connections.flush(worker, self._options.flush_timeout_s)

    async def _warm_prefix(self) -> None:
        """Put the common prefix into the prefill worker's cache."""
        if self._case.shape.prefix_tokens == 0:
            return
        async with self._connections() as connections:
            answer = await connections.generate(self._options.url, self._prompts.prefix_body())
        what = "the request that warms the prefix"
        _require_answer(answer, what)
        tokens = Expectation(self._case.shape.prefix_tokens, self._options.output_tokens, 0)
        record = judge(0, answer, tokens)
        if record.problem is not None:
            raise ServerError(f"{what}, sent when all workers were flushed: {record.problem}")

    async def _measure_repeat(self) -> Repeat:
        async with self._connections() as connections:
            begun = time.perf_counter()
            answers = await self._send_all(connections)
            elapsed_s = time.perf_counter() - begun
        return make_repeat(elapsed_s, self._judged(answers))

    async def _send_all(self, connections: Connections) -> list[Answer | None]:
        """Send every prompt, ``concurrency`` at once; after a failure send no further one."""
        places = asyncio.Semaphore(self._case.load.concurrency)
        over: list[Answer] = []

        async def send(body: bytes) -> Answer | None:
            async with places:
                if any(answer.error is not None for answer in over):
                    return None
                answer = await connections.generate(self._options.url, body)
            over.append(answer)
            self._progress.part(len(over) / len(self._bodies))
            return answer

        return await asyncio.gather(*(send(body) for body in self._bodies))

    def _judged(self, answers: list[Answer | None]) -> list[Record]:
        expected = Expectation(
            self._case.shape.tokens,
            self._options.output_tokens,
            self._options.cached_tokens_of(self._case.shape),
        )
        return [judge(request, answer, expected) for request, answer in enumerate(answers)]

    def _connections(self) -> Connections:
        return Connections(self._options.timeout_s)


def _require_answer(answer: Answer, what: str) -> None:
    if answer.error is not None:
        raise ServerError(f"{what}: {answer.error}")


def _problem_of(repeat: Repeat, number: int) -> str | None:
    """Return what is wrong with a repeat: counts of the outcomes, and the first in words."""
    bad = [record for record in repeat.records if record.outcome != "ok"]
    if not bad:
        return None
    sent_bad = next((record for record in bad if record.outcome != "not_sent"), bad[0])
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(repeat.outcomes.items()))
    return (
        f"repeat {number + 1}, outcomes of {len(repeat.records)} requests: {counts}; "
        f"request {sent_bad.request}: {sent_bad.problem}"
    )
