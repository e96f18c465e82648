# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: what the client asks of a router and of the workers behind it."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import msgspec

from kvxfer import Error, UnsupportedError
from kvxfer.bench.client.record import Answer

try:
    import aiohttp
except ImportError as error:
    raise UnsupportedError(
        f"the benchmark client needs a package that is missing ({error}); install it with "
        "pip install 'kvxfer[bench]'"
    ) from error

__all__ = ["Connections", "ServerError"]

_CONNECT_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.2
_PIECE_BYTES = 1 << 18
_LINE_BYTES = 1 << 26
_QUOTED_CHARACTERS = 300
_END_OF_STREAM = b"[DONE]"


class ServerError(Error):
    """A server did not do what the measurement needs; the message names it."""


class Connections:
    """HTTP connections for one phase of a measurement.

    A phase has connections of its own: one that idles between phases may be closed by the server
    at the moment in which it is used again.

    Parameters
    ----------
    timeout_s : float
        Bound of every request, from its beginning to the end of its answer.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S),
        )

    async def __aenter__(self) -> "Connections":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def wait_until_healthy(self, url: str, wait_s: float) -> None:
        """Return when ``GET /health`` is answered with status 200.

        Raises
        ------
        ServerError
            If that has not happened within ``wait_s`` seconds.
        """
        deadline = time.monotonic() + wait_s
        said = "no answer"
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left), self._session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
                    said = f"status {response.status}"
            except TimeoutError:
                continue  # what it said before tells more
            except aiohttp.ClientError as error:
                said = _words(error)
            await asyncio.sleep(min(_POLL_INTERVAL_S, left))
        raise ServerError(f"{url}/health: got {said}, expected status 200 within {wait_s:g} s")

    async def flush(self, url: str, flush_timeout_s: float) -> None:
        """Empty the cache of a worker.

        Raises
        ------
        ServerError
            If the worker does not say that it did.
        """
        asked = f"{url}/flush_cache?timeout={flush_timeout_s:g}"
        try:
            # The server waits for that long for running requests, then answers.
            async with asyncio.timeout(flush_timeout_s + _CONNECT_TIMEOUT_S):
                async with self._session.post(asked) as response:
                    said = f"status {response.status}: {await _quoted(response)}"
                    is_flushed = response.status == 200
        except (aiohttp.ClientError, TimeoutError) as error:
            said, is_flushed = _words(error), False
        if not is_flushed:
            raise ServerError(f"{asked}: got {said}, expected status 200")

    async def describe(self, url: str) -> dict[str, Any] | None:
        """Return what a server says of its model, or None where it says nothing."""
        for path in ("/model_info", "/get_model_info"):
            try:
                async with self._session.get(url + path) as response:
                    if response.status == 200:
                        return msgspec.json.decode(await response.read(), type=dict[str, Any])
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
                continue
        return None

    async def generate(self, url: str, body: bytes) -> Answer:
        """Send a request and read its events; a failure is in the answer, not raised."""
        begun = time.perf_counter()
        first: float | None = None
        events: list[bytes] = []
        error = None
        try:
            async with self._session.post(
                f"{url}/generate",
                data=_pieces(body),
                headers={"Content-Type": "application/json", "Content-Length": str(len(body))},
            ) as response:
                if response.status != 200:
                    error = f"status {response.status}: {await _quoted(response)}"
                else:
                    async for seen, event in _read_events(response.content):
                        first = seen if first is None else first
                        events.append(event)
        except TimeoutError:
            error = f"no end of the answer within {self._timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            error = _words(failure)
        elapsed_s = time.perf_counter() - begun
        ttft_s = None if first is None else first - begun
        return _answer(ttft_s, elapsed_s, events, error)


def _answer(
    ttft_s: float | None, elapsed_s: float, events: list[bytes], error: str | None
) -> Answer:
    is_ended = bool(events) and events[-1] == _END_OF_STREAM
    told = events[:-1] if is_ended else events
    response = None
    try:
        for event in told:
            response = msgspec.json.decode(event, type=dict[str, Any])
            error = error or _reported_error(response)
    except msgspec.DecodeError as failure:
        error = error or f"an event is no JSON object: {failure}"
    if error is None and not (is_ended and told):
        error = f"the stream ended after {len(told)} events, expected [DONE] behind at least one"
    return Answer(ttft_s, elapsed_s, len(told), response, error)


def _reported_error(event: dict[str, Any]) -> str | None:
    """Return what a server reports as an error inside a stream that began well."""
    if event.get("error") is not None:
        return f"the server reports {event['error']}"
    meta_info = event.get("meta_info")
    reason = meta_info.get("finish_reason") if isinstance(meta_info, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return f"the server aborted the request: {reason.get('message')}"
    return None


async def _read_events(stream: aiohttp.StreamReader) -> AsyncIterator[tuple[float, bytes]]:
    """Yield the data of every whole server-sent event, and when its first line was read."""
    data: list[bytes] = []
    seen = 0.0
    while line := await stream.readline(max_line_length=_LINE_BYTES):
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:"):
            seen = time.perf_counter() if not data else seen
            data.append(text[len(b"data:") :].removeprefix(b" "))
        elif not text and data:
            yield seen, b"\n".join(data)
            data = []


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in pieces, so that a long one holds up no other request."""
    for begin in range(0, len(body), _PIECE_BYTES):
        yield body[begin : begin + _PIECE_BYTES]


async def _quoted(response: aiohttp.ClientResponse) -> str:
    """Return the beginning of an answer's text, in one line."""
    text = await response.content.read(_QUOTED_CHARACTERS)
    return " ".join(text.decode(errors="replace").split())


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
