# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranks with pools full of noise, managers on them, and an oracle that moves rows one by one.

The oracle shares no code with the library: it walks positions, finds each one's page and row on
either side by the ownership formula, and copies bytes between snapshots of whole pools.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer import Plane, PlaneKind, PoolLayout, Sharding
from kvxfer.transfer import (
    LocalPool,
    ReceiverRoom,
    SenderRoom,
    StateComponent,
    TransferManager,
    TransferOptions,
)
from support.memory_channel import ControlHub, MemoryChannel
from support.scripted_transport import ScriptedTransport, ScriptedWire

LATENT = [Plane(0, PlaneKind.LATENT, 12), Plane(1, PlaneKind.LATENT, 4)]
STATE_BYTES = 4096


class ManualClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(eq=False)
class Rank:
    """One worker: pool, state memory, manager."""

    name: str
    layout: PoolLayout
    arrays: list[NDArray[np.uint8]]
    state: NDArray[np.uint8]
    transport: ScriptedTransport
    channel: MemoryChannel
    manager: TransferManager

    @property
    def address(self) -> str:
        return self.manager.address

    def snapshot(self) -> list[NDArray[np.uint8]]:
        return copy_arrays(self.arrays)

    def state_component(
        self, kind: str, offset: int, row_bytes: int, **fields: Any
    ) -> StateComponent:
        """A component in the rank's registered state memory."""
        address = self.state.ctypes.data + offset
        return StateComponent(kind=kind, addresses=(address,), row_bytes=row_bytes, **fields)


