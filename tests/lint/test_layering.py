# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Includes and imports point one way only: a name may use what stands before it in its list."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Headers of cpp/include/kvxfer in the order in which they may use each other.
CORE_HEADERS = [
    "error",
    "sharding",
    "token_pattern",
    "pool_layout",
    "page_table",
    "segment",
    "relayout",
    "pack_plan",
    "write_list",
    "plan_checks",
    "copy_rows",
    "gather_path",
    "gather_shape",
    "gather_plan",
    "scratch_layout",
    "gather_handshake",
    "host_allgather",
]
# Headers of cuda/include/kvxfer/cuda, which may also use all of the core.
CUDA_HEADERS = [
    "check",
    "stream",
    "device_guard",
    "buffer",
    "completion",
    "copy_rows",
    "nccl_api",
    "rank_group",
    "communicator",
    "symmetric_window",
    "copy_engine_gather",
    "stream_calls",
    "prefix_allgather",
]
# Modules and packages of python/kvxfer; those of one line do not use each other.
PYTHON_UNITS = [
    ["_core", "_collective", "_cuda"],
    ["errors", "build_info"],
    ["__init__"],
    ["cuda"],
    ["transports", "sharded"],
    ["transfer"],
    ["adapters"],
    ["demo"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
# Outside packages that only the named files or packages import.
OWNERS = {
    "nixl": ["transports/nixl.py"],
    "mooncake": ["transports/mooncake.py"],
    "sglang": ["adapters/sglang/"],
    "vllm": ["adapters/vllm.py"],
    "torch": ["adapters/", "sharded/", "demo/", "bench/", "cli/"],
    "transformers": ["demo/", "bench/"],
    "zmq": ["transfer/", "bench/"],
    "rich": ["demo/", "cli/"],
    "aiohttp": ["bench/"],
    "matplotlib": ["bench/"],
}
FOREIGN_IN_CORE = re.compile(
    r"^(cuda|nccl|nvml|pybind11|Python\.h|torch|ATen|c10|nanobind|kvxfer/cuda/)"
)


def included(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, flags=re.MULTILINE)


def include_violations(order: list[str], name: str, text: str, prefix: str) -> list[str]:
    """What `name` (a header or source without its suffix) includes against the order."""
    if name not in order:
        return [f"{name} is not placed in the list of {prefix}"]
    own = [path for path in included(text) if re.fullmatch(rf"{prefix}/\w+\.hpp", path)]
    used = [Path(path).stem for path in own]
    unknown = [
        f"{name} includes {other}, which is in no list" for other in used if other not in order
    ]
    later = [
        f"{name} includes {other}, which stands after it"
        for other in used
        if other in order and order.index(other) > order.index(name)
    ]
    return unknown + later


def foreign_in_core(name: str, text: str) -> list[str]:
    return [f"{name} includes {path}" for path in included(text) if FOREIGN_IN_CORE.match(path)]


def core_violations(name: str, text: str) -> list[str]:
    return foreign_in_core(name, text) + include_violations(CORE_HEADERS, name, text, "kvxfer")


def imported(text: str, package: str) -> Iterator[str]:
    """Absolute dotted names that a module of `package` imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(([] if node.level == 0 else parents) + [node.module or ""]).strip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_of(unit: str) -> int | None:
    return next((i for i, units in enumerate(PYTHON_UNITS) if unit in units), None)


def python_violations(path: str, text: str) -> list[str]:
    """What python/kvxfer/`path` imports against the order."""
    unit = path.split("/")[0].removesuffix(".py")
    layer = layer_of(unit)
    if layer is None:
        return [f"{path}: {unit} is not placed in PYTHON_UNITS"]
    package = ".".join(["kvxfer", *path.split("/")[:-1]])
    found = []
    for name in imported(text, package):
        top, *rest = name.split(".")
        if top == "kvxfer":
            # A name that is no unit is one that the package itself re-exports.
            other = rest[0] if rest and layer_of(rest[0]) is not None else "__init__"
            other_layer = layer_of(other)
            assert other_layer is not None
            if other != unit and other_layer >= layer:
                found.append(f"{path} imports {name}, which is not below {unit}")
        owners = OWNERS.get(top.removesuffix("_cu13").removesuffix("_cu12"))
        if owners is not None and not path.startswith(tuple(owners)):
            found.append(f"{path} imports {top}, which belongs to {owners}")
    return found


def test_core_includes_point_one_way() -> None:
    headers = sorted(ROOT.glob("cpp/include/kvxfer/*.hpp"))
    sources = sorted(ROOT.glob("cpp/src/*.?pp"))
    assert headers, "no headers found under cpp/include/kvxfer"
    assert sources, "no sources found under cpp/src"
    public = {path.stem for path in headers}
    found = []
    for path in headers + sources:
        # A source without a public header is private to cpp/src and may serve any of its sources.
        check = core_violations if path.stem in public else foreign_in_core
        found += check(path.stem, path.read_text())
    assert found == []


def test_cuda_includes_point_one_way() -> None:
    files = sorted(ROOT.glob("cuda/include/kvxfer/cuda/*.hpp")) + sorted(ROOT.glob("cuda/src/*"))
    found = []
    for path in files:
        text = path.read_text()
        found += [f"{path.name}: {name}" for name in included(text) if "pybind11" in name]
        if path.suffix == ".hpp" and "include" in path.parts:
            found += include_violations(CUDA_HEADERS, path.stem, text, "kvxfer/cuda")
    assert found == []


def test_core_bindings_use_no_cuda() -> None:
    found = [
        f"{path.name} includes {name}"
        for path in sorted((ROOT / "python/bindings").glob("*.?pp"))
        if "cuda" not in path.stem
        for name in included(path.read_text())
        if name.startswith(("kvxfer/cuda/", "cuda", "nccl"))
    ]
    assert found == []


def test_python_imports_point_one_way() -> None:
    package = ROOT / "python/kvxfer"
    files = sorted(package.rglob("*.py"))
    assert package / "__init__.py" in files
    found = [
        violation
        for path in files
        for violation in python_violations(path.relative_to(package).as_posix(), path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sharding", '#include "kvxfer/relayout.hpp"'),
        ("error", "#include <cuda_runtime.h>"),
        ("write_list", '#include "kvxfer/cuda/stream.hpp"'),
        ("relayout", "  #  include <pybind11/pybind11.h>"),
        ("unheard_of", ""),
        ("relayout", '#include "kvxfer/unheard_of.hpp"'),
    ],
)
def test_a_wrong_include_is_seen(name: str, text: str) -> None:
    assert len(core_violations(name, text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("transports/loopback.py", "from kvxfer.transfer import rooms"),
        ("transports/loopback.py", "from kvxfer import transfer"),
        ("transports/deep/inner.py", "from ...transfer.rooms import Room"),
        ("transfer/sender.py", "def f():\n    import kvxfer.adapters.nixl"),
        ("transfer/sender.py", "import nixl._api"),
        ("transports/mooncake.py", "import nixl_cu13"),
        ("errors.py", "from kvxfer import Error"),
        ("errors.py", "from kvxfer.build_info import build_info"),
        ("__init__.py", "from kvxfer.transfer import Sender"),
        ("transfer/sender.py", "import torch"),
        ("unheard_of.py", ""),
    ],
)
def test_a_wrong_import_is_seen(path: str, text: str) -> None:
    assert len(python_violations(path, text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("transports/nixl.py", "import nixl._api"),
        ("transfer/sender.py", "from kvxfer import Segment, split_segments"),
        ("transfer/sender.py", "from kvxfer.transports.protocol import Transport"),
        ("transfer/sender.py", "from .rooms import Room"),
        ("cli/demo.py", "import torch\nfrom kvxfer.transfer import Sender"),
    ],
)
def test_a_right_import_passes(path: str, text: str) -> None:
    assert python_violations(path, text) == []


def test_import_loads_numpy_at_most() -> None:
    code = "import sys, json, kvxfer; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert "kvxfer" in loaded
    outside = {"torch", "zmq", "msgspec", "nixl", "nixl_cu13", "mooncake", "cuda", "cupy", "rich"}
    assert loaded & (outside | {"nvidia", "transformers", "sglang", "vllm"}) == set()
    assert "kvxfer._cuda" not in json.loads(done.stdout)
