# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of the server, and what they mean for its ranks."""

import argparse
import secrets
from dataclasses import replace
from pathlib import Path
from typing import get_args

from kvxfer import InvalidArgumentError
from kvxfer.bench.engine.setting import ModelKind, ModelSetting, RankSetting, Verification
from kvxfer.transfer.options import LandingMode

__all__ = ["add_arguments", "model_info", "rank_settings"]

MODES = ("dcp-bounded", "dcp-row-by-row", "tp")
_SECRET_BYTES = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``kvxfer bench serve``."""
    parser.epilog = (
        "Starts one prefill process, the decode ranks and a router in front of them, and prints "
        "one JSON line with their addresses once they answer. Ctrl-C stops everything. The router "
        "speaks SGLang's POST /generate with input_ids, greedy, streamed or not; router and "
        "workers speak POST /flush_cache, GET /health and GET /report."
    )
    _add_model_arguments(parser.add_argument_group("model"))
    _add_transfer_arguments(parser.add_argument_group("how the cache moves"))
    sizes = parser.add_argument_group("sizes").add_argument
    sizes("--page-size", type=int, default=64, help="rows of a page on each rank")
    sizes("--chunk-tokens", type=int, default=8192, help="most tokens of one prefill step")
    sizes("--prefill-tokens", type=int, default=16384, help="what prefill's pool holds")
    sizes("--decode-tokens", type=int, default=16384, help="what decode's pools hold together")
    prefix_help = "let decode keep prompts too, and ask only for what follows"
    sizes("--decode-prefix-cache", action="store_true", help=prefix_help)
    where = parser.add_argument_group("where it listens (port 0: any free one)").add_argument
    where("--host", default="127.0.0.1")
    where("--port", type=int, default=30000, help="the router's")
    where("--prefill-port", type=int, default=30001)
    where("--decode-port", type=int, default=30002)


def _add_model_arguments(group: argparse._ArgumentGroup) -> None:
    model_help = (
        "SmolLM2-135M-Instruct; a small random Llama (gqa) or DeepSeek-V3 (mla); or none: rows are "
        "a pattern and computing is waiting (synthetic)"
    )
    group.add_argument("--model", choices=get_args(ModelKind), default="smollm2", help=model_help)
    weights_help = (
        "where SmolLM2's expanded weights are kept, and made if missing "
        "(default: ~/.cache/kvxfer/smollm2)"
    )
    group.add_argument("--weights", type=Path, metavar="DIR", help=weights_help)
    compute_help = "synthetic: seconds that every prefill takes"
    group.add_argument("--compute-s", type=float, default=0.05, help=compute_help)
    step_help = "synthetic: seconds that every decoded token takes"
    group.add_argument("--step-s", type=float, default=0.0, help=step_help)
    verify_help = "synthetic: which received rows are compared with the pattern"
    group.add_argument(
        "--verify", choices=get_args(Verification), default="sample", help=verify_help
    )


def _add_transfer_arguments(group: argparse._ArgumentGroup) -> None:
    mode_help = (
        "rows packed for the decode ranks; a write for each row; or, for comparison, one decode "
        "rank that takes pages as they are (tp)"
    )
    group.add_argument("--mode", choices=MODES, default=MODES[0], help=mode_help)
    group.add_argument("--decode-ranks", type=int, default=2, help="not used in mode tp")
    group.add_argument("--transport", default="loopback", help="loopback, nixl or mooncake")
    pack_help = "tokens that a pack buffer is sized for"
    group.add_argument("--pack-tokens", type=int, default=8192, help=pack_help)
    group.add_argument("--landing", choices=get_args(LandingMode), default="auto")
    late_help = "send a prompt once it is computed, not its cached prefix at once and then chunks"
    group.add_argument("--no-early", action="store_true", help=late_help)


def rank_settings(arguments: argparse.Namespace) -> tuple[RankSetting, RankSetting]:
    """Return how prefill and decode ranks are set up.

    Raises
    ------
    InvalidArgumentError
        For a size that is not positive; names the argument.
    """
    for name in ("decode_ranks", "pack_tokens", "page_size", "chunk_tokens"):
        if getattr(arguments, name) < 1:
            raise InvalidArgumentError(
                f"--{name.replace('_', '-')}: expected at least 1, got {getattr(arguments, name)}"
            )
    ranks = 1 if arguments.mode == "tp" else arguments.decode_ranks
    page_size = arguments.page_size
    prefill = RankSetting(
        name="prefill",
        model=_model_setting(arguments),
        transport=arguments.transport,
        secret=secrets.token_bytes(_SECRET_BYTES),
        page_size=page_size,
        page_count=max(1, -(-arguments.prefill_tokens // page_size)),
        chunk_tokens=arguments.chunk_tokens,
        pack_tokens=arguments.pack_tokens,
        packing="row_by_row" if arguments.mode == "dcp-row-by-row" else "auto",
        landing=arguments.landing,
        sends_early=not arguments.no_early,
    )
    page_count = max(1, -(-arguments.decode_tokens // (page_size * ranks)))
    return prefill, replace(prefill, name="decode", ranks=ranks, page_count=page_count)


def _model_setting(arguments: argparse.Namespace) -> ModelSetting:
    folder = arguments.weights or Path.home() / ".cache" / "kvxfer" / "smollm2"
    return ModelSetting(
        kind=arguments.model,
        folder=folder if arguments.model == "smollm2" else None,
        compute_s=arguments.compute_s,
        step_s=arguments.step_s,
        verify=arguments.verify,
    )


def model_info(arguments: argparse.Namespace) -> dict[str, object]:
    """Return what the server says of itself: synthetic numbers must be known as such."""
    is_synthetic = arguments.model == "synthetic"
    path = (
        f"synthetic (no model: every prefill takes {arguments.compute_s:g} s, "
        f"every decoded token {arguments.step_s:g} s)"
        if is_synthetic
        else arguments.model
    )
    return {
        "model_path": path,
        "is_synthetic": is_synthetic,
        "mode": arguments.mode,
        "transport": arguments.transport,
        "decode_ranks": 1 if arguments.mode == "tp" else arguments.decode_ranks,
    }
