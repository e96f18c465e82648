# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the server generates is what one process generates: every boundary, transport and model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from support.bench_server import (
    BenchServer,
    Sampled,
    check_parity,
    generate_alone,
    make_prompt,
    sampled_of,
    wait_for,
)
from support.transport_cases import CASES

pytestmark = pytest.mark.timeout(400)

TOKENS = 6
PACK_TOKENS = 128
# Around a page, the capacity, a chunk, and a page that is spread over four ranks.
LENGTHS = [63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 255, 256, 257]
SIZES = ("--pack-tokens", str(PACK_TOKENS), "--chunk-tokens", "96")


@dataclass(frozen=True)
class Setup:
    """One server: a pair of each kind of value meets in CI, all meet in the slow tests."""

    model: str
    ranks: int
    transport: str
    landing: str = "auto"

    def __str__(self) -> str:
        return f"{self.model}-{self.ranks}-{self.transport}-{self.landing}"


SETUPS = [
    Setup("gqa", 1, "mooncake"),
    Setup("gqa", 3, "nixl", "landing"),
    Setup("mla", 1, "nixl"),
    Setup("mla", 3, "mooncake", "in_place"),
    Setup("gqa", 3, "loopback"),
]
SLOW_SETUPS = [
    Setup(model, ranks, transport, landing)
    for model in ("gqa", "mla")
    for ranks in (1, 2, 3, 4)
    for transport in ("loopback", "nixl", "mooncake")
    for landing in ("landing", "in_place")
]


@cache
def reference(model: str, length: int, seed: int = 0, extra: int = 0) -> tuple[Sampled, ...]:
    said = tuple(generate_alone(load(model), prompt_of(length, seed, extra), TOKENS))
    assert len({token for token, _ in said}) > 1, "constant tokens would test nothing"
    return said


@cache
def load(model: str) -> Any:
    from kvxfer.bench.engine import models
    from kvxfer.bench.engine.setting import ModelSetting

    return models.load(ModelSetting(kind=model))  # type: ignore[arg-type]


def prompt_of(length: int, seed: int = 0, extra: int = 0) -> list[int]:
    return [*make_prompt(length, seed), *make_prompt(extra, seed + 1)]


@dataclass
class Served:
    setup: Setup
    server: BenchServer

    def check(self, length: int, seed: int = 0, extra: int = 0) -> dict[str, Any]:
        answer = self.server.generate(prompt_of(length, seed, extra), TOKENS)
        check_parity(sampled_of(answer), reference(self.setup.model, length, seed, extra))
        assert answer["meta_info"]["prompt_tokens"] == length + extra
        found: dict[str, Any] = answer["meta_info"]
        return found


@pytest.fixture(
    name="served",
    scope="module",
    params=[*SETUPS, *(pytest.param(setup, marks=pytest.mark.slow) for setup in SLOW_SETUPS)],
    ids=str,
)
def served_fixture(request: pytest.FixtureRequest) -> Iterator[Served]:
    pytest.importorskip("transformers")
    setup: Setup = request.param
    case = CASES["loopback-process_vm" if setup.transport == "loopback" else setup.transport]
    if not case.is_installed:
        pytest.skip(f"{setup.transport} is not installed")
    load(setup.model)
    with BenchServer(
        *("--model", setup.model, "--decode-ranks", str(setup.ranks)),
        *("--transport", setup.transport, "--landing", setup.landing),
        *("--decode-prefix-cache", "--prefill-tokens", "8192", "--decode-tokens", "8192"),
        *SIZES,
    ) as server:
        yield Served(setup, server)


@pytest.fixture(autouse=True)
def _is_left_as_found(served: Served) -> Iterator[None]:
    served.server.flush("router")
    yield
    wait_for(served.server.is_idle, "nothing is left of any request")


def test_tokens_at_every_boundary(served: Served) -> None:
    for length in LENGTHS:
        meta = served.check(length)
        assert meta["cached_tokens"] == meta["kvxfer"]["decode_prefix_tokens"] == 0
        served.server.flush("router")


def test_rows_are_packed_into_bounded_segments(served: Served) -> None:
    meta = served.check(257)
    ranks = served.setup.ranks
    rows = [len(range(rank, 257, ranks)) for rank in range(ranks)]
    row_bytes = sum(plane.row_bytes for plane in planes_of(served.setup.model))
    assert meta["kvxfer"]["received_bytes"] == [count * row_bytes for count in rows]
    report = "sender_total_{}".format
    writes = served.server.total("prefill", report("row_by_row_writes"))
    assert writes == 0
    if ranks > 1:
        # Chunks of 96 tokens are sent as whole pages; each send is cut on the capacity's grid.
        assert min(meta["kvxfer"]["received_segments"]) >= -(-257 // PACK_TOKENS)
        assert served.server.total("prefill", report("packed_writes")) > 0


def planes_of(model: str) -> list[Any]:
    from kvxfer.bench.engine.paged_model import planes_of

    return planes_of(load(model).config)


def test_warm_prefill_and_cold_decode(served: Served) -> None:
    served.check(257)
    served.server.flush("decode")
    meta = served.check(257)
    assert (meta["cached_tokens"], meta["kvxfer"]["decode_prefix_tokens"]) == (256, 0)
    assert sum(meta["kvxfer"]["received_bytes"]) > 0


@pytest.mark.parametrize("extra", [0, 1, 70])
def test_decode_asks_only_for_what_it_does_not_hold(served: Served, extra: int) -> None:
    page_tokens = 64 * served.setup.ranks
    served.check(2 * page_tokens)
    meta = served.check(2 * page_tokens, extra=extra)
    assert meta["kvxfer"]["decode_prefix_tokens"] == 2 * page_tokens
    row_bytes = sum(plane.row_bytes for plane in planes_of(served.setup.model))
    assert sum(meta["kvxfer"]["received_bytes"]) == extra * row_bytes


def test_decode_holds_more_than_prefill(served: Served) -> None:
    page_tokens = 64 * served.setup.ranks
    served.check(page_tokens)
    served.server.flush("prefill")
    meta = served.check(page_tokens, extra=100)
    assert (meta["cached_tokens"], meta["kvxfer"]["decode_prefix_tokens"]) == (0, page_tokens)


def test_several_requests_at_once(served: Served) -> None:
    for seed, length in enumerate(LENGTHS):
        reference(served.setup.model, length, seed)
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(served.check, length, seed) for seed, length in enumerate(LENGTHS)]
        for answer in answers:
            answer.result()
