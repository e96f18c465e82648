# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Times the three hottest calls through pybind11 and through nanobind, over the same core."""

import argparse
import importlib
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

REQUEST_TOKENS = 163_840
CAPACITY_TOKENS = 8_192
REGION_ADDRESS = 1 << 40
MODULES = {"pybind11": "with_pybind11", "nanobind": "with_nanobind"}


def calls_of(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """The calls by what they are called in the table."""
    segment = module.Segment(CAPACITY_TOKENS, 2 * CAPACITY_TOKENS, False)
    layout = module.PackBufferLayout(7)
    narrow, wide = module.Request(7), module.Request(61)

    def split() -> Any:
        return module.split_segments(
            0,
            REQUEST_TOKENS,
            is_final=True,
            prefix=0,
            alignment_tokens=64,
            capacity_tokens=CAPACITY_TOKENS,
        )

    def split_one() -> Any:
        return module.split_segments(
            0,
            CAPACITY_TOKENS,
            is_final=True,
            prefix=0,
            alignment_tokens=64,
            capacity_tokens=CAPACITY_TOKENS,
        )

    segments = split()

    def write(request: Any, some: list[Any]) -> Callable[[], Any]:
        relayout, table = request.relayout, request.destination
        return lambda: module.packed_writes(relayout, some, REGION_ADDRESS, table).runs

    return {
        "split a send into 1 segment": split_one,
        "split a request into 20 segments": split,
        "plan a segment (4 regions)": lambda: layout.plan(segment),
        "write list, 1 segment, 7 planes": write(narrow, [segment]),
        "write list, 1 segment, 61 planes": write(wide, [segment]),
        "write list, 20 segments, 7 planes": write(narrow, segments),
        "write list, 20 segments, 61 planes": write(wide, segments),
    }


def least_seconds(call: Callable[[], Any], repeats: int, calls: int) -> float:
    """Least time of one call: what disturbs a run can only lengthen it."""
    least = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        least = min(least, (time.perf_counter() - begin) / calls)
    return least


def check_same(calls: dict[str, dict[str, Callable[[], Any]]]) -> None:
    for name in calls["pybind11"]:
        results = [calls[binding][name]() for binding in MODULES]
        if isinstance(results[0], np.ndarray):
            np.testing.assert_array_equal(results[0], results[1])
        elif isinstance(results[0], list):
            spans = [[(s.begin, s.end, s.is_final) for s in result] for result in results]
            assert spans[0] == spans[1], f"{name}: {spans[0]} and {spans[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the two modules were built")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000, help="calls in one repeat")
    options = parser.parse_args()
    sys.path.insert(0, str(options.directory))
    modules = {binding: importlib.import_module(name) for binding, name in MODULES.items()}
    calls = {binding: calls_of(module) for binding, module in modules.items()}
    check_same(calls)

    versions = [f"{b} {importlib.metadata.version(b)}" for b in MODULES]
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {', '.join(versions)}")
    print(f"least of {options.repeats} repeats of {options.calls} calls\n")
    print("| call | pybind11 | nanobind | pybind11 - nanobind |")
    print("|---|---:|---:|---:|")
    for name in calls["pybind11"]:
        times = [
            least_seconds(calls[binding][name], options.repeats, options.calls) * 1e9
            for binding in MODULES
        ]
        print(
            f"| {name} | {times[0]:,.0f} ns | {times[1]:,.0f} ns | {times[0] - times[1]:,.0f} ns |"
        )
    sizes = [Path(str(module.__file__)).stat().st_size for module in modules.values()]
    print(f"| size of the module | {sizes[0] // 1000} kB | {sizes[1] // 1000} kB | |")


if __name__ == "__main__":
    main()
