# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Inside SGLang: a plug-in that packs a DCP relayout under its own nixl and mooncake transports.

SGLang loads it by the entry point ``sglang.srt.plugins``; it does nothing unless ``KVXFER_SGLANG``
is "pack", "gather" or "all". Rooms, control and completion stay SGLang's. "gather" is refused: it
has not been proved with SGLang's pools. The pack was run on host memory, not on a GPU yet.
"""

import importlib
import inspect
import logging
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvxfer import build_info
from kvxfer.adapters.sglang._pack import PackRows
from kvxfer.adapters.sglang._rows import plan_rows

__all__ = ["Verdict", "counters", "examine", "register"]

_log = logging.getLogger("kvxfer")
_pack = PackRows()

_PLAN = "sglang.srt.disaggregation.common.utils.build_dcp_token_transfer_plan"
_TRY_PACK = "sglang.srt.disaggregation.common.dcp_pack.try_pack_dcp_src"
_HOOKS: dict[str, Callable[..., Any]] = {_PLAN: plan_rows, _TRY_PACK: _pack}
# As SGLang 0.5.22 and 0.5.23 have them.
_SIGNATURES = {
    _PLAN: "(src_page_indices, dst_page_indices, *, physical_page_size, dcp_size, dcp_rank, "
    "src_page_offset=0, decode_prefix_len=0, num_kv_tokens=None)",
    _TRY_PACK: "(*, pack_buffer, kv_data_ptrs, src_token_indices, token_item_lens, "
    "src_token_item_lens=None, pack_offset_bytes=0, pack_capacity_bytes=None)",
}
_NO_GATHER = "gather refused: it has not been proved with SGLang's page-sharded pools"


@dataclass(frozen=True)
class Verdict:
    """What the plug-in does in this process.

    Attributes
    ----------
    is_asked : bool
        Whether ``KVXFER_SGLANG`` asks for anything.
    is_packing : bool
        Whether kvxfer packs.
    line : str
        What is active, and why the rest is not.
    """

    is_asked: bool
    is_packing: bool
    line: str


def examine(environ: Mapping[str, str] = os.environ) -> Verdict:
    """Say what ``register`` would do here; imports SGLang's modules where something is asked."""
    asked = environ.get("KVXFER_SGLANG", "")
    if not asked:
        return Verdict(False, False, "off: KVXFER_SGLANG is not set, expected pack, gather or all")
    words = set(asked.split(","))
    if not words <= {"pack", "gather", "all"}:
        line = f"refused: KVXFER_SGLANG is {asked!r}, expected pack, gather or all"
        return Verdict(True, False, line)
    refusal = _pack_refusal() if words & {"pack", "all"} else "not asked for"
    parts = ["pack active" if not refusal else f"pack refused: {refusal}"]
    if words & {"gather", "all"}:
        parts.append(_NO_GATHER)
    return Verdict(True, not refusal, "; ".join(parts))


def register() -> None:
    """Ask SGLang to call kvxfer at its seams; the entry point of the plug-in."""
    verdict = examine()
    if verdict.is_packing:
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        for target, hook in _HOOKS.items():
            registry.HookRegistry.register(target, hook, registry.HookType.AROUND)
    # SGLang sets its logging up after it has loaded plug-ins, and what was asked for must be seen.
    is_shown = _log.isEnabledFor(logging.INFO) or not verdict.is_asked
    _log.log(logging.INFO if is_shown else logging.WARNING, "kvxfer in SGLang: %s", verdict.line)


def counters() -> dict[str, int]:
    """Return how many segments kvxfer packed and how many calls it gave back to SGLang."""
    return {"packed": _pack.packed, "handed_back": _pack.handed_back}


def _pack_refusal() -> str:
    """Return why kvxfer cannot pack here, empty when it can."""
    for target, expected in _SIGNATURES.items():
        try:
            found = _plain_signature(pkgutil.resolve_name(target))
        except Exception as error:
            return f"{target} cannot be used: {type(error).__name__}: {error}"
        if found != expected:
            return f"{target} takes {found}, expected {expected}"
    has_cuda = importlib.import_module("torch").version.cuda is not None
    if has_cuda and not build_info()["cuda_module"]:
        return "torch is built for CUDA and this kvxfer is not: build it where nvcc is on the PATH"
    return ""


def _plain_signature(function: Any) -> str:
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))
