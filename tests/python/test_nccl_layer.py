# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""NCCL's communicator and windows from Python, over a fake libnccl whose ranks are threads."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import kvxfer
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.sharded import (
    Communicator,
    CtaPolicy,
    FallbackReason,
    GatherPath,
    NcclError,
    RankConditions,
    SymmetricWindow,
    WindowOutcome,
    _nccl,
    decide_after_registration,
    decide_gather_path,
    find_nccl,
    nccl_report,
)
from support.fake_nccl import COMPILER, FakeNccl, Rank, build, run_ranks

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ that builds the fake libnccl"),
    pytest.mark.timeout(150),
]
STREAM = 0x40  # anything but the default stream


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture(scope="module")
def bare_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bare"), "FAKE_NCCL_WITHOUT_OPTIONAL")


def gather(window: SymmetricWindow, rank: int, ranks: int, seed: int) -> bool:
    """Whether a gather of poisoned blocks brings the bytes of all ranks."""
    array: NDArray[np.uint8] = np.from_dlpack(window.view(1024, ranks * 64))
    array[:] = 0xEE
    array[rank * 64 : (rank + 1) * 64] = seed + rank
    window.all_gather(1024, 64, stream=STREAM)
    return bool(np.array_equal(array, np.repeat(seed + np.arange(ranks, dtype=np.uint8), 64)))


def expect_errors(found: list[Any], kind: type, words: str) -> None:
    assert [type(error) for error in found] == [kind] * len(found), found
    for error in found:
        assert words in str(error)


# --- the library -------------------------------------------------------------------------------


def test_the_library_says_what_it_is(library: Path, bare_library: Path) -> None:
    FakeNccl(library)
    FakeNccl(bare_library, version=22809)
    api = find_nccl(str(library))
    assert (api.path, api.version_code, api.version) == (str(library), 23102, (2, 31, 2))
    assert api.has_windows
    assert api.tells_peer_addresses
    bare = find_nccl(str(bare_library))
    assert (bare.version, bare.has_windows, bare.tells_peer_addresses) == ((2, 28, 9), False, False)


def test_what_was_tried_is_listed(tmp_path: Path) -> None:
    with pytest.raises(kvxfer.UnsupportedError, match=str(tmp_path / "none.so")):
        find_nccl(str(tmp_path / "none.so"))


@pytest.mark.parametrize(
    ("version", "driver", "environ", "reason"),
    [
        (23102, 13000, {}, "NONE"),
        (22809, 13000, {}, "NCCL_TOO_OLD"),
        (23102, 0, {}, "DRIVER_TOO_OLD"),
        (23102, 13000, {"NCCL_CUMEM_ENABLE": "0"}, "CUMEM_OFF"),
        (23102, 13000, {"NCCL_CTA_POLICY": "DEFAULT"}, "POLICY_CONTRADICTED"),
    ],
)
def test_the_report_says_whether_copy_engines_would_run(
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    driver: int,
    environ: dict[str, str],
    reason: str,
) -> None:
    FakeNccl(library, version=version)
    monkeypatch.setattr(_nccl, "driver_version", lambda: driver)
    report = nccl_report(str(library), environ)
    assert (report["path"], report["reason"]) == (str(library), reason)
    assert report["version"] == {23102: "2.31.2", 22809: "2.28.9"}[version]
    assert report["is_zero_sm"] == (reason == "NONE")
    assert "rank" not in report["explanation"]


def test_the_report_without_a_library(tmp_path: Path) -> None:
    report = nccl_report(str(tmp_path / "none.so"))
    assert (report["path"], report["version"], report["reason"]) == (None, None, "NCCL_MISSING")
    assert not report["is_zero_sm"]


# --- communicator and window -------------------------------------------------------------------


def test_a_window_lives_in_one_order_of_calls(library: Path) -> None:
    nccl = FakeNccl(library)

    def body(mine: Rank) -> bool:
        communicator = mine.connect()
        window = mine.open(communicator)
        assert window.is_registered_everywhere
        right = gather(window, mine.rank, 3, 10) and gather(window, mine.rank, 3, 20)
        gc.collect()
        window.close()
        window.close()
        communicator.close()
        return right

    assert run_ranks(nccl, 3, body) == [True] * 3
    assert nccl.calls_of(1) == [
        *("init policy 2", "alloc 8192", "register 8192", "all_gather 64", "all_gather 64"),
        *("deregister", "free", "finalize", "destroy"),
    ]


