# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The adapters under SGLang's own base classes, and its own cutting of sends as the oracle.

SGLang is imported in a process of its own, with stand-ins for what needs a GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("sglang", "torch", "transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"{', '.join(MISSING)} not installed; SGLang with "
        "pip install --no-deps sglang==0.5.23",
    ),
]

TESTS = Path(__file__).resolve().parents[1]
SPLITS = {
    "cold": [256] * 8 + [7],
    "after a prefix": [256] * 7 + [7],
    "early and late": [256, 256, 256, 192, 64, 7],
    "full hit": [0],
    "inside a page": [63],
    "small chunks": [192, 64, 188],
}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What ``support.sglang_run`` saw."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "support.sglang_run"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_is_the_release_that_the_contract_was_read_in(seen: dict[str, Any]) -> None:
    assert seen["version"] == "0.5.23"


def test_states_have_the_values_that_schedulers_compare_with(seen: dict[str, Any]) -> None:
    def plain(names: dict[str, int]) -> dict[str, int]:
        return {name.replace("_", "").lower(): value for name, value in names.items()}

    assert plain(seen["polls"]) == plain(seen["room_states"])


def test_every_abstract_method_is_served_with_the_same_parameters(seen: dict[str, Any]) -> None:
    served = set(seen["signatures"])
    for base, methods in seen["abstract"].items():
        assert {f"{base}.{method}" for method in methods} <= served
    assert len(served) >= 21
    for method, parameters in seen["signatures"].items():
        assert parameters["shim"] == parameters["sglang"], method


def test_random_sends_are_cut_as_sglang_cuts_them(seen: dict[str, Any]) -> None:
    assert seen["differing_splits"] == []


@pytest.mark.parametrize("way", ["sglang", "bounded"])
@pytest.mark.parametrize("case", SPLITS)
def test_a_request_that_needs_relayout_is_cut_at_the_published_limit(
    seen: dict[str, Any], case: str, way: str
) -> None:
    done = seen["cases"][f"sharded: {case}: {way}"]
    assert [end - begin for begin, end in done["sends"]] == SPLITS[case]
    assert done["segments"] == sum(1 for tokens in SPLITS[case] if tokens)


@pytest.mark.parametrize("way", ["sglang", "bounded"])
@pytest.mark.parametrize("case", SPLITS)
def test_a_plain_request_gets_one_send_a_chunk(seen: dict[str, Any], case: str, way: str) -> None:
    chunks = {"early and late": 2, "small chunks": 3}
    assert len(seen["cases"][f"plain: {case}: {way}"]["sends"]) == chunks.get(case, 1)


def test_every_request_succeeds_with_the_right_bytes_everywhere(seen: dict[str, Any]) -> None:
    assert len(seen["cases"]) == 24
    for name, done in seen["cases"].items():
        assert (done["success"], done["rows"], done["slots"]) == (True, True, True), (name, done)
        assert {1, 2, 4} <= set(done["states"]) <= {1, 2, 3, 4}


def test_the_metric_counts_what_was_written_and_not_every_destination_whole(
    seen: dict[str, Any],
) -> None:
    """Four ranks of which each gets a quarter are the bytes of one, not of four."""
    row_bytes, state_bytes = 2 * 8, 40
    sharded = seen["cases"]["sharded: cold: sglang"]
    plain = seen["cases"]["plain: cold: sglang"]
    assert sharded["bytes"] == 2055 * row_bytes + 4 * state_bytes
    assert plain["bytes"] == 2055 * row_bytes + state_bytes
    assert all(seconds >= 0 for seconds in sharded["seconds"])


def test_failures_are_told_in_words_and_counts_are_exact(seen: dict[str, Any]) -> None:
    told = seen["failures"]
    assert told["words"] == "room 900: aborted by the engine (peer decode1)"
    assert told["limit"] is None
    assert "expected the exact token count" in told["without_count"]
