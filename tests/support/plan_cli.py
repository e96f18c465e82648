# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer plan`` in this process, and a request to start from."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from kvxfer.cli import main


@dataclass(frozen=True)
class Outcome:
    """What one call left behind."""

    status: int
    out: str
    err: str


def run_plan(document: bytes | str) -> Outcome:
    """Run ``kvxfer plan -`` with these bytes on standard input."""
    data = document.encode() if isinstance(document, str) else document
    stdin = io.TextIOWrapper(io.BytesIO(data))
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "stdin", stdin),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main(["plan", "-"])
    return Outcome(status, out.getvalue(), err.getvalue())


def plan_of(request: dict[str, Any]) -> dict[str, Any]:
    """Plan a request that must be accepted."""
    outcome = run_plan(json.dumps(request))
    assert (outcome.status, outcome.err) == (0, ""), outcome.err
    plan: dict[str, Any] = json.loads(outcome.out)
    return plan


def refusal_of(document: bytes | str | dict[str, Any]) -> str:
    """Plan what must be refused, and return the one line that says why."""
    outcome = run_plan(json.dumps(document) if isinstance(document, dict) else document)
    assert_refused(outcome)
    return outcome.err.removeprefix("kvxfer plan: ").rstrip("\n")


def assert_refused(outcome: Outcome) -> None:
    """Status 2, nothing on standard output, one printable line on standard error."""
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("kvxfer plan: ")
    assert outcome.err.endswith("\n")
    line = outcome.err[:-1]
    assert line.isascii()
    assert line.isprintable(), line
    assert len(line) < 600


def request(**fields: Any) -> dict[str, Any]:
    """Two planes, one source rank to two, thirteen tokens; ``fields`` replace or add."""
    return {
        "page_size": 2,
        "source": {"ranks": 1},
        "destination": {"ranks": 2},
        "planes": [{"name": "k", "row_bytes": 6}, {"name": "v", "row_bytes": 4}],
        "prefix": 4,
        "tokens": 13,
        "source_pages": [5, 2, 6, 0, 9, 8, 7],
        "destination_pages": [7, 3, 1],
        **fields,
    }


def rows_by_pair(segment: dict[str, Any]) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Return source and destination rows by (source rank, destination rank)."""
    return {
        (pair["source_rank"], pair["destination_rank"]): (
            pair["source_rows"],
            pair["destination_rows"],
        )
        for pair in segment["pairs"]
    }
