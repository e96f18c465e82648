# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of the server: pages and prefixes, the merge of attention, the synthetic pattern."""

import random

import numpy as np
import pytest

from kvxfer import CapacityError, Sharding
from kvxfer.bench.engine.page_cache import PageCache
from kvxfer.bench.engine.pool import KvPool
from kvxfer.bench.engine.rank_group import merge_partials
from kvxfer.bench.engine.synthetic_model import SyntheticModel, synthetic_planes

PAGE = 4


def make_cache(page_count: int = 8) -> PageCache:
    return PageCache(page_count, PAGE, keeps_prefixes=True)


def held(cache: PageCache, prompt: np.ndarray) -> list[int]:
    """Put a prompt into a cache and stop using it."""
    pages = cache.allocate(cache.pages_of(len(prompt)))
    cache.insert(prompt, pages)
    cache.release(pages)
    return pages


def test_a_prefix_ends_with_the_first_page_that_differs() -> None:
    cache = make_cache()
    prompt = np.arange(16)
    pages = held(cache, prompt)
    other = prompt.copy()
    other[9] = 99
    assert cache.match(other, 16) == pages[:2]
    assert cache.match(prompt, 15) == pages[:3]
    # The same tokens in a later page are not the same page: what came before them differs.
    assert cache.match(prompt[4:], 12) == []


def test_pages_in_use_are_never_given_out_and_prefixes_only_at_need() -> None:
    cache = make_cache(4)
    first = held(cache, np.arange(8))
    used = cache.match(np.arange(8), 4)
    assert used == first[:1]
    others = cache.allocate(3)
    assert not set(others) & set(used)
    assert cache.match(np.arange(8), 8) == used, "the end of the prefix made room"
    with pytest.raises(CapacityError, match="1 pages needed, 0 of the pool are free"):
        cache.allocate(1)


def test_flush_forgets_and_frees() -> None:
    cache = make_cache()
    held(cache, np.arange(8))
    assert cache.flush() == 2
    assert cache.match(np.arange(8), 8) == []
    assert len(set(cache.allocate(8))) == 8


def test_pages_flushed_while_used_are_free_after_their_use() -> None:
    cache = make_cache(2)
    pages = cache.allocate(2)
    cache.insert(np.arange(8), pages)
    cache.flush()
    assert cache.free_count == 0
    cache.release(pages)
    assert sorted(cache.allocate(2)) == [0, 1]


def test_random_use_keeps_every_page_once() -> None:
    choose = random.Random(0)
    cache = make_cache(12)
    prompts = [np.array([choose.randrange(2) for _ in range(16)]) for _ in range(6)]
    users: list[list[int]] = []
    for _ in range(400):
        if users and (choose.random() < 0.5 or cache.free_count < 4):
            cache.release(users.pop(choose.randrange(len(users))))
            continue
        prompt = choose.choice(prompts)
        pages = cache.match(prompt, choose.randrange(17))
        pages += cache.allocate(4 - len(pages))
        assert len(set(pages)) == 4
        cache.insert(prompt, pages)
        users.append(pages)
        assert cache.used_count == len({page for user in users for page in user})
    for user in users:
        cache.release(user)
    cache.flush()
    assert sorted(cache.allocate(12)) == list(range(12))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_merged_attention_is_attention_over_all_tokens(ranks: int) -> None:
    random_numbers = np.random.default_rng(ranks)
    scores, values = random_numbers.normal(0, 5, (3, 7)), random_numbers.normal(0, 1, (7, 4))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = (weights / weights.sum(axis=1, keepdims=True)) @ values
    partials = []
    for rank in range(ranks):
        own = scores[:, rank::ranks]
        largest = own.max(axis=1, keepdims=True, initial=-1e30)
        exponentials = np.exp(own - largest)
        parts = [exponentials @ values[rank::ranks], exponentials.sum(axis=1, keepdims=True)]
        partials.append(np.concatenate([*parts, largest], axis=1).astype(np.float32))
    partials.append(np.array([[0, 0, 0, 0, 0, -1e30]] * 3, dtype=np.float32))  # without a token
    np.testing.assert_allclose(merge_partials(partials), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("damage", ["byte", "rows exchanged", "token", "page"])
def test_the_pattern_tells_every_wrong_row(damage: str) -> None:
    pool = KvPool(synthetic_planes(), 4, 8, Sharding(2, 1))
    model = SyntheticModel(pool, 0.0, 0.0, "all")
    tokens, pages = np.arange(40) % 7, np.array([5, 2, 7, 0, 3])
    model.fill(tokens, 0, pages)
    assert model.find_wrong_row(tokens, pages) is None
    array = pool.arrays[3]
    if damage == "byte":
        array[2 * 4 + 1, 575] ^= 1
    elif damage == "rows exchanged":
        array[[20, 8]] = array[[8, 20]]
    elif damage == "token":
        tokens = tokens.copy()
        tokens[13] += 1
    else:
        pages = pages[[1, 0, 2, 3, 4]]
    found = model.find_wrong_row(tokens, pages)
    assert found is not None
    assert "the first at position" in found
