# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Many requests of mixed lengths, some given up, and a decode rank that is killed among them."""

import json
import os
import random
import signal
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.bench_server import (
    START_S,
    BenchServer,
    Sampled,
    check_parity,
    generate_alone,
    make_prompt,
    sampled_of,
    stream,
    wait_for,
)

LENGTHS = [1, 63, 64, 65, 129, 200, 257, 320, 500]
SEEDS = range(2)
TOKENS = 5
CLIENTS = 4
# What a killed rank asked for a request that never came is kept until it is too old.
UNTIL_OLD = ("early_messages",)
MOST_GROWTH_BYTES = 64 * 2**20


class Soak:
    """Sends requests and judges every answer; failures are expected only around a kill."""

    def __init__(self, server: BenchServer, expected: dict[tuple[int, int], list[Sampled]]) -> None:
        self.server = server
        self.expected = expected
        self.answered = self.given_up = self.failed = 0
        self._may_fail = threading.Event()
        self._lock = threading.Lock()

    def run(self, requests: range) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(self._request, number) for number in requests]:
                done.result()

    def kill_one(self, request_count: int) -> None:
        """Kill a decode rank amid requests, and wait until the worker is there again."""
        killed = self.server.get("/report")["decode"]["process_ids"]
        self._may_fail.set()
        with ThreadPoolExecutor(1) as pool:
            amid = pool.submit(self.run, range(request_count))
            os.kill(killed[-1], signal.SIGKILL)
            amid.result()
        wait_for(
            lambda: self.server.is_restarted("decode", killed[-1]),
            "the decode ranks are there again",
            START_S,
        )
        self._may_fail.clear()

    def _request(self, number: int) -> None:
        choose = random.Random(number)
        key = choose.choice(LENGTHS), choose.choice(SEEDS)
        is_given_up = choose.random() < 0.2
        try:
            if is_given_up:
                self._give_up(key)
            else:
                check_parity(sampled_of(self.server.generate(make_prompt(*key), TOKENS)),
                             self.expected[key])  # fmt: skip
        except (urllib.error.HTTPError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if not self._may_fail.is_set():
                raise
            self._count("failed")
            return
        self._count("given_up" if is_given_up else "answered")

    def _give_up(self, key: tuple[int, int]) -> None:
        """Hang up after the first token, which must be the right one."""
        events = stream(self.server, make_prompt(*key), 400)
        try:
            first: dict[str, Any] = json.loads(next(events))
        finally:
            events.close()  # type: ignore[attr-defined]
        check_parity(sampled_of(first), self.expected[key][:1])

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)


def resident_bytes(server: BenchServer) -> int:
    """Memory of the prefill process and rank 0 of decode."""
    report = server.get("/report")
    pids = [report[worker]["process_ids"][0] for worker in ("prefill", "decode")]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("request_count", [100, 6000])
def test_soak(request_count: int) -> None:
    pytest.importorskip("transformers")
    from kvxfer.bench.engine import models
    from kvxfer.bench.engine.setting import ModelSetting

    model = models.load(ModelSetting(kind="gqa"))
    expected = {
        (length, seed): generate_alone(model, make_prompt(length, seed), TOKENS)
        for length in LENGTHS
        for seed in SEEDS
    }
    with BenchServer(
        *("--model", "gqa", "--decode-ranks", "2", "--pack-tokens", "128"),
        *("--prefill-tokens", "2048", "--decode-tokens", "2048", "--decode-prefix-cache"),
    ) as server:
        soak = Soak(server, expected)
        soak.run(range(request_count // 2))
        assert soak.failed == 0
        soak.kill_one(request_count=20)
        wait_for(lambda: server.is_idle(UNTIL_OLD), "nothing is left after a rank was killed")
        soak.run(range(20))
        before = resident_bytes(server)
        soak.run(range(request_count // 2, request_count))
        wait_for(lambda: server.is_idle(UNTIL_OLD), "nothing is left of any request")
        assert resident_bytes(server) - before < MOST_GROWTH_BYTES
        assert soak.answered + soak.given_up + soak.failed == request_count + 40
        assert min(soak.answered, soak.given_up) > 0
