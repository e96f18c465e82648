# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A KV pool sharded by page over the ranks of a prefill worker, and the gather of its prefixes."""

from kvxfer._core import (
    BlockLayout,
    BlockOrder,
    BlockSpan,
    GatheredPage,
    GatherPlan,
    GatherShape,
    PageMap,
    ScratchDemand,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
    ScratchView,
    largest_spec,
    make_gather_shape,
    scratch_demand,
)

__all__ = [
    "BlockLayout",
    "BlockOrder",
    "BlockSpan",
    "GatherPlan",
    "GatherShape",
    "GatheredPage",
    "PageMap",
    "ScratchDemand",
    "ScratchLayout",
    "ScratchSpec",
    "ScratchTensor",
    "ScratchView",
    "largest_spec",
    "make_gather_shape",
    "scratch_demand",
]
