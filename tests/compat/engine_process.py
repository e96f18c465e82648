# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine in a process of its own: commands as JSON lines in, events as JSON lines out.

Started as ``python engine_process.py SPEC``; see ``engines.py`` for both ends' words. The engine's
scheduler lives in this process, so that steps, pages and waiting requests can be looked at.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

import torch
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

ENGINE_ARGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_batched_tokens": 1024,
    "enable_prefix_caching": False,
    "seed": 0,
    "disable_log_stats": False,
    "worker_extension_cls": "compat.worker_extension.CacheProbe",
}


class EngineProcess:
    """Drives one engine, one step at a time."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._engine = LLMEngine.from_engine_args(EngineArgs(**{**ENGINE_ARGS, **spec}))
        self._scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self._commands: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._pages: dict[str, list[int]] = {}
        self._options: dict[str, dict[str, Any]] = {}
        self._preemption_count = 0
        self._statistics: dict[str, list[Any]] = {}
        self._looked_at: set[str] = set()
        self._is_paused = False
        self._watch_pages()
        self._watch_outputs()
        threading.Thread(target=self._read, daemon=True).start()

    def run(self) -> None:
        pool = self._scheduler.kv_cache_manager.block_pool
        tell(event="ready", page_count=pool.num_gpu_blocks)
        while True:
            is_idle = self._is_paused or not self._scheduler.has_requests()
            try:
                command = self._commands.get(timeout=0.02 if is_idle else 0.0005)
            except queue.Empty:
                command = {}
            if command is None:
                return
            if command:
                getattr(self, "do_" + command.pop("do"))(**command)
            if not self._is_paused and self._scheduler.has_requests():
                self._step()

    # -- commands -------------------------------------------------------------------------------

    def do_add(
        self, name: str, prompt: list[int], tokens: int, params: Any, options: dict[str, Any]
    ) -> None:
        self._options[name] = options
        sampling = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=None if params is None else {"kv_transfer_params": params},
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def do_abort(self, name: str) -> None:
        self._engine.abort_request([name])
        tell(event="aborted", id=name)

    def do_go_on(self) -> None:
        self._is_paused = False

    def do_rows(self, name: str) -> None:
        pages = self._pages[self._internal(name)]
        tell(event="rows", id=name, digests=self._digests(pages))

    def do_look(self) -> None:
        pool = self._scheduler.kv_cache_manager.block_pool
        tell(
            event="look",
            free_pages=pool.get_num_free_blocks(),
            requests=len(self._scheduler.requests),
            statuses=[request.status.name for request in self._scheduler.requests.values()],
            preemptions=self._preemption_count,
        )

    def do_statistics(self) -> None:
        tell(event="statistics", series=self._statistics)
        self._statistics = {}

    # -- own ------------------------------------------------------------------------------------

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                tell(
                    event="done",
                    id=output.request_id,
                    tokens=list(output.outputs[0].token_ids),
                    reason=output.outputs[0].finish_reason,
                    params=output.kv_transfer_params,
                )
                # What comes next is the step that hands the request to the workers.
                options = self._options.get(output.request_id, {})
                self._is_paused = self._is_paused or bool(options.get("holds"))
        for name in set(self._scheduler.finished_recving_kv_req_ids) - self._looked_at:
            self._looked_at.add(name)
            self._loaded(name)

    def _loaded(self, name: str) -> None:
        """Look at a load before anything is computed on top of it, and damage it if told to."""
        if name in self._scheduler.failed_recving_kv_req_ids:
            tell(event="load failed", id=self._external(name))
            return
        pages = self._pages[name]
        digests = self._digests(pages)
        tell(event="loaded", id=self._external(name), digests=digests)
        kind = self._options[self._external(name)].get("damage")
        if kind is not None:
            self._engine.collective_rpc("damage", args=(kind, pages))

    def _digests(self, pages: list[int]) -> dict[str, list[str]]:
        joined: dict[str, list[str]] = {}
        for digests in self._engine.collective_rpc("page_digests", args=(pages,)):
            joined.update(digests)
        return joined

    def _watch_pages(self) -> None:
        """Note the pages of every request as the connector is told them."""
        connector = self._scheduler.get_kv_connector()
        if connector is None:
            return
        allocated, finished = (
            connector.update_state_after_alloc,
            connector.request_finished_all_groups,
        )

        def on_allocated(request: Any, blocks: Any, tokens: int) -> None:
            self._pages[request.request_id] = list(blocks.get_block_ids()[0])
            allocated(request, blocks, tokens)

        def on_finished(request: Any, pages: Any) -> Any:
            self._pages[request.request_id] = list(pages[0])
            return finished(request, pages)

        connector.update_state_after_alloc = on_allocated
        connector.request_finished_all_groups = on_finished

    def _watch_outputs(self) -> None:
        """Note preemptions, and what the connector measured, as the scheduler learns of them."""
        preempt, make_stats = self._scheduler._preempt_request, self._scheduler.make_stats

        def on_preempt(*args: Any, **options: Any) -> Any:
            self._preemption_count += 1
            return preempt(*args, **options)

        def on_stats(*args: Any, **options: Any) -> Any:
            stats = make_stats(*args, **options)
            measured = getattr(stats, "kv_connector_stats", None) or {}
            for name, values in measured.items():
                self._statistics.setdefault(name, []).extend(values)
            return stats

        self._scheduler._preempt_request, self._scheduler.make_stats = on_preempt, on_stats

    def _internal(self, external: str) -> str:
        return max(name for name in self._pages if self._external(name) == external)

    def _external(self, internal: str) -> str:
        """The id that the test gave: vLLM adds a random part to it."""
        return internal.rsplit("-", 1)[0]

    def _read(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put(None)


def tell(**event: Any) -> None:
    os.write(EVENTS, (json.dumps(event) + "\n").encode())


if __name__ == "__main__":
    # Engines print to standard output; events have it for themselves.
    EVENTS = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    EngineProcess(json.loads(sys.argv[1])).run()
