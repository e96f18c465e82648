# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the NIXL and Mooncake transports between processes share."""

import sys
import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from kvxfer.transports.protocol import Transport, WriteHandle, WriteState
from support.agent_process import AgentProcess
from support.transport_cases import WAIT_S, Memory

NO_WRITES = np.empty((0, 3), dtype=np.int64)
OLD, NEW = 0x11, 0x22
PAUSE_S = 0.0005


class Sender:
    """An agent of this process with filled, registered memory that writes to agent processes."""

    def __init__(self, agent: Transport, size_bytes: int) -> None:
        self.agent = agent
        self.memory = Memory(size_bytes)
        self.memory.fill(seed=size_bytes)
        agent.register_memory(self.memory.address, size_bytes)

    def add(self, target: AgentProcess) -> str:
        return self.agent.add_peer(target.call("describe"))

    def runs(self, target: AgentProcess, *runs: tuple[int, int, int]) -> NDArray[np.int64]:
        """Write list of (source offset, target offset, bytes)."""
        bases = np.array([self.memory.address, target.address, 0], dtype=np.int64)
        return np.array(runs, dtype=np.int64).reshape(-1, 3) + bases

    def whole(self, target: AgentProcess, piece_count: int = 1) -> NDArray[np.int64]:
        """Write list of all memory in equal pieces."""
        piece_bytes = self.memory.size_bytes // piece_count
        starts = range(0, piece_bytes * piece_count, piece_bytes)
        return self.runs(target, *((start, start, piece_bytes) for start in starts))

    def settle(self, *handles: WriteHandle) -> list[WriteState]:
        """Poll until every handle has ended and return their states."""
        self.wait_until(lambda: all(self.agent.poll(handle).has_ended for handle in handles))
        return [self.agent.poll(handle) for handle in handles]

    def wait_for(self, handle: WriteHandle, *states: WriteState) -> WriteState:
        """Poll until a handle is in one of the states."""
        self.wait_until(lambda: self.agent.poll(handle) in states)
        return self.agent.poll(handle)

    def poll_for(self, handle: WriteHandle, seconds: float) -> set[WriteState]:
        """Poll for so long and return every state that was seen."""
        end = time.monotonic() + seconds
        seen = set()
        while time.monotonic() < end:
            seen.add(self.agent.poll(handle))
            time.sleep(PAUSE_S)
        return seen

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_true():
            self.agent.drain_notifications()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {WAIT_S} s")
            time.sleep(PAUSE_S)


def heard(sender: Sender, target: AgentProcess, count: int) -> list[bytes]:
    """The notifications that a target has got so far, once it is at least so many."""
    sender.wait_until(lambda: len(target.call("hear")) >= count)
    found: Iterable[tuple[str, bytes]] = target.call("hear")
    assert {name for name, _ in found} <= {sender.agent.agent_name}
    return [message for _, message in found]


def count_bytes(target: AgentProcess, value: int) -> int:
    """How many bytes of a target's memory have a value."""
    content: bytes = target.call("content")
    return content.count(value)


def hide_modules(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    """Let modules, and what is below them, be as if they were not installed."""

    class Hider:
        def find_spec(self, name: str, *_: object) -> None:
            if any(name == each or name.startswith(f"{each}.") for each in hidden):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in list(sys.modules):
        if name.split(".")[0] in {each.split(".")[0] for each in hidden}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hider(), *sys.meta_path])
