# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of the parity tests fails for every damage that it is there for.

The order of whole rows is no such damage, since attention does not see it; the synthetic model's
pattern, and the transfers' own tests, judge it by bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvxfer import Sharding
from support.adapter_world import wait_until
from support.bench_server import Sampled, check_parity, generate_alone, make_prompt

LENGTH = 200
TOKENS = 6
PAGE_SIZE = 16
KINDS = ["gqa", "mla"]


@cache
def reference(kind: str) -> tuple[Sampled, ...]:
    return tuple(generate_alone(load(kind), make_prompt(LENGTH), TOKENS))


def load(kind: str) -> Any:
    from kvxfer.bench.engine import models
    from kvxfer.bench.engine.setting import ModelSetting

    return models.load(ModelSetting(kind=kind))  # type: ignore[arg-type]


@dataclass
class Cell:
    """A pool and the model over it, alone in its group."""

    pool: Any
    model: Any
    pages: NDArray[np.int64]

    def rows(self, begin: int, end: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.pool.rows(self.pages, self.pool.positions(begin, end))
        return found


def make_cell(kind: str, seed: int) -> Cell:
    from kvxfer.bench.engine.paged_model import PagedModel, planes_of
    from kvxfer.bench.engine.pool import KvPool
    from kvxfer.bench.engine.rank_group import RankGroup

    loaded = load(kind)
    pool = KvPool(planes_of(loaded.config), PAGE_SIZE, 20, Sharding())
    pages = np.random.default_rng(seed).permutation(20)[:14].astype(np.int64)
    return Cell(pool, PagedModel(loaded, pool, RankGroup()), pages)


@pytest.fixture(name="moved", params=KINDS)
def moved_fixture(request: pytest.FixtureRequest) -> tuple[str, Cell, Sampled]:
    """A prompt that was prefilled in one pool and moved to another."""
    pytest.importorskip("transformers")
    kind: str = request.param
    source, destination = make_cell(kind, 1), make_cell(kind, 2)
    first = source.model.run(np.array(make_prompt(LENGTH)), 0, source.pages)
    move(source, destination)
    return kind, destination, (first.token, first.logprob)


def move(source: Cell, destination: Cell) -> None:
    """Move the prompt's rows as the server's ranks do."""
    from contextlib import ExitStack

    from kvxfer import transports
    from kvxfer.adapters import RankManager, RequestReceiver, RequestSender
    from kvxfer.transfer import RoomState, TransferOptions, ZmqChannel

    page_count = -(-LENGTH // PAGE_SIZE)
    with ExitStack() as closing:
        managers = []
        for name, cell in (("source", source), ("destination", destination)):
            agent, channel = transports.create("loopback", name), ZmqChannel()
            closing.callback(channel.close)
            closing.callback(agent.close)
            options = TransferOptions(pack_tokens=64)
            managers.append(RankManager(cell.pool.local, agent, channel, options))
            closing.callback(managers[-1].close)
        sender, receiver = RequestSender(managers[0], 1), RequestReceiver(managers[1], 1)
        receiver.init([managers[0].address])
        receiver.send_metadata(destination.pages[:page_count], LENGTH)
        wait_until(lambda: sender.poll() is not RoomState.BOOTSTRAPPING, "the receiver asked")
        sender.init(page_count)
        sender.send_bounded(source.pages[:page_count], LENGTH, is_final=True)
        wait_until(lambda: receiver.poll().is_over and sender.poll().is_over, "rows are moved")
        assert receiver.poll() is RoomState.SUCCESS, receiver.failure_reason


def decode(cell: Cell, first: Sampled) -> list[Sampled]:
    said = [first]
    for position in range(LENGTH, LENGTH + TOKENS - 1):
        sampled = cell.model.run(np.array([said[-1][0]]), position, cell.pages)
        said.append((sampled.token, sampled.logprob))
    return said


def damage_page(cell: Cell) -> None:
    """One page has other bytes than were sent."""
    for array in cell.pool.arrays:
        array[cell.rows(64, 64 + PAGE_SIZE)] = 0


def drop_segment(cell: Cell) -> None:
    """A segment never arrived: what was in the pool before is still there."""
    for array in cell.pool.arrays:
        array[cell.rows(64, 128)] = 0xFF


def exchange_heads(cell: Cell) -> None:
    """The heads of each row, or the halves of a latent, stand in the wrong order."""
    rows = cell.rows(0, LENGTH)
    for array in cell.pool.arrays:
        array[rows] = np.roll(array[rows], array.shape[1] // 2, axis=1)


def exchange_values(cell: Cell) -> None:
    """Keys of two pages are paired with each other's values."""
    one, other = cell.rows(32, 32 + PAGE_SIZE), cell.rows(96, 96 + PAGE_SIZE)
    for values in cell.pool.arrays[1::2]:
        values[one], values[other] = values[other].copy(), values[one].copy()


def test_undamaged_rows_pass(moved: tuple[str, Cell, Sampled]) -> None:
    kind, cell, first = moved
    check_parity(decode(cell, first), reference(kind))


@pytest.mark.parametrize("damage", [damage_page, drop_segment, exchange_heads, exchange_values])
def test_damage_fails(moved: tuple[str, Cell, Sampled], damage: Callable[[Cell], None]) -> None:
    kind, cell, first = moved
    damage(cell)
    with pytest.raises(AssertionError):
        check_parity(decode(cell, first), reference(kind))
