# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector's calls, in vLLM's order, over stand-ins for its base classes."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvxfer import InvalidArgumentError, UnsupportedError
from support.adapter_world import wait_until
from support.fake_vllm import (
    AttentionSpec,
    KVConnectorRole,
    MambaSpec,
    UniformTypeKVCacheSpecs,
    install,
    request,
    vllm_config,
)

torch = pytest.importorskip("torch")

LAYERS = ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"]
TOKENS = 10


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return install(monkeypatch)


class Engine:
    """Both sides of one engine, stepped as vLLM steps them."""

    def __init__(self, adapter: ModuleType, spec: Any = None, **extra: Any) -> None:
        config = vllm_config(**extra)
        group = SimpleNamespace(kv_cache_spec=spec or AttentionSpec(), layer_names=LAYERS)
        caches = SimpleNamespace(kv_cache_groups=[group])
        make = adapter.KvxferConnector
        self.scheduler = make(config, KVConnectorRole.SCHEDULER, kv_cache_config=caches)
        self.worker = make(config, KVConnectorRole.WORKER, kv_cache_config=caches)
        self.caches = {name: torch.full((16, 2, 4, 6), -1.0) for name in LAYERS}

    def start(self) -> Engine:
        self.worker.register_kv_caches(self.caches)
        handshake = pickle.loads(pickle.dumps(self.worker.get_handshake_metadata()))
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        return self

    def step(self) -> Any:
        orders = self.scheduler.build_connector_meta(SimpleNamespace())
        self.worker.bind_connector_metadata(pickle.loads(pickle.dumps(orders)))
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(set())
        self.scheduler.update_connector_output(results)
        return results

    def stop(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()


@pytest.fixture
def engines(adapter: ModuleType) -> Any:
    made = [Engine(adapter).start(), Engine(adapter).start()]
    yield made
    for engine in made:
        engine.stop()


def blocks(ids: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (ids,))


def prefill(engine: Engine, name: str, pages: list[int]) -> dict[str, Any]:
    for layer, cache in enumerate(engine.caches.values()):
        for page in pages:
            cache[page] = 100 * layer + page
    done = request(name, TOKENS, {"do_remote_decode": True}, "FINISHED_LENGTH_CAPPED", TOKENS)
    is_kept, params = engine.scheduler.request_finished(done, pages)
    assert is_kept
    return dict(params)


def test_a_request_from_engine_to_engine(engines: list[Engine]) -> None:
    source, target = engines
    params = prefill(source, "p1", [3, 9, 4])
    waiting = request("d1", TOKENS, params)
    assert target.scheduler.get_num_new_matched_tokens(waiting, 0) == (TOKENS, True)
    target.scheduler.update_state_after_alloc(waiting, blocks([8, 2, 5]), TOKENS)
    sent: set[str] = set()
    received: set[str] = set()

    def step() -> bool:
        sent.update(source.step().finished_sending)
        results = target.step()
        assert not results.failed_recving
        received.update(results.finished_recving)
        return bool(sent and received)

    wait_until(step)
    assert (sent, received) == ({"p1"}, {"d1"})
    for layer, name in enumerate(LAYERS):
        expected = torch.full((16, 2, 4, 6), -1.0)
        for page, origin in zip([8, 2, 5], [3, 9, 4], strict=True):
            expected[page] = 100 * layer + origin
        assert torch.equal(target.caches[name], expected)
    # Preempted afterwards: the offer is used up.
    assert target.scheduler.get_num_new_matched_tokens(waiting, 0) == (0, False)


def test_rows_that_are_there_already_are_left_alone(engines: list[Engine]) -> None:
    source, target = engines
    waiting = request("d1", TOKENS, prefill(source, "p1", [3, 9, 4]))
    assert target.scheduler.get_num_new_matched_tokens(waiting, 4) == (TOKENS - 4, True)
    target.scheduler.update_state_after_alloc(waiting, blocks([8, 2, 5]), TOKENS - 4)
    wait_until(lambda: bool(source.step() and target.step().finished_recving))
    for cache in target.caches.values():
        assert (cache[8] == -1).all()
        assert (cache[[2, 5]] != -1).all()


def test_an_offer_ends_with_the_prompt(engines: list[Engine]) -> None:
    source, _ = engines
    params = {"do_remote_decode": True}
    done = request("p1", TOKENS, params, "FINISHED_LENGTH_CAPPED", TOKENS + 3)
    _, offered = source.scheduler.request_finished_all_groups(done, ([3, 9, 4, 7],))
    assert offered["kvxfer"]["end"] == TOKENS


def test_statistics_reach_log_and_prometheus(engines: list[Engine], adapter: ModuleType) -> None:
    source, target = engines
    assert target.worker.get_kv_connector_stats() is None
    waiting = request("d1", TOKENS, prefill(source, "p1", [3, 9, 4]))
    target.scheduler.get_num_new_matched_tokens(waiting, 0)
    target.scheduler.update_state_after_alloc(waiting, blocks([8, 2, 5]), TOKENS)
    wait_until(lambda: bool(source.step() and target.step().finished_recving))
    stats = target.worker.get_kv_connector_stats()
    page_bytes = 2 * 2 * 4 * 6 * 4  # layers, heads, rows, elements, bytes
    assert stats.data["received_bytes"] == [3 * page_bytes]
    merged = adapter.KvxferConnector.build_kv_connector_stats({"received_bytes": [5.0]})
    assert not merged.is_empty()
    assert merged.aggregate(stats).reduce()["loads"] == 2
    counted: dict[str, float] = {}

    def counter(name: str, documentation: str, labelnames: list[str]) -> Any:
        del documentation, labelnames

        def inc(value: float) -> None:
            counted[name] = counted.get(name, 0) + value

        return SimpleNamespace(labels=lambda *_: SimpleNamespace(inc=inc))

    metrics = adapter.KvxferConnector.build_prom_metrics(
        vllm_config(), {"counter": counter}, ["engine"], {0: ["0"]}
    )
    metrics.observe({"received_bytes": [3.0, 4.0], "failures": ["deadline"]})
    assert counted["vllm:kvxfer_received_bytes"] == 7.0
    assert counted["vllm:kvxfer_received_bytes_count"] == 2
    assert counted["vllm:kvxfer_failures_count"] == 1


def test_a_load_that_fails_is_named_as_received_and_failed(engines: list[Engine]) -> None:
    _, target = engines
    waiting = request("d1", TOKENS, {"do_remote_prefill": True, "kvxfer": {"version": 9}})
    assert target.scheduler.get_num_new_matched_tokens(waiting, 0) == (TOKENS, True)
    target.scheduler.update_state_after_alloc(waiting, blocks([8, 2, 5]), TOKENS)
    results = target.step()
    assert results.finished_recving == results.failed_recving == {"d1"}


def test_other_requests_are_left_alone(engines: list[Engine]) -> None:
    _, target = engines
    plain = request("d1", TOKENS, None)
    assert target.scheduler.get_num_new_matched_tokens(plain, 0) == (0, False)
    target.scheduler.update_state_after_alloc(plain, blocks([8, 2, 5]), 0)
    done = request("d1", TOKENS, None, "FINISHED_STOPPED", TOKENS)
    assert target.scheduler.request_finished_all_groups(done, ([8, 2, 5],)) == (False, None)
    aborted = request("d1", TOKENS, {"do_remote_decode": True}, "FINISHED_ABORTED", TOKENS)
    assert target.scheduler.request_finished_all_groups(aborted, ([8],)) == (False, None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (MambaSpec(), "MambaSpec"),
        (AttentionSpec(tokens_per_state=4), "one row per token"),
        (UniformTypeKVCacheSpecs(4, {LAYERS[0]: MambaSpec()}), "MambaSpec"),
    ],
)
def test_layers_that_keep_other_things_are_refused(
    adapter: ModuleType, spec: Any, message: str
) -> None:
    engine = Engine(adapter, spec)
    with pytest.raises(UnsupportedError, match=message):
        engine.start()
    engine.stop()


def test_tensors_of_another_shape_are_refused(adapter: ModuleType) -> None:
    engine = Engine(adapter)
    engine.caches[LAYERS[0]] = torch.zeros(16, 2, 24)
    with pytest.raises(UnsupportedError, match=r"shape \(16, 2, 24\)"):
        engine.start()
    engine.caches[LAYERS[0]] = torch.zeros(16, 2, 4, 6, device="meta")
    with pytest.raises(UnsupportedError, match="lies on meta"):
        engine.start()
    engine.stop()


def test_a_wrong_setting_is_refused_by_name(adapter: ModuleType) -> None:
    with pytest.raises(InvalidArgumentError, match="rdma_device"):
        Engine(adapter, rdma_device="mlx5_0")


def test_without_vllm_the_module_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "kvxfer.adapters.vllm", raising=False)
    with pytest.raises(UnsupportedError, match=r"expected 0\.32 or newer"):
        __import__("kvxfer.adapters.vllm")
