# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Tables of results, in Markdown that reads well on a terminal too."""

from collections.abc import Iterator, Sequence

from kvxfer.bench.client.options import Case
from kvxfer.bench.client.result import CaseResult, Result
from kvxfer.bench.client.summary import Spread, Summary

__all__ = ["comparison_lines", "result_lines"]

_CASE_COLUMNS = ["prefix + unique", "requests", "at once"]


def result_lines(result: Result) -> Iterator[str]:
    """Return the lines of one result: what was measured, its table, what went wrong."""
    yield from _heading(result)
    header = [*_CASE_COLUMNS, "repeats", "cached tokens", "requests/s"]
    header += ["mean TTFT, ms", "p50, ms", "p99, ms"]
    yield ""
    yield from _table(header, [[*_case_cells(case.case), *_cells(case)] for case in result.cases])
    yield from _problems(result)


def comparison_lines(results: Sequence[Result]) -> Iterator[str]:
    """Return the lines of several results side by side, with ratios to the first one.

    A ratio's range is the widest that the repeats allow: least by greatest, greatest by least.
    """
    for result in results:
        yield from _heading(result)
    first = results[0]
    header = [*_CASE_COLUMNS, "mode", "requests/s", "mean TTFT, ms"]
    header += [f"requests/s by {first.label}'s", f"TTFT by {first.label}'s"]
    yield ""
    yield from _table(header, list(_compared_rows(results)))
    for result in results:
        yield from _problems(result)


def _heading(result: Result) -> Iterator[str]:
    options, client = result.options, result.client
    note = f"; {result.note}" if result.note else ""
    yield (
        f"{result.label}: {result.model}, {options.output_tokens} output tokens, "
        f"{options.repeats} repeats, begun {result.begun_at}"
    )
    yield (
        f"  client: {client.get('processor')}, {client.get('usable_cores')} cores, "
        f"kvxfer {client.get('kvxfer')}{note}"
    )


def _problems(result: Result) -> Iterator[str]:
    for case in result.cases:
        if case.summary is None:
            yield f"{result.label}: {case.case} was not measured: {case.problem}"
    if not result.is_complete:
        over, asked = len(result.cases), len(result.options.cases)
        yield f"{result.label}: the run ended early, {over} of {asked} cases are over"


def _case_cells(case: Case) -> list[str]:
    shape, load = case.shape, case.load
    tokens = f"{shape.prefix_tokens:,} + {shape.unique_tokens:,}"
    return [tokens, str(load.requests), str(load.concurrency)]


def _cells(case: CaseResult) -> list[str]:
    summary = case.summary
    if summary is None:
        return [str(len(case.repeats)), *["not measured"] * 5]
    return [
        str(len(case.repeats)),
        f"{case.cached_tokens:,}",
        _spread_cell(summary.requests_per_s),
        _spread_cell(summary.ttft_mean_ms),
        _figure(summary.ttft_p50_ms),
        _figure(summary.ttft_p99_ms),
    ]


def _compared_rows(results: Sequence[Result]) -> Iterator[list[str]]:
    summaries = [{case.case: case.summary for case in result.cases} for result in results]
    for case in dict.fromkeys(case for of_result in summaries for case in of_result):
        first = summaries[0].get(case)
        for result, of_result in zip(results, summaries, strict=True):
            cells = _compared_cells(of_result.get(case), first)
            yield [*_case_cells(case), result.label, *cells]


def _compared_cells(summary: Summary | None, first: Summary | None) -> list[str]:
    if summary is None:
        return ["not measured"] * 4
    cells = [_spread_cell(summary.requests_per_s), _spread_cell(summary.ttft_mean_ms)]
    if first is None:
        return [*cells, "-", "-"]
    if summary is first:
        return [*cells, "1", "1"]
    return [
        *cells,
        _spread_cell(_ratio(summary.requests_per_s, first.requests_per_s)),
        _spread_cell(_ratio(summary.ttft_mean_ms, first.ttft_mean_ms)),
    ]


def _ratio(above: Spread, below: Spread) -> Spread:
    return Spread(
        above.mean / below.mean, above.least / below.greatest, above.greatest / below.least
    )


def _spread_cell(spread: Spread) -> str:
    if spread.least == spread.greatest:
        return _figure(spread.mean)
    return f"{_figure(spread.mean)} ({_figure(spread.least)} to {_figure(spread.greatest)})"


def _figure(value: float) -> str:
    """Return three significant digits or all those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [f"{'-' * (width - 1)}:" for width in widths]
    for cells in (header, rule, *rows):
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"| {' | '.join(padded)} |"
