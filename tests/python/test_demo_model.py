# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's model half: prompt, extraction and restoring of a cache, and the comparisons.

Every comparison is shown to fail on the damage it exists for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError
from kvxfer.demo import checks, damage
from kvxfer.demo.geometry import (
    DESTINATION_POISON,
    PagedPool,
    PlaneSpec,
    PoolSnapshot,
    Rows,
    make_geometry,
    reassemble_rows,
)
from kvxfer.demo.prompt import make_prompt
from kvxfer.demo.synthetic import KIMI_LINEAR_PLANES, make_synthetic_rows

PAGE_SIZE = 16
TOKENS = 203
DAMAGED_PAGES = (5, 9)


def make_shards(
    rows: Rows, planes: tuple[PlaneSpec, ...], ranks: int, page_size: int = PAGE_SIZE
) -> list[PoolSnapshot]:
    """Lay rows out over the pools of ``ranks`` DCP ranks, as a right transfer would."""
    tokens = len(rows[0])
    shards = []
    for rank in range(ranks):
        geometry = make_geometry(planes, page_size, tokens, rank_of=(rank, ranks), seed=7)
        pool = PagedPool(geometry, DESTINATION_POISON)
        pool.fill(0, rows)
        shards.append(PoolSnapshot(geometry, pool.memory))
    return shards


def failed(comparisons: list[checks.Comparison]) -> list[str]:
    return [comparison.name for comparison in comparisons if not comparison.held]


