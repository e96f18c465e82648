# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer plan``: one request as JSON in, its segments, rows and write counts as JSON out."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvxfer import (
    Error,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    UnsupportedError,
    WriteList,
    direct_writes,
    packed_writes,
    split_segments,
)
from kvxfer.cli.json_input import InputError, parse_json, shown
from kvxfer.cli.plan_request import MAX_ENTRIES, PlanRequest, Side, parse_request

EXIT_BAD_INPUT = 2

# Every plane has the same runs, so one stands for all. With rows of one byte, addresses are row
# numbers; the base only has to be one.
_ROW_PLANE = Plane(0, PlaneKind.LATENT, 1)
_BASE_ADDRESS = 1

_HELP = """\
Reads one JSON object:
  page_size          tokens of a page: an integer, or {"source": n, "destination": n}
  source             {"ranks": n, "interleave": tokens}, interleave 1 unless given
  destination        the same
  planes             [{"name": text, "row_bytes": n}, ...]
  prefix             tokens that the destination holds already
  tokens             end position of the request, exclusive
  source_pages       a rank's page ids from position 0: a list, or an object by rank
  destination_pages  a rank's page ids from position prefix: a list, or an object by rank
  max_tokens         tokens that the pack buffer was sized for (optional)
  sends              [[begin, end, is_last], ...] (default [[prefix, tokens, true]])

Prints one JSON object: capacity, and for each segment the rows, bytes and write counts of every
pair of ranks that shares tokens. Bad input: status 2 and one line that names the field.
"""


@dataclass(frozen=True)
class _Pair:
    source_rank: int
    destination_rank: int
    relayout: Relayout
    source: PageTable
    destination: PageTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``kvxfer plan``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _HELP
    parser.add_argument("file", metavar="FILE", help="JSON file, or - for standard input")


def run(args: argparse.Namespace) -> int:
    """Print the plan and return 0, or one line on standard error and return 2."""
    try:
        plan = build_plan(parse_request(parse_json(_read(args.file))))
    except (InputError, Error) as error:  # what is planned is the input's alone
        print(f"kvxfer plan: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    sys.stdout.writelines(_render(plan))
    return 0


def build_plan(request: PlanRequest) -> dict[str, object]:
    """Plan one request with the core.

    Parameters
    ----------
    request : PlanRequest
        From ``parse_request``.

    Returns
    -------
    dict[str, object]
        ``capacity`` and ``segments``, ready for JSON.

    Raises
    ------
    InputError
        If ``max_tokens`` gives no capacity or too many segments, or the two shardings are not
        supported together.
    """
    pairs = _pairs(request)
    capacity = _capacity(request, pairs)
    segments = [
        segment
        for send in request.sends
        for segment in split_segments(
            send.begin,
            send.end,
            is_final=send.is_final,
            prefix=request.prefix,
            alignment_tokens=request.source.widened_page_tokens,
            capacity_tokens=capacity,
        )
    ]
    if len(segments) * len(pairs) > MAX_ENTRIES:
        got = f"{len(segments)} segments of {len(pairs)} pairs of ranks"
        raise InputError("max_tokens", got, f"at most {MAX_ENTRIES} entries in all")
    by_pair = [_pair_entries(request, pair, segments) for pair in pairs]
    return {
        "capacity": capacity,
        "segments": [
            {
                "begin": segment.begin,
                "end": segment.end,
                "final": segment.is_final,
                "pairs": [entries[i] for entries in by_pair],
            }
            for i, segment in enumerate(segments)
        ],
    }


def _read(name: str) -> str:
    field = "FILE" if name != "-" else "standard input"
    if name == "-" and getattr(sys, "stdin", None) is None:
        raise InputError(field, "a closed one", "JSON")
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(field, f"{shown(name)} ({reason})", "a readable file") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"byte {data[error.start]:#04x} at offset {error.start}"
        raise InputError(field, got, "UTF-8 text") from None


def _pairs(request: PlanRequest) -> list[_Pair]:
    sources = _ranks(request.source, 0, request.tokens)
    destinations = _ranks(request.destination, request.prefix, request.tokens)
    try:
        pairs = [
            _Pair(i, j, Relayout(source, destination), source_table, destination_table)
            for i, (source, source_table) in enumerate(sources)
            for j, (destination, destination_table) in enumerate(destinations)
        ]
    except UnsupportedError as error:
        got = f"interleaves {request.source.interleave} and {request.destination.interleave}"
        raise InputError("source and destination", f"{got} ({error})", "a joint period") from None
    return [pair for pair in pairs if pair.relayout.shares_tokens()]


def _ranks(side: Side, first_position: int, tokens: int) -> list[tuple[PoolLayout, PageTable]]:
    page_count = side.page_count
    ranks = []
    for rank, pages in enumerate(side.pages):
        layout = PoolLayout(side.page_size, page_count, [_ROW_PLANE], sharding=side.sharding(rank))
        needed = side.needed_pages(rank, first_position, tokens)  # a longer list is one per rank
        table = PageTable(
            layout,
            np.array(pages[:needed], dtype=np.int64),
            first_position=first_position,
            plane_addresses=[_BASE_ADDRESS],
        )
        ranks.append((layout, table))
    return ranks


def _capacity(request: PlanRequest, pairs: list[_Pair]) -> int | None:
    if request.max_tokens is None or not any(pair.relayout.needs_packing for pair in pairs):
        return None
    alignment_tokens = request.source.widened_page_tokens
    capacity = request.max_tokens // alignment_tokens * alignment_tokens
    if capacity == 0:
        of = "source page size times source ranks"
        raise InputError("max_tokens", shown(request.max_tokens), f">= {alignment_tokens} ({of})")
    return capacity


def _pair_entries(
    request: PlanRequest, pair: _Pair, segments: list[Segment]
) -> list[dict[str, object]]:
    relayout, source, destination = pair.relayout, pair.source, pair.destination
    packed = _run_counts(packed_writes(relayout, segments, 0, destination))
    direct = _run_counts(direct_writes(relayout, segments, source, destination))
    token_bytes, plane_count = sum(request.row_bytes), len(request.row_bytes)
    return [
        {
            "source_rank": pair.source_rank,
            "destination_rank": pair.destination_rank,
            "source_rows": relayout.source_rows(s.begin, s.end, source).tolist(),
            "destination_rows": relayout.destination_rows(s.begin, s.end, destination).tolist(),
            "bytes": relayout.row_count(s.begin, s.end) * token_bytes,
            "packed_writes": packed_runs * plane_count,
            "direct_writes": direct_runs * plane_count,
        }
        for s, packed_runs, direct_runs in zip(segments, packed, direct, strict=True)
    ]


def _run_counts(writes: WriteList) -> Iterable[int]:
    counts: list[int] = np.diff(writes.segment_offsets).tolist()
    return counts


def _render(plan: dict[str, object]) -> Iterator[str]:
    """Write JSON with one pair of ranks a line."""
    segments = plan["segments"]
    assert isinstance(segments, list)
    yield f'{{"capacity": {json.dumps(plan["capacity"])}, "segments": ['
    for i, segment in enumerate(segments):
        head = json.dumps({key: segment[key] for key in ("begin", "end", "final")})
        yield f'{"," if i else ""}\n {head[:-1]}, "pairs": ['
        pairs = segment["pairs"]
        yield ",".join(f"\n  {json.dumps(pair)}" for pair in pairs)
        yield "]}"
    yield "]}\n"
