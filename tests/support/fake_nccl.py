# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The fake libnccl of the C++ suite, built for Python, and ranks that run on it as threads."""

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvxfer.sharded import Communicator, CtaPolicy, SymmetricWindow, find_nccl

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")
FIELDS = (
    "version",
    "null_window_rank",
    "failing_window_rank",
    "failing_alloc_rank",
    "unaligned_rank",
    "slow_rank",
    "slow_ms",
    "hanging_window_rank",
    "failing_link_rank",
)


def build(folder: Path, *definitions: str) -> Path:
    """Compile the fake; its name is not NCCL's, so that only who asks for the path finds it."""
    assert COMPILER is not None
    library = folder / f"fake{''.join(definitions).lower()}.so"
    flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'tests/cpp'}"]
    source = ROOT / "tests/cpp/support/fake_nccl.cpp"
    command = [COMPILER, *flags, *(f"-D{name}" for name in definitions), str(source)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=100)
    return library


class Script(ctypes.Structure):
    """FakeNcclScript of the C++ suite."""

    _fields_ = [(name, ctypes.c_int) for name in FIELDS]


class FakeNccl:
    """One library with a script, and what was called in it."""

    def __init__(self, path: Path, **script: int) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_nccl_log.restype = ctypes.c_char_p
        quiet = {**dict.fromkeys(FIELDS, -1), "version": 23102, "slow_ms": 0}
        self._library.fake_nccl_script(ctypes.byref(Script(**(quiet | script))))

    def calls_of(self, rank: int) -> list[str]:
        lines = self._library.fake_nccl_log().decode().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{rank} ")]

    def count(self, call: str) -> int:
        lines = self._library.fake_nccl_log().decode().splitlines()
        return sum(line.partition(" ")[2].startswith(call) for line in lines)


class Board:
    """Texts that threads exchange, by number of the exchange; bounded."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._steps: dict[int, dict[int, str]] = {}
        self._changed = threading.Condition()

    def exchange_of(self, rank: int) -> Callable[[str], list[str]]:
        step = iter(range(1 << 30))

        def exchange(text: str) -> list[str]:
            with self._changed:
                texts = self._steps.setdefault(next(step), {})
                texts[rank] = text
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: len(texts) == self.ranks, timeout=45.0):
                    raise TimeoutError(f"expected {self.ranks} texts, got {sorted(texts)}")
                return [texts[other] for other in range(self.ranks)]

        return exchange


class Rank:
    """What a rank's thread works with."""

    def __init__(self, nccl: FakeNccl, rank: int, board: Board) -> None:
        self.api = find_nccl(str(nccl.path))
        self.rank, self.ranks = rank, board.ranks
        self.exchange = board.exchange_of(rank)
        self.synchronize: Callable[[], Any] = lambda: None

    def drain(self) -> None:
        self.synchronize()

    def connect(self, policy: CtaPolicy = CtaPolicy.ZERO) -> Communicator:
        return Communicator(self.api, self.rank, self.ranks, self.exchange, policy=policy)

    def open(self, communicator: Communicator, size_bytes: int = 8192) -> SymmetricWindow:
        return SymmetricWindow(
            communicator,
            size_bytes,
            7,
            synchronize=self.drain,
            is_capturing=lambda: False,
            device="cpu",
        )


def run_ranks(nccl: FakeNccl, ranks: int, body: Callable[[Rank], Any]) -> list[Any]:
    """What `body` returned on each rank, or the exception that it raised."""
    board, results = Board(ranks), [None] * ranks

    def run(rank: int) -> None:
        try:
            results[rank] = body(Rank(nccl, rank, board))
        except BaseException as error:
            # Frames of the failed body would keep its windows alive.
            results[rank] = error.with_traceback(None)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120.0)
        assert not thread.is_alive()
    return results
