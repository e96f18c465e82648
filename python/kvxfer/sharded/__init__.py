# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A KV pool sharded by page over the ranks of a prefill worker, and the gather of its prefixes."""

from kvxfer._collective import (
    Communicator,
    CopyEngineGather,
    CtaPolicy,
    NcclApi,
    NcclError,
    StreamCalls,
    SymmetricWindow,
    WindowView,
)
from kvxfer._core import (
    BlockLayout,
    BlockOrder,
    BlockSpan,
    FallbackReason,
    GatheredPage,
    GatherPath,
    GatherPlan,
    GatherShape,
    GatherVerdict,
    HandshakeBoards,
    HandshakeReport,
    HostAllgather,
    PageMap,
    RankConditions,
    ScratchDemand,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    ScratchView,
    WindowOutcome,
    decide_after_registration,
    decide_gather_path,
    largest_spec,
    make_gather_shape,
    nccl_version,
    scratch_demand,
)
from kvxfer.sharded._admission import PageAllocator, ScratchBudget
from kvxfer.sharded._copies import CopyEngineAllgather, OwnCopies
from kvxfer.sharded._device import DeviceCalls, DevicePrefixAllgather
from kvxfer.sharded._environment import (
    driver_version,
    environment_conditions,
    nccl_wheel_path,
    node_name,
)
from kvxfer.sharded._group import agree_on_path
from kvxfer.sharded._host import HostPrefixAllgather
from kvxfer.sharded._lanes import ExecutorLane, GatherLane, InlineLane, StreamLane
from kvxfer.sharded._nccl import find_nccl, nccl_report
from kvxfer.sharded._pool import ShardedPool
from kvxfer.sharded._protocol import PrefixAllgather
from kvxfer.sharded._torch import torch_device_calls, torch_exchange, torch_own_copies

__all__ = [
    "BlockLayout",
    "BlockOrder",
    "BlockSpan",
    "Communicator",
    "CopyEngineAllgather",
    "CopyEngineGather",
    "CtaPolicy",
    "DeviceCalls",
    "DevicePrefixAllgather",
    "ExecutorLane",
    "FallbackReason",
    "GatherLane",
    "GatherPath",
    "GatherPlan",
    "GatherShape",
    "GatherVerdict",
    "GatheredPage",
    "HandshakeBoards",
    "HandshakeReport",
    "HostAllgather",
    "HostPrefixAllgather",
    "InlineLane",
    "NcclApi",
    "NcclError",
    "OwnCopies",
    "PageAllocator",
    "PageMap",
    "PrefixAllgather",
    "RankConditions",
    "ScratchBudget",
    "ScratchDemand",
    "ScratchLayout",
    "ScratchSpec",
    "ScratchTensor",
    "ScratchView",
    "ShardedPool",
    "StreamCalls",
    "StreamLane",
    "SymmetricWindow",
    "WindowOutcome",
    "WindowView",
    "agree_on_path",
    "decide_after_registration",
    "decide_gather_path",
    "driver_version",
    "environment_conditions",
    "find_nccl",
    "largest_spec",
    "make_gather_shape",
    "nccl_report",
    "nccl_version",
    "nccl_wheel_path",
    "node_name",
    "scratch_demand",
    "torch_device_calls",
    "torch_exchange",
    "torch_own_copies",
]
