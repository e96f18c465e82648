# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Processes that prefill a model over a page-sharded pool say and hold what one process does."""

from typing import Any

import numpy as np
import pytest

from kvxfer.demo import cache_rows
from kvxfer.demo import model as demo_model
from support.sharded_model import (
    BATCHES,
    KINDS,
    LAYERS,
    LOCAL_PAGES,
    PAGE,
    POISON,
    RANKS,
    TOKENS,
    ModelJob,
    PlainStore,
    Prefilled,
    Tables,
    make_model,
    prefill,
    rows_in_order,
    run_batch,
)
from support.sharded_world import run

pytestmark = pytest.mark.timeout(240)

RIGHT = ("none", "late gathers")
WRONG = ("wrong owner", "stale slot", "skipped wait")


class OneProcess:
    """The same batches over plain tensors, and whole prompts by the model's own attention."""

    def __init__(self) -> None:
        self.logits: dict[str, list[Any]] = {}
        self.stores: dict[str, PlainStore] = {}
        for name in LAYERS:
            model, store = make_model(name), PlainStore()
            self.logits[name] = []
            for batch in BATCHES:
                store.batch = batch
                self.logits[name].append(run_batch(model, store))
            self.stores[name] = store
        self.model = make_model("main")
        self.tables = Tables()
        for batch in BATCHES:
            self.tables.plan(batch)

    def expected_bytes(self, pool: str, layer: int, request: str, kind: str) -> Any:
        rows = self.stores[pool].rows[layer, request][KINDS.index(kind)]
        return rows.reshape(len(rows), -1).numpy().view(np.uint8)


@pytest.fixture(scope="module")
def one() -> OneProcess:
    return OneProcess()


@pytest.fixture(scope="module")
def ranks() -> dict[int, dict[str, Prefilled]]:
    found = run(ModelJob(RIGHT + WRONG), timeout_seconds=200.0, target=prefill)
    assert sorted(found) == list(range(RANKS))
    assert [type(result) for result in found.values()] == [dict] * RANKS, found
    return found


def differs(one: OneProcess, mine: Prefilled) -> bool:
    """Whether a rank says something else than one process: NaN, another token or other logits."""
    pairs = [
        (expected, got)
        for name in LAYERS
        for expected, got in zip(one.logits[name], mine.logits[name], strict=True)
    ]
    assert len(pairs) == len(BATCHES) * len(LAYERS)
    return not all(
        np.allclose(expected, got, rtol=0, atol=1e-5)
        and np.array_equal(expected.argmax(-1), got.argmax(-1))
        for expected, got in pairs
    )


def test_one_process_is_the_model_itself(one: OneProcess) -> None:
    """Batches, pieces and the attention of this test change nothing of what the model says."""
    last = {"a": (2, 0), "b": (2, 1)}
    for request, (batch, piece) in last.items():
        cache = cache_rows.make_cache(one.model.config)
        expected = demo_model.feed(one.model, cache, tuple(TOKENS[request].tolist()))
        got = one.logits["main"][batch][piece]
        assert np.allclose(expected, got, rtol=0, atol=1e-3)
        first, second = np.sort(expected)[[-1, -2]]
        assert first - second > 1e-2  # no tie that rounding decides
        assert got.argmax() == expected.argmax()


@pytest.mark.parametrize("fault", RIGHT)
def test_tokens_and_logits_are_those_of_one_process(
    one: OneProcess, ranks: dict[int, dict[str, Prefilled]], fault: str
) -> None:
    assert [rank for rank in ranks if differs(one, ranks[rank][fault])] == []


@pytest.mark.parametrize("pool", list(LAYERS))
@pytest.mark.parametrize("fault", RIGHT)
def test_stripes_hold_every_byte_in_order_and_nothing_else(
    one: OneProcess, ranks: dict[int, dict[str, Prefilled]], pool: str, fault: str
) -> None:
    sides = [ranks[rank][fault] for rank in range(RANKS)]
    touched = np.zeros((RANKS, LOCAL_PAGES * PAGE), bool)
    for request, tokens in TOKENS.items():
        pages = one.tables.pages[request]
        for layer in range(LAYERS[pool]):
            for kind in KINDS:
                got = rows_in_order(sides, pool, layer, kind, pages, len(tokens))
                expected = one.expected_bytes(pool, layer, request, kind)
                assert np.array_equal(got, expected), (request, layer, kind)
        for position in range(len(tokens)):
            page = pages[position // PAGE]
            touched[page % RANKS, page // RANKS * PAGE + position % PAGE] = True
    assert touched.any(axis=1).all()
    for rank, side in enumerate(sides):
        for stripes in side.stripes[pool]:
            for kind in KINDS:
                rows = stripes[kind].reshape(LOCAL_PAGES * PAGE, -1)
                assert (rows[~touched[rank]] == POISON).all()


def test_decoding_from_the_stripes_goes_on_as_one_process(
    one: OneProcess, ranks: dict[int, dict[str, Prefilled]]
) -> None:
    sides = [ranks[rank]["none"] for rank in range(RANKS)]
    for request, tokens in TOKENS.items():
        rows = [
            rows_in_order(sides, "main", layer, kind, one.tables.pages[request], len(tokens))
            for layer in range(LAYERS["main"])
            for kind in KINDS
        ]
        plain = cache_rows.make_cache(one.model.config)
        first = int(demo_model.feed(one.model, plain, tuple(tokens.tolist())).argmax())
        expected = demo_model.generate(one.model, plain, first, 6)
        cache = cache_rows.restore_cache(one.model.config, rows)
        got = demo_model.generate(one.model, cache, first, 6)
        assert got.tokens == expected.tokens
        assert np.allclose(got.first_logits, expected.first_logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_is_seen(
    one: OneProcess, ranks: dict[int, dict[str, Prefilled]], fault: str
) -> None:
    # What one rank gets wrong reaches the pages that it owns, and with them every rank.
    assert all(differs(one, ranks[rank][fault]) for rank in range(RANKS))
