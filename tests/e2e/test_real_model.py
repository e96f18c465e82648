# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 behind the server: its tokens, and whether it finds what a long prompt says early."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bench_server import (
    BenchServer,
    check_parity,
    generate_alone,
    sampled_of,
    wait_for,
)

pytestmark = pytest.mark.timeout(400)

TOKENS = 4


@pytest.fixture(name="weights", scope="module")
def weights_fixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The weights, expanded once; the model; its tokenizer."""
    pytest.importorskip("torch")
    from kvxfer.demo import model

    if model.missing_modules():
        pytest.skip(f"not installed: {', '.join(model.missing_modules())}")
    model.prepare_torch()
    folder = tmp_path_factory.mktemp("smollm2")
    loaded, tokenizer = model.load_weights(model.find_weights())
    model.save_model(loaded, folder)
    return folder, loaded, tokenizer


@pytest.fixture(name="server", scope="module")
def server_fixture(weights: tuple[Path, Any, Any]) -> Iterator[BenchServer]:
    with BenchServer(
        *("--weights", str(weights[0]), "--decode-ranks", "3", "--pack-tokens", "128"),
        *("--chunk-tokens", "256", "--prefill-tokens", "4096", "--decode-tokens", "4096"),
    ) as server:
        yield server


def test_tokens_are_those_of_one_process(
    server: BenchServer, weights: tuple[Path, Any, Any]
) -> None:
    from kvxfer.demo.prompt import make_prompt

    _, model, tokenizer = weights
    text = make_prompt(tokenizer.encode, 257).token_ids
    for length in (64, 257):
        prompt = text[-length:]
        answer = server.generate(prompt, TOKENS)
        check_parity(sampled_of(answer), generate_alone(model, prompt, TOKENS))
    again = server.generate(text, TOKENS)
    assert again["meta_info"]["cached_tokens"] == 256
    assert sampled_of(again) == sampled_of(answer)
    wait_for(server.is_idle, "the requests are over")


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0.1, 0.5, 0.9])
def test_the_needle_is_found_at_every_depth(
    server: BenchServer, weights: tuple[Path, Any, Any], depth: float
) -> None:
    from kvxfer.demo.prompt import make_prompt

    _, model, tokenizer = weights
    prompt = make_prompt(tokenizer.encode, 1100, seed=3, depth=depth)
    answer = server.generate(prompt.token_ids, 6)
    said = tokenizer.decode(tuple(answer["output_ids"]))
    assert said.startswith(prompt.answer), said
    check_parity(sampled_of(answer), generate_alone(model, prompt.token_ids, 6))
