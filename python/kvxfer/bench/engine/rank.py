# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a prefill rank and a decode rank have in common: pool, model, manager, and commands."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvxfer import Sharding, transports
from kvxfer.adapters import EngineMemory, MetadataArray, RankManager
from kvxfer.bench.engine.pool import KvPool
from kvxfer.bench.engine.rank_group import RankGroup
from kvxfer.bench.engine.setting import RankSetting, Ready
from kvxfer.bench.engine.synthetic_model import VOCABULARY_SIZE, SyntheticModel, synthetic_planes
from kvxfer.demo.processes import Wire
from kvxfer.transfer import TransferOptions, ZmqChannel

__all__ = ["Commands", "Rank", "open_rank"]


@dataclass
class Rank:
    """One rank that is set up. ``tokens`` and ``logprobs`` are its one item of metadata."""

    setting: RankSetting
    pool: KvPool
    model: Any
    manager: RankManager
    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    ready: Ready

    @property
    def synthetic(self) -> SyntheticModel | None:
        """The model, where it is none."""
        return self.model if isinstance(self.model, SyntheticModel) else None

    def report(self) -> dict[str, float]:
        """Return the manager's counters, and its sums over the requests that have ended."""
        totals = {
            f"{side}_total_{name}": count
            for side, total in self.manager.totals.items()
            for name, count in vars(total).items()
        }
        return {**self.manager.counters, **totals}


@contextlib.contextmanager
def open_rank(
    setting: RankSetting, role: Literal["sender", "receiver"], group: RankGroup
) -> Iterator[Rank]:
    """Set a rank up; close everything in the order that memory needs.

    Standard output is the server's alone; what libraries print there goes to standard error.
    """
    os.dup2(2, 1)
    pool, model, end_token, vocabulary_size = _load(setting, group)
    tokens, logprobs = np.zeros(1, np.int64), np.zeros(1, np.float64)
    memory = EngineMemory(metadata=[MetadataArray.of(tokens), MetadataArray.of(logprobs)])
    options = TransferOptions(
        role=role,
        pack_tokens=setting.pack_tokens,
        packing=setting.packing,
        landing=setting.landing,
    )
    with contextlib.ExitStack() as closing:
        channel = ZmqChannel(secret=setting.secret)
        closing.callback(channel.close)
        agent = transports.create(setting.transport, f"{setting.name}-{os.getpid()}")
        closing.callback(agent.close)
        manager = RankManager(pool.local, agent, channel, options, memory=memory)
        closing.callback(manager.close)
        ready = Ready(manager.name, manager.address, end_token, vocabulary_size)
        yield Rank(setting, pool, model, manager, tokens, logprobs, ready)


def _load(setting: RankSetting, group: RankGroup) -> tuple[KvPool, Any, int | None, int]:
    """Return pool, model, end-of-text token and size of the vocabulary."""
    sharding = Sharding(setting.ranks, setting.rank)
    wanted = setting.model
    if wanted.kind == "synthetic":
        pool = KvPool(synthetic_planes(), setting.page_size, setting.page_count, sharding)
        synthetic = SyntheticModel(pool, wanted.compute_s, wanted.step_s, wanted.verify)
        return pool, synthetic, None, VOCABULARY_SIZE
    from kvxfer.bench.engine import models
    from kvxfer.bench.engine.paged_model import PagedModel, planes_of

    loaded = models.load(wanted)
    pool = KvPool(planes_of(loaded.config), setting.page_size, setting.page_count, sharding)
    end_token = loaded.config.eos_token_id if wanted.kind == "smollm2" else None
    return pool, PagedModel(loaded, pool, group), end_token, loaded.config.vocab_size


class Commands:
    """What the scheduler sends, read by a thread of its own: a busy rank never fills the pipe."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._queue: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self.is_over = False
        threading.Thread(target=self._read, name="kvxfer serve commands", daemon=True).start()

    def take(self, wait_s: float | None) -> list[tuple[str, Any]]:
        """Return what has come, waiting so long for the first; sets ``is_over`` at the end."""
        taken: list[tuple[str, Any]] = []
        with contextlib.suppress(queue.Empty):
            entry = self._queue.get(timeout=wait_s)
            while entry is not None:
                taken.append(entry)
                entry = self._queue.get_nowait()
            self.is_over = True
        return taken

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._queue.put(self._wire.connection.recv())
        self._queue.put(None)
