# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Mooncake agents whose engines are used again.

Destroying an engine takes up to a second, in which the interpreter stands still; the conformance
suite makes hundreds of agents. An engine with writes under way is destroyed all the same.
"""

import importlib
import time
from typing import Any

from kvxfer.transports._mooncake.engine import DONE, FAILED, MooncakeEngine
from kvxfer.transports.mooncake import DEFAULT_WRITE_COST, Limits, MooncakeTransport

HOST = "127.0.0.1"
# Ample for what is in the kernel already: nobody writes into memory of a test that is over.
SETTLE_S = 0.01

_idle: list[MooncakeEngine] = []


class _PooledEngine:
    """Stands before an engine; ends by giving it back."""

    def __init__(self) -> None:
        module = importlib.import_module("mooncake.engine")
        self._engine = _idle.pop() if _idle else MooncakeEngine(module, HOST, "tcp", "")
        self._registered: set[int] = set()
        self._running: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def register(self, address: int, size_bytes: int, device: int) -> None:
        self._engine.register(address, size_bytes, device)
        self._registered.add(address)

    def deregister(self, address: int) -> None:
        self._engine.deregister(address)
        self._registered.remove(address)

    def submit(self, session: str, source: int, destination: int, size_bytes: int) -> int:
        write_id = self._engine.submit(session, source, destination, size_bytes)
        self._running.add(write_id)
        return write_id

    def status(self, write_id: int) -> int:
        status = self._engine.status(write_id)
        if status in (DONE, FAILED):
            self._running.discard(write_id)
        return status

    def destroy(self) -> None:
        time.sleep(SETTLE_S)
        if self._running:
            self._engine.destroy()
            return
        for address in self._registered:
            self._engine.deregister(address)
        _idle.append(self._engine)


def make_agent(agent_name: str) -> MooncakeTransport:
    make_engine: Any = _PooledEngine
    return MooncakeTransport(
        agent_name, DEFAULT_WRITE_COST, make_engine, HOST, Limits(settle_s=0.1)
    )
