# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What ``kvxfer doctor`` looks at in child processes."""

import pytest

from kvxfer.cli import probes


def test_nccl_is_looked_for_with_a_verdict() -> None:
    found = probes.nccl_probe()
    assert set(found) == {"path", "version", "is_zero_sm", "reason", "explanation"}
    assert found["is_zero_sm"] == (found["reason"] == "NONE")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "a child process ended with status -11: no word"),
        ("raise ValueError('fault')", "a child process ended with status 1: ValueError: fault"),
        ("import time; time.sleep(30)", "no answer from a child process: "),
    ],
)
def test_a_crash_or_a_hang_is_a_line(code: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sleep" in code:
        monkeypatch.setattr(probes, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(probes, "_SGLANG", code.replace("raise", "found = 1\nraise"))
    assert probes.sglang_probe()["failure"].startswith(says)


def test_the_plug_in_is_off_where_nothing_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVXFER_SGLANG", raising=False)
    found = probes.sglang_probe()
    assert found["here"].startswith("off: KVXFER_SGLANG is not set")
    assert found["pack"].startswith(("pack active; gather refused", "pack refused: "))
