# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's worker processes: started by spawn, spoken to over pipes, bounded in every wait.

Only plain values and bytes travel, never tensors: those would be passed as open files, which end
with the sender.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from kvxfer import Error
from kvxfer.demo.geometry import Bytes
from kvxfer.errors import DeadlineError, TransferError

_FAILED = "failed"
_NOTE = "note"
_JOIN_DEADLINE_S = 10.0


class Wire:
    """One end of the pipe between parent and worker: named values and blocks of bytes."""

    def __init__(self, connection: Connection, peer: str) -> None:
        self.connection = connection
        self.peer = peer

    def send(self, name: str, value: Any = None) -> None:
        """Send a named plain value.

        Raises
        ------
        TransferError
            If the peer ended or failed, with what it said.
        """
        try:
            self.connection.send((name, value))
        except ConnectionError as error:
            raise self._loss() from error

    def send_memory(self, memory: Bytes) -> None:
        """Send the bytes of an array; raises as ``send`` does."""
        try:
            self.connection.send_bytes(memory.data)
        except ConnectionError as error:
            raise self._loss() from error

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
        return self.receive_either(name)[1]

    def receive_either(self, *names: str) -> tuple[str, Any]:
        """Receive the next value, which has one of these names; waits for the whole of it only.

        Raises
        ------
        TransferError
            If the peer ended or failed, or sent another name.
        """
        got, value = self._receive_any()
        if got == _FAILED:
            raise TransferError("peer_lost", self.peer, None, value)
        if got not in names:
            raise TransferError("protocol", self.peer, None, f"expected {names[0]!r}, got {got!r}")
        return got, value

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

    def note(self, value: Any) -> None:
        """Send how far the work is; nothing is lost where nobody listens."""
        self.send(_NOTE, value)

    def _loss(self) -> TransferError:
        """Return why the peer is gone: what it said before it ended, if it said anything."""
        try:
            while True:
                self.receive_either(_NOTE)
        except TransferError as error:
            return error

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
        with _without_interrupts():
            process.start()
        theirs.close()
        wire = Wire(ours, name)
        self.processes.append(process)
        self._wires.append(wire)
        return wire

    def receive_all(
        self, name: str, deadline_s: float, on_note: Callable[[str, Any], None] | None = None
    ) -> list[Any]:
        """Receive the value of that name from every worker, in the order in which they started.

        A worker that fails ends the wait at once, whichever it is.

        Parameters
        ----------
        name : str
            Name of the value.
        deadline_s : float
            Until every worker has sent it.                             [unit: seconds]
        on_note : callable, optional
            Called with a worker's name and value for each note that it sends before.
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
                if wire.connection not in ready:
                    continue
                note, value = wire.receive_either(name, _NOTE)
                if note == name:
                    values[index] = value
                elif on_note is not None:
                    on_note(wire.peer, value)
        return [values[index] for index in range(len(self._wires))]


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let a process that starts here leave Ctrl-C to its parent, which ends its workers.

    A worker that a terminal interrupts beside its parent would print a traceback of its own, from
    wherever its imports were.
    """
    resource_tracker.ensure_running()  # it would lift the block when it starts with a worker
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_worker(connection: Connection, entry: Entry) -> None:
    """Run a worker; a failure goes to the parent, in words where it is one that has words."""
    wire = Wire(connection, "parent")
    try:
        entry(wire)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        said = words if isinstance(error, Error) else f"failed:\n{traceback.format_exc()}"
        with contextlib.suppress(OSError, TransferError):
            wire.send(_FAILED, said)
