# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The two processes of the transports benchmark: a prefill rank, and all decode ranks.

Both poll between the parent's commands, so that neither waits for the other to be asked. Times are
of the monotonic clock, which processes of one host share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from transport_memory import POISON, Kind, Memory, Packing, make_copies, make_memory

from kvxfer import Plane, PlaneKind, PoolLayout, Sharding, transports
from kvxfer.demo.processes import Wire
from kvxfer.errors import DeadlineError
from kvxfer.transfer import (
    LocalPool,
    ReceiverRoom,
    RoomState,
    SenderRoom,
    TransferManager,
    TransferOptions,
    ZmqChannel,
)
from kvxfer.transports.protocol import Transport, WriteState

PAGE_SIZE = 64
ROW_BYTES = 576
PLANE_COUNT = 7
RANKS = 4
TOKEN_BYTES = ROW_BYTES * PLANE_COUNT

Pages: TypeAlias = NDArray[np.int64]

_DEADLINE_S = 300.0
_NOISE_SEED = 11


@dataclass(frozen=True)
class Sender:
    """One way of sending: settings of the prefill rank's manager, and who packs.

    The thread that polls also packs and posts, whatever the way.
    """

    name: str
    options: dict[str, Any]
    packing: Packing = "kvxfer"


@dataclass(frozen=True)
class Setting:
    """What both processes of a lane are told.

    ``pool_pages``: pages of the prefill pool; each decode rank has a fourth of them.
    """

    transport: str
    transport_options: dict[str, Any]
    memory: Kind
    secret: bytes
    pool_pages: int
    senders: tuple[Sender, ...]
    receiver_options: dict[str, Any] = field(default_factory=dict)
    pause_s: float = 0.0

    @property
    def pool_bytes(self) -> int:
        return self.pool_pages * PAGE_SIZE * TOKEN_BYTES


@dataclass(frozen=True)
class Request:
    """One request: where its rows lie on either side. Decode ranks use the same page numbers."""

    tokens: int
    source_pages: Pages
    pages: Pages


class Worker:
    """What the two processes have in common: one memory, agents on it, and a loop that polls."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.memory: Memory = make_memory(setting.memory, setting.pool_bytes)
        self.managers: dict[str, TransferManager] = {}
        self.polled: list[TransferManager] = []
        self._closers: list[Callable[[], None]] = []
        self.bare = self._transport("bare")
        self.bare.register_memory(self.memory.address, setting.pool_bytes)

    def manage(
        self, name: str, sharding: Sharding, offset_bytes: int, way: Sender | None
    ) -> TransferManager:
        """Open a manager over the planes that begin at an offset of the memory."""
        setting = self.setting
        planes = [Plane(layer, PlaneKind.LATENT, ROW_BYTES) for layer in range(PLANE_COUNT)]
        layout = PoolLayout(
            PAGE_SIZE, setting.pool_pages // sharding.ranks, planes, sharding=sharding
        )
        first = self.memory.address + offset_bytes
        addresses = tuple(first + p * layout.plane_bytes(0) for p in range(PLANE_COUNT))
        packing = way.packing if way is not None else "kvxfer"
        options = dict(way.options if way is not None else setting.receiver_options)
        manager = TransferManager(
            LocalPool(layout, addresses),
            self._transport(name),
            channel := ZmqChannel(secret=setting.secret),
            TransferOptions(
                heartbeat_interval_s=600.0,
                role="sender" if way is not None else "receiver",
                **options,
            ),
            copies=make_copies(setting.memory, packing, self.memory, addresses, ROW_BYTES),
        )
        self._closers += [channel.close, manager.close]
        self.managers[name] = manager
        return manager

    def poll(self) -> None:
        self.bare.drain_notifications()
        for manager in self.polled:
            manager.poll()

    def poll_until(self, is_true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _DEADLINE_S
        while not is_true():
            self.poll()
            if self.setting.pause_s:
                time.sleep(self.setting.pause_s)
            if time.monotonic() > until:
                raise DeadlineError("deadline", "", None, f"{what} not within {_DEADLINE_S:g} s")

    def close(self) -> None:
        """End managers before their channels and transports."""
        for closer in reversed(self._closers):
            closer()

    def _transport(self, name: str) -> Transport:
        transport = transports.create(
            self.setting.transport,
            f"{type(self).__name__}-{name}",
            **self.setting.transport_options,
        )
        self._closers.append(transport.close)
        return transport


class Prefill(Worker):
    """The prefill rank: one manager for each way of sending, over one pool of noise."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.memory.from_host(noise(setting.pool_bytes))
        for way in setting.senders:
            self.manage(way.name, Sharding(), 0, way)
        self.room: SenderRoom | None = None

    def addresses(self) -> dict[str, str]:
        return {name: manager.address for name, manager in self.managers.items()}

    def add_target(self, description: bytes) -> None:
        self.bare.add_peer(description)

    def open(self, number: int, sender: str) -> None:
        """Open a room and wait until every decode rank has asked for it."""
        manager = self.managers[sender]
        self.polled = [manager]
        self.room = room = manager.open_sender(number, RANKS)
        self.poll_until(lambda: room.state is not RoomState.BOOTSTRAPPING, f"requests of {sender}")

    def move(self, request: Request) -> dict[str, Any]:
        """Send everything at once; returns the time of the call and what the room counted."""
        assert self.room is not None
        room = self.room
        begin_s = time.monotonic()
        room.send(request.source_pages, request.tokens, is_final=True)
        self.poll_until(lambda: room.state.is_over, "the send")
        end_s = time.monotonic()
        if room.error is not None:
            raise room.error
        self.poll_until(lambda: not room.pages_held, "the end of the room's writes")
        result = room.result()
        return {
            "begin_s": begin_s,
            "end_s": end_s,
            "modes": sorted(set(result.modes.values())),
            "metrics": result.metrics,
            "write_cost_us": self.managers_cost(),
        }

    def managers_cost(self) -> float:
        return self.bare.write_cost_us

    def write(self, offset_bytes: int, address: int, size_bytes: int) -> dict[str, Any]:
        """Write one contiguous stretch of the memory, with nothing around it."""
        self.polled = []
        begin_s = time.monotonic()
        run = np.array([[self.memory.address + offset_bytes, address, size_bytes]], np.int64)
        handle = self.bare.post("Decode-bare", run, b"wire")
        self.poll_until(lambda: self.bare.poll(handle).has_ended, "the bare write")
        state = self.bare.poll(handle)
        self.bare.release(handle)
        if state is not WriteState.DONE:
            raise DeadlineError("transport", "", None, f"the bare write ended {state.value}")
        return {"begin_s": begin_s, "end_s": time.monotonic()}


