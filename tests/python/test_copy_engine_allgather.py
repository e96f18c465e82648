# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Gathers by our own copies: host memory for the device's, threads for ranks and their streams."""

import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvxfer
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.sharded import (
    BlockLayout,
    BlockOrder,
    CopyEngineAllgather,
    CopyEngineGather,
    FallbackReason,
    GatherPath,
    HandshakeBoards,
    OwnCopies,
    StreamCalls,
)
from support.device_gather import (
    ALL,
    LAYERS,
    PLAN,
    RANKS,
    TENSORS,
    make_layout,
    make_pool,
    numpy_calls,
    read_all,
    ready,
)
from support.fake_nccl import COMPILER, FakeNccl, Rank, build, run_ranks

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ that builds the fake libnccl"),
    pytest.mark.timeout(150),
]
STREAM = 0x40


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nccl"))


class InlineStream:
    """A stream that runs in the call that enqueues, and counts; its waits are bounded."""

    has_run = True

    def __init__(self, bound_seconds: float = 45.0) -> None:
        self.bound_seconds = bound_seconds
        self.batches: list[int] = []
        self.operations: list[str] = []
        self.registered: list[str] = []

    def copy(self, copies: list[tuple[int, int, int]], stream: int) -> None:
        assert stream == STREAM
        self.batches.append(len(copies))
        for destination, source, size_bytes in copies:
            ctypes.memmove(destination, source, size_bytes)

    def operate(self, operations: list[tuple[bool, int, int]], stream: int) -> None:
        assert stream == STREAM
        self.operations.append("".join("w" if is_wait else "s" for is_wait, _, _ in operations))
        deadline = time.monotonic() + self.bound_seconds
        for is_wait, address, value in operations:
            word = ctypes.c_uint32.from_address(address)
            if not is_wait:
                word.value = value
            while is_wait and ctypes.c_int32(word.value - value).value < 0:
                assert time.monotonic() < deadline, "a word never came"
                time.sleep(0.0002)

    def query(self) -> bool:
        return self.has_run

    def copies(self, **others: Any) -> OwnCopies:
        return OwnCopies(
            stream_calls=StreamCalls(self.copy, self.operate, lambda stream: False),
            register=lambda memory: self.registered.append(f"register {memory.nbytes}"),
            unregister=lambda memory: self.registered.append("unregister"),
            record=lambda: self,
            **others,
        )


def open_gather(
    mine: Rank, order: BlockOrder, copies: OwnCopies, **found: Any
) -> CopyEngineAllgather:
    return CopyEngineAllgather(
        make_layout(order),
        mine.rank,
        mine.exchange,
        numpy_calls(),
        copies,
        conditions=ready(**found),
        nccl=mine.api,
    )


@pytest.mark.parametrize("is_replayable", [False, True])
@pytest.mark.parametrize("order", list(BlockOrder))
def test_every_page_comes_under_one_handshake_a_layer(
    library: Path, order: BlockOrder, is_replayable: bool
) -> None:
    nccl = FakeNccl(library)

    def body(mine: Rank) -> tuple[Any, ...]:
        stream = InlineStream()
        gather = open_gather(mine, order, stream.copies(is_replayable=is_replayable))
        assert gather.is_own
        pool = make_pool(gather, np.from_dlpack)
        right = read_all(pool)
        gather.wait(0)
        pool.close()
        return right, gather.verdict.path, stream.batches, stream.operations, stream.registered

    tensors = 1 if order is BlockOrder.JOINED else len(TENSORS)
    for right, path, batches, operations, registered in run_ranks(nccl, RANKS, body):
        assert (right, path) == (ALL, GatherPath.COPY_ENGINE)
        assert batches == [tensors * (RANKS - 1)] * (2 * LAYERS)
        gathered = ["wwss", "sswwss"] if is_replayable else ["ww", "ssww"]
        assert [text for text in operations if text != "ss"] == gathered * (2 * LAYERS)
        assert operations.count("ss") == 2 * LAYERS - 2  # each slot's releases after its first
        assert registered == [f"register {HandshakeBoards(RANKS, 2).bytes}", "unregister"]
    assert nccl.count("all_gather") == 0
    assert nccl.count("free") == RANKS


