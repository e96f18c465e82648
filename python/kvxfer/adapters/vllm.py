# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Inside vLLM: a connector between prefill and decode engines, loaded by its configuration alone.

One JSON flag for engines of either side::

    vllm serve MODEL --kv-transfer-config '{"kv_role": "kv_both",
        "kv_connector": "KvxferConnector", "kv_connector_module_path": "kvxfer.adapters.vllm",
        "kv_connector_extra_config": {"transport": "nixl"}}'

The extra configuration holds fields of ``ConnectorSettings``. Requests are routed as for vLLM's own
connectors: the prefill engine gets ``kv_transfer_params={"do_remote_decode": true}`` and one token
to make, its output's ``kv_transfer_params`` go to the decode engine beside the same prompt.

Decode ranks ask, prefill ranks write. Only this file knows vLLM's names; what is decided and moved
stands in ``_connector``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvxfer import InvalidArgumentError, UnsupportedError
from kvxfer.adapters._connector.caches import CacheArray, make_pool
from kvxfer.adapters._connector.ends import RankEnds
from kvxfer.adapters._connector.offer import GroupTerms, RankReport
from kvxfer.adapters._connector.orders import StepOrders
from kvxfer.adapters._connector.record import SERIES, summary
from kvxfer.adapters._connector.scheduler import ConnectorScheduler, RequestView
from kvxfer.adapters._connector.settings import ConnectorSettings
from kvxfer.adapters._connector.shape import EngineShape
from kvxfer.adapters._connector.worker import ConnectorWorker, Ended

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorTransferResults,
        SupportsHMA,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
    )
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group
    from vllm.model_executor.models.utils import extract_layer_index
    from vllm.v1.kv_cache_interface import AttentionSpec, UniformTypeKVCacheSpecs
except ImportError as error:
    raise UnsupportedError(
        f"vLLM is missing or has no such connector interface ({error}), expected 0.32 or newer"
    ) from error

__all__ = ["KvxferConnector"]

# Ends of a request after which its prompt's rows are all there.
_COMPLETE = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")


@dataclass
class KvxferHandshake(KVConnectorHandshakeMetadata):
    """What a worker side reports once."""

    report: RankReport


@dataclass
class KvxferOrders(KVConnectorMetadata):
    """What the scheduler side orders in a step."""

    orders: StepOrders


class KvxferStats(KVConnectorStats):
    """Series of ``TransferRecord``, over all ranks."""

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Append what another rank measured."""
        for name, values in other.data.items():
            self.data.setdefault(name, []).extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return the numbers of a log line."""
        return summary(self.data)

    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return not self.data


class KvxferPromMetrics(KVConnectorPromMetrics):
    """One counter for the sum of every series, one for how many entries it had."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {
            name: {
                kind: self._counter(f"vllm:kvxfer_{name}{suffix}", f"{prefix}{text}")
                for kind, suffix, prefix in (
                    ("sum", "", "Sum of "),
                    ("count", "_count", "Count of "),
                )
                if name != "failures" or kind == "count"
            }
            for name, text in SERIES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what was measured since the last call."""
        for name, values in transfer_stats_data.items():
            for kind, metric in self._metrics[name].items():
                metric[engine_idx].inc(len(values) if kind == "count" else sum(values))

    def _counter(self, name: str, text: str) -> dict[int, Any]:
        counter = self._counter_cls(name=name, documentation=text, labelnames=self._labelnames)
        labels = self.per_engine_labelvalues
        return {engine: counter.labels(*values) for engine, values in labels.items()}


class KvxferConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves the KV cache of requests between vLLM engines that shard it differently."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer_config = vllm_config.kv_transfer_config
        self._settings = ConnectorSettings.of(transfer_config.kv_connector_extra_config)
        self._shape = _shape_of(vllm_config)
        self._engine_id = str(transfer_config.engine_id)
        self._groups = kv_cache_config.kv_cache_groups
        self._ends: RankEnds | None = None
        self._worker: ConnectorWorker | None = None
        self._report: RankReport | None = None
        self._scheduler: ConnectorScheduler | None = None
        # Tokens of a request that were here when the engine asked what can be loaded.
        self._computed_tokens: dict[str, int] = {}
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = ConnectorScheduler(self._shape, self._settings.receivers(self._shape))

    # -- worker side ------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Open this rank's transport and channel over the engine's cache."""
        stage, tp_rank = get_pp_group().rank_in_group, get_tp_group().rank_in_group
        pools, terms = [], []
        for group in self._groups:
            spec = _checked_spec(group, self._shape)
            arrays = self._arrays(group.layer_names, kv_caches)
            pools.append(
                make_pool(
                    arrays,
                    self._shape.heads(tp_rank),
                    self._shape.total_heads,
                    self._shape.sharding(tp_rank),
                )
            )
            layers = tuple(sorted(array.layer for array in arrays))
            terms.append(GroupTerms(spec.block_size, layers, _has_whole_pages(kv_caches)))
        self._ends = RankEnds(f"{self._engine_id}-{stage}-{tp_rank}", pools, self._settings)
        self._report = RankReport(self._ends.addresses, tuple(terms))
        self._worker = ConnectorWorker(
            self._shape, tp_rank, self._ends.managers, [group.page_size for group in terms]
        )

    def get_handshake_metadata(self) -> KvxferHandshake | None:
        """Return where this rank is reached."""
        return None if self._report is None else KvxferHandshake(self._report)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin what this step orders: loads, sends and aborts alike."""
        del forward_context, kwargs
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, KvxferOrders):
            self._worker.apply(metadata.orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads end between steps."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: rows leave once their request has finished."""

    def wait_for_save(self) -> None:
        """Nothing: pages of a send are kept until it has ended."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return what has ended; a failed load is named as received and as failed."""
        del finished_req_ids
        ended = Ended() if self._worker is None else self._worker.collect()
        return KVConnectorTransferResults(
            finished_sending=ended.sent,
            finished_recving=ended.received,
            failed_recving=set(ended.failed),
        )

    def get_kv_connector_stats(self) -> KvxferStats | None:
        """Return what this rank measured since the last call."""
        values = {} if self._worker is None else self._worker.record.take()
        return KvxferStats(data=values) if values else None

    # -- scheduler side ---------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Take the worker sides' reports."""
        self._core.set_ranks(
            {
                place: handshake.report
                for place, handshake in metadata.items()
                if isinstance(handshake, KvxferHandshake)
            }
        )

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Return how many tokens can be loaded between steps."""
        self._computed_tokens[request.request_id] = num_computed_tokens
        count = self._core.external_tokens(_view(request, num_computed_tokens))
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Order the load, now that pages stand ready."""
        computed = self._computed_tokens.pop(request.request_id, 0)
        self._core.allocated(_view(request, computed), blocks.get_block_ids(), num_external_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Return every group: what is loaded are the request's own pages."""
        del request
        return tuple(range(len(self._groups)))

    def build_connector_meta(self, scheduler_output: Any) -> KvxferOrders:
        """Return this step's orders."""
        del scheduler_output
        return KvxferOrders(self._core.take_orders())

    def update_connector_output(self, connector_output: Any) -> None:
        """Note which loads have ended on every rank."""
        for request_id in connector_output.finished_recving or ():
            self._core.received(request_id)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As ``request_finished_all_groups``, for a model of one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Offer a prefilled request; its pages are kept until every rank has sent them."""
        self._computed_tokens.pop(request.request_id, None)
        tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        is_complete = request.status.name in _COMPLETE
        params = self._core.finished(_view(request, tokens), block_ids, is_complete=is_complete)
        return params is not None, params

    # -- both sides -------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End every transfer and close transport and channel."""
        if self._ends is not None:
            self._ends.close()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Return the layout in which a head's rows of a page are one run."""
        model = vllm_config.model_config
        return None if model is None or model.use_mla else "LBHNC"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvxferStats:
        """Return statistics over data of ``get_kv_connector_stats``."""
        return KvxferStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KvxferPromMetrics:
        """Return the Prometheus metrics of all engines of this process."""
        return KvxferPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _arrays(self, names: list[str], kv_caches: Mapping[str, Any]) -> list[CacheArray]:
        """Return the cache arrays of a group, those of layers that share another's left out."""
        layers = self._vllm_config.compilation_config.static_forward_context
        arrays: dict[int, CacheArray] = {}
        for name in names:
            if name in kv_caches:
                order = str(getattr(layers.get(name), "isa", ""))
                array = CacheArray.of_tensor(extract_layer_index(name), kv_caches[name], order)
                arrays.setdefault(array.address, array)
        return list(arrays.values())

    @property
    def _core(self) -> ConnectorScheduler:
        if self._scheduler is None:
            raise InvalidArgumentError(f"role is {self.role.name}, expected SCHEDULER")
        return self._scheduler


def _view(request: Any, computed_tokens: int) -> RequestView:
    return RequestView(
        request.request_id, request.kv_transfer_params, request.num_prompt_tokens, computed_tokens
    )


def _shape_of(vllm_config: Any) -> EngineShape:
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    if parallel.prefill_context_parallel_size > 1:
        raise UnsupportedError(
            f"prefill_context_parallel_size is {parallel.prefill_context_parallel_size}, "
            "the connector moves rows of engines with 1"
        )
    shape = EngineShape(
        total_heads=1 if model.use_mla else model.get_total_num_kv_heads(),
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
        dcp_size=parallel.decode_context_parallel_size,
        interleave=parallel.cp_kv_cache_interleave_size,
    )
    shape.check()
    return shape


def _checked_spec(group: Any, shape: EngineShape) -> Any:
    """Return a group's specification, if its layers keep one row per token of the rank."""
    spec = group.kv_cache_spec
    is_uniform = isinstance(spec, UniformTypeKVCacheSpecs)
    for one in spec.kv_cache_specs.values() if is_uniform else [spec]:
        if not isinstance(one, AttentionSpec) or one.tokens_per_state != 1:
            raise UnsupportedError(
                f"layers {list(group.layer_names)[:3]} have {type(one).__name__}, "
                "the connector moves attention layers with one row per token"
            )
        if shape.dcp_size > 1 and not one.dcp_sharded:
            raise UnsupportedError(
                f"layers {list(group.layer_names)[:3]} keep all tokens on every rank, the "
                "connector moves layers that decode context parallelism shards"
            )
    return spec


def _has_whole_pages(kv_caches: Mapping[str, Any]) -> bool:
    """Whether rows of a page stand in no order of ours.

    vLLM's CPU attention keeps a page's keys before its values, in tiles that suit the processor.
    """
    return any(cache.device.type == "cpu" for cache in kv_caches.values())
