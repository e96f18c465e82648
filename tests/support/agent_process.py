# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""An agent of any transport in a process of its own, told what to do over a pipe.

The process polls its agent between commands, unless it is told not to. Every call has a bound.
"""

import ctypes
import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

from kvxfer import transports
from kvxfer.transports.protocol import Transport, WriteHandle
from support.transport_cases import WAIT_S, Memory


class RemoteError(Exception):
    """A call failed in the process; the text names the error's type."""


class AgentProcess:
    """Starts a process with one agent and one registered, poisoned memory."""

    def __init__(
        self,
        transport: str,
        agent_name: str,
        size_bytes: int,
        *,
        make_memory: Callable[[int], Memory] = Memory,
        **options: Any,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        arguments = (far_end, transport, agent_name, size_bytes, make_memory, options)
        self._process = context.Process(target=_main, args=arguments, daemon=True)
        self._process.start()
        far_end.close()
        self.size_bytes = size_bytes
        self.address: int = self.call("address")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def call(self, command: str, *arguments: Any) -> Any:
        """Run a method of ``_Commands`` there and return what it returns."""
        self._pipe.send((command, arguments))
        if not self._pipe.poll(WAIT_S):
            raise TimeoutError(f"{command} has not been answered within {WAIT_S} s")
        error, result = self._pipe.recv()
        if error is not None:
            raise RemoteError(error)
        return result

    def freeze(self) -> None:
        """Stop the process where it stands, and wait until it has stopped."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process as ``kill -9`` does."""
        self._process.kill()
        deadline = time.monotonic() + WAIT_S
        # Not join: it waits for a pipe that a fork of the process keeps open.
        while self._process.exitcode is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} has not ended within {WAIT_S} s")
            time.sleep(0.001)
        self._pipe.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


class _Commands:
    def __init__(self, agent: Transport, memory: Memory) -> None:
        self.agent = agent
        self.memory = memory
        self.heard: list[tuple[str, bytes]] = []
        self.handles: list[WriteHandle] = []
        self.polls_by_itself = True

    def step(self) -> None:
        self.heard += self.agent.drain_notifications()
        for handle in self.handles:
            self.agent.poll(handle)

    def address(self) -> int:
        return self.memory.address

    def describe(self) -> bytes:
        return self.agent.describe()

    def add_peer(self, description: bytes) -> str:
        return self.agent.add_peer(description)

    def fill(self, seed: int) -> None:
        self.memory.fill(seed)

    def content(self) -> bytes:
        return self.memory.bytes.tobytes()

    def is_untouched(self) -> bool:
        return self.memory.is_untouched()

    def guards_are_untouched(self) -> bool:
        return self.memory.guards_are_untouched()

    def poll_by_itself(self, is_wanted: bool) -> None:
        self.polls_by_itself = is_wanted

    def hear(self) -> list[tuple[str, bytes]]:
        """Everything that was heard since the start."""
        self.step()
        return self.heard

    def post(self, peer: str, runs: list[tuple[int, int, int]], notification: bytes) -> None:
        writes = np.array(runs, dtype=np.int64).reshape(-1, 3)
        self.handles.append(self.agent.post(peer, writes, notification))

    def states(self) -> list[str]:
        return [self.agent.poll(handle).name for handle in self.handles]

    def write_cost_us(self) -> float:
        return self.agent.write_cost_us

    def close(self) -> None:
        self.agent.close()

    def deregister(self) -> None:
        self.agent.deregister_memory(self.memory.address)

    def unmap(self) -> None:
        """Give the whole pages of the memory back to the kernel; nothing may look at them again."""
        page_bytes = mmap.PAGESIZE
        start = -(-self.memory.address // page_bytes) * page_bytes
        size_bytes = (self.memory.address + self.memory.size_bytes - start) & -page_bytes
        failed = ctypes.CDLL(None).munmap(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes))
        assert not failed, f"munmap of {size_bytes} bytes at {start:#x} failed"

    def leave_a_fork(self) -> int:
        """Fork a child that holds every descriptor for a while; returns its process id."""
        pid = os.fork()
        if pid == 0:
            time.sleep(WAIT_S)
            os._exit(0)
        return pid


def _main(
    pipe: Connection,
    transport: str,
    agent_name: str,
    size_bytes: int,
    make_memory: Callable[[int], Memory],
    options: dict[str, Any],
) -> None:
    memory = make_memory(size_bytes)
    agent = transports.create(transport, agent_name, **options)
    agent.register_memory(memory.address, size_bytes)
    commands = _Commands(agent, memory)
    while True:
        if not pipe.poll(0):
            if commands.polls_by_itself:
                commands.step()
            time.sleep(0.0005)
            continue
        try:
            command, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((None, getattr(commands, command)(*arguments)))
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))
