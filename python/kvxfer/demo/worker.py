# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""What the demo's prefill process and its decode processes do.

Each makes a pool, a transport agent, a control channel and a transfer manager, as a serving engine
would. The prefill process has a thread that polls while the model computes: that is what sends the
cached prefix early. Each worker polls until the parent has heard from all of them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kvxfer import transports
from kvxfer.demo.counting import make_layout
from kvxfer.demo.geometry import DESTINATION_POISON, SOURCE_POISON, PagedPool
from kvxfer.demo.processes import Wire
from kvxfer.demo.subject import Source
from kvxfer.errors import DeadlineError
from kvxfer.transfer import (
    LocalPool,
    ReceiverRoom,
    RoomResult,
    RoomState,
    SenderRoom,
    TransferManager,
    TransferOptions,
)
from kvxfer.transfer.options import LandingMode
from kvxfer.transfer.zmq_channel import ZmqChannel

WORKER_DEADLINE_S = 600.0
_ROOM = 1
_POLL_INTERVAL_S = 0.0005
_METADATA = struct.Struct("<q")


@dataclass(frozen=True)
class Setting:
    """What every worker of a run is told."""

    transport: str
    secret: bytes
    tokens: int
    early_tokens: int
    destination_ranks: int
    pack_buffer_bytes: int
    landing: LandingMode


@dataclass(frozen=True)
class WorkerResult:
    """How a worker's room ended.

    ``token`` is the first token, as sent and as received. The sender also says what its room's
    capacity was, and how many bytes had arrived when the last token was computed.
    """

    room: RoomResult
    token: int
    write_cost_us: float
    capacity_tokens: int | None = None
    overlapped_bytes: int = 0


def run_prefill(wire: Wire) -> None:
    """Produce the rows in two steps and send each as soon as it is there."""
    setting, geometry, source = wire.receive("setup", WORKER_DEADLINE_S)
    pool = PagedPool(geometry, SOURCE_POISON)
    options = TransferOptions(role="sender", pack_buffer_bytes=setting.pack_buffer_bytes)
    with _manage(setting, "prefill", pool, options) as (manager, write_cost_us):
        room = manager.open_sender(_ROOM, setting.destination_ranks)
        wire.send("address", manager.address)
        with _Poller(manager):
            token, overlapped_bytes = _produce_and_send(setting, pool, source, room)
            _wait_until_over(room)
            result = WorkerResult(
                room.result(), token, write_cost_us, room.capacity_tokens, overlapped_bytes
            )
            wire.send("result", result)
            wire.receive("collect", WORKER_DEADLINE_S)
    wire.send_memory(pool.memory)


def run_decode(wire: Wire) -> None:
    """Receive this rank's shard of the request."""
    setting, geometry, address = wire.receive("setup", WORKER_DEADLINE_S)
    pool = PagedPool(geometry, DESTINATION_POISON)
    options = TransferOptions(role="receiver", landing=setting.landing)
    name = f"decode-{geometry.rank}"
    with _manage(setting, name, pool, options) as (manager, write_cost_us):
        room = manager.open_receiver(
            _ROOM, [address], geometry.pages, end=setting.tokens, metadata_bytes=_METADATA.size
        )
        _poll_until_over(wire, manager, room)
        (token,) = _METADATA.unpack(room.metadata or b"")
        wire.send("result", WorkerResult(room.result(), token, write_cost_us))
        while not wire.connection.poll(_POLL_INTERVAL_S):
            manager.poll()
        wire.receive("collect", WORKER_DEADLINE_S)
    wire.send_memory(pool.memory)


@contextlib.contextmanager
def _manage(
    setting: Setting, name: str, pool: PagedPool, options: TransferOptions
) -> Iterator[tuple[TransferManager, float]]:
    """Open a manager over the pool, and close everything in the order that memory needs."""
    with contextlib.ExitStack() as stack:
        channel = ZmqChannel(secret=setting.secret)
        stack.callback(channel.close)
        transport = transports.create(setting.transport, f"demo-{name}-{os.getpid()}")
        stack.callback(transport.close)
        local = LocalPool(make_layout(pool.geometry), tuple(pool.plane_addresses()))
        manager = TransferManager(local, transport, channel, options)
        stack.callback(manager.close)
        yield manager, transport.write_cost_us


def _produce_and_send(
    setting: Setting, pool: PagedPool, source: Source, room: SenderRoom
) -> tuple[int, int]:
    """Send the first part while the second is computed.

    Returns
    -------
    tuple of int
        The token that follows, and the bytes that had arrived when it was known.
    """
    pages = pool.geometry.pages
    producer = source.open()
    pool.fill(0, producer.produce(0, setting.early_tokens))
    room.send(pages, end=setting.early_tokens, is_final=False)
    pool.fill(setting.early_tokens, producer.produce(setting.early_tokens, setting.tokens))
    overlapped_bytes = room.metrics.bytes
    metadata = _METADATA.pack(producer.first_token)
    room.send(pages, end=setting.tokens, is_final=True, metadata=metadata)
    return producer.first_token, overlapped_bytes


def _poll_until_over(wire: Wire, manager: TransferManager, room: ReceiverRoom) -> None:
    """Drive a receiver's room to its end and report its bytes on the way."""
    reported_bytes = 0
    until = time.monotonic() + WORKER_DEADLINE_S
    while not room.state.is_over:
        manager.poll()
        _check_time(until, room.room)
        if room.metrics.bytes > reported_bytes:
            reported_bytes = room.metrics.bytes
            wire.note(reported_bytes)
        time.sleep(_POLL_INTERVAL_S)
    _raise_failure(room)


def _wait_until_over(room: SenderRoom) -> None:
    """Wait while another thread polls."""
    until = time.monotonic() + WORKER_DEADLINE_S
    while not room.state.is_over:
        _check_time(until, room.room)
        time.sleep(_POLL_INTERVAL_S)
    _raise_failure(room)


def _check_time(until: float, room: int) -> None:
    if time.monotonic() > until:
        raise DeadlineError("deadline", "", room, f"not over within {WORKER_DEADLINE_S:g} s")


def _raise_failure(room: SenderRoom | ReceiverRoom) -> None:
    if room.state is not RoomState.SUCCESS:
        assert room.error is not None
        raise room.error


class _Poller:
    """A thread that polls a manager while the calling one computes."""

    def __init__(self, manager: TransferManager) -> None:
        self._manager = manager
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="kvxfer demo poll", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(WORKER_DEADLINE_S)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(_POLL_INTERVAL_S):
                self._manager.poll()
        except Exception as error:
            self._error = error
