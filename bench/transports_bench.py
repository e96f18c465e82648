# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Row by row against packed against packed and pipelined, over each transport, in one run.

A prefill process sends requests to a process that holds four decode ranks, over the loopback
interface. A time is from the send to the last row in place on the last rank: packing and unpacking
are part of it, the handshake is not. Cells take turns in every round, on memory that the last
rounds did not touch; ratios are medians over the rounds. Every byte of every pool is compared after
each transfer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transport_cells import (
    CELLS,
    CUDA_LANES,
    LANES,
    RATIOS,
    ROWS,
    SEGMENT_CELLS,
    SEGMENT_TOKENS,
    Cell,
    Lane,
    Measured,
    Size,
    senders,
)
from transport_workers import PAGE_SIZE, RANKS, Pages, Request, Setting, run_decode, run_prefill

import kvxfer
from kvxfer.demo.processes import Crew, Wire

_DEADLINE_S = 400.0


class Lanes:
    """Both processes of one lane, and the measurement of one cell."""

    def __init__(self, crew: Crew, setting: Setting) -> None:
        self.prefill: Wire = crew.start("prefill", run_prefill)
        self.decode: Wire = crew.start("decode", run_decode)
        self.setting = setting
        for wire in (self.prefill, self.decode):
            wire.send("setting", setting)
        for wire in (self.prefill, self.decode):
            wire.receive("ready", _DEADLINE_S)
        self.addresses: dict[str, str] = self._ask(self.prefill, "addresses")
        description, self.target_address = self._ask(self.decode, "target")
        self._ask(self.prefill, "add_target", description)
        pages = setting.pool_pages
        self.orders = {
            True: [
                np.random.default_rng(s).permutation(n)
                for s, n in ((1, pages), (2, pages // RANKS))
            ],
            False: [np.arange(pages), np.arange(pages // RANKS)],
        }
        self.turn = 0

    def measure(self, measured: Measured, number: int) -> None:
        """Run a cell once and add what it took and counted."""
        self.turn += 1
        cell, size = measured.cell, measured.size
        took = self._wire(size) if cell.sender is None else self._transfer(cell, size, measured)
        begin_s, end_s, found = took
        measured.times_s[number] = end_s - begin_s
        measured.differing_bytes += found["differing_bytes"]
        measured.stray_words += found["stray_words"]
        measured.moved_bytes = size.size_bytes

    def stop(self) -> None:
        for wire in (self.prefill, self.decode):
            wire.send("stop")
        for wire in (self.prefill, self.decode):
            wire.receive("stopped", _DEADLINE_S)

    def _transfer(
        self, cell: Cell, size: Size, measured: Measured
    ) -> tuple[float, float, dict[str, int]]:
        request = self._request(size, cell.is_shuffled)
        assert cell.sender is not None
        self._ask(
            self.decode, "open", self.turn, self.addresses[cell.sender], request, cell.landing
        )
        self._ask(self.prefill, "open", self.turn, cell.sender)
        self._tell(self.decode, "move")
        sent = self._ask(self.prefill, "move", request)
        got = self._answer(self.decode)
        metrics = sent["metrics"]
        measured.modes = sent["modes"]
        for name in ("segments", "writes", "packed_writes", "row_by_row_writes", "row_writes"):
            setattr(measured, name, getattr(metrics, name))
        if got["bytes"] != size.size_bytes or metrics.bytes != size.size_bytes:
            raise SystemExit(f"{cell.name}: {got['bytes']} bytes arrived, not {size.size_bytes}")
        return sent["begin_s"], got["end_s"], self._ask(self.decode, "check", request)

    def _wire(self, size: Size) -> tuple[float, float, dict[str, int]]:
        offset_bytes = self._slot(size) * size.size_bytes
        self._tell(self.decode, "hear")
        address = self.target_address + offset_bytes
        sent = self._ask(self.prefill, "write", offset_bytes, address, size.size_bytes)
        got = self._answer(self.decode)
        found = self._ask(self.decode, "check_stretch", offset_bytes, offset_bytes, size.size_bytes)
        return sent["begin_s"], got["end_s"], found

    def _slot(self, size: Size) -> int:
        """Return which part of the pools is next, so that no cache holds it."""
        return self.turn % max(1, self.setting.pool_bytes // _whole_bytes(size))

    def _request(self, size: Size, is_shuffled: bool) -> Request:
        slot = self._slot(size)

        def of(order: Pages, tokens_a_page: int) -> Pages:
            count = -(-size.tokens // tokens_a_page)
            return order[slot * count : (slot + 1) * count]

        return Request(
            size.tokens,
            of(self.orders[True][0], PAGE_SIZE),
            of(self.orders[is_shuffled][1], PAGE_SIZE * RANKS),
        )

    def _ask(self, wire: Wire, verb: str, *arguments: Any) -> Any:
        self._tell(wire, verb, *arguments)
        return self._answer(wire)

    def _tell(self, wire: Wire, verb: str, *arguments: Any) -> None:
        wire.send("call", (verb, arguments))

    def _answer(self, wire: Wire) -> Any:
        return wire.receive("result", _DEADLINE_S)


def _whole_bytes(size: Size) -> int:
    """Bytes of a request whose last page is full on every decode rank."""
    widened = PAGE_SIZE * RANKS
    return -(-size.tokens // widened) * widened * (size.size_bytes // size.tokens)


@contextlib.contextmanager
def environment(wanted: dict[str, str]) -> Iterator[None]:
    """Set variables for processes that start meanwhile."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def run_lane(lane: Lane, options: argparse.Namespace) -> list[dict[Cell, Measured]]:
    """Measure all cells of a lane; one table for each size."""
    sizes = [Size.of_mib(mib) for mib in options.sizes_mib]
    segment = Size(f"one segment of {options.pack_tokens} tokens", options.pack_tokens)
    largest = max((*sizes, segment), key=lambda size: size.tokens)
    pool_pages = options.pools * _whole_bytes(largest) // (PAGE_SIZE * 4032)
    setting = Setting(
        transport=lane.transport,
        transport_options=lane.options,
        memory=lane.memory,  # type: ignore[arg-type]
        secret=secrets.token_bytes(16),
        pool_pages=pool_pages,
        senders=senders(options.pack_tokens, largest.tokens),
        receiver_options={"pack_tokens": options.pack_tokens, "landing_region_count": 4},
        pause_s=lane.pause_s,
    )
    tables = [
        {cell: Measured(lane.name, size, cell) for cell in cells}
        for size, cells in [*((size, CELLS) for size in sizes), (segment, SEGMENT_CELLS)]
    ]
    with environment(lane.environment), Crew() as crew:
        lanes = Lanes(crew, setting)
        for table in tables:
            for number in range(-1, options.rounds):
                for measured in _in_turn(list(table.values()), number):
                    if measured.cell is not ROWS or number < options.row_rounds:
                        lanes.measure(measured, number)
            for measured in table.values():
                del measured.times_s[-1]  # connections are made in the first round
            print_table(lane, table)
        lanes.stop()
    return tables


def _in_turn(cells: list[Measured], number: int) -> list[Measured]:
    """Let each round begin with another cell: what follows a long one finds a colder machine."""
    first = 3 * (number + 1) % len(cells)
    return cells[first:] + cells[:first]


def print_table(lane: Lane, table: dict[Cell, Measured]) -> None:
    size = next(iter(table.values())).size
    print(f"\n{lane.name}, {size.label}: {size.tokens} tokens, {size.size_bytes} bytes\n")
    print("| way | mode | segments | writes | median ms | least to most | GB/s |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for m in table.values():
        times = [1000 * t for t in m.times_s.values()]
        print(
            f"| {m.cell.name} | {', '.join(m.modes)} | {m.segments or ''} | {m.writes:,} | "
            f"{1000 * m.median_s:,.1f} | {min(times):,.1f} to {max(times):,.1f} | "
            f"{m.gb_per_s:.2f} |"
        )
    print("\n| ratio | median | least to most | goal |\n|---|---:|---:|---|")
    for ratio in RATIOS:
        if ratio.slower in table and ratio.faster in table:
            median, least, most = ratio.value(table)
            goal = ratio.verdict(lane.name, median)
            print(f"| {ratio.name} | {median:.2f} | {least:.2f} to {most:.2f} | {goal} |")
    sys.stdout.flush()


def machine() -> dict[str, Any]:
    """Processor, cores, load and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }
    build = kvxfer.build_info()
    found |= {name: build[name] for name in ("version", "compiler", "build_type", "python")}
    found |= {name: value for name, value in build["found"].items() if value is not None}
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [lane.name for lane in [*LANES, *CUDA_LANES]]
    parser.add_argument("--lanes", nargs="+", choices=names, help="all of the kind of memory")
    parser.add_argument("--memory", choices=("host", "cuda"), default="host")
    parser.add_argument("--sizes-mib", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--row-rounds", type=int, default=3, help="rounds with row by row")
    parser.add_argument("--pack-tokens", type=int, default=SEGMENT_TOKENS)
    parser.add_argument("--pools", type=int, default=2, help="requests that fit into the pools")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--json", type=Path, help="where to write every figure")
    options = parser.parse_args()
    if options.quick:
        options.sizes_mib, options.rounds, options.row_rounds = [2], 1, 1
        options.pack_tokens = 256
    return options


def main() -> None:
    options = arguments()
    lanes = CUDA_LANES if options.memory == "cuda" else LANES
    chosen = [lane for lane in lanes if not options.lanes or lane.name in options.lanes]
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    tables = [table for lane in chosen for table in run_lane(lane, options)]
    cells = [measured.as_json() for table in tables for measured in table.values()]
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "cells": cells}, indent=1) + "\n")
    wrong = [cell for cell in cells if cell["differing_bytes"] or cell["stray_words"]]
    print(f"\n{len(cells)} cells, {len(wrong)} with wrong bytes")
    if wrong:
        raise SystemExit(json.dumps(wrong))


if __name__ == "__main__":
    main()
