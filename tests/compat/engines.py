# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The test's end of an engine process, and the models that engines serve."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "MC_FORCE_TCP": "1",
    "MC_LOG_LEVEL": "ERROR",
    "UCX_TLS": "tcp,sm,self",
    "NIXL_LOG_LEVEL": "ERROR",
}
# An engine that starts beside others on two cores takes up to a minute.
START_S = 240.0
ANSWER_S = 120.0


class Engine:
    """One engine process. Events are matched by kind and request; what is not awaited is kept."""

    def __init__(self, model: Path, **spec: Any) -> None:
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": python_path()}
        if spec.get("tensor_parallel_size", 1) > 1:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "engine_process.py"),
                json.dumps({"model": str(model), **spec}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.page_count = 0
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._kept: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self) -> Self:
        self.page_count = self.event("ready", timeout_s=START_S)["page_count"]
        return self

    def add(
        self,
        name: str,
        prompt: list[int],
        tokens: int,
        params: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Begin a request. ``damage``: what to do to its pages once they are loaded; ``holds``:
        stop after the step that finishes it, until ``go_on``.
        """
        self._do("add", name=name, prompt=prompt, tokens=tokens, params=params, options=options)

    def abort(self, name: str) -> None:
        self._do("abort", name=name)
        self.event("aborted", name)

    def go_on(self) -> None:
        self._do("go_on")

    def statistics(self) -> dict[str, list[Any]]:
        """Return what the connector measured since the last call."""
        self._do("statistics")
        series: dict[str, list[Any]] = self.event("statistics")["series"]
        return series

    def rows(self, name: str) -> dict[str, list[str]]:
        self._do("rows", name=name)
        digests: dict[str, list[str]] = self.event("rows", name)["digests"]
        return digests

    def look(self) -> dict[str, Any]:
        self._do("look")
        return self.event("look")

    def wait_for(self, what: str, is_reached: Any) -> dict[str, Any]:
        """Look until a state is reached."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            seen = self.look()
            if is_reached(seen):
                return seen
            time.sleep(0.02)
        raise TimeoutError(f"{what}: last seen {seen}")

    def event(
        self, kind: str, name: str | None = None, timeout_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """Return the next event of a kind, for a request."""
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self._kept:
                if event["event"] == kind and (name is None or event["id"] == name):
                    self._kept.remove(event)
                    return event
            try:
                got = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"no {kind} of {name}, kept {self._kept}") from None
            if got is None:
                raise RuntimeError(f"engine ended with {self._process.wait(30)}, awaited {kind}")
            self._kept.append(got)

    def kill(self) -> None:
        """End the process as a crash would."""
        self._process.kill()
        self._end(30)

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._end(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def _end(self, timeout_s: float) -> None:
        self._process.wait(timeout_s)
        self._reader.join(30)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _do(self, command: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **fields}) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))


def connector(**settings: Any) -> dict[str, Any]:
    """The one JSON flag."""
    failure_policy = settings.pop("kv_load_failure_policy", "fail")
    return {
        "kv_connector": "KvxferConnector",
        "kv_connector_module_path": "kvxfer.adapters.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": failure_policy,
        "kv_connector_extra_config": settings,
    }


@contextlib.contextmanager
def started(*engines: Engine) -> Iterator[list[Engine]]:
    """Engines that start beside each other and end together."""
    with contextlib.ExitStack() as stack:
        for engine in engines:
            stack.enter_context(engine)
        yield [engine.wait_ready() for engine in engines]
