# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A worker with its manager in a process of its own, told what to do over a pipe.

It can be frozen, continued, killed, and started again under the same name. Every call has a bound.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvxfer import PoolLayout, Sharding
from kvxfer.adapters import RequestReceiver, RequestSender
from kvxfer.transfer import ZmqChannel
from support.adapter_world import Job, Worker, make_worker
from support.agent_process import AgentProcess
from support.transfer_world import LATENT
from support.transport_cases import CASES

PAGE_SIZE, PAGE_COUNT = 4, 256


class WorkerProcess(AgentProcess):
    """Starts a process with one worker; ``worker`` is what the parent may know of it.

    Parameters
    ----------
    transport : str
        One of the conformance suite's cases.
    name : str
        Agent name; a later process of the same name is a restart.
    rank, ranks : int
        Sharding of its pool.
    options
        For ``TransferOptions``.
    """

    def __init__(
        self, transport: str, name: str, seed: int, rank: int = 0, ranks: int = 1, **options: Any
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self.name = name
        self.layout = PoolLayout(PAGE_SIZE, PAGE_COUNT, LATENT, sharding=Sharding(ranks, rank))
        arguments = (far_end, transport, name, seed, rank, ranks, options)
        self._process = context.Process(target=_main, args=arguments, daemon=True)
        self._process.start()
        far_end.close()
        self.address: str = self.call("address")

    @property
    def arrays(self) -> list[Any]:
        """Copies of its planes as they are now."""
        return [np.frombuffer(content, dtype=np.uint8).copy() for content in self.call("content")]

    def snapshot(self) -> list[Any]:
        return self.arrays


class RemoteJob(Job):
    """A request from workers of this process to workers of others."""

    destinations: list[WorkerProcess]  # type: ignore[assignment]

    def open_receivers(self) -> None:
        addresses = [source.address for source in self.sources]
        for process, pages in zip(self.destinations, self.destination_pages, strict=True):
            process.call("receive", self.room, addresses, pages.ids, self.end, self.prefix)

    def far_states(self) -> list[str]:
        """States of the receivers."""
        return [process.call("state", self.room)[0] for process in self.destinations]

    def far_reasons(self) -> list[str]:
        """Why the receivers failed."""
        return [process.call("state", self.room)[1] for process in self.destinations]

    def far_held(self) -> list[bool]:
        """Whether the receivers' pages may still be written."""
        return [process.call("state", self.room)[2] for process in self.destinations]


class _Commands:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._receivers: dict[int, RequestReceiver] = {}
        self._senders: dict[int, RequestSender] = {}

    def address(self) -> str:
        return self._worker.address

    def content(self) -> list[bytes]:
        return [array.tobytes() for array in self._worker.arrays]

    def receive(
        self, room: int, sources: list[str], pages: list[int], end: int, prefix: int
    ) -> None:
        receiver = self._receivers[room] = RequestReceiver(self._worker.manager, room)
        receiver.init(sources)
        receiver.send_metadata(pages, end, prefix_tokens=prefix)

    def state(self, room: int) -> tuple[str, str, bool]:
        receiver = self._receivers[room]
        return receiver.poll().name, receiver.failure_reason or "", receiver.pages_held

    def send(self, room: int, pages: list[int], end: int) -> None:
        """Open a sender and hand everything over once it is asked."""
        sender = self._senders.get(room) or RequestSender(self._worker.manager, room)
        self._senders[room] = sender
        if sender.send_count == 0 and sender.poll().name == "WAITING_FOR_INPUT":
            sender.init(len(pages))
            sender.send_bounded(pages, end, is_final=True)

    def counters(self) -> dict[str, int]:
        return self._worker.manager.counters


def _main(
    pipe: Connection,
    transport: str,
    name: str,
    seed: int,
    rank: int,
    ranks: int,
    options: dict[str, Any],
) -> None:
    agent = CASES[transport].make_maker()(name)
    layout = PoolLayout(PAGE_SIZE, PAGE_COUNT, LATENT, sharding=Sharding(ranks, rank))
    commands = _Commands(make_worker(agent, ZmqChannel(), layout, seed, **options))
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((None, getattr(commands, command)(*arguments)))
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))