def test_an_old_library_refuses_the_zero_policy_on_all_ranks(library: Path) -> None:
    nccl = FakeNccl(library, version=22809)
    found = run_ranks(nccl, 2, lambda mine: mine.connect())
    expect_errors(found, TransferError, "expected NCCL >= 2.31.2 for the zero policy")
    assert found[0].peer == "ranks 0, 1"
    assert nccl.count("init") == 0

    def gathers(mine: Rank) -> bool:
        window = mine.open(mine.connect(CtaPolicy.DEFAULT))
        return gather(window, mine.rank, 2, 5)

    assert run_ranks(nccl, 2, gathers) == [True] * 2


def test_one_null_window_takes_the_ordinary_path_everywhere(library: Path) -> None:
    nccl = FakeNccl(library, null_window_rank=1)
    conditions = RankConditions()
    conditions.nccl_code, conditions.driver_version = 23102, 13000
    before = decide_gather_path([conditions] * 2)
    assert before.path is GatherPath.COPY_ENGINE

    def body(mine: Rank) -> tuple[Any, ...]:
        window = mine.open(mine.connect())
        verdict = decide_after_registration(before, window.outcomes)
        right = gather(window, mine.rank, 2, 5)
        return window.outcomes, verdict.path, verdict.reason, verdict.ranks, right

    outcomes = [WindowOutcome.REGISTERED, WindowOutcome.NULL]
    expected = (outcomes, GatherPath.SM, FallbackReason.NULL_WINDOW, [1], True)
    assert run_ranks(nccl, 2, body) == [expected] * 2
    assert (nccl.count("deregister"), nccl.count("free")) == (1, 2)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"failing_window_rank": 1}, "rank 1: ncclCommWindowRegister failed with 5"),
        ({"failing_alloc_rank": 1}, "rank 1: ncclMemAlloc failed with 1"),
        ({"unaligned_rank": 1}, "rank 1: expected window memory at a multiple of 4096"),
    ],
)
def test_a_failure_on_one_rank_is_everybodys(
    library: Path, script: dict[str, int], words: str
) -> None:
    nccl = FakeNccl(library, **script)
    found = run_ranks(nccl, 3, lambda mine: mine.open(mine.connect()))
    expect_errors(found, TransferError, words)
    assert {error.peer for error in found} == {"rank 1"}
    gc.collect()
    assert nccl.count("free") == nccl.count("alloc")
    assert nccl.count("destroy") == 3


def test_a_library_without_windows_is_refused_in_words(bare_library: Path) -> None:
    nccl = FakeNccl(bare_library)
    found = run_ranks(nccl, 2, lambda mine: mine.open(mine.connect()))
    expect_errors(found, TransferError, "expected NCCL with symmetric windows")


def test_a_capturing_thread_and_a_failing_drain_are_named(library: Path) -> None:
    def captures(mine: Rank) -> SymmetricWindow:
        return SymmetricWindow(
            mine.connect(),
            4096,
            0,
            synchronize=lambda: None,
            is_capturing=lambda: mine.rank == 0,
            device="cpu",
        )

    expect_errors(
        run_ranks(FakeNccl(library), 2, captures),
        TransferError,
        "rank 0: expected no graph capture",
    )

    def drains(mine: Rank) -> None:
        def lost() -> None:
            raise OSError("the device is lost")

        window = mine.open(mine.connect())
        mine.synchronize = lost if mine.rank == 1 else lambda: None
        window.close()

    nccl = FakeNccl(library)
    expect_errors(run_ranks(nccl, 2, drains), TransferError, "the device is lost")
    assert (nccl.count("deregister"), nccl.count("free")) == (2, 2)


def test_nothing_is_used_after_its_close(library: Path) -> None:
    def body(mine: Rank) -> str:
        communicator = mine.connect()
        window = mine.open(communicator)
        with pytest.raises(kvxfer.InvalidArgumentError, match="to be closed before"):
            communicator.close()
        window.close()
        with pytest.raises(kvxfer.InvalidArgumentError, match="got a closed one"):
            window.view(0, 1)
        with pytest.raises(kvxfer.InvalidArgumentError, match="got a closed one"):
            window.all_gather(0, 64, stream=STREAM)
        communicator.close()
        with pytest.raises(kvxfer.InvalidArgumentError, match="got one that was closed"):
            communicator.check()
        return "closed"

    assert run_ranks(FakeNccl(library), 2, body) == ["closed"] * 2