def test_a_rank_that_reaches_no_window_leaves_it_to_nccl(library: Path) -> None:
    class Blind:
        def peer_address(self, rank: int, offset_bytes: int) -> int:
            return 0 if rank == 1 else 4096

    class Unreached(CopyEngineAllgather):
        def _reachable_windows(self) -> list[int]:
            window = self._window
            if self.rank == 2:
                self._window = Blind()  # type: ignore[assignment]
            try:
                return super()._reachable_windows()
            finally:
                self._window = window

    nccl = FakeNccl(library)

    def body(mine: Rank) -> tuple[Any, ...]:
        stream = InlineStream()
        gather = Unreached(
            make_layout(BlockOrder.DENSE),
            mine.rank,
            mine.exchange,
            numpy_calls(),
            stream.copies(),
            conditions=ready(),
            nccl=mine.api,
        )
        pool = make_pool(gather, np.from_dlpack)
        right = read_all(pool)
        with pytest.raises(kvxfer.UnsupportedError, match="got NCCL's, which wait unbounded"):
            gather.wait(0)
        pool.close()
        return right, gather.is_own, stream.batches, stream.registered

    assert run_ranks(nccl, RANKS, body) == [(ALL, False, [], [])] * RANKS
    assert nccl.count("all_gather") == RANKS * 2 * LAYERS * len(TENSORS)


def test_a_verdict_for_kernels_is_kept(library: Path) -> None:
    def body(mine: Rank) -> tuple[Any, ...]:
        found = {"has_memory_saver": mine.rank == 1}
        gather = open_gather(mine, BlockOrder.DENSE, InlineStream().copies(), **found)
        pool = make_pool(gather, np.from_dlpack)
        right = read_all(pool)
        pool.close()
        return right, gather.is_own, pool.verdict.path, pool.verdict.reason

    expected = (ALL, False, GatherPath.SM, FallbackReason.MEMORY_SAVER)
    assert run_ranks(FakeNccl(library), RANKS, body) == [expected] * RANKS


def test_memory_that_a_device_refuses_is_everybodys_failure(library: Path) -> None:
    def body(mine: Rank) -> None:
        def refuse(memory: Any) -> None:
            raise OSError("no page can be locked")

        copies = InlineStream().copies()
        if mine.rank == 1:
            copies = OwnCopies(copies.stream_calls, refuse, copies.unregister, copies.record)
        open_gather(mine, BlockOrder.DENSE, copies)

    found = run_ranks(FakeNccl(library), RANKS, body)
    assert [(type(error), error.peer) for error in found] == [(TransferError, "rank 1")] * RANKS
    assert all("no page can be locked" in str(error) for error in found)


def test_a_stream_that_does_not_come_is_told_within_the_bound(library: Path) -> None:
    def body(mine: Rank) -> str:
        stream = InlineStream()
        gather = open_gather(mine, BlockOrder.DENSE, stream.copies(bound_seconds=0.05))
        pool = make_pool(gather, np.from_dlpack)
        gather.wait(0)  # nothing was gathered
        read_all(pool)
        gather.wait(1)
        stream.has_run = False
        with pytest.raises(DeadlineError, match="expected the stream at the last gather of slot 1"):
            gather.wait(1)
        pool.close()
        return "told"

    assert run_ranks(FakeNccl(library), RANKS, body) == ["told"] * RANKS


def test_early_releases_let_peers_go_on(library: Path) -> None:
    def body(mine: Rank) -> list[str]:
        stream = InlineStream()
        pool = make_pool(open_gather(mine, BlockOrder.JOINED, stream.copies()), np.from_dlpack)
        with pool.batch(PLAN):
            pool.read(0)
            stream.operations.clear()
            pool.release(0)
            released = list(stream.operations)
            for layer in range(1, LAYERS):
                pool.read(layer)
        pool.close()
        return released

    assert run_ranks(FakeNccl(library), RANKS, body) == [["ss"]] * RANKS


