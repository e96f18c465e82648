# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One worker in a process of its own: loopback transport, ZeroMQ channel, driven over a pipe.

Content of a row is a function of rank, plane, page and row, so that either process can tell what
every byte of the other's pool was.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer import Plane, PlaneKind, PoolLayout, Sharding, transports
from kvxfer.transfer import LocalPool, TransferManager, TransferOptions, ZmqChannel

PLANES = ((0, 576), (1, 128))
SECRET = b"of the workers of one test"


@dataclass(frozen=True)
class Worker:
    """What a worker is started with."""

    name: str
    ranks: int = 1
    rank: int = 0
    page_size: int = 16
    page_count: int = 256
    transport: str = "loopback"
    options: dict[str, Any] = field(default_factory=dict)

    def layout(self) -> PoolLayout:
        planes = [Plane(layer, PlaneKind.LATENT, row_bytes) for layer, row_bytes in PLANES]
        sharding = Sharding(self.ranks, self.rank)
        return PoolLayout(self.page_size, self.page_count, planes, sharding=sharding)

    def noise(self, plane: int) -> NDArray[np.uint8]:
        """What a plane holds at the start: rows that all differ."""
        seed = [len(self.name), *self.name.encode(), self.rank, plane]
        size = self.page_count * self.page_size * PLANES[plane][1]
        return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class Process:
    """The parent's end."""

    def __init__(self, worker: Worker) -> None:
        context = get_context("spawn")
        self.pipe, child = context.Pipe()
        self.worker = worker
        self.process = context.Process(target=_main, args=(worker, child), daemon=True)
        self.process.start()
        child.close()
        self.address: str = self.ask("address")

    def ask(self, verb: str, *arguments: Any, timeout_s: float = 50.0) -> Any:
        """Call a verb of the worker and return its answer."""
        self.tell(verb, *arguments)
        return self.answer(timeout_s)

    def tell(self, verb: str, *arguments: Any) -> None:
        self.pipe.send((verb, arguments))

    def answer(self, timeout_s: float = 50.0) -> Any:
        if not self.pipe.poll(timeout_s):
            raise TimeoutError(f"{self.worker.name} did not answer within {timeout_s} s")
        is_error, answer = self.pipe.recv()
        if is_error:
            raise AssertionError(f"{self.worker.name}: {answer}")
        return answer

    def stop(self) -> None:
        self.process.kill()
        self.process.join(timeout=20)
        self.pipe.close()


class _Loop:
    """The child's end: polls its manager between commands."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        layout = worker.layout()
        self.arrays = [worker.noise(index) for index in range(len(PLANES))]
        self.channel = ZmqChannel(secret=SECRET)
        self.transport = transports.create(worker.transport, worker.name)
        self.manager = TransferManager(
            LocalPool.from_arrays(layout, self.arrays),
            self.transport,
            self.channel,
            TransferOptions(**{"pack_tokens": 64, **worker.options}),
        )
        self.senders: dict[int, Any] = {}
        self.receivers: dict[int, Any] = {}

    def address(self) -> str:
        return self.manager.address

    def open_sender(self, room: int, count: int) -> None:
        self.senders[room] = self.manager.open_sender(room, count)

    def open_receiver(self, room: int, sources: list[str], pages: list[int], fields: dict) -> None:
        self.receivers[room] = self.manager.open_receiver(room, sources, pages, **fields)

    def send(self, room: int, pages: list[int], end: int, is_final: bool, fields: dict) -> None:
        self.senders[room].send(pages, end, is_final=is_final, **fields)

    def abort(self, room: int) -> None:
        for rooms in (self.senders, self.receivers):
            if room in rooms:
                rooms[room].abort()

    def finish(self, timeout_s: float) -> dict[str, tuple[str, str, bool]]:
        """Poll until every room is over and lets go of its pages; state, error, pages held."""
        rooms = [*self.senders.values(), *self.receivers.values()]
        self._poll_until(
            lambda: all(r.state.is_over and not r.pages_held for r in rooms), timeout_s
        )
        ended = {}
        for side, table in (("sender", self.senders), ("receiver", self.receivers)):
            for number, room in table.items():
                name = f"{side} {number}"
                ended[name] = (room.state.name, str(room.error or ""), room.pages_held)
        return ended

    def end_of(self, side: str, room: int, timeout_s: float) -> str:
        """Poll until one room is over, and return its error."""
        table = self.senders if side == "sender" else self.receivers
        self._poll_until(lambda: table[room].state.is_over, timeout_s)
        return str(table[room].error or "")

    def rest(self, seconds: float) -> None:
        """Poll for a while."""
        self._poll_until(lambda: False, seconds)

    def metadata(self, room: int) -> bytes | None:
        metadata: bytes | None = self.receivers[room].metadata
        return metadata

    def rows(self) -> list[bytes]:
        return [array.tobytes() for array in self.arrays]

    def counters(self) -> dict[str, int]:
        return {**self.manager.counters, **self.transport.counters}

    def metrics(self, room: int) -> Any:
        return (self.senders.get(room) or self.receivers[room]).result()

    def _poll_until(self, is_true: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_true() and time.monotonic() < deadline:
            self.manager.poll()
            time.sleep(0.0005)


def _main(worker: Worker, pipe: Connection) -> None:
    loop = _Loop(worker)
    while True:
        while not pipe.poll(0.0005):
            loop.manager.poll()
        try:
            verb, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((False, getattr(loop, verb)(*arguments)))
        except Exception as error:
            pipe.send((True, f"{type(error).__name__}: {error}"))