def copy_arrays(arrays: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Copies, one per distinct array: planes that share memory share the copy."""
    copies = {id(array): array.copy() for array in arrays}
    return [copies[id(array)] for array in arrays]


def planes_of_one_memory(layout: PoolLayout, seed: int) -> list[NDArray[np.uint8]]:
    """Noise for every plane; page-structured planes of one layer share one array."""
    rng = np.random.default_rng(seed)
    arrays: list[NDArray[np.uint8]] = []
    bases: dict[tuple[int, int], NDArray[np.uint8]] = {}
    for plane in layout.planes:
        key = (plane.layer, plane.page_stride_bytes)
        is_shared = plane.page_offset_bytes > 0 or plane.kind is PlaneKind.INDEX_KEY
        if is_shared and key in bases:
            arrays.append(bases[key])
            continue
        size = layout.page_count * plane.page_stride_bytes
        array = rng.integers(0, 256, size, dtype=np.uint8)
        arrays.append(array)
        if is_shared:
            bases[key] = array
    return arrays


@dataclass
class World:
    """All ranks of a test. By default every post completes when it is first polled.

    ``tick_s`` passes before every round of polls.
    """

    clock: ManualClock = field(default_factory=ManualClock)
    wire: ScriptedWire = field(default_factory=ScriptedWire)
    hub: ControlHub = field(default_factory=ControlHub)
    ranks: list[Rank] = field(default_factory=list)
    tick_s: float = 0.0

    def __post_init__(self) -> None:
        self.wire.completes_on_poll = 1

    def add(
        self,
        name: str,
        sharding: Sharding | None = None,
        *,
        page_size: int = 4,
        page_count: int = 32,
        planes: Sequence[Plane] = tuple(LATENT),
        layout: PoolLayout | None = None,
        write_cost_us: float = 0.0,
        address: str | None = None,
        executor: Any = None,
        copies: Any = None,
        **options: Any,
    ) -> Rank:
        """Start a worker; under a name that is taken, a new life of that worker."""
        if layout is None:
            layout = PoolLayout(
                page_size, page_count, list(planes), sharding=sharding or Sharding()
            )
        options = {"pack_tokens": 8, "clock": self.clock, **options}
        arrays = planes_of_one_memory(layout, seed=len(self.ranks) + 1)
        transport = self.wire.create(name, write_cost_us=write_cost_us)
        channel = self.hub.create(address or f"mem://{name}")
        manager = TransferManager(
            LocalPool.from_arrays(layout, arrays),
            transport,
            channel,
            TransferOptions(**options),
            executor=executor,
            copies=copies,
        )
        state = np.random.default_rng(99 + len(self.ranks)).integers(
            0, 256, STATE_BYTES, dtype=np.uint8
        )
        manager.register_memory(state.ctypes.data, STATE_BYTES)
        rank = Rank(name, layout, arrays, state, transport, channel, manager)
        self.ranks.append(rank)
        return rank

    def group(self, prefix: str, ranks: int, interleave: int = 1, **options: Any) -> list[Rank]:
        """Start one worker per rank of a token sharding."""
        return [
            self.add(f"{prefix}{rank}", Sharding(ranks, rank, interleave), **options)
            for rank in range(ranks)
        ]

    def stop(self, rank: Rank) -> None:
        """End a worker as a killed process would: it is polled no more and its memory is gone."""
        self.ranks.remove(rank)
        self.wire.kill(rank.name)
        rank.channel.close()

    def poll(self, count: int = 1) -> None:
        """Poll every manager, in order."""
        for _ in range(count):
            self.clock.advance(self.tick_s)
            for rank in self.ranks:
                rank.manager.poll()

    def poll_until(self, is_true: Callable[[], bool], limit_count: int = 2000) -> None:
        """Poll until something holds; a bounded number of times."""
        for _ in range(limit_count):
            if is_true():
                return
            self.poll()
        raise AssertionError(f"does not hold after {limit_count} polls")

    def finish(self, *rooms: SenderRoom | ReceiverRoom) -> None:
        """Poll until rooms are over."""
        self.poll_until(lambda: all(room.state.is_over for room in rooms))

    def is_idle(self) -> bool:
        """Whether no room is open or lingers anywhere."""
        return all(rank.manager.open_room_count == 0 for rank in self.ranks)

    def check_idle(self) -> None:
        """Assert that nothing of any room is left anywhere."""
        self.poll(2)
        for rank in self.ranks:
            counters = rank.manager.counters
            held = {
                name: counters[name]
                for name in (
                    "sender_rooms",
                    "receiver_rooms",
                    "held_page_rooms",
                    "pack_buffers_leased",
                    "pack_buffer_rooms_waiting",
                    "landing_regions_held",
                    "landing_rooms_waiting",
                    "metadata_slots_leased",
                    "early_messages",
                )
            }
            assert held == dict.fromkeys(held, 0), rank.name
            assert rank.transport.counters["live_handles"] == 0, rank.name


@dataclass(frozen=True)
class Pages:
    """Pages of one request on one rank, from a position on."""

    ids: Sequence[int]
    first_position: int = 0


def random_pages(layout: PoolLayout, first: int, end: int, seed: int) -> list[int]:
    """Shuffled page ids for the positions [first, end), as many as they need."""
    tokens = layout.page_size * layout.sharding.ranks
    count = -(-(end - first) // tokens)
    return np.random.default_rng(seed).permutation(layout.page_count)[:count].tolist()


def row_offset(layout: PoolLayout, plane: Plane, pages: Pages, position: int) -> int | None:
    """Byte offset of a position's row in a plane, None where the rank does not hold it."""
    ranks, rank = layout.sharding.ranks, layout.sharding.rank
    interleave, page_size = layout.sharding.interleave, layout.page_size
    relative = position - pages.first_position
    if plane.is_replicated:
        rows = page_size * ranks
        page, row = pages.ids[relative // rows], relative % rows
    else:
        if ranks > 1 and position // interleave % ranks != rank:
            return None
        local = relative // (ranks * interleave) * interleave + relative % interleave
        if ranks == 1:
            local = relative
        page, row = pages.ids[local // page_size], local % page_size
    return page * plane.page_stride_bytes + plane.page_offset_bytes + row * plane.row_stride_bytes


def move_rows(
    sources: Sequence[tuple[Rank, Pages]],
    destination: Rank,
    pages: Pages,
    span: tuple[int, int],
    arrays: list[NDArray[np.uint8]],
) -> None:
    """Move the rows of [begin, end) into a snapshot of the destination's pool, one by one."""
    for index, plane in enumerate(destination.layout.planes):
        for position in range(*span):
            to = row_offset(destination.layout, plane, pages, position)
            if to is None:
                continue
            for rank, source_pages in sources:
                found = _plane_of(rank.layout, plane)
                if found is None:
                    continue
                source_index, source_plane = found
                at = row_offset(rank.layout, source_plane, source_pages, position)
                if at is not None:
                    row = rank.arrays[source_index][at : at + plane.row_bytes]
                    arrays[index][to : to + plane.row_bytes] = row
                    break


def _plane_of(layout: PoolLayout, wanted: Plane) -> tuple[int, Plane] | None:
    for index, plane in enumerate(layout.planes):
        if (plane.layer, plane.kind) == (wanted.layer, wanted.kind):
            return index, plane
    return None


@dataclass
class Transfer:
    """One request from all sources to all destinations of a world, and its expected outcome."""

    world: World
    sources: Sequence[Rank]
    destinations: Sequence[Rank]
    end: int
    prefix: int = 0
    room: int = 5
    landing: str | None = None
    seed: int = 7
    metadata_bytes: int = 0

    def __post_init__(self) -> None:
        self.source_pages = [
            Pages(random_pages(rank.layout, 0, self.end, self.seed)) for rank in self.sources
        ]
        self.destination_pages = [
            Pages(random_pages(rank.layout, self.prefix, self.end, self.seed + 1), self.prefix)
            for rank in self.destinations
        ]
        self.before = [rank.snapshot() for rank in self.destinations]
        self.senders: list[SenderRoom] = []
        self.receivers: list[ReceiverRoom] = []

    def open(self, **receiver_fields: Any) -> None:
        """Open the room on every rank."""
        for rank in self.sources:
            count = len(self.destinations)
            self.senders.append(rank.manager.open_sender(self.room, count))
        for rank, pages in zip(self.destinations, self.destination_pages, strict=True):
            self.receivers.append(
                rank.manager.open_receiver(
                    self.room,
                    [source.address for source in self.sources],
                    pages.ids,
                    prefix=self.prefix,
                    end=self.end,
                    landing=self.landing,
                    metadata_bytes=self.metadata_bytes,
                    **receiver_fields,
                )
            )

    def send(self, end: int, *, is_final: bool, **fields: Any) -> None:
        """Hand over rows on every source."""
        for sender, pages in zip(self.senders, self.source_pages, strict=True):
            sender.send(pages.ids, end, is_final=is_final, **fields)

    def run(self, *ends: int, **fields: Any) -> None:
        """Open, send in one or more parts, and poll until every room is over."""
        self.open()
        for end in ends:
            self.send(end, is_final=False)
            self.world.poll(3)
        self.send(self.end, is_final=True, **fields)
        self.world.finish(*self.senders, *self.receivers)

    @property
    def rooms(self) -> list[SenderRoom | ReceiverRoom]:
        return [*self.senders, *self.receivers]

    def check_rows(self) -> None:
        """Assert that every destination holds the right rows and nothing else has changed."""
        given = list(zip(self.sources, self.source_pages, strict=True))
        for rank, pages, before in zip(
            self.destinations, self.destination_pages, self.before, strict=True
        ):
            expected = copy_arrays(before)
            move_rows(given, rank, pages, (self.prefix, self.end), expected)
            for index, (got, want) in enumerate(zip(rank.arrays, expected, strict=True)):
                assert np.array_equal(got, want), f"{rank.name}: plane {index}"

    def check_untouched(self) -> None:
        """Assert that no destination was touched."""
        for rank, before in zip(self.destinations, self.before, strict=True):
            for got, want in zip(rank.arrays, before, strict=True):
                assert np.array_equal(got, want), rank.name
