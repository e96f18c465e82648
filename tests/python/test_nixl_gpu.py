# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The NIXL transport over GPU memory between two processes, on the lanes that UCX chooses."""

import importlib.util
import os
import time

import numpy as np
import pytest

from support.agent_process import AgentProcess
from support.device_memory import DeviceMemory
from support.transport_cases import CASES, WAIT_S, Memory

KINDS = {"host": Memory, "device": DeviceMemory}
ROW_BYTES = 576 * 64
ROW_COUNT = 224


def missing() -> str:
    """What these tests need and do not find here, in words; empty where nothing is missing."""
    if not CASES["nixl"].is_installed:
        return "nixl_cu13 is not installed"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "there is no GPU"


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = missing()
    if reason and os.environ.get("KVXFER_REQUIRE_GPU") == "1":
        pytest.fail(f"KVXFER_REQUIRE_GPU=1, but {reason}")
    if reason:
        pytest.skip(reason)
    # The processes inherit it; this one may have restricted it for tests over TCP.
    monkeypatch.delenv("UCX_TLS", raising=False)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    [("device", "device"), ("device", "host"), ("host", "device")],
)
def test_rows_land_shuffled_in_another_process(source_kind: str, target_kind: str) -> None:
    size_bytes = ROW_COUNT * ROW_BYTES
    with (
        AgentProcess("nixl", "source", size_bytes, make_memory=KINDS[source_kind]) as source,
        AgentProcess("nixl", "target", size_bytes, make_memory=KINDS[target_kind]) as target,
    ):
        source.call("fill", 5)
        peer = source.call("add_peer", target.call("describe"))
        places = np.random.default_rng(1).permutation(ROW_COUNT)
        runs = [
            (source.address + i * ROW_BYTES, target.address + int(place) * ROW_BYTES, ROW_BYTES)
            for i, place in enumerate(places)
        ]
        source.call("post", peer, runs, b"rows")
        deadline = time.monotonic() + WAIT_S
        while target.call("hear") != [("source", b"rows")]:
            assert time.monotonic() < deadline, source.call("states")
            time.sleep(0.001)
        # Whoever has heard sees the bytes, without waiting for the sender's state.
        landed = np.frombuffer(target.call("content"), np.uint8).reshape(ROW_COUNT, ROW_BYTES)
        sent = np.frombuffer(source.call("content"), np.uint8).reshape(ROW_COUNT, ROW_BYTES)
        assert (landed[places] == sent).all()
        assert target.call("guards_are_untouched")
        assert source.call("states") == ["DONE"]
        expected_us = 6.5 if source_kind == "device" else 3.5
        assert source.call("write_cost_us") == expected_us
