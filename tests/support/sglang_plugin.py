# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Loads the plug-in by SGLang's own loader, packs through its NIXL manager, prints what was seen.

Run as ``python -m support.sglang_plugin``: one JSON object on standard output.
"""

import importlib.metadata
import json
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from support import sglang_stubs

sglang_stubs.install()

import torch  # noqa: E402
from sglang.srt import plugins  # noqa: E402
from sglang.srt.disaggregation.common import dcp_pack, utils  # noqa: E402

# Imported before the plug-in is loaded: their own names must be bound anew.
from sglang.srt.disaggregation.mooncake import conn as mooncake  # noqa: E402
from sglang.srt.disaggregation.nixl import conn as nixl  # noqa: E402

from kvxfer import (  # noqa: E402
    PackBufferLayout,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Sharding,
)
from kvxfer.adapters import sglang as plugin  # noqa: E402

POISON = 0xA5
ORIGINAL_PLAN = utils.build_dcp_token_transfer_plan
FIELDS = ("target_src", "target_dst", "draft_src", "draft_dst")


def load() -> None:
    entry = importlib.metadata.EntryPoint(
        "kvxfer", "kvxfer.adapters.sglang:register", "sglang.srt.plugins"
    )
    plugins.entry_points = lambda group: [entry] if group == entry.group else []
    plugins.load_plugins()


class Buffer:
    """What SGLang's pack buffers offer, over host memory with poison around it."""

    def __init__(self, size_bytes: int) -> None:
        self.whole = torch.full((size_bytes + 128,), POISON, dtype=torch.uint8)
        self.buffer = self.whole[64:-64]

    def fits(self, size_bytes: int) -> bool:
        return size_bytes <= self.get_size()

    def get_size(self) -> int:
        return int(self.buffer.numel())

    def get_ptr(self) -> int:
        return int(self.buffer.data_ptr())


