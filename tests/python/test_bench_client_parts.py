# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of the benchmark client without a server: figures, tables, files, comparison, pictures."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvxfer import InvalidArgumentError, UnsupportedError, cli
from kvxfer.bench.client import plot
from kvxfer.bench.client.options import ClientOptions, Load, Shape, TokenIds
from kvxfer.bench.client.prompts import make_prompts
from kvxfer.bench.client.record import Answer, Expectation, Record, judge
from kvxfer.bench.client.result import CaseResult, Result, read_result, write_result
from kvxfer.bench.client.summary import Figures, Repeat, Spread, make_repeat, summarise
from kvxfer.bench.client.table import comparison_lines, result_lines

COLD, LONG = Shape(0, 32768), Shape(83264, 6720)
LOAD = Load(4, 2)


def record(request: int, ttft_s: float | None, outcome: Any = "ok") -> Record:
    return Record(request, outcome, None, ttft_s, 1.0, 1, 48, {"text": "x"})


def repeat_of(elapsed_s: float, *ttft_s: float) -> Repeat:
    return make_repeat(elapsed_s, [record(i, value) for i, value in enumerate(ttft_s)])


# --- figures --------------------------------------------------------------------------------------


def test_figures_of_a_repeat() -> None:
    # By hand: 4 requests in 2 s; sorted 10, 20, 30, 100 ms; the median lies between 20 and 30, and
    # 99 % of the way from the first to the last is 0.97 of the way from 30 to 100.
    repeat = repeat_of(2.0, 0.030, 0.010, 0.100, 0.020)
    assert repeat.outcomes == {"ok": 4}
    assert repeat.figures is not None
    assert repeat.figures.requests_per_s == 2.0
    assert repeat.figures.ttft_mean_ms == pytest.approx(40.0)
    assert repeat.figures.ttft_p50_ms == pytest.approx(25.0)
    assert repeat.figures.ttft_p99_ms == pytest.approx(97.9)


def test_figures_over_repeats() -> None:
    summary = summarise([repeat_of(1.0, 0.010, 0.030), repeat_of(4.0, 0.050, 0.070)])
    assert summary is not None
    assert summary.requests_per_s == Spread(mean=1.25, least=0.5, greatest=2.0)
    assert summary.ttft_mean_ms.mean == pytest.approx(40.0)
    assert (summary.ttft_mean_ms.least, summary.ttft_mean_ms.greatest) == pytest.approx((20, 60))
    assert summary.ttft_p50_ms == pytest.approx(40.0)
    assert summary.ttft_p99_ms == pytest.approx(69.4)


def test_one_request_is_its_own_distribution() -> None:
    assert repeat_of(0.5, 0.2).figures == Figures(2.0, 200.0, 200.0, 200.0)


@pytest.mark.parametrize("outcome", ["error", "not_sent", "tokens", "cached"])
def test_a_repeat_with_one_bad_answer_has_no_figures(outcome: str) -> None:
    bad = make_repeat(1.0, [record(0, 0.1), record(1, 0.1, outcome)])
    assert (bad.outcomes, bad.figures) == ({"ok": 1, outcome: 1}, None)
    assert summarise([repeat_of(1.0, 0.1), bad]) is None
    assert summarise([]) is None


def test_verdicts() -> None:
    expected = Expectation(prompt_tokens=68, completion_tokens=1, cached_tokens=48)
    right = {"prompt_tokens": 68, "completion_tokens": 1, "cached_tokens": 48}

    def outcome(response: dict[str, Any] | None, error: str | None = None) -> str:
        return judge(0, Answer(0.1, 0.2, 1, response, error), expected).outcome

    assert outcome({"meta_info": right}) == "ok"
    assert outcome({"meta_info": right}, error="reset") == "error"
    assert outcome({"meta_info": {**right, "completion_tokens": True}}) == "tokens"
    assert outcome({"meta_info": {**right, "prompt_tokens": 67}}) == "tokens"
    assert outcome({"meta_info": {**right, "cached_tokens": 47}}) == "cached"
    assert outcome({"meta_info": "none"}) == "tokens"
    assert outcome(None) == "tokens"
    assert judge(3, None, expected).outcome == "not_sent"


# --- prompts --------------------------------------------------------------------------------------


def test_prompts_are_a_function_of_their_seed() -> None:
    ids = TokenIds(seed=7, first_token_id=5, vocabulary_size=25)
    one, same = (make_prompts(Shape(9, 4), 20, 1, ids) for _ in range(2))
    other = make_prompts(Shape(9, 4), 20, 1, replace(ids, seed=8))
    assert [one.body(i) for i in range(20)] == [same.body(i) for i in range(20)]
    assert one.prefix_body() != other.prefix_body()
    assert one.prefix.min() >= 5
    assert one.suffixes.max() < 25
    assert sorted(one.suffixes[:, 0]) == list(range(5, 25))
    body = json.loads(one.body(3))
    assert body["input_ids"] == [*one.prefix.tolist(), *one.suffixes[3].tolist()]
    assert json.loads(one.prefix_body())["input_ids"] == one.prefix.tolist()


