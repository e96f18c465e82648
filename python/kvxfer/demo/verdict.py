# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Judges one run of the demo: every comparison that is made, and the report."""

from __future__ import annotations

from dataclasses import dataclass

import kvxfer
from kvxfer.demo import checks, counting, damage
from kvxfer.demo.geometry import (
    DESTINATION_POISON,
    PoolGeometry,
    PoolSnapshot,
    Rows,
    reassemble_rows,
)
from kvxfer.demo.report import DemoReport, MovedSegment
from kvxfer.demo.subject import Subject
from kvxfer.demo.worker import WorkerResult


@dataclass(frozen=True)
class Layouts:
    """Pools of a run, and the cut of its request."""

    source: PoolGeometry
    destinations: list[PoolGeometry]
    early_tokens: int
    pack_buffer_bytes: int


@dataclass
class Outcome:
    """What came back from the workers."""

    prefill: WorkerResult
    decodes: list[WorkerResult]
    source: PoolSnapshot
    shards: list[PoolSnapshot]


def judge(subject: Subject, layouts: Layouts, transport: str, outcome: Outcome) -> DemoReport:
    """Make every comparison and put the report together.

    Parameters
    ----------
    subject : Subject
        What was moved; its reference is there.
    layouts : Layouts
        Pools of the run.
    transport : str
        Name of the transport.
    outcome : Outcome
        What came back from the workers.
    """
    segments = _cut(layouts, subject.tokens, outcome.prefill.capacity_tokens)
    counts = counting.count_writes(layouts.source, layouts.destinations, segments)
    comparisons = _compare_all(subject, layouts, outcome, segments)
    token_bytes = sum(plane.row_bytes for plane in subject.planes)
    metrics = outcome.prefill.room.metrics
    return DemoReport(
        model=subject.name,
        model_reason=subject.reason,
        transport=transport,
        tokens=subject.tokens,
        early_tokens=layouts.early_tokens,
        source_page_size=layouts.source.page_size,
        destination_page_size=layouts.destinations[0].page_size,
        destination_ranks=len(outcome.shards),
        plane_count=len(subject.planes),
        row_bytes=subject.planes[0].row_bytes,
        pack_buffer_bytes=layouts.pack_buffer_bytes,
        capacity_tokens=outcome.prefill.capacity_tokens,
        landing_modes=tuple(_modes(outcome)),
        segments=tuple(
            MovedSegment(s.begin, s.end, s.is_final, (s.end - s.begin) * token_bytes)
            for s in segments
        ),
        writes=counts,
        posted_writes=metrics.writes,
        overlapped_bytes=outcome.prefill.overlapped_bytes,
        transfer_ms=metrics.active_s * 1e3 if outcome.prefill.write_cost_us > 0 else None,
        text=subject.text,
        comparisons=tuple(comparisons),
    )


def _compare_all(
    subject: Subject,
    layouts: Layouts,
    outcome: Outcome,
    segments: list[kvxfer.Segment],
) -> list[checks.Comparison]:
    """Compare bytes first, then counts, then what the model makes of the bytes, then controls."""
    source_rows = outcome.source.rows(subject.tokens)
    arrived_rows = reassemble_rows(outcome.shards, subject.tokens)
    return [
        *checks.compare_rows(source_rows, outcome.shards),
        *checks.compare_untouched(outcome.shards, subject.tokens, DESTINATION_POISON),
        *_compare_counts(layouts, outcome, segments),
        *_compare_early_cut(outcome, segments, layouts.early_tokens),
        *subject.compare(source_rows, arrived_rows, outcome.decodes[0].token),
        *_compare_damaged_bytes(source_rows, outcome.shards, segments),
    ]


def _cut(layouts: Layouts, tokens: int, capacity_tokens: int | None) -> list[kvxfer.Segment]:
    """Cut the two sends as the sender does."""
    segments: list[kvxfer.Segment] = []
    for end, is_final in ((layouts.early_tokens, False), (tokens, True)):
        segments += kvxfer.split_segments(
            segments[-1].end if segments else 0,
            end,
            is_final=is_final,
            prefix=0,
            alignment_tokens=layouts.source.page_size,
            capacity_tokens=capacity_tokens,
        )
    return segments


