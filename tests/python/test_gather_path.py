# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Which path a gather takes is one decision of the whole group, with a reason."""

import os
import sys
from pathlib import Path

import pytest

import kvxfer
from kvxfer.sharded import (
    FallbackReason,
    GatherPath,
    RankConditions,
    WindowOutcome,
    decide_after_registration,
    decide_gather_path,
    environment_conditions,
    nccl_version,
    nccl_wheel_path,
)


def ready(environ: dict[str, str] | None = None) -> RankConditions:
    conditions = environment_conditions(environ or {})
    conditions.nccl_code = 23102
    conditions.driver_version = 13000
    return conditions


def test_copy_engines_when_every_rank_is_ready() -> None:
    verdict = decide_gather_path([ready(), ready()])
    assert (verdict.path, verdict.reason) == (GatherPath.COPY_ENGINE, FallbackReason.NONE)
    assert decide_after_registration(verdict, [WindowOutcome.REGISTERED] * 2) == verdict


def test_one_rank_without_cumem_decides_for_all_and_nothing_is_set() -> None:
    before = dict(os.environ)
    verdict = decide_gather_path([ready(), ready({"NCCL_CUMEM_ENABLE": "0"})])
    assert (verdict.path, verdict.reason) == (GatherPath.SM, FallbackReason.CUMEM_OFF)
    assert verdict.ranks == [1]
    assert "set NCCL_CUMEM_ENABLE=1 before NCCL starts" in verdict.explanation
    assert dict(os.environ) == before


def test_one_null_window_takes_the_ordinary_path_everywhere() -> None:
    verdict = decide_gather_path([ready(), ready()])
    after = decide_after_registration(verdict, [WindowOutcome.NULL, WindowOutcome.REGISTERED])
    assert (after.path, after.reason, after.ranks) == (
        GatherPath.SM,
        FallbackReason.NULL_WINDOW,
        [0],
    )


def test_host_pools_beside_device_pools_are_refused() -> None:
    host = ready()
    host.is_host_pool = True
    assert decide_gather_path([host, host]).path is GatherPath.HOST_COPY
    with pytest.raises(kvxfer.InvalidArgumentError, match="only on rank 1"):
        decide_gather_path([ready(), host])


def test_versions_compare_by_number() -> None:
    assert [nccl_version(code) for code in (22707, 22809, 23102)] == [
        (2, 27, 7),
        (2, 28, 9),
        (2, 31, 2),
    ]
    assert nccl_version(20900) < nccl_version(22800)


def test_the_wheel_is_found_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert nccl_wheel_path() is None
    library.touch()
    assert nccl_wheel_path() == str(library)
