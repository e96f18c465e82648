# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's worker processes: started by spawn, spoken to over pipes, bounded in every wait.

Only plain values and bytes travel, never tensors: those would be passed as open files, which end
with the sender.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from kvxfer.demo.geometry import Bytes
from kvxfer.errors import DeadlineError, TransferError

_FAILED = "failed"
_JOIN_DEADLINE_S = 10.0


class Wire:
    """One end of the pipe between parent and worker: named values and blocks of bytes."""

    def __init__(self, connection: Connection, peer: str) -> None:
        self.connection = connection
        self.peer = peer

    def send(self, name: str, value: Any = None) -> None:
        """Send a named plain value."""
        self.connection.send((name, value))

    def send_memory(self, memory: Bytes) -> None:
        """Send the bytes of an array."""
        self.connection.send_bytes(memory.data)

    def receive(self, name: str, deadline_s: float) -> Any:
        """Receive the value of that name.

        Raises
        ------
        DeadlineError
            If nothing comes in time; names the peer.
        TransferError
            If the peer ended or failed, with what it said.
        """
        if not self.connection.poll(deadline_s):
            raise DeadlineError(
                "deadline", self.peer, None, f"expected {name!r} within {deadline_s:g} s"
            )
        got, value = self._receive_any()
        if got == _FAILED:
            raise TransferError("peer_lost", self.peer, None, f"failed:\n{value}")
        if got != name:
            raise TransferError("protocol", self.peer, None, f"expected {name!r}, got {got!r}")
        return value

    def receive_memory(self, size_bytes: int, deadline_s: float) -> Bytes:
        """Receive an array of that many bytes."""
        memory = np.empty(size_bytes, dtype=np.uint8)
        if not self.connection.poll(deadline_s):
            raise DeadlineError(
                "deadline", self.peer, None, f"expected {size_bytes} bytes within {deadline_s:g} s"
            )
        got_bytes = self.connection.recv_bytes_into(memory.data)
        if got_bytes != size_bytes:
            raise TransferError(
                "protocol", self.peer, None, f"expected {size_bytes} bytes, got {got_bytes}"
            )
        return memory

    def _receive_any(self) -> tuple[str, Any]:
        try:
            name, value = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise TransferError("peer_lost", self.peer, None, "the process ended") from error
        return name, value


Entry: TypeAlias = Callable[[Wire], None]


class Crew:
    """The parent's workers. Leaving the context ends those that still run."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self._wires: list[Wire] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for wire in self._wires:
            wire.connection.close()
        until = time.monotonic() + (_JOIN_DEADLINE_S if error is None else 0.0)
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.terminate()
                process.join(_JOIN_DEADLINE_S)

    def start(self, name: str, entry: Entry) -> Wire:
        """Start a worker that runs ``entry`` with its end of a pipe, and return ours.

        Parameters
        ----------
        name : str
            What messages call the worker.
        entry : callable
            A function of a module: the worker imports it.
        """
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_run_worker, args=(theirs, entry), name=f"kvxfer demo {name}", daemon=True
        )
        process.start()
        theirs.close()
        wire = Wire(ours, name)
        self.processes.append(process)
        self._wires.append(wire)
        return wire

    def receive_all(self, name: str, deadline_s: float) -> list[Any]:
        """Receive the value of that name from every worker, in the order in which they started.

        A worker that fails ends the wait at once, whichever it is.
        """
        values: dict[int, Any] = {}
        until = time.monotonic() + deadline_s
        while len(values) < len(self._wires):
            missing = [w for i, w in enumerate(self._wires) if i not in values]
            ready = wait([w.connection for w in missing], max(0.0, until - time.monotonic()))
            if not ready:
                names = ", ".join(w.peer for w in missing)
                raise DeadlineError(
                    "deadline", names, None, f"expected {name!r} within {deadline_s:g} s"
                )
            for index, wire in enumerate(self._wires):
                if wire.connection in ready:
                    values[index] = wire.receive(name, 0.0)
        return [values[index] for index in range(len(self._wires))]


def _run_worker(connection: Connection, entry: Entry) -> None:
    wire = Wire(connection, "parent")
    try:
        entry(wire)
    except Exception:
        wire.send(_FAILED, traceback.format_exc())
