# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The server as a program: its HTTP, aborts, a rank that is killed, and how it stops."""

import json
import os
import signal
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from support.bench_server import (
    STOP_S,
    BenchServer,
    body,
    is_running,
    make_prompt,
    stream,
    wait_for,
)

pytestmark = pytest.mark.timeout(400)

SYNTHETIC = ("--model", "synthetic", "--verify", "all", "--compute-s", "0.01")
ROW_BYTES = 7 * 576


@pytest.fixture(name="server", scope="module")
def server_fixture() -> Iterator[BenchServer]:
    arguments = (*SYNTHETIC, "--decode-ranks", "3", "--pack-tokens", "1024", "--no-early")
    with BenchServer(*arguments) as server:
        yield server


@pytest.fixture(autouse=True)
def _is_left_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server: BenchServer = request.getfixturevalue("server")
        wait_for(server.is_idle, "nothing is left of any request")


def test_streamed_events_are_as_sglang_words_them(server: BenchServer) -> None:
    *events, end = stream(server, make_prompt(300), 3)
    assert end == b"[DONE]"
    answers = [json.loads(event) for event in events]
    last = (make_prompt(300)[-1] + 1) % 32_768
    assert [a["output_ids"] for a in answers] == [
        [last], [last, last + 1], [last, last + 1, last + 2]
    ]  # fmt: skip
    metas = [answer["meta_info"] for answer in answers]
    assert [meta["completion_tokens"] for meta in metas] == [1, 2, 3]
    assert [meta["finish_reason"] for meta in metas] == [
        None,
        None,
        {"type": "length", "length": 3},
    ]
    assert all(meta["prompt_tokens"] == 300 for meta in metas)
    assert len({meta["id"] for meta in metas}) == 1


def test_a_long_prefix_is_computed_once_and_sent_packed(server: BenchServer) -> None:
    server.flush("router")
    before = server.total("prefill", "sender_total_row_by_row_writes")
    segments = server.total("prefill", "sender_total_segments")
    prefix = make_prompt(5000)
    server.generate(prefix, 1)
    meta = server.generate([*prefix, *make_prompt(300)], 1)["meta_info"]
    assert meta["cached_tokens"] == 5000 // 64 * 64
    assert sum(meta["kvxfer"]["received_bytes"]) == 5300 * ROW_BYTES
    # 1,024 tokens fit a buffer, and the 5,300 are one send.
    assert meta["kvxfer"]["received_segments"] == [6, 6, 6]
    assert server.total("prefill", "sender_total_row_by_row_writes") == before == 0
    assert server.total("prefill", "sender_total_segments") > segments


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input_ids": []}, "input_ids: expected a list of token ids"),
        ({"input_ids": [[1, 2]]}, "input_ids: expected a list of token ids"),
        ({"input_ids": [40_000]}, "expected 0 to 32767, got 40000"),
        ({"sampling_params": {"temperature": 0.7}}, "temperature: expected 0"),
        ({"sampling_params": {"max_new_tokens": 0}}, "max_new_tokens: expected at least 1"),
        ({"input_ids": [1] * 20_000}, "needs 105 pages, the pool has 86"),
    ],
)
def test_a_wrong_request_is_refused(
    server: BenchServer, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post("/generate", {**body([5, 6], 1), **fields})
    with caught.value as answer:
        assert answer.code == 400
        assert words in json.load(answer)["error"]["message"]


def test_a_client_that_hangs_up_leaves_nothing(server: BenchServer) -> None:
    events = stream(server, make_prompt(400), 3000)
    assert json.loads(next(events))["meta_info"]["completion_tokens"] == 1
    events.close()  # type: ignore[attr-defined]
    wait_for(server.is_idle, "the request is given up")


def test_a_server_says_that_its_numbers_are_synthetic(server: BenchServer) -> None:
    info = server.get("/model_info")
    assert info["is_synthetic"]
    assert "every prefill takes 0.01 s" in info["model_path"]


def test_a_cached_prefix_leaves_before_the_rest_is_computed() -> None:
    with BenchServer(*SYNTHETIC, "--decode-ranks", "2", "--pack-tokens", "1024") as server:
        prefix = make_prompt(3000)
        server.generate(prefix, 1)
        prompt = [*prefix, *make_prompt(300)]
        meta = server.generate(prompt, 1)["meta_info"]
        assert meta["cached_tokens"] == 2944
        assert sum(meta["kvxfer"]["received_bytes"]) == 3300 * ROW_BYTES
        # Early: 3 segments for the cached 2,944, 2 for the rest as the grid cuts it at 3,072.
        # All at once, where the destinations asked too late: 4.
        assert meta["kvxfer"]["received_segments"] in ([5, 5], [4, 4])
        wait_for(server.is_idle, "the requests are over")


def test_row_by_row_writes_every_row_and_the_same_bytes() -> None:
    arguments = (*SYNTHETIC, "--decode-ranks", "2", "--mode", "dcp-row-by-row")
    with BenchServer(*arguments) as server:
        meta = server.generate(make_prompt(300), 1)["meta_info"]
        assert sum(meta["kvxfer"]["received_bytes"]) == 300 * ROW_BYTES
        wait_for(server.is_idle, "the request is over")
        assert server.total("prefill", "sender_total_row_by_row_writes") == 300 * 7


def test_one_decode_rank_takes_pages_as_they_are() -> None:
    with BenchServer(*SYNTHETIC, "--mode", "tp") as server:
        meta = server.generate(make_prompt(300), 1)["meta_info"]
        assert meta["kvxfer"]["received_bytes"] == [300 * ROW_BYTES]
        wait_for(server.is_idle, "the request is over")
        assert server.total("prefill", "sender_total_packed_writes") == 0


def test_a_killed_rank_is_started_again_and_the_server_stops_cleanly() -> None:
    with BenchServer(*SYNTHETIC, "--decode-ranks", "2", "--step-s", "0.01") as server:
        events = stream(server, make_prompt(200), 3000)
        next(events)
        killed = server.get("/report")["decode"]["process_ids"]
        os.kill(killed[1], signal.SIGKILL)
        *_, failed, end = events
        assert end == b"[DONE]"
        assert json.loads(failed)["error"]["message"]
        wait_for(lambda: server.is_restarted("decode", killed[1]), "the decode ranks are there")
        assert server.health() == 200
        assert server.generate(make_prompt(200), 2)["meta_info"]["completion_tokens"] == 2
        wait_for(server.is_idle, "the request is over")
        report = server.get("/report")
        running = [pid for worker in report.values() for pid in worker["process_ids"]]
        assert not set(killed) & set(running)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(STOP_S) == 0
        wait_for(
            lambda: not any(is_running(pid) for pid in (*running, *killed)), "no process is left"
        )


def test_a_killed_prefill_process_is_started_again_with_an_empty_cache() -> None:
    with BenchServer(*SYNTHETIC, "--decode-ranks", "2") as server:
        server.generate(make_prompt(200), 1)
        (killed,) = server.get("/report", "prefill")["prefill"]["process_ids"]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: server.is_restarted("prefill", killed), "prefill is there again")
        assert server.generate(make_prompt(200), 1)["meta_info"]["cached_tokens"] == 0
        wait_for(server.is_idle, "nothing is left of any request")
