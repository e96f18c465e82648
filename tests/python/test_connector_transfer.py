# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Whole requests between engines of different shapes, every byte of every cache compared."""

from typing import Any

import pytest

from kvxfer.adapters._connector.shape import EngineShape
from support.connector_world import EngineSpec, FakeEngine, Model, drive

PAGES = {
    4: [9, 4, 17, 2, 30, 11, 8, 25],
    8: [13, 3, 22, 1],
    16: [5, 1],
}


def pages_for(spec: EngineSpec, tokens: int, group_count: int = 1) -> list[list[int]]:
    """Page ids that a request of so many tokens takes, out of order, others for each group."""
    count = -(-tokens // (spec.page_size * spec.shape.dcp_size))
    ids = [9, 4, 17, 2, 30, 11, 8, 25, 14, 1, 6, 21, 28, 3, 19]
    return [ids[g * count : (g + 1) * count] for g in range(group_count)]


def transfer(source: EngineSpec, target: EngineSpec, model: Model, tokens: int) -> None:
    with (
        FakeEngine("p", model, source, target.shape) as prefill,
        FakeEngine("d", model, target, target.shape) as decode,
    ):
        group_count = len(model.groups)
        from_pages = pages_for(source, tokens, group_count)
        to_pages = pages_for(target, tokens, group_count)
        offer = prefill.prefill("p1", tokens, from_pages)
        assert decode.load("d1", offer, tokens, to_pages) == tokens
        drive([prefill, decode], lambda: decode.is_received("d1") and prefill.is_sent("p1"))
        assert decode.failures("d1") == []
        decode.check((to_pages, 0, tokens))
        prefill.check((from_pages, 0, tokens))


def spec(heads: int, tp: int = 1, dcp: int = 1, interleave: int = 1, **other: Any) -> EngineSpec:
    return EngineSpec(EngineShape(heads, tp, dcp_size=dcp, interleave=interleave), **other)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(spec(4), spec(4), id="one to one"),
        pytest.param(spec(4, 2), spec(4), id="two ranks' heads to one"),
        pytest.param(spec(4), spec(4, 2), id="one rank's heads to two"),
        pytest.param(spec(4, 4), spec(4, 2), id="four to two"),
        pytest.param(spec(2, 4), spec(2), id="replicated heads to one"),
        pytest.param(spec(2), spec(2, 4), id="one to replicated heads"),
        pytest.param(spec(1, 2), spec(1, 3), id="latent on every rank"),
        pytest.param(spec(2, order="LBNH"), spec(2), id="token-major to head-major"),
        pytest.param(spec(2, 2, order="BLHN"), spec(2, order="BLNH"), id="layers interleaved"),
        pytest.param(spec(2, page_size=8), spec(2, page_size=4), id="larger pages"),
        pytest.param(spec(2, page_size=4), spec(2, page_size=16), id="smaller pages"),
        pytest.param(spec(2, page_size=8, kernel_page_size=4), spec(2), id="split pages"),
    ],
)
@pytest.mark.parametrize("tokens", [21, 24])
def test_every_row_arrives_and_nothing_else(
    source: EngineSpec, target: EngineSpec, tokens: int
) -> None:
    transfer(source, target, Model(), tokens)


# As vLLM deals tokens under decode context parallelism; its CPU engine has none, so these page
# tables are what its scheduler hands out, without an engine below.
@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(spec(1), spec(1, 4, 4, 1), id="to 4 ranks, interleave 1"),
        pytest.param(spec(1), spec(1, 2, 2, 2), id="to 2 ranks, interleave 2"),
        pytest.param(spec(1), spec(1, 2, 2, 4), id="to 2 ranks, whole pages"),
        pytest.param(spec(1, 2, 2, 1), spec(1), id="from 2 ranks, interleave 1"),
        pytest.param(spec(1, 2, 2, 1), spec(1, 4, 4, 2), id="from 2 ranks to 4"),
        pytest.param(spec(2, 2), spec(2, 4, 2, 1), id="heads and tokens, both shared"),
        pytest.param(spec(1, 4), spec(1, 4, 2, 1), id="replicas to shards"),
        pytest.param(spec(1, order="LBNH"), spec(1, 2, 2, 1, page_size=8), id="other pages"),
    ],
)
@pytest.mark.parametrize("tokens", [3, 45])
def test_decode_context_parallel_ranks_get_their_tokens(
    source: EngineSpec, target: EngineSpec, tokens: int
) -> None:
    transfer(source, target, Model(), tokens)