def test_the_cached_part_is_whole_pages() -> None:
    options = ClientOptions(page_size=64)
    assert options.cached_tokens_of(LONG) == 83264
    assert options.cached_tokens_of(Shape(127, 1)) == 64
    assert options.cached_tokens_of(Shape(63, 1)) == 0


# --- the result file ------------------------------------------------------------------------------


def make_result(
    label: str, *, elapsed_s: float = 2.0, shapes: tuple[Shape, ...] = (LONG,)
) -> Result:
    """A complete result whose repeats took this and twice this long."""
    options = ClientOptions(shapes=shapes, loads=(LOAD,), repeats=2)
    result = Result(label=label, note="", options=options, is_complete=True)
    result.client = {"processor": "abacus", "usable_cores": 2, "kvxfer": "1"}
    result.servers = {"http://router": None, "http://worker": {"model_path": "synthetic, 5 ms"}}
    for shape in shapes:
        repeats = [repeat_of(elapsed_s * k, *[0.010 * elapsed_s * k] * 4) for k in (1, 2)]
        summary = summarise(repeats)
        cached_tokens = options.cached_tokens_of(shape)
        result.cases.append(CaseResult(shape, LOAD, cached_tokens, None, summary, repeats))
    return result


def spoil(result: Result) -> Result:
    bad = make_repeat(1.0, [record(0, 0.1, "cached")])
    result.cases[0] = replace(result.cases[0], problem="cold", summary=None, repeats=[bad])
    return result


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    result = make_result("bounded", shapes=(LONG, COLD))
    write_result(tmp_path / "r.json", result)
    assert read_result(tmp_path / "r.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_the_schema_of_the_file(tmp_path: Path) -> None:
    write_result(tmp_path / "r.json", make_result("bounded"))
    written = json.loads((tmp_path / "r.json").read_bytes())
    assert written["format"] == "kvxfer cached-prefix 1"
    assert set(written) == {
        "label",
        "note",
        "options",
        "servers",
        "format",
        "command",
        "begun_at",
        "client",
        "is_complete",
        "cases",
    }
    (case,) = written["cases"]
    assert set(case) == {"shape", "load", "cached_tokens", "problem", "summary", "repeats"}
    assert case["shape"] == {"prefix_tokens": 83264, "unique_tokens": 6720}
    assert case["load"] == {"requests": 4, "concurrency": 2}
    assert set(case["repeats"][0]) == {"elapsed_s", "outcomes", "figures", "records"}
    figures = {"requests_per_s", "ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms"}
    assert set(case["repeats"][0]["figures"]) == set(case["summary"]) == figures
    assert set(case["summary"]["requests_per_s"]) == {"mean", "least", "greatest"}
    (first, *_) = case["repeats"][0]["records"]
    assert set(first) == {
        "request",
        "outcome",
        "problem",
        "ttft_s",
        "elapsed_s",
        "event_count",
        "cached_tokens",
        "response",
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kvxfer cached-prefix 1", "kvxfer cached-prefix 0"),
        ('"outcome": "ok"', '"outcome": "fine"'),
        ('"unique_tokens": 6720', '"unique_tokens": 0'),
        ('"elapsed_s": 2.0', '"elapsed_s": "2.0"'),
        ('"is_complete": true', '"was_complete": true, "is_complete": 1'),
        ("{", "["),
    ],
)
def test_a_damaged_file_is_refused(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_result(path, make_result("bounded"))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidArgumentError, match=r"r\.json: expected a result file, got: "):
        read_result(path)


# --- tables ---------------------------------------------------------------------------------------


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_one_result() -> None:
    first, client, _, header, rule, row = result_lines(make_result("bounded"))
    assert first.startswith("bounded: synthetic, 5 ms, 1 output tokens, 2 repeats, begun 20")
    assert client == "  client: abacus, 2 cores, kvxfer 1"
    assert len({len(header), len(rule), len(row)}) == 1
    # 4 requests in 2 s and in 4 s; TTFT of 20 and of 40 ms.
    assert dict(zip(cells_of(header), cells_of(row), strict=True)) == {
        "prefix + unique": "83,264 + 6,720",
        "requests": "4",
        "at once": "2",
        "repeats": "2",
        "cached tokens": "83,264",
        "requests/s": "1.5 (1 to 2)",
        "mean TTFT, ms": "30 (20 to 40)",
        "p50, ms": "30",
        "p99, ms": "40",
    }


def test_a_case_that_was_not_measured_has_no_figure() -> None:
    lines = list(result_lines(spoil(make_result("bounded"))))
    assert cells_of(lines[5])[4:] == ["not measured"] * 5
    assert lines[6] == "bounded: 83264+6720, 4@2 was not measured: cold"


