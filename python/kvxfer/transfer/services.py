# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What all rooms of one manager share."""

from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from kvxfer import memory_view
from kvxfer.transfer.copies import RowCopies
from kvxfer.transfer.landing import LandingPool, Region
from kvxfer.transfer.mailer import Mailer
from kvxfer.transfer.metadata import METADATA_HEADER_BYTES
from kvxfer.transfer.options import TransferOptions
from kvxfer.transfer.pack_ring import Slot, SlotRing
from kvxfer.transfer.poll_lock import PollLock
from kvxfer.transfer.pool import LocalPool, MemorySpan
from kvxfer.transports.protocol import Transport

__all__ = ["Buffers", "Services", "make_slot"]


@dataclass(frozen=True)
class Buffers:
    """Memory that the manager owns: pack buffers, landing regions, metadata slots of either side.

    ``spans`` lists what has to be registered with the transport.
    """

    ring: SlotRing
    landing: LandingPool
    outbox: SlotRing
    inbox: SlotRing
    spans: list[MemorySpan]

    @classmethod
    def allocate(cls, options: TransferOptions, pool: LocalPool, copies: RowCopies) -> "Buffers":
        """Allocate what a role needs; only spare pack buffers come later."""
        spans: list[MemorySpan] = []

        def slots(count: int, size_bytes: int) -> list[Slot]:
            made = [make_slot(copies, index, size_bytes) for index in range(count)]
            spans.extend(MemorySpan(slot.address, slot.size_bytes) for slot in made)
            return made

        pack_count = options.pack_buffer_count if options.packs else 0
        region_count = options.landing_region_count if options.receives else 0
        regions = [
            Region(slot.index, slot.address, slot.size_bytes, slot.memory)
            for slot in slots(region_count, options.region_bytes(pool.layout))
        ]
        return cls(
            ring=SlotRing(slots(pack_count, options.pack_bytes(pool.layout))),
            landing=LandingPool(regions, options.landing_depth),
            outbox=_metadata_slots(options, options.sends, spans),
            inbox=_metadata_slots(options, options.receives, spans),
            spans=spans,
        )


def make_slot(copies: RowCopies, index: int, size_bytes: int) -> Slot:
    """Allocate one slot where the pool's rows can be packed to."""
    memory = copies.allocate(size_bytes)
    return Slot(index, memory_view(memory).address, size_bytes, memory)


def _metadata_slots(options: TransferOptions, is_used: bool, spans: list[MemorySpan]) -> SlotRing:
    """Metadata is host memory whatever holds the rows: one array, cut into slots."""
    count = options.metadata_slot_count if is_used else 0
    size_bytes = METADATA_HEADER_BYTES + options.metadata_slot_bytes
    if count == 0:
        return SlotRing([])
    memory = np.zeros((count, size_bytes), dtype=np.uint8)
    base = memory_view(memory).address
    spans.append(MemorySpan(base, memory.nbytes))
    return SlotRing([Slot(i, base + i * size_bytes, size_bytes, memory[i]) for i in range(count)])


@dataclass
class Services:
    """What a room works with. ``lock`` is held in everything that an engine may call."""

    options: TransferOptions
    pool: LocalPool
    transport: Transport
    mailer: Mailer
    copies: RowCopies
    executor: Executor
    buffers: Buffers
    lock: PollLock = field(default_factory=PollLock)
    counters: Counter[str] = field(default_factory=Counter)