@pytest.mark.parametrize("consumer", ["numpy", "torch", "unused", "view"])
def test_a_view_outlives_its_window(library: Path, consumer: str) -> None:
    nccl = FakeNccl(library)

    def consume(window: SymmetricWindow) -> Any:
        view = window.view(4096, 128)
        if consumer == "numpy":
            return np.from_dlpack(view)
        if consumer == "torch":
            return torch.from_dlpack(view)
        return view.__dlpack__() if consumer == "unused" else view

    def body(mine: Rank) -> int:
        communicator = mine.connect()
        window = mine.open(communicator)
        array = consume(window)
        window.close()
        del window
        gc.collect()
        assert nccl.calls_of(mine.rank)[-1] == "deregister"
        if consumer in ("numpy", "torch"):
            array[127] = 9
            assert (array.shape, int(array[127]), int(array[0])) == ((128,), 9, 0)
        with pytest.raises(kvxfer.InvalidArgumentError, match="got 1 that hold it"):
            communicator.close()
        del array
        gc.collect()
        assert nccl.calls_of(mine.rank)[-1] == "free"
        communicator.close()
        return nccl.calls_of(mine.rank).count("free")

    assert run_ranks(nccl, 2, body) == [1, 1]


def test_a_view_says_where_it_is(library: Path) -> None:
    def body(mine: Rank) -> Any:
        window = SymmetricWindow(
            mine.connect(),
            4096,
            0,
            synchronize=lambda: None,
            is_capturing=lambda: False,
            device="cuda:3",
        )
        view = window.view(0, 16)
        with pytest.raises(kvxfer.InvalidArgumentError, match="expected no copy"):
            view.__dlpack__(copy=True)
        reach = window.peer_address(0, 16) - window.peer_address(0, 0)
        return view.__dlpack_device__(), view.size_bytes, reach

    assert run_ranks(FakeNccl(library), 1, body) == [((2, 3), 16, 16)]


@pytest.mark.parametrize("device", ["cuda", "cuda:", "cuda:-1", "cuda:1x", "gpu:0", "3"])
def test_a_device_has_a_name_and_an_index(library: Path, device: str) -> None:
    def body(mine: Rank) -> None:
        SymmetricWindow(mine.connect(), 1, 0, synchronize=print, is_capturing=bool, device=device)

    (error,) = run_ranks(FakeNccl(library), 1, body)
    assert isinstance(error, kvxfer.InvalidArgumentError)
    assert f"got '{device}'" in str(error)


# --- the caller's exchange ---------------------------------------------------------------------


def connect_with(library: Path, exchange: Any) -> Communicator:
    FakeNccl(library)
    return Communicator(find_nccl(str(library)), 0, 2, exchange, bound_seconds=1.0)


def test_an_exchange_that_fails_is_told_in_its_words(library: Path) -> None:
    def times_out(text: str) -> list[str]:
        raise TimeoutError("rank 1 did not come")

    def breaks(text: str) -> list[str]:
        raise OSError("the store is gone")

    with pytest.raises(DeadlineError, match="rank 1 did not come"):
        connect_with(library, times_out)
    with pytest.raises(TransferError, match="the store is gone"):
        connect_with(library, breaks)
    with pytest.raises(TransferError, match="texts of 2 ranks, got 1"):
        connect_with(library, lambda text: [text])
    with pytest.raises(kvxfer.InvalidArgumentError, match="expected exchange that can be called"):
        connect_with(library, 7)
    with pytest.raises(TransferError, match="rank 1: is at"):
        connect_with(library, lambda text: [text, "elsewhere\0+"])


def test_a_link_that_fails_is_an_error_of_nccl(library: Path) -> None:
    nccl = FakeNccl(library)

    def body(mine: Rank) -> int:
        communicator = mine.connect()
        communicator.check()
        FakeNccl(nccl.path, failing_link_rank=0)
        with pytest.raises(NcclError, match="a collective failed with 6") as caught:
            communicator.check()
        communicator.abort()
        assert communicator.is_aborted
        return int(getattr(caught.value, "code", 0))

    assert run_ranks(nccl, 1, body) == [6]
    assert issubclass(NcclError, kvxfer.Error)
