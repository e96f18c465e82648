# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The plug-in in SGLang's own modules, loaded by its own loader, on host memory.

Each look takes a process of its own, with stand-ins for what needs a GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvxfer.adapters import sglang as plugin

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
NEEDED = ("sglang", "torch", "transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.timeout(280)
needs_sglang = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")


def look(setting: str, *words: str) -> tuple[dict[str, Any], str]:
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    changes = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "support.sglang_plugin", *words],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=TESTS,
        env={**os.environ, **changes, "KVXFER_SGLANG": setting},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr


@needs_sglang
def test_plans_and_packs_are_sglangs_to_the_byte() -> None:
    seen, told = look("all")
    assert seen["version"] == "0.5.23"
    assert seen["line"].startswith("pack active; gather refused: ")
    assert told.count("kvxfer in SGLang: pack active; gather refused: ") == 1
    assert seen["is_changed"] == [True, True]
    assert seen["is_one"]
    assert seen["plans"] == []
    assert seen["packs"] == []
    assert seen["sizes"] == []
    assert seen["packed"]["packed"] > 100
    assert seen["packed"]["handed_back"] == 0
    too_small, kind, words = seen["given_back"]
    assert too_small is None
    assert kind == "ValueError"
    assert "decode_prefix_len to align to the virtual" in words


@needs_sglang
@pytest.mark.parametrize(
    ("setting", "words", "line"),
    [
        ("", [], "off: KVXFER_SGLANG is not set"),
        ("gather", [], "pack refused: not asked for; gather refused: "),
        ("fly", [], "refused: KVXFER_SGLANG is 'fly', expected pack, gather or all"),
        ("pack", ["changed"], "pack refused: sglang.srt.disaggregation.common.dcp_pack.try_pack"),
    ],
)
def test_nothing_changes_unless_pack_is_asked_for_and_known(
    setting: str, words: list[str], line: str
) -> None:
    seen, told = look(setting, *words)
    assert seen["line"].startswith(line)
    assert seen["is_changed"] == [False, False]
    assert told.count("kvxfer in SGLang: ") == (1 if setting else 0)
    if words:
        assert "takes (*, pack_buffer, rows), expected (*, pack_buffer, kv_data_ptrs," in told


def test_the_wheel_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["sglang.srt.plugins"]
    assert named == {"kvxfer": "kvxfer.adapters.sglang:register"}
    assert callable(plugin.register)