# --- pools -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300])
def test_pool_keeps_each_position_at_its_page(ranks: int, tokens: int) -> None:
    rows = make_synthetic_rows(tokens, seed=tokens)
    shards = make_shards(rows, KIMI_LINEAR_PLANES, ranks, page_size=4)
    for position in range(tokens):
        geometry = shards[position % ranks].geometry
        local = position // ranks
        place = geometry.pages[local // 4] * 4 + local % 4
        for index, plane in enumerate(KIMI_LINEAR_PLANES):
            begin = geometry.plane_offset_bytes[index] + place * plane.row_bytes
            memory = shards[position % ranks].memory
            assert bytes(memory[begin : begin + plane.row_bytes]) == bytes(rows[index][position])
    for joined, expected in zip(reassemble_rows(shards, tokens), rows, strict=True):
        assert np.array_equal(joined, expected)


def test_pool_pages_are_shuffled_and_spare_pages_exist() -> None:
    geometry = make_geometry(KIMI_LINEAR_PLANES, 64, 64 * 40, rank_of=(0, 1), seed=0)
    assert list(geometry.pages) != sorted(geometry.pages)
    assert len(set(geometry.pages)) == 40 < geometry.page_count


def test_pool_filled_in_two_steps_equals_one() -> None:
    rows = make_synthetic_rows(TOKENS)
    geometry = make_geometry(KIMI_LINEAR_PLANES, PAGE_SIZE, TOKENS, rank_of=(1, 3), seed=1)
    whole, parts = (PagedPool(geometry, DESTINATION_POISON) for _ in range(2))
    whole.fill(0, rows)
    parts.fill(0, [plane_rows[:97] for plane_rows in rows])
    parts.fill(97, [plane_rows[97:] for plane_rows in rows])
    assert np.array_equal(whole.memory, parts.memory)


def test_synthetic_rows_are_all_different() -> None:
    rows = make_synthetic_rows(500)
    heads = {bytes(row[:6]) for plane_rows in rows for row in plane_rows}
    assert len(heads) == 7 * 500
    assert [plane_rows.shape for plane_rows in rows] == [(500, 576)] * 7


# --- comparisons of bytes and the damage they must notice --------------------------------------


@pytest.fixture(name="shards", params=[1, 2, 4])
def shards_fixture(request: pytest.FixtureRequest) -> list[PoolSnapshot]:
    return make_shards(make_synthetic_rows(TOKENS), KIMI_LINEAR_PLANES, request.param)


def test_right_transfer_passes_all_comparisons_of_bytes(shards: list[PoolSnapshot]) -> None:
    comparisons = checks.compare_rows(make_synthetic_rows(TOKENS), shards)
    assert failed(comparisons) == []
    assert sum(c.count for c in comparisons[:-1]) == TOKENS * len(KIMI_LINEAR_PLANES)
    untouched = checks.compare_untouched(shards, TOKENS, DESTINATION_POISON)
    assert failed(untouched) == []
    whole = sum(shard.geometry.pool_bytes for shard in shards)
    assert sum(c.count for c in untouched) == whole - TOKENS * 7 * 576


@pytest.mark.parametrize("rank_from_end", [1, 2])
def test_swapped_rows_are_noticed(shards: list[PoolSnapshot], rank_from_end: int) -> None:
    rank = max(0, len(shards) - rank_from_end)
    shards[rank] = damage.swap_rows(shards[rank], (3, 20))
    (name,) = failed(checks.compare_rows(make_synthetic_rows(TOKENS), shards))
    assert name.startswith(f"destination rank {rank}: rows")


def test_shifted_page_is_noticed(shards: list[PoolSnapshot]) -> None:
    shards[0] = damage.shift_page(shards[0], 1)
    comparisons = checks.compare_rows(make_synthetic_rows(TOKENS), shards)
    assert failed(comparisons) == ["destination rank 0: rows in position order, by byte"]
    assert comparisons[0].got.startswith(f"{7 * PAGE_SIZE} rows differ, first: layer 3 latent")


def test_dropped_segment_is_noticed(shards: list[PoolSnapshot]) -> None:
    shards[-1] = damage.drop_segment(shards[-1], (64, 128), DESTINATION_POISON)
    comparisons = checks.compare_rows(make_synthetic_rows(TOKENS), shards)
    assert len(failed(comparisons)) == 1
    lost = 7 * 64 // len(shards)
    assert comparisons[len(shards) - 1].got.startswith(f"{lost} rows differ")


def test_byte_written_outside_is_noticed(shards: list[PoolSnapshot]) -> None:
    shards[0] = damage.write_outside(shards[0], TOKENS)
    assert failed(checks.compare_rows(make_synthetic_rows(TOKENS), shards)) == []
    (name,) = failed(checks.compare_untouched(shards, TOKENS, DESTINATION_POISON))
    assert name == "destination rank 0: bytes outside its rows untouched"


def test_missing_rank_is_noticed(shards: list[PoolSnapshot]) -> None:
    comparisons = checks.compare_rows(make_synthetic_rows(TOKENS), shards[:-1])
    assert failed(comparisons) == ["destination ranks together: each position on one rank"]


def test_unnoticed_damage_fails_its_control(shards: list[PoolSnapshot]) -> None:
    rows = make_synthetic_rows(TOKENS)
    assert not checks.compare_noticed("no damage", checks.compare_rows(rows, shards)).held
    shards[0] = damage.swap_rows(shards[0], (0, 1))
    assert checks.compare_noticed("rows swapped", checks.compare_rows(rows, shards)).held


# --- prompt ------------------------------------------------------------------------------------


def tokenize_by_character(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.mark.parametrize("tokens", [240, 241, 1000, 4000])
def test_prompt_has_the_exact_length_and_its_answer_in_the_middle(tokens: int) -> None:
    prompt = make_prompt(tokenize_by_character, tokens, seed=3)
    text = "".join(map(chr, prompt.token_ids))
    assert len(prompt.token_ids) == tokens
    assert text[prompt.answer_begin : prompt.answer_end] == prompt.answer == " 7093"
    assert text.count("7093") == 1
    assert text.endswith("banana:")
    assert 0.2 * tokens < prompt.answer_begin < 0.7 * tokens
    pages = prompt.answer_pages(16)
    assert pages.start * 16 <= prompt.answer_begin
    assert prompt.answer_end <= pages.stop * 16


def test_prompt_refuses_a_length_without_room_for_filler() -> None:
    with pytest.raises(InvalidArgumentError, match=r"tokens: expected at least \d+.*got 100"):
        make_prompt(tokenize_by_character, 100)


# --- a tiny random model -----------------------------------------------------------------------


@dataclass
class TinyRun:
    model: Any
    planes: tuple[PlaneSpec, ...]
    rows: Rows
    first_token: int
    reference: checks.Generation


@pytest.fixture(name="tiny", scope="module")
def tiny_fixture() -> TinyRun:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from kvxfer.demo import cache_rows, model

    model.prepare_torch()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    llama = transformers.LlamaForCausalLM(config).eval().float()
    cache = transformers.DynamicCache(config=config)
    choose = random.Random(0)
    logits = model.feed(llama, cache, tuple(choose.randrange(512) for _ in range(TOKENS)))
    rows = cache_rows.extract_rows(cache, 0, TOKENS)
    first_token = int(logits.argmax())
    reference = model.generate(llama, cache, first_token, 24)
    assert len(set(reference.tokens)) > 4, "constant tokens would test nothing"
    return TinyRun(llama, cache_rows.cache_planes(config), rows, first_token, reference)


def generate_from(tiny: TinyRun, rows: Rows) -> checks.Generation:
    from kvxfer.demo import cache_rows, model

    cache = cache_rows.restore_cache(tiny.model.config, rows)
    return model.generate(tiny.model, cache, tiny.first_token, 24)


def test_cache_planes_have_the_bytes_of_the_rows(tiny: TinyRun) -> None:
    assert [plane.row_bytes for plane in tiny.planes] == [4 * 8 * 4] * 8
    assert [rows.shape for rows in tiny.rows] == [(TOKENS, 128)] * 8
    assert [(p.layer, p.kind) for p in tiny.planes[:3]] == [(0, "key"), (0, "value"), (1, "key")]


def test_extracted_rows_are_the_cache_head_by_head(tiny: TinyRun) -> None:
    from kvxfer.demo import cache_rows

    cache = cache_rows.restore_cache(tiny.model.config, tiny.rows)
    for layer, (keys, values) in enumerate((entry.keys, entry.values) for entry in cache.layers):
        for tensor, plane in ((keys, 2 * layer), (values, 2 * layer + 1)):
            assert tuple(tensor.shape) == (1, 4, TOKENS, 8)
            for head in range(4):
                row = tensor[0, head, 17].numpy()
                assert row.tobytes() == tiny.rows[plane][17, head * 32 : head * 32 + 32].tobytes()


def test_extract_of_a_range_is_a_slice_and_refuses_more_than_is_held(tiny: TinyRun) -> None:
    from kvxfer.demo import cache_rows

    cache = cache_rows.restore_cache(tiny.model.config, tiny.rows)
    part = cache_rows.extract_rows(cache, 50, 90)
    for got, whole in zip(part, tiny.rows, strict=True):
        assert np.array_equal(got, whole[50:90])
    with pytest.raises(InvalidArgumentError, match=r"inside \[0, 203\), got \[0, 204\)"):
        cache_rows.extract_rows(cache, 0, TOKENS + 1)


def test_restore_refuses_rows_of_another_model(tiny: TinyRun) -> None:
    from kvxfer.demo import cache_rows

    with pytest.raises(InvalidArgumentError, match="row bytes of the planes"):
        cache_rows.restore_cache(tiny.model.config, tiny.rows[:-1])


@pytest.mark.parametrize("ranks", [1, 4])
def test_reassembled_cache_generates_the_same(tiny: TinyRun, ranks: int) -> None:
    shards = make_shards(tiny.rows, tiny.planes, ranks)
    got = generate_from(tiny, reassemble_rows(shards, TOKENS))
    assert failed(checks.compare_generation(tiny.reference, got)) == []


def test_dropped_page_changes_the_model(tiny: TinyRun) -> None:
    rows = damage.drop_pages(tiny.rows, [DAMAGED_PAGES[0]], PAGE_SIZE)
    got = generate_from(tiny, rows)
    assert checks.compare_damaged("page dropped", tiny.reference, got).held
    assert failed(checks.compare_generation(tiny.reference, got)) != []


def test_keys_with_another_pages_values_change_the_model(tiny: TinyRun) -> None:
    rows = damage.exchange_values(tiny.rows, tiny.planes, DAMAGED_PAGES, PAGE_SIZE)
    got = generate_from(tiny, rows)
    assert checks.compare_damaged("values exchanged", tiny.reference, got).held
    assert failed(checks.compare_generation(tiny.reference, got)) != []


def test_order_is_invisible_to_the_model_and_visible_to_the_bytes(tiny: TinyRun) -> None:
    shards = make_shards(tiny.rows, tiny.planes, 1)
    shards[0] = damage.swap_rows(shards[0], (3, 150))
    got = generate_from(tiny, reassemble_rows(shards, TOKENS))
    assert failed(checks.compare_generation(tiny.reference, got)) == []
    assert not checks.compare_damaged("rows swapped", tiny.reference, got).held
    assert failed(checks.compare_rows(tiny.rows, shards)) != []


def test_close_rows_hold_for_rounding_and_fail_for_a_shift_or_a_nan(tiny: TinyRun) -> None:
    values = [plane_rows.view(np.float32) for plane_rows in tiny.rows]
    rounded = [(plane * np.float32(1 + 1e-6)).view(np.uint8) for plane in values]
    assert checks.compare_close_rows(tiny.rows, rounded, 1e-3).held
    shifted = [np.roll(plane_rows, 1, axis=0) for plane_rows in tiny.rows]
    assert not checks.compare_close_rows(tiny.rows, shifted, 1e-3).held
    broken = [plane.copy() for plane in values]
    broken[2][9, 1] = np.nan
    assert not checks.compare_close_rows(
        tiny.rows, [plane.view(np.uint8) for plane in broken], 1e-3
    ).held


def test_logits_of_nan_do_not_pass(tiny: TinyRun) -> None:
    broken = checks.Generation(tiny.reference.tokens, tiny.reference.first_logits * np.nan)
    assert failed(checks.compare_generation(tiny.reference, broken)) == [
        "first-step logits from the reassembled cache"
    ]


def test_model_that_ignores_the_cache_is_refused(tiny: TinyRun) -> None:
    from kvxfer.demo import cache_rows, model

    class Forgetful:
        config = tiny.model.config

        def forward(self, input_ids: Any, past_key_values: Any = None) -> Any: ...

        def __call__(self, input_ids: Any, **ignored: Any) -> Any:
            assert "past_key_values" in ignored
            return tiny.model(input_ids)

    cache = cache_rows.restore_cache(tiny.model.config, tiny.rows)
    with pytest.raises(InvalidArgumentError, match="expected 204 rows after the step, got 203"):
        model.feed(Forgetful(), cache, (1,))


def test_saved_model_is_the_model(tiny: TinyRun, tmp_path: Any) -> None:
    from kvxfer.demo import cache_rows, model

    model.save_model(tiny.model, tmp_path)
    loaded = model.load_model(tmp_path)
    cache = cache_rows.restore_cache(tiny.model.config, tiny.rows)
    got = model.generate(loaded, cache, tiny.first_token, 24)
    assert got.tokens == tiny.reference.tokens
    assert np.array_equal(got.first_logits, tiny.reference.first_logits)
