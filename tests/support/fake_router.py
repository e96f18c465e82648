# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A router and its workers that speak SGLang's HTTP, with a prefix cache and faults to order."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

WORKER_COUNT = 2
BOUND_SECONDS = 30.0

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeRouter:
    """Servers on loopback ports, in a thread of their own while the object is entered.

    ``calls`` lists what was asked, in order: ("flush", worker) or ("generate", body). ``faults``
    answers the generate call of that number; ``report`` may change what a generate call's
    ``meta_info`` says; ``cut`` cuts a stream into the pieces that are sent one by one;
    ``wave`` lets measured requests go on only when that many are there at once. ``body_bytes`` are
    the lengths that generate calls announced.
    """

    page_size: int = 16
    calls: list[tuple[str, Any]] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    report: Callable[[int, dict[str, Any]], None] = lambda number, meta_info: None
    cut: Callable[[bytes], list[bytes]] = lambda stream: [stream]
    wave: int = 1
    refused_flushes: set[int] = field(default_factory=set)
    kept_caches: set[int] = field(default_factory=set)
    unhealthy_answers: int = 0
    model_info: dict[str, Any] | None = None
    most_at_once: int = 0
    body_bytes: list[int | None] = field(default_factory=list)
    url: str = ""
    workers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._at_once = 0
        self._generate_count = 0
        self._cache: list[list[int]] = []
        self._is_ready = threading.Event()

    def __enter__(self) -> "FakeRouter":
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._is_ready.wait(BOUND_SECONDS), "the fake router did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(BOUND_SECONDS)
        assert not self._thread.is_alive(), "the fake router did not stop"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for kind, body in self.calls if kind == "generate"]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._barrier = asyncio.Barrier(self.wave)
        runners = [await self._start(worker) for worker in (None, *range(WORKER_COUNT))]
        addresses = [f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners]
        self.url, *self.workers = addresses
        self._is_ready.set()
        await self._stop.wait()
        for runner in runners:
            await runner.cleanup()

    async def _start(self, worker: int | None) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/model_info", self._describe)
        if worker is None:
            app.router.add_post("/generate", self._generate)
        else:
            app.router.add_post("/flush_cache", partial(self._flush, worker))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def _health(self, _: web.Request) -> web.Response:
        self.unhealthy_answers -= 1
        return web.Response(status=503 if self.unhealthy_answers >= 0 else 200)

    async def _describe(self, _: web.Request) -> web.Response:
        if self.model_info is None:
            return web.Response(status=404)
        return web.json_response(self.model_info)

    async def _flush(self, worker: int, request: web.Request) -> web.Response:
        assert "timeout" in request.query
        self.calls.append(("flush", worker))
        if worker in self.refused_flushes:
            return web.Response(status=400, text="requests are running")
        if worker not in self.kept_caches:
            self._cache.clear()
        return web.Response(text="flushed")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        number, self._generate_count = self._generate_count, self._generate_count + 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self.body_bytes.append(request.content_length)
            body = await request.json()
            has_flushed = any(kind == "flush" for kind, _ in self.calls)
            self.calls.append(("generate", body))
            if number in self.faults:
                return await self.faults[number](request)
            meta_info = self._meta_info(body)
            self.report(number, meta_info)
            if has_flushed and self.wave > 1 and meta_info["cached_tokens"]:
                await asyncio.wait_for(self._barrier.wait(), BOUND_SECONDS)
            return await self._stream(request, meta_info)
        finally:
            self._at_once -= 1

    def _meta_info(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["input_ids"]
        hit = max((common_tokens(prompt, other) for other in self._cache), default=0)
        self._cache.append(prompt)
        return {
            "cached_tokens": hit - hit % self.page_size,
            "prompt_tokens": len(prompt),
            "completion_tokens": body["sampling_params"]["max_new_tokens"],
            "finish_reason": {"type": "length"},
        }

    async def _stream(self, request: web.Request, meta_info: dict[str, Any]) -> web.StreamResponse:
        parts = []
        for done in range(1, meta_info["completion_tokens"] + 1):
            is_last = done == meta_info["completion_tokens"]
            reason = meta_info["finish_reason"] if is_last else None
            event = {**meta_info, "completion_tokens": done, "finish_reason": reason}
            parts.append(f"data: {json.dumps({'text': 'x' * done, 'meta_info': event})}\n\n")
        return await stream_pieces(
            request, self.cut("".join([*parts, "data: [DONE]\n\n"]).encode())
        )


def common_tokens(one: list[int], other: list[int]) -> int:
    """Tokens that two prompts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


async def stream_pieces(request: web.Request, pieces: list[bytes]) -> web.StreamResponse:
    """Send an event stream piece by piece, each in a packet of its own."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)
    await response.write_eof()
    return response


def answer_with(*pieces: bytes) -> Fault:
    """Return a fault that sends this stream in place of the right one."""
    return lambda request: stream_pieces(request, list(pieces))


async def fail_with_500(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="out of\nmemory")


async def die_in_the_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"text": "x", "meta_info": {"cached_tokens": 0}}\n\n')
    assert request.transport is not None
    request.transport.abort()
    return response


async def stay_silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(BOUND_SECONDS)
    raise AssertionError("nobody ended the request")
