# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The planner's benchmark through Python runs, and its baseline plans the same writes."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_both_tables_are_printed() -> None:
    """Each case compares the two plans run by run before it is timed."""
    done = subprocess.run(
        [sys.executable, BENCH / "planner_bench.py", "--seconds", "0"],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.startswith("| call ")]
    requests = [row for row in rows if row.startswith("| request, ")]
    assert (len(heads), len(requests), len(rows)) == (2, 8, 26)
    # Name, median and p99 of both, and their ratio.
    assert all(all(cell.strip() for cell in row.strip("|").split("|")) for row in requests)