def test_ratios_are_to_the_first() -> None:
    bounded, rows = make_result("bounded"), make_result("row by row", elapsed_s=16.0)
    lines = list(comparison_lines([rows, bounded]))
    header, _, base, other = [cells_of(line) for line in lines if line.startswith("|")]
    assert header[-2:] == ["requests/s by row by row's", "TTFT by row by row's"]
    assert base[3:] == ["row by row", "0.188 (0.125 to 0.25)", "240 (160 to 320)", "1", "1"]
    # Means differ by 8; the slowest of one against the fastest of the other by 4, and by 16.
    assert other[3:6] == ["bounded", "1.5 (1 to 2)", "30 (20 to 40)"]
    assert other[6:] == ["8 (4 to 16)", "0.125 (0.0625 to 0.25)"]


def test_cases_of_one_side_alone_are_no_ratio() -> None:
    lines = list(comparison_lines([make_result("a"), make_result("b", shapes=(LONG, COLD))]))
    rows = [cells_of(line) for line in lines if line.startswith("|")][2:]
    assert [row[0] for row in rows] == ["83,264 + 6,720"] * 2 + ["0 + 32,768"] * 2
    assert rows[2][4:] == ["not measured"] * 4
    assert rows[3][6:] == ["-", "-"]


# --- the command compare --------------------------------------------------------------------------


def written(folder: Path, *results: Result) -> list[str]:
    paths = [folder / f"{result.label}.json" for result in results]
    for path, result in zip(paths, results, strict=True):
        write_result(path, result)
    return [str(path) for path in paths]


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, make_result("a"), make_result("b", elapsed_s=4.0))
    picture = tmp_path / "out.svg"
    assert cli.main(["bench", "compare", *paths, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "0.5 (0.25 to 1)" in out
    assert "2 (1 to 4)" in out
    assert "<svg" in picture.read_text()


def test_compare_with_an_unmeasured_case_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, make_result("a"), spoil(make_result("b")))
    assert cli.main(["bench", "compare", *paths]) == 1
    assert "b: 83264+6720, 4@2 was not measured: cold" in capsys.readouterr().out


def test_compare_with_a_run_that_ended_early_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = make_result("b")
    ended.is_complete = False
    assert cli.main(["bench", "compare", *written(tmp_path, ended)]) == 1
    assert "b: the run ended early, 1 of 1 cases are over" in capsys.readouterr().out


def test_results_that_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = written(tmp_path, make_result("a"))
    assert cli.main(["bench", "compare", one, one]) == 2
    assert "labels: got ['a', 'a'], expected different ones" in capsys.readouterr().err
    longer = make_result("b")
    longer.options = replace(longer.options, output_tokens=2)
    assert cli.main(["bench", "compare", one, *written(tmp_path, longer)]) == 2
    assert "output_tokens: got {'a': 1, 'b': 2}, expected the same" in capsys.readouterr().err
    assert cli.main(["bench", "compare", str(tmp_path / "none.json")]) == 2
    assert "none.json: expected a result file, got: " in capsys.readouterr().err


def test_a_picture_of_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, spoil(make_result("a")))
    picture = tmp_path / "out.png"
    assert cli.main(["bench", "compare", *paths, "--plot", str(picture)]) == 2
    assert "no case was measured" in capsys.readouterr().err
    assert not picture.exists()


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"out\.doc: .*not supported"):
        plot.draw([make_result("a")], tmp_path / "out.doc")


# --- what is not installed ------------------------------------------------------------------------


def run_without(package: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where a package cannot be found."""
    code = (
        "import sys, importlib.util as util\n"
        f"find, sys.modules[{package!r}] = util.find_spec, None\n"
        f"util.find_spec = lambda name: None if name == {package!r} else find(name)\n"
        "from kvxfer.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=50
    )


def test_without_matplotlib(tmp_path: Path) -> None:
    paths = written(tmp_path, make_result("a"))
    done = run_without("matplotlib", "bench", "compare", *paths)
    assert done.returncode == 0, done.stderr
    refused = run_without("matplotlib", "bench", "compare", *paths, "--plot", "out.png")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "kvxfer bench compare: a plot needs matplotlib, which is not installed; install it with "
        "pip install 'kvxfer[bench]'\n"
    )
    # Told before a server is looked for.
    words = ["bench", "cached-prefix", "--result", str(tmp_path / "r.json"), "--plot", "out.png"]
    early = run_without("matplotlib", *words)
    assert early.stderr.startswith("kvxfer bench cached-prefix: a plot needs matplotlib")


def test_without_an_http_library(tmp_path: Path) -> None:
    done = run_without("aiohttp", "bench", "cached-prefix", "--result", str(tmp_path / "r.json"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kvxfer bench cached-prefix: the benchmark client needs a ")
    assert done.stderr.endswith("install it with pip install 'kvxfer[bench]'\n")


def test_help_and_tables_load_no_library_that_they_do_not_use(tmp_path: Path) -> None:
    paths = written(tmp_path, make_result("a"))
    code = (
        "import sys, json; from kvxfer.cli import main; main(['bench', 'compare', sys.argv[1]]);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=50, check=True
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert loaded & {"aiohttp", "matplotlib", "torch", "rich", "nixl", "mooncake"} == set()


def test_a_missing_plot_library_is_an_error_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=re.escape("pip install 'kvxfer[bench]'")):
        plot.require_matplotlib()