def random_call(chance: random.Random) -> tuple[tuple[Any, Any], dict[str, int]]:
    """Arguments of SGLang's plan for a random segment."""
    page_size, ranks = chance.choice([1, 2, 16, 64]), chance.randint(2, 8)
    pages = chance.randint(1, 40)
    tokens = (pages - 1) * page_size + chance.randint(1, page_size)
    offset = chance.randint(0, 12)
    wide = page_size * ranks
    needed = -(-(offset * page_size + tokens) // wide)
    source = np.array(chance.sample(range(500), pages), dtype=np.int32)
    taken = np.array(chance.sample(range(500), needed + 1), dtype=np.int32)
    named = {"physical_page_size": page_size, "dcp_size": ranks, "num_kv_tokens": tokens,
             "dcp_rank": chance.randrange(ranks), "src_page_offset": offset,
             "decode_prefix_len": wide * chance.randint(0, 5)}  # fmt: skip
    return (source, taken), named


def differing_plans(count: int) -> list[Any]:
    """Random plans whose rows are not SGLang's."""
    chance = random.Random(40376)
    differing = []
    for _ in range(count):
        pages, named = random_call(chance)
        theirs = ORIGINAL_PLAN(*pages, **named)
        ours = utils.build_dcp_token_transfer_plan(*pages, **named)
        for field in FIELDS:
            a, b = (getattr(plan, f"{field}_token_indices") for plan in (theirs, ours))
            if a.dtype != b.dtype or not np.array_equal(a, b):
                differing.append([field, named])
    return differing


def differing_packs(count: int) -> list[Any]:
    """Random packs through the NIXL manager that differ in a byte, or touch one too many."""
    chance, rng = random.Random(4), np.random.default_rng(4)
    differing = []
    for _ in range(count):
        pages, named = random_call(chance)
        size, ranks, rank = (named[name] for name in ("physical_page_size", "dcp_size", "dcp_rank"))
        widths = [chance.choice([1, 8, 24, 576]) for _ in range(3)]
        planes = [rng.integers(0, 256, (500 * size, width), dtype=np.uint8) for width in widths]
        room = -(-named["num_kv_tokens"] // ranks) * sum(widths)
        buffer = Buffer(ranks * room)
        manager = SimpleNamespace(kv_args=SimpleNamespace(
            kv_data_ptrs=[plane.ctypes.data for plane in planes], num_draft_entries=0))  # fmt: skip
        peer = SimpleNamespace(dst_dcp_rank=rank, dst_dcp_size=ranks, dcp_token_item_lens=widths)
        rows = nixl.build_dcp_token_transfer_plan(*pages, **named).target_src_token_indices
        packed = nixl.NixlKVManager._pack_dcp_rank_once(manager, buffer, peer, rows, {})
        wanted = np.full(buffer.whole.numel(), POISON, np.uint8)
        bytes_of = np.concatenate([plane[np.asarray(rows)].reshape(-1) for plane in planes])
        wanted[64 + rank * room :][: bytes_of.size] = bytes_of
        starts = np.cumsum([0, *(rows.size * width for width in widths[:-1])])
        base = buffer.get_ptr() + rank * room
        if not np.array_equal(buffer.whole.numpy(), wanted):
            differing.append(["bytes", named])
        if rows.size and (packed[0] != [base + s for s in starts] or len(packed[1]) != rows.size):
            differing.append(["addresses", named])
    return differing


def differing_sizes(count: int) -> list[Any]:
    """Random pack buffers that are not as large as SGLang's for the same whole pages of tokens."""
    chance, differing = random.Random(31), []
    for _ in range(count):
        page_size, ranks = chance.choice([1, 2, 16, 64]), chance.randint(1, 8)
        tokens = page_size * chance.randint(1, 200)
        widths = [chance.randint(1, 700) for _ in range(chance.randint(1, 6))]
        planes = [Plane(number, PlaneKind.LATENT, width) for number, width in enumerate(widths)]
        targets = [
            PoolLayout(page_size, 9, planes, sharding=Sharding(ranks, rank))
            for rank in range(ranks)
        ]
        relayouts = [Relayout(PoolLayout(page_size, 9, planes), target) for target in targets]
        ours = PackBufferLayout.bytes_for(relayouts, tokens)
        items = [width * page_size for width in widths]
        if ours != dcp_pack.dcp_pack_buffer_bytes(items, page_size, tokens, ranks):
            differing.append([page_size, ranks, tokens, widths])
    return differing


def gives_back() -> list[Any]:
    """What SGLang's own code says to a call that kvxfer cannot serve."""
    plan = utils.build_dcp_token_transfer_plan(
        np.arange(4), np.arange(4), physical_page_size=4, dcp_size=2, dcp_rank=0, num_kv_tokens=16
    )
    rows = plan.target_src_token_indices
    too_small = dcp_pack.try_pack_dcp_src(
        pack_buffer=Buffer(7), kv_data_ptrs=[1 << 40], src_token_indices=rows, token_item_lens=[8]
    )
    try:
        utils.build_dcp_token_transfer_plan(
            [1], [1], physical_page_size=4, dcp_size=2, dcp_rank=0, decode_prefix_len=4
        )
    except ValueError as error:
        return [too_small, type(error).__name__, str(error)]
    return [too_small]


def main() -> None:
    if sys.argv[1:] == ["changed"]:
        dcp_pack.try_pack_dcp_src = lambda *, pack_buffer, rows: None
    before = (nixl.build_dcp_token_transfer_plan, dcp_pack.try_pack_dcp_src)
    load()
    after = (nixl.build_dcp_token_transfer_plan, dcp_pack.try_pack_dcp_src)
    seen: dict[str, Any] = {
        "version": importlib.metadata.version("sglang"),
        "line": plugin.examine().line,
        "is_changed": [a is not b for a, b in zip(before, after, strict=True)],
        "is_one": nixl.build_dcp_token_transfer_plan is mooncake.build_dcp_token_transfer_plan,
    }
    if os.environ.get("KVXFER_SGLANG") == "all" and not sys.argv[1:]:
        seen["plans"], seen["packs"] = differing_plans(400), differing_packs(150)
        seen["sizes"] = differing_sizes(300)
        seen["packed"] = plugin.counters()
        seen["given_back"] = gives_back()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