def test_pipeline_stages_bring_their_layers() -> None:
    model = Model(groups=((0, 1, 2, 3),))
    source = EngineSpec(EngineShape(2, 2, pp_size=2))
    transfer(source, spec(2), model, 21)
    transfer(spec(2), source, model, 21)


def test_groups_have_page_tables_of_their_own() -> None:
    transfer(spec(2, 2), spec(2), Model(groups=((0, 2), (1,))), 21)


def test_a_window_moves_what_is_in_it() -> None:
    model = Model(groups=((0,), (1,)))
    source, target = spec(2), spec(2, 2)
    tokens, window_begin = 22, 12
    with (
        FakeEngine("p", model, source, target.shape) as prefill,
        FakeEngine("d", model, target, target.shape) as decode,
    ):
        full, windowed = pages_for(source, tokens, 2)
        windowed[: window_begin // 4] = [0] * (window_begin // 4)
        offer = prefill.prefill("p1", tokens, [full, windowed])
        for rank in prefill.ranks:
            rank.caches[1][0] = 0x77  # what lies in the null page is nobody's
        to_full, to_windowed = pages_for(target, tokens, 2)
        to_windowed[: window_begin // 4] = [0] * (window_begin // 4)
        decode.load("d1", offer, tokens, [to_full, to_windowed])
        drive([prefill, decode], lambda: decode.is_received("d1"))
        assert decode.failures("d1") == []
        # Layer 0 from the first token, layer 1 from its window on, and the null page untouched.
        for rank, caches in zip(
            decode.ranks, decode.expected([([to_full, to_windowed], 0, tokens)]), strict=True
        ):
            assert (rank.caches[0] == caches[0]).all()
            caches[1][0] = 0xEE
            assert (rank.caches[1] == caches[1]).all()


def test_only_what_the_decode_engine_lacks_is_written() -> None:
    source, target = spec(2, 2), spec(2)
    with (
        FakeEngine("p", Model(), source, target.shape) as prefill,
        FakeEngine("d", Model(), target, target.shape) as decode,
    ):
        from_pages, to_pages = pages_for(source, 21), pages_for(target, 21)
        offer = prefill.prefill("p1", 21, from_pages)
        assert decode.load("d1", offer, 21, to_pages, computed=8) == 13
        drive([prefill, decode], lambda: decode.is_received("d1"))
        decode.check((to_pages, 8, 21))


def test_tiled_pages_move_whole() -> None:
    source, target = spec(2, has_whole_pages=True), spec(2, has_whole_pages=True)
    with (
        FakeEngine("p", Model(), source, target.shape) as prefill,
        FakeEngine("d", Model(), target, target.shape) as decode,
    ):
        from_pages, to_pages = pages_for(source, 21), pages_for(target, 21)
        offer = prefill.prefill("p1", 21, from_pages)
        prefill.write(from_pages, 21, 24)
        assert decode.load("d1", offer, 21, to_pages) == 21
        drive([prefill, decode], lambda: decode.is_received("d1"))
        decode.check((to_pages, 0, 24))


def test_two_prefill_engines_serve_one_decode_engine_at_once() -> None:
    with (
        FakeEngine("p", Model(), spec(2), EngineShape(2)) as first,
        FakeEngine("q", Model(), spec(2, 2), EngineShape(2)) as second,
        FakeEngine("d", Model(), spec(2), EngineShape(2)) as decode,
    ):
        wanted = {}
        for index, prefill in enumerate((first, second, first, second)):
            pages = [[1 + 2 * index, 2 + 2 * index]]
            offer = prefill.prefill(f"p{index}", 7, pages)
            wanted[f"d{index}"] = [[20 - 2 * index, 21 - 2 * index]]
            decode.load(f"d{index}", offer, 7, wanted[f"d{index}"])
        drive([first, second, decode], lambda: all(map(decode.is_received, wanted)))
        decode.check(*((pages, 0, 7) for pages in wanted.values()))
