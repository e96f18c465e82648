# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Small stand-ins for the names of vLLM that its connector uses, as version 0.32 has them.

The real ones are used by tests/compat.
"""

from __future__ import annotations

import enum
import importlib
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class KVConnectorBase:
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config = vllm_config
        self._role = role
        self._metadata: Any = None

    @property
    def role(self) -> Any:
        return self._role

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._metadata = metadata

    def _get_connector_metadata(self) -> Any:
        return self._metadata


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Empty:
    pass


@dataclass
class KVConnectorTransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)


class KVConnectorPromMetrics:
    def __init__(self, config: Any, types: Any, names: list[str], values: Any) -> None:
        self._counter_cls = types["counter"]
        self._labelnames = names
        self.per_engine_labelvalues = values


@dataclass
class AttentionSpec:
    block_size: int = 4
    tokens_per_state: int = 1
    dcp_sharded: bool = True


@dataclass
class MambaSpec:
    block_size: int = 4


@dataclass
class UniformTypeKVCacheSpecs:
    block_size: int
    kv_cache_specs: dict[str, Any]


def layer_index(name: str) -> int:
    return next(int(part) for part in name.split(".") if part.isdigit())


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put the stand-ins in place of vLLM and return the adapter, imported on top of them."""
    connector = "vllm.distributed.kv_transfer.kv_connector.v1"
    group = SimpleNamespace(rank_in_group=0)
    names: dict[str, dict[str, Any]] = {
        f"{connector}.base": {
            "KVConnectorBase_V1": KVConnectorBase,
            "KVConnectorHandshakeMetadata": Empty,
            "KVConnectorMetadata": Empty,
            "KVConnectorRole": KVConnectorRole,
            "KVConnectorTransferResults": KVConnectorTransferResults,
            "SupportsHMA": type("SupportsHMA", (), {}),
        },
        f"{connector}.metrics": {
            "KVConnectorPromMetrics": KVConnectorPromMetrics,
            "KVConnectorStats": KVConnectorStats,
        },
        "vllm.distributed.parallel_state": {
            "get_pp_group": lambda: group,
            "get_tp_group": lambda: group,
        },
        "vllm.model_executor.models.utils": {"extract_layer_index": layer_index},
        "vllm.v1.kv_cache_interface": {
            "AttentionSpec": AttentionSpec,
            "UniformTypeKVCacheSpecs": UniformTypeKVCacheSpecs,
        },
    }
    for path in names:
        parts = path.split(".")
        for length in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:length]), ModuleType(parts[0]))
    for path, members in names.items():
        vars(sys.modules[path]).update(members)
    monkeypatch.delitem(sys.modules, "kvxfer.adapters.vllm", raising=False)
    module = importlib.import_module("kvxfer.adapters.vllm")
    monkeypatch.setitem(sys.modules, "kvxfer.adapters.vllm", module)
    return module


def vllm_config(**extra: Any) -> Any:
    parallel = SimpleNamespace(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        cp_kv_cache_interleave_size=1,
    )
    model = SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: 2)
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(engine_id="e", kv_connector_extra_config=extra),
        parallel_config=parallel,
        model_config=model,
        compilation_config=SimpleNamespace(static_forward_context={}),
    )


def request(name: str, tokens: int, params: Any, status: str = "RUNNING", done: int = 0) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=tokens,
        num_computed_tokens=done,
        kv_transfer_params=params,
        status=SimpleNamespace(name=status),
    )
