# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's whole job, over real processes: it holds, and it stops holding when damaged."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvxfer import InvalidArgumentError
from kvxfer.demo import DemoOptions, DemoReport, damage, job, model, run_demo, subject, verdict
from kvxfer.demo.geometry import DESTINATION_POISON, PoolSnapshot
from kvxfer.demo.progress import Progress
from kvxfer.errors import TransferError
from support.library_environment import MOONCAKE, NIXL

pytestmark = pytest.mark.timeout(120)
TOKENS = 700


def run_synthetic(**changes: object) -> DemoReport:
    options = DemoOptions(model="synthetic", destination_ranks=2, tokens=TOKENS)
    return run_demo(dataclasses.replace(options, **changes), io.StringIO())


def failed(report: DemoReport) -> list[str]:
    return [comparison.name for comparison in report.comparisons if not comparison.held]


def check_segments(report: DemoReport) -> None:
    """Segments tile the request, the early part took several, and exactly the last is final."""
    segments = report.segments
    assert [s.begin for s in segments] == [0, *(s.end for s in segments[:-1])]
    assert segments[-1].end == report.tokens
    assert [s.is_final for s in segments] == [False] * (len(segments) - 1) + [True]
    early_end = max(s.end for s in segments if s.end <= report.early_tokens)
    assert early_end % report.source_page_size == 0
    assert sum(s.end <= early_end for s in segments) >= 2
    assert report.capacity_tokens is not None
    assert all(s.end - s.begin <= report.capacity_tokens for s in segments)
    assert report.moved_bytes == report.tokens * report.plane_count * report.row_bytes


# --- generated rows ----------------------------------------------------------------------------


def test_synthetic_job_holds_in_place() -> None:
    report = run_synthetic()
    assert failed(report) == []
    assert report.held
    check_segments(report)
    assert report.landing_modes == ("in_place", "in_place")
    assert report.writes.row_by_row == TOKENS * 7
    assert report.posted_writes == report.writes.packed + 2
    assert report.writes.packed * 10 < report.writes.row_by_row
    assert report.transfer_ms is None, "a loopback write has no cost, so its time says nothing"


def test_synthetic_job_holds_with_landing_regions() -> None:
    report = run_synthetic(landing="landing", destination_ranks=3)
    assert failed(report) == []
    check_segments(report)
    assert report.landing_modes == ("landing",) * 3
    assert report.writes.landing == 3 * len(report.segments)
    assert report.posted_writes == report.writes.landing + 3


