# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The result file: all that was asked, on what, and every answer."""

import datetime
import os
import platform
import shlex
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvxfer import InvalidArgumentError, build_info
from kvxfer.bench.client.options import Case, ClientOptions, Load, Shape
from kvxfer.bench.client.summary import Repeat, Summary

__all__ = ["CaseResult", "Result", "client_facts", "read_result", "write_result"]


@dataclass(frozen=True)
class CaseResult:
    """One row of the table.

    Attributes
    ----------
    shape, load : Shape, Load
        What was asked.
    cached_tokens : int
        Tokens of each request that must come from the cache.
    problem : str or None
        Why there is no summary.
    summary : Summary or None
        None unless every request of every repeat was answered as expected.
    repeats : list of Repeat
        Every answer.
    """

    shape: Shape
    load: Load
    cached_tokens: int
    problem: str | None
    summary: Summary | None
    repeats: list[Repeat]

    @property
    def case(self) -> Case:
        """Shape and load."""
        return Case(self.shape, self.load)


@dataclass
class Result:
    """A run of the client.

    Attributes
    ----------
    label, note : str
        Name of what was measured, and words about the machine, both from the user.
    command, begun_at : str
        The command line, and the time in UTC.
    client : dict
        Versions and hardware of the machine that the client ran on.
    servers : dict
        By address: what the server says of its model, or None.
    options : ClientOptions
        What was asked.
    is_complete : bool
        Whether the run came to its end.
    cases : list of CaseResult
        Those that are over.
    """

    label: str
    note: str
    options: ClientOptions
    servers: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    format: Literal["kvxfer cached-prefix 1"] = "kvxfer cached-prefix 1"
    command: str = field(default_factory=lambda: shlex.join(["kvxfer", *sys.argv[1:]]))
    begun_at: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    client: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    cases: list[CaseResult] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether every case was measured and every answer was as expected."""
        return self.is_complete and all(case.summary is not None for case in self.cases)

    @property
    def model(self) -> str:
        """What the router, else a worker, calls its model."""
        for said in self.servers.values():
            if said is not None and isinstance(said.get("model_path"), str):
                return str(said["model_path"])
        return "a model that the servers do not name"


def write_result(path: Path, result: Result) -> None:
    """Write a result, replacing an older file only when the whole of it is written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_result(path: Path) -> Result:
    """Read a result.

    Raises
    ------
    InvalidArgumentError
        If the file cannot be read or holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"{path}: expected a result file, got: {error}") from error


def client_facts() -> dict[str, Any]:
    """Return versions and hardware of this machine."""
    return {
        "versions": {
            "python": platform.python_version(),
            "aiohttp": _version("aiohttp"),
            **build_info()["found"],
        },
        "kvxfer": build_info()["version"],
        "system": platform.platform(),
        "processor": _first_value(Path("/proc/cpuinfo"), "model name"),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory": _first_value(Path("/proc/meminfo"), "MemTotal"),
        "gpus": [
            _first_value(path, "Model")
            for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_value(path: Path, name: str) -> str | None:
    """Return the value of the first line ``name : value`` of a file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, None)