def _compare_counts(
    layouts: Layouts, outcome: Outcome, segments: list[kvxfer.Segment]
) -> list[checks.Comparison]:
    """Compare what the workers counted with what the plan says."""
    source = outcome.source.geometry
    moved_bytes = [
        sum(plane.row_bytes for plane in source.planes)
        * len(shard.geometry.positions(0, segments[-1].end))
        for shard in outcome.shards
    ]
    return [
        _compare_numbers(
            "segments that each destination rank counted",
            [len(segments)] * len(outcome.shards),
            [decode.room.metrics.segments for decode in outcome.decodes],
        ),
        _compare_numbers(
            "bytes that each destination rank counted",
            moved_bytes,
            [decode.room.metrics.bytes for decode in outcome.decodes],
        ),
        _compare_numbers(
            f"writes of rows that were posted, {' and '.join(sorted(set(_modes(outcome))))}",
            [_planned_writes(layouts, outcome, segments)],
            [outcome.prefill.room.metrics.writes - len(outcome.shards)],
        ),
    ]


def _compare_early_cut(
    outcome: Outcome, segments: list[kvxfer.Segment], early_tokens: int
) -> list[checks.Comparison]:
    """Hold that the early part did not fit the pack buffer, where there is one."""
    if outcome.prefill.capacity_tokens is None:
        return []
    early_count = sum(segment.end <= early_tokens for segment in segments)
    return [
        checks.Comparison(
            name="segments of the part that was sent early",
            expected="at least 2",
            got=str(early_count),
            count=len(segments),
            held=early_count >= 2,
        )
    ]


def _modes(outcome: Outcome) -> list[str]:
    """Return how rows landed, by destination rank."""
    return [mode for decode in outcome.decodes for mode in decode.room.modes.values()]


def _planned_writes(layouts: Layouts, outcome: Outcome, segments: list[kvxfer.Segment]) -> int:
    """Return the writes of rows that the way chosen for each destination rank takes."""
    planned = 0
    for geometry, mode in zip(layouts.destinations, _modes(outcome), strict=True):
        counts = counting.count_writes(layouts.source, [geometry], segments)
        if outcome.prefill.capacity_tokens is None:
            planned += counts.row_by_row
        else:
            planned += counts.landing if mode == "landing" else counts.packed
    return planned


def _compare_numbers(name: str, expected: list[int], got: list[int]) -> checks.Comparison:
    """Compare two lists of counts."""
    return checks.Comparison(
        name=name,
        expected=" ".join(map(str, expected)),
        got=" ".join(map(str, got)),
        count=len(expected),
        held=expected == got,
    )


def _compare_damaged_bytes(
    source_rows: Rows, shards: list[PoolSnapshot], segments: list[kvxfer.Segment]
) -> list[checks.Comparison]:
    """Damage the last rank's pool in ways that tokens may not show; bytes must."""
    shard, others = shards[-1], shards[:-1]
    segment = segments[len(segments) // 2]
    tokens = segments[-1].end
    last_row = len(shard.geometry.positions(0, tokens)) - 1
    by_rows = {
        "two whole rows exchanged": damage.swap_rows(shard, (0, last_row)),
        "a page shifted by a row": damage.shift_page(shard, 0),
        "a segment missing": damage.drop_segment(
            shard, (segment.begin, segment.end), DESTINATION_POISON
        ),
    }
    comparisons = [
        checks.compare_noticed(name, checks.compare_rows(source_rows, [*others, damaged]))
        for name, damaged in by_rows.items()
    ]
    outside = damage.write_outside(shard, tokens)
    return [
        *comparisons,
        checks.compare_noticed(
            "a byte written outside",
            checks.compare_untouched([outside], tokens, DESTINATION_POISON),
        ),
    ]
