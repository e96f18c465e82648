# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer bench cached-prefix`` against a router that is made of a fake and ordered faults."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvxfer import cli
from kvxfer.bench.client.result import Result, read_result
from support import fake_router
from support.fake_router import FakeRouter, answer_with

PREFIX, UNIQUE = 48, 20
# Numbers of generate calls of a case of 4 requests, 2 at once: three warm the shapes, one the
# prefix, then the first repeat.
WARM_PREFIX, MEASURED = 3, (4, 5, 6, 7)


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with FakeRouter() as running:
        yield running


def words_of(router: FakeRouter, path: Path, *more: str) -> list[str]:
    words = ["bench", "cached-prefix", "--url", router.url, "--workers", *router.workers]
    words += ["--shapes", f"{PREFIX}+{UNIQUE}", "--loads", "4@2", "--repeats", "2"]
    return [*words, "--page-size", "16", "--result", str(path), *more]


def measure(router: FakeRouter, path: Path, *more: str) -> tuple[int, Result]:
    """Run the command; its status, and what it wrote."""
    status = cli.main(words_of(router, path, *more))
    return status, read_result(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bounded.json"


def test_a_run_as_it_should_be(
    router: FakeRouter, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = measure(router, path)
    assert status == 0
    (case,) = result.cases
    assert (str(case.case), case.cached_tokens, case.problem) == ("48+20, 4@2", 48, None)
    assert [repeat.outcomes for repeat in case.repeats] == [{"ok": 4}] * 2
    for repeat in case.repeats:
        assert [record.request for record in repeat.records] == [0, 1, 2, 3]
        for record in repeat.records:
            assert record.response is not None
            assert record.response["meta_info"]["prompt_tokens"] == PREFIX + UNIQUE
            assert record.cached_tokens == 48
            assert record.ttft_s is not None
            assert record.elapsed_s is not None
            assert 0 < record.ttft_s <= record.elapsed_s <= repeat.elapsed_s
    out, err = capsys.readouterr()
    assert "|         48 + 20 |" in out
    assert "not measured" not in out
    assert err.startswith("[1/3] 48+20, 4@2: warm the shapes\n[2/3] 48+20, 4@2: repeat 1\n")


def test_the_order_of_the_procedure(router: FakeRouter, path: Path) -> None:
    assert measure(router, path)[0] == 0
    kinds = [kind if kind == "generate" else f"flush {worker}" for kind, worker in router.calls]
    repeat = ["flush 0", "flush 1", *["generate"] * 5]
    assert kinds == [*["generate"] * 3, *repeat, *repeat]
    prompts = [body["input_ids"] for body in router.bodies]
    assert prompts[WARM_PREFIX] == prompts[0][:PREFIX]
    assert {len(prompt) for prompt in prompts[:3] + prompts[4:8]} == {PREFIX + UNIQUE}
    assert sorted(prompts[4:8]) == sorted(prompts[9:13])
    assert all(prompt in prompts[4:8] for prompt in prompts[:3])


def test_prompts_share_the_prefix_and_nothing_more(router: FakeRouter, path: Path) -> None:
    assert measure(router, path, "--first-token-id", "7", "--vocabulary-size", "12")[0] == 0
    prompts = [router.bodies[number]["input_ids"] for number in MEASURED]
    assert len({tuple(prompt[:PREFIX]) for prompt in prompts}) == 1
    assert len({prompt[PREFIX] for prompt in prompts}) == 4
    assert {token for prompt in prompts for token in prompt} <= set(range(7, 12))
    for body in router.bodies:
        assert body["stream"] is True
        assert body["sampling_params"] == {
            "temperature": 0,
            "max_new_tokens": 1,
            "ignore_eos": True,
        }


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_concurrency_is_reached_and_not_exceeded(at_once: int, path: Path) -> None:
    # The fake lets measured requests go on only in waves of that many, so a client that sends
    # fewer at once gets no answer.
    with FakeRouter(wave=at_once) as router:
        loads = ["--loads", f"{2 * at_once}@{at_once}"]
        assert measure(router, path, *loads)[0] == 0
        assert router.most_at_once == at_once


def test_a_cold_shape_expects_nothing_cached(router: FakeRouter, path: Path) -> None:
    status, result = measure(router, path, "--shapes", "0+32", "--loads", "3@1")
    assert (status, result.cases[0].cached_tokens) == (0, 0)
    kinds = [kind for kind, _ in router.calls]
    # Two prompts warm the shapes, and no prefix is warmed.
    assert kinds == ["generate"] * 2 + (["flush"] * 2 + ["generate"] * 3) * 2


def test_every_shape_runs_under_every_load(router: FakeRouter, path: Path) -> None:
    more = ["--shapes", "32+16", "0+20", "--loads", "2@1", "4@4", "--repeats", "1"]
    status, result = measure(router, path, *more)
    assert status == 0
    names = ["32+16, 2@1", "32+16, 4@4", "0+20, 2@1", "0+20, 4@4"]
    assert [str(case.case) for case in result.cases] == names


def test_a_prefix_that_ends_inside_a_page(router: FakeRouter, path: Path) -> None:
    status, result = measure(router, path, "--shapes", "50+20")
    assert (status, result.cases[0].cached_tokens) == (0, 48)


def one_byte_each(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def torn_in_the_middle(stream: bytes) -> list[bytes]:
    return [stream[: len(stream) // 2], stream[len(stream) // 2 :]]


def with_comments_and_carriage_returns(stream: bytes) -> list[bytes]:
    return [b": ping\r\n\r\n", stream.replace(b"\n", b"\r\n"), b"event: over\r\n\r\n"]


def with_an_event_of_two_lines(stream: bytes) -> list[bytes]:
    return [stream.replace(b', "meta_info"', b',\nid: 7\ndata: "meta_info"')]


@pytest.mark.parametrize(
    "cut",
    [
        one_byte_each,
        torn_in_the_middle,
        with_comments_and_carriage_returns,
        with_an_event_of_two_lines,
    ],
)
def test_streams_in_any_pieces(cut: Any, path: Path) -> None:
    with FakeRouter(cut=cut) as router:
        status, result = measure(router, path, "--output", "3", "--repeats", "1")
    assert status == 0
    records = result.cases[0].repeats[0].records
    assert [record.event_count for record in records] == [3] * 4
    assert all(record.response is not None for record in records)
    assert {record.response["text"] for record in records if record.response} == {"xxx"}


def test_a_body_of_many_pieces(router: FakeRouter, path: Path) -> None:
    more = ["--shapes", "200000+16", "--loads", "1@1", "--repeats", "1", "--page-size", "1"]
    assert measure(router, path, *more)[0] == 0
    assert len(router.bodies[-1]["input_ids"]) == 200_016
    assert router.body_bytes[-1] is not None
    assert router.body_bytes[-1] > 1 << 19


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (fake_router.fail_with_500, "status 500: out of memory"),
        (fake_router.die_in_the_stream, "ClientPayloadError"),
        (answer_with(b"data: [DONE]\n\n"), "the stream ended after 0 events"),
        (answer_with(b""), "the stream ended after 0 events"),
        (answer_with(b'data: {"text": "x"}\n\n'), "the stream ended after 1 events"),
        (answer_with(b'data: {"text": "x"}\n\ndata: [DONE]'), "the stream ended after 1 events"),
        (answer_with(b'data: {"text\n\n', b"data: [DONE]\n\n"), "an event is no JSON object"),
        (answer_with(b"data: [1]\n\ndata: [DONE]\n\n"), "an event is no JSON object"),
        (
            answer_with(b'data: {"error": {"message": "too long"}}\n\ndata: [DONE]\n\n'),
            "the server reports {'message': 'too long'}",
        ),
        (
            answer_with(
                b'data: {"meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}\n\n',
                b"data: [DONE]\n\n",
            ),
            "the server aborted the request: gone",
        ),
    ],
)
def test_an_error_is_counted_and_no_figure_is_shown(
    fault: fake_router.Fault,
    says: str,
    router: FakeRouter,
    path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    router.faults[MEASURED[0]] = fault
    # One at a time, so that the faulty request is over before the others would begin.
    status, result = measure(router, path, "--loads", "4@1")
    assert_unmeasured(status, result, {"ok": 1, "error": 1, "not_sent": 2}, capsys)
    (bad,) = [r for r in result.cases[0].repeats[0].records if r.outcome == "error"]
    assert bad.problem is not None
    assert says in bad.problem
    assert result.cases[0].problem is not None
    assert says in result.cases[0].problem


def test_a_silent_server_is_given_up(
    router: FakeRouter, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    router.faults[MEASURED[0]] = fake_router.stay_silent
    # Ample for the other requests, which take milliseconds.
    status, result = measure(router, path, "--loads", "4@1", "--timeout", "8")
    assert_unmeasured(status, result, {"ok": 1, "error": 1, "not_sent": 2}, capsys)
    assert "request 1: no end of the answer within 8 s" in str(result.cases[0].problem)


def assert_unmeasured(
    status: int, result: Result, outcomes: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = result.cases
    assert (status, case.summary, result.is_clean) == (1, None, False)
    # A case ends with the repeat that went wrong.
    assert [repeat.outcomes for repeat in case.repeats] == [outcomes]
    assert case.repeats[0].figures is None
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if " 48 + 20 |" in line)
    assert row.count("not measured") == 5
    assert f"was not measured: {case.problem}" in out


@pytest.mark.parametrize(
    ("name", "got", "outcome"),
    [
        ("cached_tokens", 0, "cached"),
        ("cached_tokens", 32, "cached"),
        ("cached_tokens", 64, "cached"),
        ("cached_tokens", None, "cached"),
        ("cached_tokens", "48", "cached"),
        ("completion_tokens", 2, "tokens"),
        ("prompt_tokens", PREFIX, "tokens"),
    ],
)
def test_a_wrong_count_is_no_measurement(
    name: str,
    got: object,
    outcome: str,
    path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def report(number: int, meta_info: dict[str, Any]) -> None:
        if number == MEASURED[2]:
            meta_info[name] = got

    with FakeRouter(report=report) as router:
        status, result = measure(router, path)
    assert_unmeasured(status, result, {"ok": 3, outcome: 1}, capsys)
    problem = f"meta_info.{name}: got "
    assert problem in str(result.cases[0].problem)


def test_missing_tokens_are_seen(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report(number: int, meta_info: dict[str, Any]) -> None:
        if number == MEASURED[1]:
            meta_info["completion_tokens"] = 2

    with FakeRouter(report=report) as router:
        status, result = measure(router, path, "--output", "3")
    assert_unmeasured(status, result, {"ok": 3, "tokens": 1}, capsys)
    assert "meta_info.completion_tokens: got 2, expected 3" in str(result.cases[0].problem)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (0, "a request that warms the shapes: status 500: out of memory"),
        (2, "a request that warms the shapes: status 500: out of memory"),
        (WARM_PREFIX, "the request that warms the prefix: status 500: out of memory"),
    ],
)
def test_a_failed_warm_up_ends_the_case_alone(
    number: int, says: str, router: FakeRouter, path: Path
) -> None:
    router.faults[number] = fake_router.fail_with_500
    status, result = measure(router, path, "--shapes", "48+20", "32+20")
    assert status == 1
    assert [case.problem for case in result.cases] == [says, None]
    assert result.cases[0].repeats == []
    assert result.is_complete


def test_a_refused_flush_measures_nothing(path: Path) -> None:
    with FakeRouter(refused_flushes={1}) as router:
        status, result = measure(router, path)
        assert (status, len(router.bodies)) == (1, 3)
        asked = f"{router.workers[1]}/flush_cache?timeout=30"
    says = f"{asked}: got status 400: requests are running, expected status 200"
    assert result.cases[0].problem == says


def test_a_cache_that_was_not_emptied_is_seen(path: Path) -> None:
    with FakeRouter(kept_caches={0, 1}) as router:
        status, result = measure(router, path)
    assert (status, result.cases[0].repeats) == (1, [])
    says = "sent when all workers were flushed: meta_info.cached_tokens: got 48, expected 0"
    assert says in str(result.cases[0].problem)


def test_a_server_that_is_not_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeRouter() as router:
        words = words_of(router, path, "--wait", "0.3")
    assert cli.main(words) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"kvxfer bench cached-prefix: {router.url}/health: got ")
    assert err.endswith("expected status 200 within 0.3 s\n")
    assert not path.exists()


def test_servers_that_need_time_to_start(path: Path) -> None:
    with FakeRouter(unhealthy_answers=3) as router:
        assert measure(router, path, "--loads", "1@1", "--repeats", "1")[0] == 0


def test_servers_that_stay_unhealthy(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeRouter(unhealthy_answers=1_000_000) as router:
        assert cli.main(words_of(router, path, "--wait", "2")) == 1
    assert "/health: got status 503, expected status 200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--shapes", "83264"], "argument --shapes: got '83264', expected PREFIX+UNIQUE"),
        (["--shapes", "64+0"], "argument --shapes: unique tokens of a shape: got 0, expected 1"),
        (["--loads", "0@1"], "argument --loads: requests of a load: got 0, expected 1 or more"),
        (["--loads", "1@0"], "argument --loads: concurrency of a load: got 0, expected 1"),
        (["--loads", "4@x"], "argument --loads: got '4@x', expected REQUESTS@CONCURRENCY"),
    ],
)
def test_words_that_cannot_be_read(
    more: list[str],
    says: str,
    router: FakeRouter,
    path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words_of(router, path, *more))
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"kvxfer bench cached-prefix: {says}")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--output", "0"], "output tokens: got 0, expected 1 or more"),
        (["--repeats", "0"], "repeats: got 0, expected 1 or more"),
        (["--page-size", "0"], "page size: got 0, expected 1 or more"),
        (["--timeout", "nan"], "timeout_s: got nan s, expected a positive finite number"),
        (["--wait", "0"], "wait_s: got 0.0 s, expected a positive finite number"),
        (["--vocabulary-size", "1000"], "vocabulary size: got 1000, expected 1001 or more"),
        (["--vocabulary-size", "1003"], "4 requests need as many different first tokens, but "),
    ],
)
def test_numbers_that_contradict(
    more: list[str],
    says: str,
    router: FakeRouter,
    path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(words_of(router, path, *more)) == 2
    assert capsys.readouterr().err.startswith(f"kvxfer bench cached-prefix: {says}")
    assert router.calls == []


@pytest.mark.parametrize("option", ["--result", "--plot"])
def test_a_file_that_cannot_be_written(
    option: str,
    router: FakeRouter,
    path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = path.parent / "missing"
    assert cli.main(words_of(router, path, option, str(missing / "out.png"))) == 2
    says = f"{missing / 'out.png'}: expected a folder {missing}, got none\n"
    assert capsys.readouterr() == ("", f"kvxfer bench cached-prefix: {says}")
    assert router.calls == []


def test_as_a_process_with_a_plot(router: FakeRouter, path: Path, tmp_path: Path) -> None:
    router.model_info = {"model_path": "synthetic, 5 ms a request", "mode": "bounded"}
    picture = tmp_path / "out.png"
    words = words_of(router, path, "--plot", str(picture), "--note", "two cores", "--label", "b")
    done = subprocess.run(
        [sys.executable, "-m", "kvxfer", *words], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("b: synthetic, 5 ms a request, 1 output tokens, 2 repeats, ")
    assert "; two cores\n" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = json.loads(path.read_bytes())
    assert written["servers"] == dict.fromkeys([router.url, *router.workers], router.model_info)
    assert written["command"].startswith("kvxfer bench cached-prefix --url http://127.0.0.1:")
    assert written["client"]["versions"]["aiohttp"]
    assert written["client"]["usable_cores"] >= 1
