# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The server as a process of its own, spoken to over HTTP, and what its answers must be."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from support import library_environment
from support.adapter_world import HELD

# Ample: nothing here is judged by time.
START_S = 240.0
ANSWER_S = 120.0
STOP_S = 60.0
LOGPROB_TOLERANCE = 1e-3

Sampled = tuple[int, float]


def make_prompt(length: int, seed: int = 0, vocabulary_size: int = 512) -> list[int]:
    """Token ids that are the same for the same length and seed."""
    choose = random.Random(f"{length}/{seed}")
    return [choose.randrange(3, vocabulary_size) for _ in range(length)]


def generate_alone(model: Any, prompt: Sequence[int], token_count: int) -> list[Sampled]:
    """What transformers generates by itself, in one process with a cache of its own."""
    import torch
    from transformers import DynamicCache

    from kvxfer.demo.model import feed

    cache = DynamicCache(config=model.config)
    fed: tuple[int, ...] = tuple(prompt)
    said: list[Sampled] = []
    for _ in range(token_count):
        logprobs = torch.log_softmax(torch.from_numpy(feed(model, cache, fed)), dim=-1)
        token = int(logprobs.argmax())
        said.append((token, float(logprobs[token])))
        fed = (token,)
    return said


def check_parity(got: Sequence[Sampled], expected: Sequence[Sampled]) -> None:
    """Assert the same tokens with the same log probabilities; a NaN is not the same."""
    assert [token for token, _ in got] == [token for token, _ in expected]
    for index, ((_, have), (_, want)) in enumerate(zip(got, expected, strict=True)):
        assert abs(have - want) <= LOGPROB_TOLERANCE, f"token {index}: {have}, expected {want}"


class BenchServer:
    """``kvxfer bench serve`` with ports that the system chooses."""

    def __init__(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            **{k: os.environ.get(k, v) for k, v in library_environment.NIXL.items()},
            **{k: os.environ.get(k, v) for k, v in library_environment.MOONCAKE.items()},
        }
        ports = ("--port", "0", "--prefill-port", "0", "--decode-port", "0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvxfer", "bench", "serve", *ports, *arguments],
            stdout=subprocess.PIPE,
            env=environment,
        )
        try:
            line = self._first_line()
            self.urls: dict[str, str] = json.loads(line)
        except BaseException:
            self.process.kill()
            self.process.wait(STOP_S)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _first_line(self) -> bytes:
        """Return the line that says that the server answers."""
        assert self.process.stdout is not None
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.append(self.process.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        reader.join(START_S)
        if not lines or not lines[0]:
            self.process.kill()
            reader.join(STOP_S)
            raise TimeoutError(f"the server did not say its addresses within {START_S} s")
        return lines[0]

    def get(self, path: str, server: str = "router") -> Any:
        with urllib.request.urlopen(self.urls[server] + path, timeout=ANSWER_S) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any = None, server: str = "router") -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.urls[server] + path, content, method="POST")
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found: bytes = answer.read()
        return found

    def flush(self, server: str) -> None:
        self.post("/flush_cache", server=server)

    def generate(self, prompt: Sequence[int], token_count: int) -> dict[str, Any]:
        """Return the answer to a request, not streamed."""
        answer: dict[str, Any] = json.loads(self.post("/generate", body(prompt, token_count)))
        return answer

    def health(self) -> int:
        try:
            with urllib.request.urlopen(self.urls["router"] + "/health", timeout=ANSWER_S) as ok:
                return int(ok.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def is_restarted(self, worker: str, killed: int) -> bool:
        """Whether a worker serves, by other processes than the one that was killed."""
        try:
            report = self.get("/report")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return killed not in report[worker]["process_ids"]

    def is_idle(self, but: Sequence[str] = ()) -> bool:
        """Whether no page, room, buffer or write of any request is left on any rank."""
        report = self.get("/report")
        names = [name for name in HELD if name not in but]
        held = [
            rank[name] for worker in report.values() for rank in worker["ranks"] for name in names
        ]
        return not any(held) and not any(worker["pages_used"] for worker in report.values())

    def total(self, worker: str, name: str) -> float:
        """Sum of a counter over the ranks of a worker."""
        return float(sum(rank[name] for rank in self.get("/report")[worker]["ranks"]))


def body(prompt: Sequence[int], token_count: int, **fields: Any) -> dict[str, Any]:
    return {
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": token_count, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        **fields,
    }


def stream(server: BenchServer, prompt: Sequence[int], token_count: int) -> Iterator[Any]:
    """Yield the events of a streamed answer; closing it early hangs up."""
    connection = http.client.HTTPConnection(
        urlsplit(server.urls["router"]).netloc, timeout=ANSWER_S
    )
    try:
        connection.request("POST", "/generate", json.dumps(body(prompt, token_count, stream=True)))
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"status {answer.status}: {answer.read()!r}")
        assert answer.getheader("Content-Type") == "text/event-stream"
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ").strip()
        answer.close()
    finally:
        connection.close()


def sampled_of(answer: dict[str, Any]) -> list[Sampled]:
    """Tokens and log probabilities of an answer."""
    return [(token, logprob) for logprob, token, _ in answer["meta_info"]["output_token_logprobs"]]


def wait_for(is_true: Callable[[], bool], what: str, wait_s: float = ANSWER_S) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + wait_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {wait_s} s")
        time.sleep(0.02)


def is_running(process_id: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
