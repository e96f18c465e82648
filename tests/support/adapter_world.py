# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Managers as an engine holds them, over any transport, and a scheduler's part of a request.

Rows are judged by the oracle of ``transfer_world``, which shares no code with the library.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvxfer import Error, Plane, PoolLayout, Sharding
from kvxfer.adapters import (
    EngineMemory,
    MetadataArray,
    RankManager,
    RequestReceiver,
    RequestSender,
    StateArray,
)
from kvxfer.transfer import ControlChannel, LocalPool, RoomState, TransferOptions, ZmqChannel
from kvxfer.transfer.copies import RowCopies
from kvxfer.transports.protocol import Transport
from support.scripted_transport import ScriptedWire
from support.transfer_world import (
    LATENT,
    Pages,
    copy_arrays,
    move_rows,
    planes_of_one_memory,
    random_pages,
)
from support.transport_cases import CASES

# Ample: nothing here is judged by time.
WAIT_S = 40.0
STATE_ITEMS, STATE_ITEM_BYTES = 16, 48
METADATA_ITEMS = 16

# Names of agents differ within a process: some transports find each other by name.
_numbers = itertools.count(1)


def wait_until(
    is_true: Callable[[], bool],
    what: str | Callable[[], str] = "condition",
    wait_s: float = WAIT_S,
) -> None:
    """Wait for what other threads do."""
    deadline = time.monotonic() + wait_s
    while not is_true():
        if time.monotonic() > deadline:
            words = what if isinstance(what, str) else what()
            raise TimeoutError(f"{words} does not hold after {wait_s} s")
        time.sleep(0.0005)


@dataclass(eq=False)
class Worker:
    """One rank: pool, state, metadata and manager."""

    layout: PoolLayout
    arrays: list[NDArray[np.uint8]]
    state: NDArray[np.uint8]
    metadata: NDArray[np.uint8]
    transport: Transport
    channel: ControlChannel
    manager: RankManager

    @property
    def name(self) -> str:
        return self.manager.name

    @property
    def address(self) -> str:
        return self.manager.address

    def snapshot(self) -> list[NDArray[np.uint8]]:
        return copy_arrays(self.arrays)


def make_worker(
    transport: Transport,
    channel: ControlChannel,
    layout: PoolLayout,
    seed: int,
    copies: RowCopies | None = None,
    **options: Any,
) -> Worker:
    """A worker with noise in every byte that it owns."""
    arrays = planes_of_one_memory(layout, seed)
    rng = np.random.default_rng(1000 + seed)
    state = rng.integers(0, 256, (STATE_ITEMS, STATE_ITEM_BYTES), dtype=np.uint8)
    metadata = rng.integers(0, 256, (METADATA_ITEMS, 24), dtype=np.uint8)
    half = STATE_ITEMS * STATE_ITEM_BYTES // 2
    memory = EngineMemory(
        state=[
            [
                StateArray(
                    kind=f"conv.{part}",
                    address=state.ctypes.data + part * half,
                    item_bytes=STATE_ITEM_BYTES,
                    item_count=STATE_ITEMS // 2,
                )
                for part in range(2)
            ]
        ],
        metadata=[MetadataArray.of(metadata)],
    )
    manager = RankManager(
        LocalPool.from_arrays(layout, arrays),
        transport,
        channel,
        TransferOptions(**{"pack_tokens": 8, **options}),
        memory=memory,
        copies=copies,
    )
    return Worker(layout, arrays, state, metadata, transport, channel, manager)


@dataclass
class Site:
    """All workers of a test that live in this process; closes them in the order of memory."""

    transport: str = "scripted"
    wire: ScriptedWire | None = None
    make_channel: Callable[[], ControlChannel] = ZmqChannel
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        wire = self.wire
        self._make = wire.create if wire is not None else CASES[self.transport].make_maker()
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        # What a failed test left open must not hide why it failed.
        with suppress(*([Error] if kind is not None else [])):
            self._closing.close()

    def add(
        self,
        role: str,
        sharding: Sharding | None = None,
        *,
        page_size: int = 4,
        page_count: int = 64,
        planes: Sequence[Plane] = tuple(LATENT),
        **options: Any,
    ) -> Worker:
        """Start a worker."""
        number = next(_numbers)
        transport = self._closing.enter_context(_Closing(self._make(f"{role}.{number}"))).inner
        channel = self._closing.enter_context(_Closing(self.make_channel())).inner
        layout = PoolLayout(page_size, page_count, list(planes), sharding=sharding or Sharding())
        worker = make_worker(transport, channel, layout, number, **options)
        self._closing.enter_context(worker.manager)
        self.workers.append(worker)
        return worker

    def group(self, role: str, ranks: int, interleave: int = 1, **options: Any) -> list[Worker]:
        """Start one worker per rank of a token sharding."""
        shardings = [Sharding(ranks, rank, interleave) for rank in range(ranks)]
        return [self.add(f"{role}{s.rank}", s, **options) for s in shardings]

    def check_idle(self) -> None:
        """Assert that nothing of any request is left anywhere."""
        for worker in self.workers:
            wait_until(
                lambda worker=worker: not held(worker),
                lambda worker=worker: f"{worker.name}: that it holds nothing ({held(worker)})",
            )


class _Closing:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.inner.close()


