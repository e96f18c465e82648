# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Looks that load foreign libraries, each in a child process: one may crash or hang."""

import json
import subprocess
import sys
from typing import Any

_TIMEOUT_SECONDS = 40
_NCCL = "from kvxfer.sharded import nccl_report; found = nccl_report()"
_SGLANG = (
    "from kvxfer.adapters.sglang import examine; "
    "found = {'pack': examine({'KVXFER_SGLANG': 'all'}).line, 'here': examine().line}"
)


def nccl_probe() -> dict[str, Any]:
    """Return ``kvxfer.sharded.nccl_report()``, or ``failure``, why there is none."""
    return _probe(_NCCL)


def sglang_probe() -> dict[str, Any]:
    """Say in ``pack`` what KVXFER_SGLANG=all would do, in ``here`` what the environment asks for.

    ``failure`` instead, where the child did not answer.
    """
    return _probe(_SGLANG)


def _probe(code: str) -> dict[str, Any]:
    words = [sys.executable, "-c", f"{code}; import json; print(); print(json.dumps(found))"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"failure": f"no answer from a child process: {error}"}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return {"failure": f"a child process ended with status {done.returncode}: {last}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
