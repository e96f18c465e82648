# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: requests and answers as SGLang's servers have them."""

import dataclasses
import json
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from kvxfer import CapacityError, Error, InvalidArgumentError
from kvxfer.bench.server.router import Generated, Router
from kvxfer.bench.server.worker import Worker

__all__ = ["make_router_app", "make_worker_app"]

_MOST_BODY_BYTES = 64 * 2**20
_DEFAULT_TOKENS = 128


def make_router_app(router: Router, model_info: dict[str, Any]) -> web.Application:
    """Return the router's routes: ``/generate`` and those of both workers together."""
    app = web.Application(client_max_size=_MOST_BODY_BYTES)
    app.add_routes(
        [
            web.post("/generate", _Generate(router).handle),
            web.get("/model_info", _constant(model_info)),
            *_worker_routes([router.prefill, router.decode]),
        ]
    )
    return app


def make_worker_app(worker: Worker) -> web.Application:
    """Return the routes of one worker: ``/health``, ``/flush_cache`` and ``/report``."""
    app = web.Application()
    app.add_routes(_worker_routes([worker]))
    return app


def _worker_routes(workers: list[Worker]) -> list[web.RouteDef]:
    async def health(_: web.Request) -> web.Response:
        down = [worker.name for worker in workers if not worker.is_up]
        text = f"starting: {', '.join(down)}" if down else "ok"
        return web.Response(text=text, status=503 if down else 200)

    async def flush_cache(_: web.Request) -> web.Response:
        counts = {worker.name: worker.pages.flush() for worker in workers}
        return web.Response(text=f"pages forgotten: {json.dumps(counts)}")

    async def report(_: web.Request) -> web.Response:
        try:
            return web.json_response({worker.name: await _report(worker) for worker in workers})
        except Error as error:
            return _refuse(503, error)

    return [
        web.get("/health", health),
        web.post("/flush_cache", flush_cache),
        web.get("/report", report),
    ]


async def _report(worker: Worker) -> dict[str, Any]:
    return {
        "ranks": await worker.report(),
        "pages_used": worker.pages.used_count,
        "pages": worker.pages.page_count,
        "process_ids": worker.process_ids,
    }


def _constant(content: dict[str, Any]) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(content)

    return answer


def _refuse(status: int, error: Exception) -> web.Response:
    return web.json_response({"error": {"message": str(error)}}, status=status)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """One checked request."""

    token_ids: NDArray[np.int64]
    token_count: int
    ignores_end: bool
    is_stream: bool
    wants_logprobs: bool

    @classmethod
    def of(cls, body: Any, vocabulary_size: int) -> "_Wanted":
        """Check a request's body; refuses what would change the answer and is not known here."""
        if not isinstance(body, dict):
            raise InvalidArgumentError(f"body: expected a JSON object, got {type(body).__name__}")
        sampling = body.get("sampling_params") or {}
        if sampling.get("temperature", 0) != 0:
            raise InvalidArgumentError(
                f"temperature: expected 0 (greedy), got {sampling['temperature']}"
            )
        token_count = sampling.get("max_new_tokens", _DEFAULT_TOKENS)
        if not isinstance(token_count, int) or token_count < 1:
            raise InvalidArgumentError(f"max_new_tokens: expected at least 1, got {token_count!r}")
        return cls(
            _checked_ids(body.get("input_ids"), vocabulary_size),
            token_count,
            bool(sampling.get("ignore_eos", False)),
            bool(body.get("stream", False)),
            bool(body.get("return_logprob", False)),
        )


def _checked_ids(given: Any, vocabulary_size: int) -> NDArray[np.int64]:
    is_list = isinstance(given, list) and given and all(type(entry) is int for entry in given)
    if not is_list:
        raise InvalidArgumentError("input_ids: expected a list of token ids, at least one")
    token_ids = np.array(given, dtype=np.int64)
    if token_ids.min() < 0 or token_ids.max() >= vocabulary_size:
        raise InvalidArgumentError(
            f"input_ids: expected 0 to {vocabulary_size - 1}, "
            f"got {token_ids.min()} to {token_ids.max()}"
        )
    return token_ids


class _Generate:
    def __init__(self, router: Router) -> None:
        self._router = router

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /generate``."""
        try:
            size = self._router.decode.ready[0].vocabulary_size
            wanted = _Wanted.of(await request.json(), size)
        except (ValueError, AttributeError, TypeError) as error:
            return _refuse(400, error)
        answer = _Answer(wanted)
        tokens = self._router.generate(
            wanted.token_ids, wanted.token_count, ignores_end=wanted.ignores_end
        )
        try:
            if wanted.is_stream:
                return await self._stream(request, answer, tokens)
            async for generated in tokens:
                answer.add(generated)
            return web.json_response(answer.content())
        except CapacityError as error:
            return _refuse(400, error)
        except (Error, TimeoutError) as error:
            return _refuse(503, error)
        finally:
            await tokens.aclose()  # type: ignore[attr-defined]

    async def _stream(
        self, request: web.Request, answer: "_Answer", tokens: Any
    ) -> web.StreamResponse:
        """Send an event for each token; a failure after the first is an event, too."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            async for generated in tokens:
                answer.add(generated)
                if not response.prepared:
                    await response.prepare(request)
                await response.write(_event(answer.content()))
        except (Error, TimeoutError) as error:
            if not response.prepared:
                raise
            await response.write(_event({"error": {"message": str(error)}}))
        except ConnectionError:  # the client hung up
            return response
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


class _Answer:
    """What has been generated so far."""

    def __init__(self, wanted: _Wanted) -> None:
        self._wanted = wanted
        self._generated: list[Generated] = []

    def add(self, generated: Generated) -> None:
        """Take up the next token."""
        self._generated.append(generated)

    def content(self) -> dict[str, Any]:
        """Return the answer as SGLang words it; ``kvxfer`` holds what only this server says."""
        last = self._generated[-1]
        meta: dict[str, Any] = {
            "id": str(last.room),
            "prompt_tokens": len(self._wanted.token_ids),
            "cached_tokens": last.cached_tokens,
            "completion_tokens": len(self._generated),
            "finish_reason": self._finish_reason(last),
            "kvxfer": {
                "decode_prefix_tokens": last.prefix_tokens,
                "received_bytes": [end.metrics.bytes for end in last.ends],
                "received_segments": [end.metrics.segments for end in last.ends],
            },
        }
        if self._wanted.wants_logprobs:
            meta["output_token_logprobs"] = [
                [generated.sampled.logprob, generated.sampled.token, None]
                for generated in self._generated
            ]
        output_ids = [generated.sampled.token for generated in self._generated]
        return {"text": "", "output_ids": output_ids, "meta_info": meta}

    def _finish_reason(self, last: Generated) -> dict[str, Any] | None:
        if last.is_end:
            return {"type": "stop", "matched": last.sampled.token}
        if len(self._generated) == self._wanted.token_count:
            return {"type": "length", "length": self._wanted.token_count}
        return None
