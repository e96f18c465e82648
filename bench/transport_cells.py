# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the transports benchmark measures: lanes, sizes, cells, and the ratios between cells."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from transport_workers import TOKEN_BYTES, Sender

MIB = 1 << 20
SEGMENT_TOKENS = 8192


@dataclass(frozen=True)
class Lane:
    """A transport, its options, and the environment that its processes start with."""

    name: str
    transport: str
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    memory: str = "host"
    pause_s: float = 0.00005


_QUIET = {"UCX_MODULES": "^ib", "UCX_LOG_LEVEL": "fatal", "NIXL_LOG_LEVEL": "FATAL"}
LANES = [
    Lane("nixl/tcp", "nixl", {**_QUIET, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}),
    # UCX writes through shared memory only where it need not notice the death of a peer.
    Lane(
        "nixl/shm",
        "nixl",
        {**_QUIET, "UCX_TLS": "sm,self"},
        {"backend_options": {"ucx_error_handling_mode": "none"}},
    ),
    # Mooncake moves bytes in threads of its own: whoever polls leaves them the cores.
    Lane(
        "mooncake/tcp",
        "mooncake",
        {"MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "ERROR"},
        pause_s=0.0001,
    ),
    Lane("loopback", "loopback"),
]
# UCX chooses by itself: cuda_ipc between two processes on one GPU.
CUDA_LANES = [
    Lane("nixl/cuda", "nixl", {"UCX_LOG_LEVEL": "fatal", "NIXL_LOG_LEVEL": "FATAL"}, memory="cuda")
]


@dataclass(frozen=True)
class Size:
    """One request; ``label`` is what tables call it."""

    label: str
    tokens: int

    @property
    def size_bytes(self) -> int:
        return self.tokens * TOKEN_BYTES

    @classmethod
    def of_mib(cls, mib: int) -> Size:
        """As many tokens as fit into so many MiB."""
        return cls(f"{mib} MiB", mib * MIB // TOKEN_BYTES)


@dataclass(frozen=True)
class Cell:
    """One way of moving a request; ``sender`` None: one contiguous write of the same bytes."""

    name: str
    sender: str | None
    landing: str = "auto"
    is_shuffled: bool = True


WIRE = Cell("wire alone: one contiguous write", None)
ROWS = Cell("row by row", "row by row", "in_place")
SERIAL = Cell("packed, one buffer", "serial")
RING = Cell("packed, ring of two", "ring")
UNBOUNDED = Cell("one unbounded send, in place", "unbounded", "in_place")
BOUNDED = Cell("bounded segments, in place", "ring", "in_place")
LANDED = Cell("landing, shuffled pages", "ring", "landing")
CONTIGUOUS = Cell("chosen way, contiguous pages", "ring", "auto", is_shuffled=False)
CONTIGUOUS_IN_PLACE = Cell("in place, contiguous pages", "ring", "in_place", is_shuffled=False)
CONTIGUOUS_LANDED = Cell("landing, contiguous pages", "ring", "landing", is_shuffled=False)
PUBLISHED = Cell("published pack, one write a run", "published", "in_place")

CELLS = [
    WIRE,
    ROWS,
    SERIAL,
    RING,
    UNBOUNDED,
    BOUNDED,
    LANDED,
    CONTIGUOUS,
    CONTIGUOUS_IN_PLACE,
    CONTIGUOUS_LANDED,
]
SEGMENT_CELLS = [WIRE, PUBLISHED, RING, LANDED, BOUNDED]


def senders(pack_tokens: int, unbounded_tokens: int) -> tuple[Sender, ...]:
    """The prefill rank's managers; all but one are bounded by the same budget."""
    return (
        Sender("row by row", {"packing": "row_by_row", "pack_tokens": pack_tokens}),
        Sender("serial", {"pack_buffer_count": 1, "pack_tokens": pack_tokens}),
        Sender("ring", {"pack_buffer_count": 2, "pack_tokens": pack_tokens}),
        Sender("unbounded", {"pack_buffer_count": 1, "pack_tokens": unbounded_tokens}),
        Sender("published", {"pack_buffer_count": 1, "pack_tokens": pack_tokens}, "published"),
    )


@dataclass
class Measured:
    """One cell of one size on one lane.

    ``times_s``: by round; rounds in which the cell was left out are missing.
    """

    lane: str
    size: Size
    cell: Cell
    times_s: dict[int, float] = field(default_factory=dict)
    modes: list[str] = field(default_factory=list)
    segments: int = 0
    writes: int = 1
    packed_writes: int = 0
    row_by_row_writes: int = 0
    row_writes: int = 0
    moved_bytes: int = 0
    differing_bytes: int = 0
    stray_words: int = 0

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s.values())

    @property
    def gb_per_s(self) -> float:
        return self.size.size_bytes / self.median_s / 1e9

    def as_json(self) -> dict[str, Any]:
        return {
            "lane": self.lane,
            "size": self.size.label,
            "tokens": self.size.tokens,
            "bytes": self.moved_bytes,
            "cell": self.cell.name,
            "modes": self.modes,
            "segments": self.segments,
            "writes": self.writes,
            "packed_writes": self.packed_writes,
            "row_by_row_writes": self.row_by_row_writes,
            "row_writes": self.row_writes,
            "differing_bytes": self.differing_bytes,
            "stray_words": self.stray_words,
            "times_ms": [round(1000 * t, 3) for t in self.times_s.values()],
            "median_ms": round(1000 * self.median_s, 3),
        }


@dataclass(frozen=True)
class Ratio:
    """How much longer one cell took than another: median over the rounds that have both.

    ``goal``: bound on it by lane name; where no lane is named there is none. ``is_least``: the
    ratio should be at least so much, else at most.
    """

    name: str
    slower: Cell
    faster: Cell
    goals: dict[str, float] = field(default_factory=dict)
    is_least: bool = True

    def value(self, measured: dict[Cell, Measured]) -> tuple[float, float, float]:
        """Return the median over the rounds, the least and the greatest."""
        above, below = measured[self.slower].times_s, measured[self.faster].times_s
        ratios = [above[number] / below[number] for number in above.keys() & below.keys()]
        return statistics.median(ratios), min(ratios), max(ratios)

    def verdict(self, lane: str, value: float) -> str:
        """Words for the goal; empty where there is none."""
        goal = self.goals.get(lane)
        if goal is None:
            return ""
        is_met = value >= goal if self.is_least else value <= goal
        return f"{'>=' if self.is_least else '<='} {goal:g}: {'met' if is_met else 'MISSED'}"


_ALL = [lane.name for lane in [*LANES, *CUDA_LANES]]
RATIOS = [
    Ratio(
        "row by row / packed and pipelined",
        ROWS,
        RING,
        {"nixl/tcp": 10.0, "nixl/shm": 4.0, "mooncake/tcp": 15.0},
    ),
    Ratio("row by row / packed, one buffer", ROWS, SERIAL),
    Ratio("one buffer / ring", SERIAL, RING, dict.fromkeys(_ALL, 1.0)),
    Ratio("bounded / unbounded", BOUNDED, UNBOUNDED, dict.fromkeys(_ALL, 1.15), is_least=False),
    Ratio("packed and pipelined / wire alone", RING, WIRE),
    Ratio("shuffled: landing / in place", LANDED, BOUNDED),
    Ratio("contiguous: landing / in place", CONTIGUOUS_LANDED, CONTIGUOUS_IN_PLACE),
    Ratio(
        "shuffled / contiguous, chosen way", RING, CONTIGUOUS, {"nixl/cuda": 1.2}, is_least=False
    ),
    Ratio("published / kvxfer", PUBLISHED, RING, {"nixl/cuda": 8.0}),
]
