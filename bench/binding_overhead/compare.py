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


def least_times_ns(calls: list[Callable[[], Any]], repeats: int, repeat_ms: float) -> list[float]:
    """Least time of one call, for each of the calls: what disturbs a repeat can only lengthen it.

    The repeats of the calls alternate, and each is shorter than the slice that a busy machine
    gives to a process.
    """
    least = [float("inf")] * len(calls)
    counts = [max(1, int(repeat_ms / 1e3 / seconds_of(call, 1))) for call in calls]
    for _ in range(repeats):
        for i, call in enumerate(calls):
            least[i] = min(least[i], seconds_of(call, counts[i]) / counts[i] * 1e9)
    return least


def seconds_of(call: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


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
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--repeat-ms", type=float, default=2.0, help="length of one repeat")
    options = parser.parse_args()
    sys.path.insert(0, str(options.directory))
    modules = {binding: importlib.import_module(name) for binding, name in MODULES.items()}
    calls = {binding: calls_of(module) for binding, module in modules.items()}
    check_same(calls)

    versions = [f"{b} {importlib.metadata.version(b)}" for b in MODULES]
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {', '.join(versions)}")
    print(f"least of {options.repeats} repeats of {options.repeat_ms:g} ms\n")
    print("| call | pybind11 | nanobind | pybind11 - nanobind |")
    print("|---|---:|---:|---:|")
    for name in calls["pybind11"]:
        pybind11_ns, nanobind_ns = least_times_ns(
            [calls[binding][name] for binding in MODULES], options.repeats, options.repeat_ms
        )
        difference = f"{pybind11_ns - nanobind_ns:,.0f} ns"
        print(f"| {name} | {pybind11_ns:,.0f} ns | {nanobind_ns:,.0f} ns | {difference} |")
    sizes = [Path(str(module.__file__)).stat().st_size for module in modules.values()]
    print(f"| size of the module | {sizes[0] // 1000} kB | {sizes[1] // 1000} kB | |")


if __name__ == "__main__":
    main()
