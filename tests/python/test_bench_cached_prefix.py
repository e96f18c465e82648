# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``bench/cached_prefix.sh``: the client on the small server, in every mode."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvxfer.bench.client.result import read_result

ROOT = Path(__file__).parents[2]
MODES = ["dcp-row-by-row", "dcp-bounded", "tp"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_script_measures_every_mode(tmp_path: Path) -> None:
    small = {"SHAPES": "256+64 0+128", "LOADS": "2@1 4@4", "REPEATS": "1", "COMPUTE_S": "0.01"}
    sizes = {"PACK_TOKENS": "128", "PREFILL_TOKENS": "8192", "DECODE_TOKENS": "8192"}
    done = subprocess.run(
        ["bash", ROOT / "bench/cached_prefix.sh", tmp_path, "loopback"],
        env={**os.environ, **small, **sizes, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" dcp-bounded |") == 4
    assert (tmp_path / "cached_prefix.png").read_bytes().startswith(b"\x89PNG")
    for mode in MODES:
        result = read_result(tmp_path / f"{mode}.json")
        assert result.is_clean
        assert "synthetic" in result.model
        (rank,) = json.loads((tmp_path / f"{mode}.report.json").read_bytes())["prefill"]["ranks"]
        assert (rank["sender_total_row_by_row_writes"] > 0) == (mode == "dcp-row-by-row")
        assert (rank["sender_total_packed_writes"] > 0) == (mode == "dcp-bounded")
