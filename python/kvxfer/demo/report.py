# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""What a run of the demo did and what it compared, for people and for programs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TextIO

from kvxfer.demo.checks import Comparison
from kvxfer.demo.counting import WriteCounts


@dataclass(frozen=True)
class MovedSegment:
    """One segment of the request as it was cut, and its bytes over all destination ranks."""

    begin: int
    end: int
    is_final: bool
    bytes: int


@dataclass(frozen=True)
class DemoReport:
    """One run of the demo."""

    model: str
    model_reason: str
    transport: str
    tokens: int
    early_tokens: int
    source_page_size: int
    destination_page_size: int
    destination_ranks: int
    plane_count: int
    row_bytes: int
    pack_buffer_bytes: int
    capacity_tokens: int | None
    landing_modes: tuple[str, ...]
    segments: tuple[MovedSegment, ...]
    writes: WriteCounts
    posted_writes: int
    overlapped_bytes: int
    transfer_ms: float | None
    text: str
    comparisons: tuple[Comparison, ...]

    @property
    def held(self) -> bool:
        """Whether at least one comparison was made and every one of them held."""
        return bool(self.comparisons) and all(c.held for c in self.comparisons)

    @property
    def moved_bytes(self) -> int:
        """Bytes of all rows that went to the destination ranks."""
        return sum(segment.bytes for segment in self.segments)

    def to_json(self) -> str:
        """Return the whole report as one JSON object."""
        return json.dumps(
            {**asdict(self), "moved_bytes": self.moved_bytes, "held": self.held}, indent=2
        )

    def print(self, stream: TextIO | None = None) -> None:
        """Print the report as plain lines."""
        out = sys.stdout if stream is None else stream
        for line in self.lines():
            print(line, file=out)

    def lines(self) -> list[str]:
        """Return the report's lines: what ran, what moved, what was compared."""
        return [*self._setting(), *self._movement(), *self._verdicts()]

    def _setting(self) -> list[str]:
        why = f" ({self.model_reason})" if self.model_reason else ""
        facts = [
            ("rows of", f"{self.model}{why}"),
            ("transport", self.transport),
            ("source", f"1 rank, pages of {self.source_page_size} rows, shuffled"),
            (
                "destination",
                f"{self.destination_ranks} DCP ranks, pages of {self.destination_page_size} rows, "
                "shuffled",
            ),
            ("row", f"{self.plane_count} planes x {self.row_bytes} bytes"),
            (
                "request",
                f"{self.tokens} tokens: the first {self.early_tokens} sent early as a cached "
                "prefix, the rest with the final send",
            ),
            (
                "pack buffer",
                f"{self.pack_buffer_bytes} bytes, takes {self.capacity_tokens} tokens"
                if self.capacity_tokens is not None
                else "not needed: both sides hold the same runs",
            ),
        ]
        if self.text:
            facts.append(("continues", repr(self.text)))
        return ["What ran", *(f"  {name:<12}{value}" for name, value in facts)]

    def _movement(self) -> list[str]:
        lines = ["What moved"]
        for segment in self.segments:
            final = ", final" if segment.is_final else ""
            lines.append(
                f"  segment     [{segment.begin}, {segment.end}) {segment.bytes} bytes{final}"
            )
        writes = self.writes
        lines += [
            f"  bytes       {self.moved_bytes} in {len(self.segments)} segments",
            f"  writes      {writes.row_by_row} row by row, {writes.packed} packed in place, "
            f"{writes.landing} into landing regions",
            f"  posted      {self.posted_writes}, one of metadata for each rank included",
            f"  overlap     {self.overlapped_bytes} bytes had arrived when the last was computed",
        ]
        lines.append(f"  landing     {' '.join(self.landing_modes)}, by destination rank")
        if self.transfer_ms is not None:
            lines.append(f"  time        {self.transfer_ms:.1f} ms with a write under way")
        return lines

    def _verdicts(self) -> list[str]:
        lines = ["What was compared"]
        for comparison in self.comparisons:
            mark = "ok  " if comparison.held else "FAIL"
            lines.append(f"  {mark} {comparison.name} [{comparison.count}]")
            lines.append(f"       expected {comparison.expected}; got {comparison.got}")
        held_count = sum(comparison.held for comparison in self.comparisons)
        lines.append(f"{held_count} of {len(self.comparisons)} comparisons held")
        return lines
