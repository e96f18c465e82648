# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The transports that the conformance suite runs on, and what its tests need besides.

A transport joins by an entry in ``CASES``.
"""

import importlib.util
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer import transports
from kvxfer.transports.protocol import Transport, WriteHandle, WriteState
from support import library_environment, mooncake_pool
from support.scripted_transport import ScriptedWire

POISON = 0xA5
WAIT_S = 30.0

# Makes an agent by name; all agents of one maker can meet.
Maker = Callable[[str], Transport]


@dataclass(frozen=True)
class TransportCase:
    """How to make agents of a transport, and the module without which that is impossible."""

    make_maker: Callable[[], Maker]
    needs_module: str = "kvxfer"

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.needs_module) is not None


def _loopback(data_path: str) -> Maker:
    return lambda name: transports.create("loopback", name, data_path=data_path)


def _scripted() -> Maker:
    wire = ScriptedWire()
    wire.completes_on_poll = 2
    return lambda name: transports.create("support.scripted_transport", name, wire=wire)


def _nixl() -> Maker:
    library_environment.apply(library_environment.NIXL)
    return lambda name: transports.create("nixl", name)


def _mooncake() -> Maker:
    library_environment.apply(library_environment.MOONCAKE)
    return mooncake_pool.make_agent


CASES: dict[str, TransportCase] = {
    "scripted": TransportCase(_scripted),
    "loopback-process_vm": TransportCase(lambda: _loopback("process_vm")),
    "loopback-memfd": TransportCase(lambda: _loopback("memfd")),
    "nixl": TransportCase(_nixl, "nixl_cu13"),
    "mooncake": TransportCase(_mooncake, "mooncake"),
}


class Memory:
    """Poisoned bytes with as many poisoned bytes before and after them."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._all = np.full(3 * size_bytes, POISON, dtype=np.uint8)
        self.bytes = self._all[size_bytes : 2 * size_bytes]
        self.address = self.bytes.ctypes.data

    def fill(self, seed: int) -> None:
        """Put random bytes inside, leaving the guards."""
        self.bytes[:] = np.random.default_rng(seed).integers(0, 256, self.size_bytes, np.uint8)

    def is_untouched(self) -> bool:
        return bool((self._all == POISON).all())

    def guards_are_untouched(self) -> bool:
        guards = (self._all[: self.size_bytes], self._all[2 * self.size_bytes :])
        return all(bool((guard == POISON).all()) for guard in guards)


class Pair:
    """Two agents that know each other, with registered memory: source writes to target."""

    def __init__(self, make: Maker, size_bytes: int) -> None:
        self.source, self.target = make("source"), make("target")
        self.source_memory, self.target_memory = Memory(size_bytes), Memory(size_bytes)
        self.source_memory.fill(seed=size_bytes)
        for agent, memory in (
            (self.source, self.source_memory),
            (self.target, self.target_memory),
        ):
            agent.register_memory(memory.address, memory.size_bytes)
        self.peer = self.source.add_peer(self.target.describe())

    def writes(self, *runs: tuple[int, int, int]) -> NDArray[np.int64]:
        """Write list of (source offset, target offset, bytes)."""
        bases = (self.source_memory.address, self.target_memory.address, 0)
        return np.array(runs, dtype=np.int64).reshape(-1, 3) + np.array(bases, dtype=np.int64)

    def whole(self) -> NDArray[np.int64]:
        return self.writes((0, 0, self.source_memory.size_bytes))

    def is_copied(self) -> bool:
        return bool((self.source_memory.bytes == self.target_memory.bytes).all())

    def settle(self, *handles: WriteHandle) -> list[tuple[str, bytes]]:
        """Poll both sides until the handles have ended; returns what the target was told."""
        return settle(self.source, handles, [self.target])

    def receive(self, count: int) -> list[tuple[str, bytes]]:
        """Poll the target until so many notifications came, then a little longer."""
        return receive(self.target, count, [self.source])


def settle(
    sender: Transport, handles: Iterable[WriteHandle], others: Iterable[Transport]
) -> list[tuple[str, bytes]]:
    """Poll until every handle has ended, also the other agents; returns what those were told."""
    left = list(handles)
    heard: list[tuple[str, bytes]] = []
    deadline = time.monotonic() + WAIT_S
    while left:
        left = [handle for handle in left if not sender.poll(handle).has_ended]
        for agent in others:
            heard += agent.drain_notifications()
        if time.monotonic() > deadline:
            raise TimeoutError(f"posts have not ended within {WAIT_S} s: {left}")
    return heard


def receive(
    target: Transport, count: int, others: Iterable[Transport] = ()
) -> list[tuple[str, bytes]]:
    """Drain until so many notifications came, then some rounds more to see what is too much."""
    heard: list[tuple[str, bytes]] = []
    deadline = time.monotonic() + WAIT_S
    rounds_after = 0
    while rounds_after < 20:
        heard += target.drain_notifications()
        for agent in others:
            agent.drain_notifications()
        rounds_after += len(heard) >= count
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(heard)} of {count} notifications within {WAIT_S} s")
    return heard


def expect_state(agent: Transport, handle: WriteHandle, state: WriteState) -> None:
    found = agent.poll(handle)
    assert found is state, f"{handle} is {found}, expected {state}"
