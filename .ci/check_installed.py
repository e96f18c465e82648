# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Holds an installed kvxfer against what its wheel promises: check_installed.py WHEEL."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path

PLAN = {
    "page_size": 4,
    "source": {"ranks": 1},
    "destination": {"ranks": 2},
    "planes": [{"name": "latent", "row_bytes": 576}],
    "prefix": 0,
    "tokens": 10,
    "source_pages": [5, 1, 3],
    "destination_pages": [2, 0],
}


def expect(holds: bool, message: str) -> None:
    if not holds:
        sys.exit(f"wheel-check: {message}")


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    expect("kvxfer/py.typed" in names, "kvxfer/py.typed is missing")
    modules = [name for name in names if name.endswith(".so")]
    expect(any(name.startswith("kvxfer/_core.") for name in modules), f"no _core in {modules}")
    for name in modules:
        stub = name.split(".")[0] + ".pyi"
        expect(stub in names, f"{name} has no stub {stub}")
    expect(any(name.endswith("licenses/LICENSE") for name in names), "the licence is missing")
    strangers = [
        name
        for name in names
        if name.split("/")[0] not in ("kvxfer", f"kvxfer-{wheel.name.split('-')[1]}.dist-info")
        or name.endswith((".cpp", ".hpp", ".cu", ".a", ".cmake"))
    ]
    expect(not strangers, f"unexpected files: {strangers}")


def check_import() -> None:
    import kvxfer

    outside = {"torch", "zmq", "msgspec", "nixl", "mooncake"}
    loaded = sorted(outside & set(sys.modules))
    expect(not loaded, f"import kvxfer loaded {loaded}")
    facts = kvxfer.build_info()
    version = importlib.metadata.version("kvxfer")
    expect(facts["version"] == version, f"module {facts['version']}, distribution {version}")
    expect(kvxfer.__version__ == version, f"__version__ {kvxfer.__version__}, expected {version}")
    expect(facts["build_type"] == "Release", f"build type {facts['build_type']}")
    expect(facts["sanitize"] == "", f"sanitizers {facts['sanitize']}")
    for part, found in facts["found"].items():
        is_base = part in ("numpy", "pyzmq", "msgspec")
        expect((found is not None) == is_base, f"{part} is {found} beside the base dependencies")
    for name in kvxfer.__all__:
        expect(hasattr(kvxfer, name), f"kvxfer.{name} is missing")


def check_linked_libraries() -> None:
    """The modules load without a driver: they name no CUDA, NCCL or torch library."""
    for name in ("kvxfer._core", "kvxfer._collective", "kvxfer._cuda"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        done = subprocess.run(["ldd", spec.origin], capture_output=True, text=True, check=True)
        wrong = [
            line.strip()
            for line in done.stdout.splitlines()
            if any(word in line for word in ("cuda", "nccl", "torch", "not found"))
        ]
        expect(not wrong, f"{name} is linked to {wrong}")


def check_command() -> None:
    if importlib.util.find_spec("kvxfer.cli") is None:
        print("wheel-check: this build has no kvxfer.cli")
        return
    command = [str(Path(sys.executable).with_name("kvxfer")), "plan", "-"]
    done = subprocess.run(
        command, input=json.dumps(PLAN), capture_output=True, text=True, timeout=60
    )
    expect(done.returncode == 0, f"kvxfer plan exited {done.returncode}: {done.stderr}")
    pairs = json.loads(done.stdout)["segments"][0]["pairs"]
    rows = [row for pair in pairs for row in pair["source_rows"]]
    expect(sorted(rows) == [4, 5, 6, 7, 12, 13, 20, 21, 22, 23], f"source rows {sorted(rows)}")


if __name__ == "__main__":
    check_contents(Path(sys.argv[1]))
    check_import()
    check_linked_libraries()
    check_command()