# --- the bounded wait --------------------------------------------------------------------------


class LoneSide:
    """Rank 0 of two whose peer does what the test writes into the words."""

    def __init__(self, is_replayable: bool = False) -> None:
        self.boards = HandshakeBoards(2, 2)
        lines = np.zeros(self.boards.bytes + 64, np.uint8)
        begin = -lines.ctypes.data % 64
        self.words = lines[begin : begin + self.boards.bytes]
        self.windows = [np.zeros(4096, np.uint8) for _ in range(2)]
        self.enqueued: list[Any] = []
        calls = StreamCalls(
            lambda copies, stream: self.enqueued.append(copies),
            lambda operations, stream: self.enqueued.append(operations),
            lambda stream: False,
        )
        addresses = [window.ctypes.data for window in self.windows]
        self.side = CopyEngineGather(
            self.boards, 0, self.words, addresses, 4096, calls, is_replayable=is_replayable
        )

    def come(self) -> None:
        """Let the peer write everything that rank 0 waits for."""
        waits = [o for batch in self.enqueued for o in batch if o[0] is True]
        for _, address, value in waits:
            ctypes.c_uint32.from_address(address).value = value


def blocks_of_one_page() -> list[Any]:
    return BlockLayout(make_layout(BlockOrder.JOINED), 1).spans(0)


@pytest.mark.parametrize("is_replayable", [False, True])
def test_a_missing_peer_is_named_and_the_stream_let_go(is_replayable: bool) -> None:
    lone = LoneSide(is_replayable)
    lone.side.gather(0, 1, blocks_of_one_page(), stream=STREAM)
    waits = [o for batch in lone.enqueued for o in batch if o[0] is True]
    assert len(waits) == 2

    def has_run() -> bool:
        return all(ctypes.c_uint32.from_address(a).value == value for _, a, value in waits)

    with pytest.raises(DeadlineError, match="expected rank 1 at the last gather") as caught:
        lone.side.wait(0, has_run, 0.05)
    assert caught.value.peer == "rank 1"
    assert has_run()
    with pytest.raises(kvxfer.InvalidArgumentError, match="got one that gave up"):
        lone.side.gather(1, 1, [], stream=STREAM)


def test_a_gather_that_ran_is_not_waited_for() -> None:
    lone = LoneSide()
    lone.side.gather(0, 1, blocks_of_one_page(), stream=STREAM)
    lone.come()
    lone.side.wait(0, lambda: True, 5.0)
    lone.side.release(0, stream=STREAM)
    assert lone.side.next_tag(0) == 2


def test_a_peer_at_another_gather_is_told_apart() -> None:
    lone = LoneSide()
    lone.side.gather(0, 1, blocks_of_one_page(), stream=STREAM)
    credit = lone.enqueued[0][0][1]
    ctypes.c_uint32.from_address(credit).value = 9
    with pytest.raises(TransferError, match="got another: one was left out") as caught:
        lone.side.wait(0, lambda: False, 0.05)
    assert (caught.value.kind, caught.value.peer) == ("group", "rank 1")


def test_memory_that_does_not_fit_is_refused() -> None:
    lone = LoneSide()
    calls = StreamCalls(print, print, print)
    with pytest.raises(kvxfer.InvalidArgumentError, match="expected copy that can be called"):
        StreamCalls(3, print, print)
    with pytest.raises(kvxfer.InvalidArgumentError, match="some cannot be reached"):
        CopyEngineGather(lone.boards, 0, lone.words, [64, 0], 4096, calls)
    with pytest.raises(kvxfer.InvalidArgumentError, match="bytes of boards"):
        CopyEngineGather(lone.boards, 0, lone.words[64:], [64, 64], 4096, calls)
    lone.words.flags.writeable = False
    with pytest.raises(kvxfer.InvalidArgumentError, match="writable host memory"):
        CopyEngineGather(lone.boards, 0, lone.words, [64, 64], 4096, calls)