@pytest.mark.parametrize("transport", ["nixl", "mooncake"])
def test_synthetic_job_holds_over_the_libraries(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, which read the libraries' environment before they load them."""
    package = {"nixl": "nixl_cu13", "mooncake": "mooncake"}[transport]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: the job over {transport} needs it")
    environment = {"nixl": NIXL, "mooncake": MOONCAKE}[transport]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    report = run_synthetic(transport=transport)
    assert failed(report) == []
    check_segments(report)
    assert report.transfer_ms is not None
    landed = report.landing_modes[0]
    assert report.posted_writes == 2 + (
        report.writes.packed if landed == "in_place" else report.writes.landing
    )


def test_job_holds_where_a_rank_has_less_than_a_page() -> None:
    report = run_synthetic(destination_ranks=7, tokens=256)
    assert failed(report) == []
    assert "control, two whole rows exchanged" in [c.name for c in report.comparisons]


def test_job_of_one_rank_needs_no_pack_buffer() -> None:
    report = run_synthetic(destination_ranks=1)
    assert failed(report) == []
    assert report.capacity_tokens is None
    assert len(report.segments) == 2
    assert "not needed" in "\n".join(report.lines())


def test_a_failing_worker_is_named_in_words() -> None:
    with pytest.raises(TransferError, match=r"kvxfer\.errors is not a transport") as caught:
        run_synthetic(transport="kvxfer.errors")
    assert caught.value.peer in ("prefill", "decode rank 0", "decode rank 1")
    assert "Traceback" not in str(caught.value)


# --- what is judged can fail -------------------------------------------------------------------


@dataclasses.dataclass
class Moved:
    subject: subject.Subject
    layouts: verdict.Layouts
    outcome: verdict.Outcome

    def judge(self, outcome: verdict.Outcome) -> DemoReport:
        return verdict.judge(self.subject, self.layouts, "loopback", outcome)


@pytest.fixture(name="moved", scope="module")
def moved_fixture() -> Moved:
    options = DemoOptions(model="synthetic", destination_ranks=2, tokens=TOKENS)
    rows = subject.SyntheticSubject(TOKENS, "for a test")
    layouts = job._lay_out(rows, 2)
    with Progress(6, io.StringIO()) as progress:
        return Moved(rows, layouts, job._move(rows, layouts, options, progress))


@pytest.mark.parametrize(
    "break_shard",
    [
        lambda shard: damage.swap_rows(shard, (0, 5)),
        lambda shard: damage.shift_page(shard, 1),
        lambda shard: damage.drop_segment(shard, (128, 256), DESTINATION_POISON),
        lambda shard: damage.write_outside(shard, TOKENS),
    ],
    ids=["swapped rows", "shifted page", "dropped segment", "byte outside"],
)
def test_damaged_pool_fails_the_job(
    moved: Moved, break_shard: Callable[[PoolSnapshot], PoolSnapshot]
) -> None:
    assert moved.judge(moved.outcome).held
    shards = [moved.outcome.shards[0], break_shard(moved.outcome.shards[1])]
    report = moved.judge(dataclasses.replace(moved.outcome, shards=shards))
    assert not report.held
    assert any(name.startswith("destination rank 1: ") for name in failed(report))
    assert "FAIL" in "\n".join(report.lines())


def test_exchanged_shards_fail_the_job(moved: Moved) -> None:
    first, second = moved.outcome.shards
    shards = [
        PoolSnapshot(first.geometry, second.memory),
        PoolSnapshot(second.geometry, first.memory),
    ]
    assert not moved.judge(dataclasses.replace(moved.outcome, shards=shards)).held


def test_damaged_source_pool_fails_the_job(moved: Moved) -> None:
    source = damage.swap_rows(moved.outcome.source, (3, 4))
    report = moved.judge(dataclasses.replace(moved.outcome, source=source))
    assert "source rows as generated, by byte" in failed(report)


def test_another_first_token_fails_the_job(moved: Moved) -> None:
    decodes = [dataclasses.replace(d, token=d.token + 1) for d in moved.outcome.decodes]
    report = moved.judge(dataclasses.replace(moved.outcome, decodes=decodes))
    assert failed(report) == ["first token, which travelled as metadata"]


def test_another_number_of_posted_writes_fails_the_job(moved: Moved) -> None:
    room = moved.outcome.prefill.room
    metrics = dataclasses.replace(room.metrics, writes=room.metrics.writes + 1)
    prefill = dataclasses.replace(
        moved.outcome.prefill, room=dataclasses.replace(room, metrics=metrics)
    )
    report = moved.judge(dataclasses.replace(moved.outcome, prefill=prefill))
    assert failed(report) == ["writes of rows that were posted, in_place"]


def test_ranks_that_land_differently_are_counted_each_by_its_way(moved: Moved) -> None:
    report = moved.judge(moved.outcome)
    first, second = moved.outcome.decodes
    modes = dict.fromkeys(second.room.modes, "landing")
    second = dataclasses.replace(second, room=dataclasses.replace(second.room, modes=modes))
    mixed = moved.judge(dataclasses.replace(moved.outcome, decodes=[first, second]))
    (counted,) = (c for c in mixed.comparisons if c.name.startswith("writes of rows"))
    assert counted.name == "writes of rows that were posted, in_place and landing"
    assert report.writes.landing < int(counted.expected) < report.writes.packed


def test_a_report_without_comparisons_does_not_hold(moved: Moved) -> None:
    report = moved.judge(moved.outcome)
    assert not dataclasses.replace(report, comparisons=()).held


# --- choosing, refusing, showing ---------------------------------------------------------------


def test_missing_modules_mean_generated_rows_and_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model, "missing_modules", lambda: ["transformers", "gguf"])
    chosen = subject.choose_subject("auto", 300, tmp_path)
    assert chosen.name == "generated rows of Kimi Linear geometry"
    assert "no module transformers, gguf" in chosen.reason
    with pytest.raises(InvalidArgumentError, match="got no module transformers, gguf"):
        subject.choose_subject("real", 300, tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"destination_ranks": 0}, "destination_ranks: expected 1 to 64, got 0"),
        ({"destination_ranks": 65}, "destination_ranks: expected 1 to 64, got 65"),
        ({"transport": "pigeon"}, r"transport: expected one of .*loopback.*got 'pigeon'"),
        ({"transport": "."}, r"transport: expected one of .*got '\.'"),
        ({"tokens": 255}, "tokens: expected 256 to 262144, got 255"),
        ({"tokens": 10**24}, f"tokens: expected 256 to 262144, got {10**24}"),
        ({"model": "other"}, "model: expected auto, real or synthetic, got 'other'"),
    ],
)
def test_options_that_cannot_be_met_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        run_synthetic(**changes)


def call_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from kvxfer.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_command_prints_one_json_object() -> None:
    done = call_demo(
        "--model", "synthetic", "--tokens", "300", "--destination-ranks", "2", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["held"] is True
    assert report["tokens"] == 300
    assert report["moved_bytes"] == 300 * 7 * 576
    assert {c["held"] for c in report["comparisons"]} == {True}
    assert done.stderr.count("\n") == 6


def test_command_refuses_in_one_line() -> None:
    done = call_demo("--model", "synthetic", "--tokens", "3")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "kvxfer demo: tokens: expected 256 to 262144, got 3"


def test_progress_is_a_bar_on_a_terminal() -> None:
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Progress(2, stream) as progress:
        progress.step("first")
        progress.part(0.5)
        progress.step("second")
    text = stream.getvalue()
    assert "first" in text
    assert "\r" in text or "\x1b[" in text
    assert "[1/2]" not in text


# --- the real model ----------------------------------------------------------------------------


@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(model.missing_modules()), reason="the real model is not installed")
def test_real_model_reads_the_middle_of_its_prompt_from_the_moved_cache() -> None:
    report = run_demo(DemoOptions(model="real", tokens=600), io.StringIO())
    assert failed(report) == []
    check_segments(report)
    assert report.plane_count == 60
    assert report.row_bytes == 3 * 64 * 4
    assert report.text.startswith(" 7093. cherry: 1568.")
    controls = [c for c in report.comparisons if c.name.startswith("control, ")]
    assert len(controls) == 6
    assert sum("tokens" in c.expected for c in controls) == 2
