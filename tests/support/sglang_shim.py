# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Managers, senders and receivers under SGLang's own base classes, for tests.

Shows that the verbs and states of ``kvxfer.adapters`` are those that its schedulers call. Needs
``sglang_stubs.install()`` before it is imported.
"""

from typing import Any

from sglang.srt.disaggregation.base.conn import (
    BaseKVManager,
    BaseKVReceiver,
    BaseKVSender,
    KVArgs,
    KVTransferDestination,
    KVTransferMetric,
)

from kvxfer import Plane, PlaneKind, PoolLayout, Sharding
from kvxfer.adapters import (
    EngineMemory,
    MetadataArray,
    RankManager,
    RequestReceiver,
    RequestSender,
    StateArray,
)
from kvxfer.transfer import LocalPool, TransferOptions


class ShimManager(BaseKVManager):
    """Reads SGLang's lists of pointers.

    ``server_args`` says what SGLang keeps elsewhere: transport, channel, sharding, token budget,
    the bootstrap table (engine rank -> address) and the prompt's tokens by room, which SGLang does
    not tell its receivers.
    """

    def __init__(
        self,
        args: KVArgs,
        disaggregation_mode: Any,
        server_args: Any,
        is_mla_backend: bool | None = False,
    ) -> None:
        self.args = args
        self.server_args = server_args
        layout = _layout(args, Sharding(server_args.dcp_size, server_args.dcp_rank))
        self.rank = RankManager(
            LocalPool(layout, tuple(args.kv_data_ptrs)),
            server_args.transport,
            server_args.channel,
            TransferOptions(
                role="sender" if disaggregation_mode == "prefill" else "receiver",
                pack_tokens=server_args.max_prefill_tokens,
            ),
            memory=EngineMemory(state=_state(args), metadata=_metadata(args)),
        )
        self.register_to_bootstrap()

    def register_to_bootstrap(self) -> None:
        self.server_args.bootstrap[self.args.engine_rank] = self.rank.address

    def teardown(self) -> None:
        self.rank.close()


class ShimSender(BaseKVSender):
    def __init__(
        self,
        mgr: ShimManager,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ) -> None:
        count = mgr.server_args.destination_count(bootstrap_room)
        self.request = RequestSender(mgr.rank, bootstrap_room, count)

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        self.request.init(num_kv_indices, aux_index)

    def send(
        self,
        kv_indices: Any,
        state_indices: list[Any] | None = None,
        num_kv_tokens: int | None = None,
    ) -> None:
        if num_kv_tokens is None:
            raise ValueError("num_kv_tokens is None, expected the exact token count")
        self.request.send(kv_indices, num_kv_tokens, state_items=state_indices)

    def pop_decode_prefix_len(self) -> int:
        return self.request.prefix_tokens

    def get_max_transfer_tokens(self) -> int | None:
        return self.request.get_max_transfer_tokens()

    def should_send_kv_chunk(self, num_pages: int, last_chunk: bool) -> bool:
        return self.request.should_send(num_pages, is_final=last_chunk)

    def get_transfer_metric(self) -> KVTransferMetric:
        metrics = self.request.transfer_metrics
        return KVTransferMetric(
            transfer_latency_s=metrics.active_s,
            alloc_latency_s=metrics.buffer_wait_s,
            transfer_total_bytes=metrics.bytes + metrics.state_bytes,
        )

    def poll(self) -> int:
        return int(self.request.poll())

    def failure_exception(self) -> None:
        self.request.failure_exception()

    def clear(self) -> None:
        self.request.clear()

    def abort(self) -> None:
        self.request.abort()


class ShimReceiver(BaseKVReceiver):
    def __init__(
        self, mgr: ShimManager, bootstrap_addr: str, bootstrap_room: int | None = None
    ) -> None:
        assert bootstrap_room is not None
        self.mgr = mgr
        self.request = RequestReceiver(mgr.rank, bootstrap_room)

    def init(self, prefill_dp_rank: int) -> None:
        self.request.init([self.mgr.server_args.bootstrap[prefill_dp_rank]])

    def send_metadata(
        self,
        kv_indices: Any,
        aux_index: int | None = None,
        state_indices: list[Any] | None = None,
        decode_prefix_len: int | None = None,
        destination: KVTransferDestination = KVTransferDestination.DEVICE,
    ) -> None:
        if destination is not KVTransferDestination.DEVICE:
            raise ValueError(f"destination is {destination}, expected device memory")
        self.request.send_metadata(
            kv_indices,
            self.mgr.server_args.prompt_tokens[self.request.room],
            prefix_tokens=decode_prefix_len or 0,
            metadata_item=aux_index,
            state_items=state_indices,
        )

    def is_abort_release_safe(self) -> bool:
        return self.request.is_abort_release_safe

    def poll(self) -> int:
        return int(self.request.poll())

    def failure_exception(self) -> None:
        self.request.failure_exception()

    def clear(self) -> None:
        self.request.clear()

    def abort(self) -> None:
        self.request.abort()


def _layout(args: KVArgs, sharding: Sharding) -> PoolLayout:
    """Every entry is a plane with single rows of a latent cache."""
    planes = [
        Plane(layer, PlaneKind.LATENT, item_bytes // args.page_size)
        for layer, item_bytes in zip(args.kv_layer_ids, args.kv_item_lens, strict=True)
    ]
    page_count = args.kv_data_lens[0] // args.kv_item_lens[0]
    return PoolLayout(args.page_size, page_count, planes, sharding=sharding)


def _state(args: KVArgs) -> list[list[StateArray]]:
    return [
        [
            StateArray(
                kind=f"{kind.value}.{number}",
                address=address,
                item_bytes=item_bytes,
                item_count=size_bytes // item_bytes,
            )
            for number, (address, size_bytes, item_bytes) in enumerate(zip(*arrays, strict=True))
        ]
        for kind, *arrays in zip(
            args.state_types,
            args.state_data_ptrs,
            args.state_data_lens,
            args.state_item_lens,
            strict=True,
        )
    ]


def _metadata(args: KVArgs) -> list[MetadataArray]:
    return [
        MetadataArray(address, item_bytes, size_bytes // item_bytes)
        for address, size_bytes, item_bytes in zip(
            args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens, strict=True
        )
    ]
