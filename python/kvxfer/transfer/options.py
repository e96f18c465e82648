# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a transfer manager, checked once."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from kvxfer import InvalidArgumentError, PoolLayout

__all__ = ["LandingMode", "PackingMode", "Role", "TransferOptions"]

Role = Literal["sender", "receiver", "both"]
LandingMode = Literal["auto", "in_place", "landing"]
PackingMode = Literal["auto", "row_by_row"]

# Rows that a budget of whole pages can need on top of its share when it is dealt to a number of
# destination ranks that does not divide it: one per rank, for up to 64 ranks.
_UNEVEN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """Settings of a ``TransferManager``. Every wait has a bound here.

    Attributes
    ----------
    role : {"sender", "receiver", "both"}
        A manager that never sends has no pack buffers, one that never receives no landing regions.
    pack_tokens : int
        Token budget of one pack buffer, and of one landing region where ``landing_region_bytes`` is
        0. Rounded up to a multiple of page size x ranks of the own pool.            [unit: tokens]
    pack_buffer_bytes : int
        Size of one pack buffer; 0: what ``pack_tokens`` needs.
    pack_buffer_count : int
        Buffers in the ring: one is packed while the others are on the wire.
    spare_pack_buffer_count : int
        Buffers made, when first needed, beside those of the ring: a frozen peer holds the ring's
        for as long as its writes may run.
    spare_patience_s : float
        How long a peer holds a buffer before the others may be given a spare one.
    packing : {"auto", "row_by_row"}
        How rows leave. "auto" packs the rows of every relayout that needs packing. "row_by_row" is
        the baseline that benchmarks compare with: no pack buffer, one write per run of source rows,
        one segment per send, however long. Refused where rows must land, so also where destination
        rows are strided; the room's result and ``RoomMetrics.row_by_row_writes`` tell of it.
    landing : {"auto", "in_place", "landing"}
        How rows land in the own pool. "auto" estimates per room which way takes less time. A
        relayout that must unpack always lands.
    landing_region_bytes : int
        Size of one landing region; 0: what ``pack_tokens`` needs in the own pool.
    landing_region_count : int
        Regions of this manager, for all rooms together.
    landing_depth : int
        Most regions that one room holds per source.
    region_patience_s : float
        How long a segment waits for the regions of all its receivers before it is packed for those
        that have one.
    unpack_launch_us, unpack_bytes_per_us : float
        What an unpack is taken to cost in the "auto" estimate: per segment, and per byte. A host
        core unpacks some 10,000 bytes of 576-byte rows in a microsecond.
    metadata_slot_bytes, metadata_slot_count : int
        Largest metadata of a request, and how many requests hold metadata at once.
    bootstrap_deadline_s : float
        From opening a room until every peer's part of the handshake is there.
    waiting_deadline_s : float
        Longest silence of the engine or of a source while a room waits for its next segment.
    transfer_deadline_s : float
        Longest time a segment waits for a buffer or a region, or a posted write takes.
    drain_deadline_s : float
        How long a failed room's pages are held for peers that do not answer.
    heartbeat_interval_s : float
        Between two heartbeats to a peer.
    heartbeat_misses : int
        Heartbeats in a row without any message of a peer after which it is dropped.
    early_message_count, early_message_ttl_s : int, float
        Bound and age of the store for messages about rooms that are not open yet.
    clock : callable
        Monotonic seconds.

    Raises
    ------
    InvalidArgumentError
        For a number out of range; names the field.
    """

    role: Role = "both"
    pack_tokens: int = 8192
    pack_buffer_bytes: int = 0
    pack_buffer_count: int = 2
    spare_pack_buffer_count: int = 2
    spare_patience_s: float = 1.0
    packing: PackingMode = "auto"
    landing: LandingMode = "auto"
    landing_region_bytes: int = 0
    landing_region_count: int = 8
    landing_depth: int = 2
    region_patience_s: float = 0.002
    unpack_launch_us: float = 10.0
    unpack_bytes_per_us: float = 8000.0
    metadata_slot_bytes: int = 4096
    metadata_slot_count: int = 256
    bootstrap_deadline_s: float = 300.0
    waiting_deadline_s: float = 300.0
    transfer_deadline_s: float = 120.0
    drain_deadline_s: float = 30.0
    heartbeat_interval_s: float = 5.0
    heartbeat_misses: int = 3
    early_message_count: int = 4096
    early_message_ttl_s: float = 300.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) or callable(value):
                continue
            least = 0 if field.name in _MAY_BE_ZERO else 1 if isinstance(value, int) else None
            if (least is not None and value < least) or (least is None and not value > 0):
                raise InvalidArgumentError(
                    f"{field.name} is {value}, expected "
                    + (f"at least {least}" if least is not None else "a positive number")
                )
        if self.role not in ("sender", "receiver", "both"):
            raise InvalidArgumentError(f"role is {self.role!r}, expected sender, receiver or both")
        if self.packing not in ("auto", "row_by_row"):
            raise InvalidArgumentError(f"packing is {self.packing!r}, expected auto or row_by_row")
        if self.landing not in ("auto", "in_place", "landing"):
            raise InvalidArgumentError(
                f"landing is {self.landing!r}, expected auto, in_place or landing"
            )

    @property
    def sends(self) -> bool:
        """Whether the manager may open rooms as a sender."""
        return self.role != "receiver"

    @property
    def packs(self) -> bool:
        """Whether the manager has pack buffers."""
        return self.sends and self.packing != "row_by_row"

    @property
    def receives(self) -> bool:
        """Whether the manager has landing regions."""
        return self.role != "sender"

    def budget_tokens(self, layout: PoolLayout) -> int | None:
        """Return the token budget in whole pages of the group, None where bytes were given."""
        if self.pack_buffer_bytes:
            return None
        return _whole_pages(layout, self.pack_tokens)

    def pack_bytes(self, layout: PoolLayout) -> int:
        """Return the bytes of one pack buffer for a pool."""
        return self.pack_buffer_bytes or budget_bytes(layout, self.pack_tokens)

    def region_bytes(self, layout: PoolLayout) -> int:
        """Return the bytes of one landing region for a pool."""
        return self.landing_region_bytes or budget_bytes(layout, self.pack_tokens)


_MAY_BE_ZERO = {
    "pack_buffer_bytes",
    "spare_pack_buffer_count",
    "landing_region_bytes",
    "landing_region_count",
    "metadata_slot_count",
}


def budget_bytes(layout: PoolLayout, budget_tokens: int) -> int:
    """Return the bytes of one rank's rows of a token budget, rounded up to whole widened pages.

    What a buffer of that size holds for a given peer is the peer's business: see
    ``PackBufferLayout.capacity_for``.
    """
    tokens = _whole_pages(layout, budget_tokens)
    sharded_bytes = sum(plane.row_bytes for plane in layout.planes if not plane.is_replicated)
    replicated_bytes = sum(plane.row_bytes for plane in layout.planes if plane.is_replicated)
    rows = tokens // layout.sharding.ranks + _UNEVEN_ROWS
    return rows * sharded_bytes + tokens * replicated_bytes


def _whole_pages(layout: PoolLayout, tokens: int) -> int:
    """Return the tokens rounded up to whole widened pages."""
    return -(-tokens // layout.widened_page_tokens) * layout.widened_page_tokens
