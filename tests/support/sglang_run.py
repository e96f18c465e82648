# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the adapters as SGLang's schedulers do, under its base classes; prints what was seen.

Run as ``python -m support.sglang_run``: one JSON object on standard output.
"""

import inspect
import json
import random
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvxfer import split_segments, transports
from kvxfer.transfer import RoomState, ZmqChannel
from support import sglang_stubs
from support.adapter_world import wait_until
from support.transfer_world import Pages, copy_arrays, move_rows

STUBS = sglang_stubs.install()

from sglang.srt.disaggregation.base import conn  # noqa: E402
from sglang.srt.disaggregation.common.staging_buffer import compute_grid_segments  # noqa: E402

from support.sglang_shim import ShimManager, ShimReceiver, ShimSender  # noqa: E402

PAGE_SIZE, PAGE_COUNT, ROW_BYTES = 64, 64, 8
BUDGET_TOKENS = 256
STATE_BYTES, AUX_BYTES, SLOT_COUNT = 40, 24, 8

# Prompt tokens, tokens that decode holds, ends of the chunks before the last.
CASES = {
    "cold": (2055, 0, []),
    "after a prefix": (2055, 256, []),
    "early and late": (1031, 0, [1000]),
    "full hit": (256, 256, []),
    "inside a page": (63, 0, []),
    "small chunks": (700, 256, [300, 500, 513]),
}


class Worker:
    """One rank with SGLang's lists of pointers over numpy arrays."""

    def __init__(self, site: "Site", name: str, ranks: int, rank: int, engine_rank: int) -> None:
        rng = np.random.default_rng(len(site.workers) + 1)

        def noise(*shape: int) -> Any:
            return rng.integers(0, 256, shape, dtype=np.uint8)

        self.planes = [noise(PAGE_COUNT * PAGE_SIZE * ROW_BYTES) for _ in range(2)]
        self.state, self.aux = noise(SLOT_COUNT, STATE_BYTES), noise(SLOT_COUNT, AUX_BYTES)
        args = conn.KVArgs()
        args.engine_rank, args.page_size = engine_rank, PAGE_SIZE
        args.kv_data_ptrs = [plane.ctypes.data for plane in self.planes]
        args.kv_data_lens = [plane.nbytes for plane in self.planes]
        args.kv_item_lens = [plane.nbytes // PAGE_COUNT for plane in self.planes]
        args.kv_layer_ids = [3, 7]
        args.state_types = [conn.StateType.MAMBA]
        args.state_data_ptrs = [[self.state.ctypes.data]]
        args.state_data_lens, args.state_item_lens = [[self.state.nbytes]], [[STATE_BYTES]]
        args.aux_data_ptrs, args.aux_data_lens = [self.aux.ctypes.data], [self.aux.nbytes]
        args.aux_item_lens = [AUX_BYTES]
        settings = SimpleNamespace(
            transport=transports.create("loopback", name),
            channel=ZmqChannel(),
            dcp_size=ranks,
            dcp_rank=rank,
            max_prefill_tokens=BUDGET_TOKENS,
            bootstrap=site.bootstrap,
            prompt_tokens=site.prompt_tokens,
            destination_count=site.destination_counts.__getitem__,
        )
        mode = "prefill" if name == "prefill" else "decode"
        self.manager = ShimManager(args, mode, settings, is_mla_backend=True)
        # What the oracle looks at.
        self.layout, self.arrays = self.manager.rank.pool.layout, self.planes
        site.workers.append(self)

    def close(self) -> None:
        self.manager.teardown()
        self.manager.server_args.transport.close()
        self.manager.server_args.channel.close()


class Site:
    """A prefill worker, four decode ranks that share tokens, and one that does not."""

    def __init__(self) -> None:
        self.bootstrap: dict[int, str] = {}
        self.prompt_tokens: dict[int, int] = {}
        self.destination_counts: dict[int, int] = {}
        self.workers: list[Worker] = []
        self.prefill = Worker(self, "prefill", 1, 0, engine_rank=0)
        self.sharded = [Worker(self, f"decode{rank}", 4, rank, 1 + rank) for rank in range(4)]
        self.plain = [Worker(self, "decode", 1, 0, engine_rank=5)]


class Scheduler:
    """A request on both sides, moved on in the order in which SGLang's schedulers do."""

    def __init__(self, site: Site, room: int, case: str, decode: list[Worker]) -> None:
        self.site, self.decode = site, decode
        self.tokens, self.prefix, self.ends = CASES[case]
        self.slot = room % SLOT_COUNT
        site.prompt_tokens[room], site.destination_counts[room] = self.tokens, len(decode)
        rng = np.random.default_rng(room)
        self.pages = rng.permutation(PAGE_COUNT).astype(np.int32)[: -(-self.tokens // PAGE_SIZE)]
        self.before = [copy_arrays(worker.planes) for worker in decode]
        self.decode_pages = []
        self.sender = ShimSender(site.prefill.manager, "", room)
        self.receivers = [ShimReceiver(worker.manager, "", room) for worker in decode]
        self.states = {self.sender.poll(), *(receiver.poll() for receiver in self.receivers)}
        for worker, receiver in zip(decode, self.receivers, strict=True):
            widened = worker.layout.widened_page_tokens
            count = -(-(self.tokens - self.prefix) // widened)
            pages = rng.permutation(PAGE_COUNT)[:count].astype(np.int32)
            self.decode_pages.append(pages)
            receiver.init(0)
            self.states.add(receiver.poll())
            receiver.send_metadata(
                pages,
                self.slot,
                [np.array([self.slot], dtype=np.int32)],
                decode_prefix_len=self.prefix,
            )
        wait_until(lambda: self.sender.poll() != conn.KVPoll.Bootstrapping)
        self.states.add(self.sender.poll())
        self.start = self.sender.pop_decode_prefix_len()
        self.sender.init(-(-(self.tokens - self.start) // PAGE_SIZE), self.slot)
        self.sends: list[tuple[int, int]] = []

    def send_as_sglang(self, end: int, *, is_last: bool) -> None:
        """One chunk, cut by SGLang's own function at the limit that the sender publishes."""
        end = end if is_last else end - end % PAGE_SIZE
        if end < self.start:
            return
        limit = self.sender.get_max_transfer_tokens()
        segments = [(self.start, end)]
        if limit is not None:
            segments = compute_grid_segments(self.start, end, self.prefix, limit)
        for begin, segment_end in segments:
            pages = self.pages[begin // PAGE_SIZE : -(-segment_end // PAGE_SIZE)]
            pages = pages[: -(-(segment_end - begin) // PAGE_SIZE)]
            is_final = is_last and segment_end == end
            if self.sender.should_send_kv_chunk(len(pages), is_final):
                state = [np.array([self.slot], dtype=np.int32)] if is_final else None
                self.sender.send(pages, state, num_kv_tokens=segment_end - begin)
                self.sends.append((begin, segment_end))
        self.start = end

    def send_bounded(self, end: int, *, is_last: bool) -> None:
        """One chunk, cut by the sender."""
        request, real = self.sender.request, self.sender.request.send

        def send(pages: Any, token_count: int, **fields: Any) -> None:
            begin = request.next_position
            real(pages, token_count, **fields)
            self.sends.append((begin, begin + token_count))

        request.send = send  # type: ignore[method-assign]
        pages = self.pages[self.start // PAGE_SIZE : -(-end // PAGE_SIZE)]
        self.start = request.send_bounded(pages, end, is_final=is_last, state_items=[[self.slot]])
        request.send = real  # type: ignore[method-assign]

    def run(self, way: str) -> dict[str, Any]:
        """Send everything one way and say how it went."""
        send = self.send_as_sglang if way == "sglang" else self.send_bounded
        for end in self.ends:
            send(end, is_last=False)
        send(self.tokens, is_last=True)
        parts = [self.sender, *self.receivers]
        over = (conn.KVPoll.Success, conn.KVPoll.Failed)
        wait_until(lambda: all(part.poll() in over for part in parts))
        self.states |= {part.poll() for part in parts}
        metric = self.sender.get_transfer_metric()
        return {
            "sends": self.sends,
            "states": sorted(self.states),
            "success": all(part.poll() == conn.KVPoll.Success for part in parts),
            "reason": self.sender.request.failure_reason,
            "rows": self.has_right_rows(),
            "slots": self.has_right_slots(),
            "bytes": metric.transfer_total_bytes,
            "seconds": [metric.transfer_latency_s, metric.alloc_latency_s],
            "segments": self.sender.request.transfer_metrics.segments // len(self.decode),
        }

    def has_right_rows(self) -> bool:
        """Compare whole pools with an oracle that moves rows one by one."""
        given: Any = [(self.site.prefill, Pages(self.pages.tolist()))]
        for worker, pages, before in zip(self.decode, self.decode_pages, self.before, strict=True):
            at: Any = worker
            span = (self.prefix, self.tokens)
            move_rows(given, at, Pages(pages.tolist(), self.prefix), span, before)
            if not all(map(np.array_equal, worker.planes, before)):
                return False
        return True

    def has_right_slots(self) -> bool:
        """Compare state and metadata of the request's slot."""
        source = self.site.prefill
        return all(
            np.array_equal(worker.state[self.slot], source.state[self.slot])
            and np.array_equal(worker.aux[self.slot], source.aux[self.slot])
            for worker in self.decode
        )


def signatures() -> dict[str, dict[str, list[str]]]:
    """Parameter names of every method that base and shim share."""
    found: dict[str, dict[str, list[str]]] = {}
    for base, shim in (
        (conn.BaseKVManager, ShimManager),
        (conn.BaseKVSender, ShimSender),
        (conn.BaseKVReceiver, ShimReceiver),
    ):
        for name, own in vars(shim).items():
            if inspect.isfunction(own) and hasattr(base, name):
                theirs = getattr(base, name)
                found[f"{base.__name__}.{name}"] = {
                    "sglang": list(inspect.signature(theirs).parameters),
                    "shim": list(inspect.signature(own).parameters),
                }
    return found


def differing_splits(count: int) -> list[Any]:
    """Compare random sends with budgets of whole pages; returns those that differ."""
    chance = random.Random(35762)
    differing = []
    for _ in range(count):
        page_size = chance.choice([1, 4, 16, 64])
        grid = page_size * chance.randint(1, 40)
        base = page_size * chance.randint(0, 60)
        begin = base + page_size * chance.randint(0, 300)
        end = begin + chance.choice([0, 1, page_size, chance.randint(0, 9000)])
        theirs = compute_grid_segments(begin, end, base, grid)
        ours = split_segments(
            begin, end, is_final=True, prefix=base, alignment_tokens=page_size, capacity_tokens=grid
        )
        if [(s.begin, s.end) for s in ours] != theirs:
            differing.append([begin, end, base, grid])
    return differing


def tells_failures(site: Site) -> dict[str, Any]:
    """Abort a request and look at what either side says."""
    request = Scheduler(site, 900, "cold", site.sharded)
    request.receivers[1].abort()
    wait_until(lambda: request.sender.poll() == conn.KVPoll.Failed)
    try:
        request.sender.failure_exception()
    except Exception as error:
        words = str(error)
    wait_until(lambda: all(receiver.is_abort_release_safe() for receiver in request.receivers))
    try:
        ShimSender.send(request.sender, [1])
    except ValueError as error:
        without_count = str(error)
    return {"words": words, "limit": request.sender.get_max_transfer_tokens(),
            "without_count": without_count}  # fmt: skip


def main() -> None:
    site = Site()
    cases = {}
    room = 1
    for kind, decode in (("sharded", site.sharded), ("plain", site.plain)):
        for case in CASES:
            for way in ("sglang", "bounded"):
                request = Scheduler(site, room, case, decode)
                cases[f"{kind}: {case}: {way}"] = request.run(way)
                room += 1
    bases = (conn.BaseKVManager, conn.BaseKVSender, conn.BaseKVReceiver)
    seen = {
        "version": version("sglang"),
        "stubs": STUBS,
        "polls": {n: v for n, v in vars(conn.KVPoll).items() if not n.startswith("_")},
        "room_states": {state.name: state.value for state in RoomState},
        "abstract": {base.__name__: sorted(base.__abstractmethods__) for base in bases},
        "signatures": signatures(),
        "differing_splits": differing_splits(5000),
        "cases": cases,
        "failures": tells_failures(site),
    }
    for worker in site.workers:
        worker.close()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