class Decode(Worker):
    """All decode ranks, each with an agent and a manager of its own, over poisoned pools."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.expected = noise(setting.pool_bytes)
        share_bytes = setting.pool_bytes // RANKS
        for rank in range(RANKS):
            self.manage(f"rank-{rank}", Sharding(RANKS, rank), rank * share_bytes, None)
        self.polled = list(self.managers.values())
        self.rooms: list[ReceiverRoom] = []
        self.heard: list[tuple[str, bytes]] = []

    def target(self) -> tuple[bytes, int]:
        return self.bare.describe(), self.memory.address

    def open(self, number: int, source: str, request: Request, landing: str) -> None:
        """Ask for a request on every rank."""
        self.rooms = [
            manager.open_receiver(
                number,
                [source],
                request.pages,
                end=request.tokens,
                landing=landing,  # type: ignore[arg-type]
            )
            for manager in self.polled
        ]

    def move(self) -> dict[str, Any]:
        """Poll until every rank has its rows in place; returns when that was."""
        self.poll_until(lambda: all(room.state.is_over for room in self.rooms), "the rows")
        end_s = time.monotonic()
        for room in self.rooms:
            if room.error is not None:
                raise room.error
        return {"end_s": end_s, "bytes": sum(room.metrics.bytes for room in self.rooms)}

    def hear(self) -> dict[str, Any]:
        """Poll until the bare write was heard of."""
        heard: list[tuple[str, bytes]] = []
        until = time.monotonic() + _DEADLINE_S
        while not heard:
            heard = self.bare.drain_notifications()
            if time.monotonic() > until:
                raise DeadlineError("deadline", "", None, "the bare write was not heard of")
            if self.setting.pause_s:
                time.sleep(self.setting.pause_s)
        return {"end_s": time.monotonic()}

    def check(self, request: Request) -> dict[str, int]:
        """Compare every row of a request, then every other byte of all pools; poison them again."""
        host = self.memory.to_host()
        rows = host.reshape(RANKS, PLANE_COUNT, -1, ROW_BYTES)
        expected = self.expected.reshape(PLANE_COUNT, -1, ROW_BYTES)
        differing = 0
        for rank in range(RANKS):
            positions = np.arange(rank, request.tokens, RANKS)
            local = positions // RANKS
            source = request.source_pages[positions // PAGE_SIZE] * PAGE_SIZE
            source += positions % PAGE_SIZE
            at = request.pages[local // PAGE_SIZE] * PAGE_SIZE + local % PAGE_SIZE
            for plane in range(PLANE_COUNT):
                got = rows[rank, plane]
                differing += int(np.count_nonzero(got[at] != expected[plane][source]))
                got[at] = POISON
        return self._stray(host, differing)

    def check_stretch(
        self, source_bytes: int, offset_bytes: int, size_bytes: int
    ) -> dict[str, int]:
        """As ``check``, for a bare write."""
        host = self.memory.to_host()
        got = host[offset_bytes : offset_bytes + size_bytes]
        expected = self.expected[source_bytes : source_bytes + size_bytes]
        differing = int(np.count_nonzero(got != expected))
        got[:] = POISON
        return self._stray(host, differing)

    def _stray(self, host: NDArray[np.uint8], differing: int) -> dict[str, int]:
        poison = np.frombuffer(bytes([POISON]) * 8, np.uint64)[0]
        stray_words = int(np.count_nonzero(host.view(np.uint64) != poison))
        if stray_words:
            host[:] = POISON
        self.memory.from_host(host)
        return {"differing_bytes": differing, "stray_words": stray_words}


def noise(size_bytes: int) -> NDArray[np.uint8]:
    """Return what the prefill pool holds: no two rows are alike."""
    return np.random.default_rng(_NOISE_SEED).integers(0, 256, size_bytes, dtype=np.uint8)


def run_prefill(wire: Wire) -> None:
    _serve(wire, Prefill)


def run_decode(wire: Wire) -> None:
    _serve(wire, Decode)


def _serve(wire: Wire, make: Callable[[Setting], Worker]) -> None:
    """Poll, and do what the parent asks for, until it says stop."""
    worker = make(wire.receive("setting", _DEADLINE_S))
    wire.send("ready")
    while True:
        while not wire.connection.poll(0.0):
            worker.poll()
            time.sleep(0.00005)
        name, call = wire.receive_either("call", "stop")
        if name == "stop":
            break
        verb, arguments = call
        wire.send("result", getattr(worker, verb)(*arguments))
    worker.close()
    wire.send("stopped")