HELD = (
    "sender_rooms",
    "receiver_rooms",
    "held_page_rooms",
    "pack_buffers_leased",
    "pack_buffer_rooms_waiting",
    "landing_regions_held",
    "landing_rooms_waiting",
    "metadata_slots_leased",
    "early_messages",
    "transport_live_handles",
)


def held(worker: Worker) -> dict[str, int]:
    """What a worker holds that an idle one does not."""
    counters = worker.manager.counters
    return {name: counters[name] for name in HELD if counters[name]}


@dataclass
class Job:
    """One request from all sources to all destinations, as their schedulers see it."""

    sources: Sequence[Worker]
    destinations: Sequence[Worker]
    end: int
    prefix: int = 0
    room: int = 5
    seed: int = 7
    landing: str | None = None
    item: int | None = None

    def __post_init__(self) -> None:
        self.source_pages = [
            Pages(random_pages(worker.layout, 0, self.end, self.seed)) for worker in self.sources
        ]
        self.destination_pages = [
            Pages(random_pages(worker.layout, self.prefix, self.end, self.seed + 1), self.prefix)
            for worker in self.destinations
        ]
        self.before = [worker.snapshot() for worker in self.destinations]
        self.senders: list[RequestSender] = []
        self.receivers: list[RequestReceiver] = []
        self.positions: list[int] = []

    def open(self) -> Self:
        """Make senders and receivers and ask; returns when the senders know who asks."""
        self.open_senders()
        self.open_receivers()
        wait_until(
            lambda: all(sender.poll() is not RoomState.BOOTSTRAPPING for sender in self.senders),
            "senders are asked",
        )
        return self.init()

    def open_senders(self) -> None:
        count = len(self.destinations)
        self.senders = [RequestSender(w.manager, self.room, count) for w in self.sources]

    def open_receivers(self) -> None:
        addresses = [source.address for source in self.sources]
        for worker, pages in zip(self.destinations, self.destination_pages, strict=True):
            receiver = RequestReceiver(worker.manager, self.room)
            self.receivers.append(receiver)
            receiver.init(addresses)
            receiver.send_metadata(
                pages.ids,
                self.end,
                prefix_tokens=self.prefix,
                metadata_item=self.item,
                state_items=None if self.item is None else [[self.item]],
                landing=self.landing,  # type: ignore[arg-type]
            )

    def init(self) -> Self:
        """What a scheduler does when a sender waits for input."""
        for sender, worker in zip(self.senders, self.sources, strict=True):
            tokens = worker.layout.widened_page_tokens
            sender.init(-(-(self.end - sender.prefix_tokens) // tokens), self.item)
        self.positions = [sender.next_position for sender in self.senders]
        return self

    def send(self, end: int, *, is_final: bool, **fields: Any) -> None:
        """Hand rows over on every source, as a scheduler does."""
        if is_final and self.item is not None:
            fields["state_items"] = [[self.item]]
        for index, (sender, worker) in enumerate(zip(self.senders, self.sources, strict=True)):
            tokens = worker.layout.widened_page_tokens
            first, last = self.positions[index] // tokens, -(-end // tokens)
            pages = self.source_pages[index].ids[first:last]
            self.positions[index] = sender.send_bounded(pages, end, is_final=is_final, **fields)

    def run(self, *ends: int) -> Self:
        """Open, send in one or more parts, and wait for the end."""
        self.open()
        for end in ends:
            self.send(end, is_final=False)
        self.send(self.end, is_final=True)
        return self.wait()

    def wait(self) -> Self:
        """Wait until every request is over."""
        wait_until(
            lambda: all(request.poll().is_over for request in self.requests), "requests are over"
        )
        return self

    @property
    def requests(self) -> list[RequestSender | RequestReceiver]:
        return [*self.senders, *self.receivers]

    @property
    def states(self) -> list[RoomState]:
        return [request.poll() for request in self.requests]

    def check(self) -> None:
        """Assert success on every rank, the right rows, and no other change."""
        assert self.states == [RoomState.SUCCESS] * len(self.requests), [
            request.failure_reason for request in self.requests
        ]
        given = list(zip(self.sources, self.source_pages, strict=True))
        for worker, pages, before in zip(
            self.destinations, self.destination_pages, self.before, strict=True
        ):
            expected = copy_arrays(before)
            move_rows(given, worker, pages, (self.prefix, self.end), expected)  # type: ignore[arg-type]
            for index, (got, want) in enumerate(zip(worker.arrays, expected, strict=True)):
                assert np.array_equal(got, want), f"{worker.name}: plane {index}"
        if self.item is not None:
            self._check_item(self.item)

    def check_failed(self, kind: str, words: str) -> None:
        """Assert that every rank says why it failed."""
        for request in self.requests:
            assert request.poll() is RoomState.FAILED
            failure = request.result.failure
            assert failure is not None
            assert (failure.kind, failure.room) == (kind, self.room)
            assert words in (request.failure_reason or "")

    def _check_item(self, item: int) -> None:
        source = self.sources[0]
        for worker in self.destinations:
            assert np.array_equal(worker.metadata[item], source.metadata[item]), worker.name
            halves = STATE_ITEMS // 2
            for part in range(2):
                row = part * halves + item
                assert np.array_equal(worker.state[row], source.state[row]), worker.name
