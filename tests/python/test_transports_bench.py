# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The transports benchmark runs on small sizes; counts and bytes are judged, times are not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
PLANES, RANKS, ROW_BYTES, SEGMENT_TOKENS = 7, 4, 576, 256
LANES = {"loopback": "kvxfer", "nixl/tcp": "nixl_cu13", "mooncake/tcp": "mooncake"}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("lane", LANES)
def test_every_byte_arrives_in_as_many_writes_as_its_way_takes(lane: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(LANES[lane]) is None:
        pytest.skip(f"{LANES[lane]} is not installed")
    output = tmp_path / "cells.json"
    command = [sys.executable, BENCH / "transports_bench.py", "--quick", "--lanes", lane]
    done = subprocess.run([*command, "--json", output], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    cells = json.loads(output.read_text())["cells"]
    assert len(cells) == 15
    for cell in cells:
        tokens = cell["tokens"]
        assert cell["bytes"] == tokens * PLANES * ROW_BYTES
        assert cell["differing_bytes"] == cell["stray_words"] == 0
        is_sent = bool(cell["modes"])
        is_row_by_row = cell["modes"] == ["row_by_row"]
        segments = RANKS * (-(-tokens // SEGMENT_TOKENS))
        if is_row_by_row or "unbounded" in cell["cell"]:
            segments = RANKS
        assert cell["segments"] == (segments if is_sent else 0), cell
        assert cell["row_writes"] == (tokens * PLANES if is_sent else 0), cell
        assert cell["row_by_row_writes"] == (tokens * PLANES if is_row_by_row else 0), cell
        if cell["modes"] == ["landing"]:
            assert cell["writes"] == segments, cell
        elif is_sent and not is_row_by_row:
            assert segments < cell["writes"] == cell["packed_writes"] < cell["row_writes"] / 8, cell
