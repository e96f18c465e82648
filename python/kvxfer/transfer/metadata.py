# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Metadata of a request: a slot that begins with the room it holds, then the engine's bytes.

A slot is used again and again. Its header is cleared before it is offered to a source, so that what
an earlier room left, or a late write of it, never passes for the metadata of this one.
"""

import numpy as np

from kvxfer import InvalidArgumentError
from kvxfer.transfer.pack_ring import Slot, SlotRing

__all__ = ["METADATA_HEADER_BYTES", "MetadataInbox", "fill_slot"]

METADATA_HEADER_BYTES = 8


def fill_slot(slot: Slot, room: int, content: bytes) -> int:
    """Write a room's metadata into a slot to send from; return the bytes to send."""
    whole = room.to_bytes(METADATA_HEADER_BYTES, "little") + content
    slot.memory[: len(whole)] = np.frombuffer(whole, dtype=np.uint8)
    return len(whole)


class MetadataInbox:
    """The slot of one receiver's room, if it wants metadata.

    Raises
    ------
    InvalidArgumentError
        If more is wanted than a slot holds, or none is free.
    """

    def __init__(self, ring: SlotRing, room: int, wanted_bytes: int, limit_bytes: int) -> None:
        self._ring = ring
        self._room = room
        self._wanted_bytes = wanted_bytes
        self._slot: Slot | None = None
        if wanted_bytes == 0:
            return
        if wanted_bytes > limit_bytes:
            raise InvalidArgumentError(
                f"metadata_bytes is {wanted_bytes}, expected at most "
                f"metadata_slot_bytes = {limit_bytes}"
            )
        self._slot = ring.lease(self)
        if self._slot is None:
            ring.withdraw(self)
            raise InvalidArgumentError(
                f"room {room}: all {ring.slot_count} metadata slots are in use, "
                "expected metadata_slot_count to cover the rooms that are open at once"
            )
        self._slot.memory[:METADATA_HEADER_BYTES] = 0

    @property
    def target(self) -> tuple[int, int] | None:
        """Address and bytes of what may be written, None where no metadata is wanted."""
        if self._slot is None:
            return None
        return self._slot.address, METADATA_HEADER_BYTES + self._wanted_bytes

    def holder(self) -> int:
        """Return the room that the slot holds, 0 for none yet."""
        assert self._slot is not None
        return int.from_bytes(self._slot.memory[:METADATA_HEADER_BYTES].tobytes(), "little")

    def take(self, size_bytes: int) -> bytes:
        """Return what came.

        Raises
        ------
        InvalidArgumentError
            If the slot holds another room, or more is said to have come than was wanted.
        """
        assert self._slot is not None
        if (holder := self.holder()) != self._room:
            raise InvalidArgumentError(
                f"metadata slot {self._slot.index} holds room {holder}, not {self._room}"
            )
        if size_bytes > self._wanted_bytes:
            raise InvalidArgumentError(
                f"metadata has {size_bytes} bytes, expected at most {self._wanted_bytes}"
            )
        begin = METADATA_HEADER_BYTES
        content: bytes = self._slot.memory[begin : begin + size_bytes].tobytes()
        return content

    def give_back(self) -> None:
        """Return the slot, once nothing can write into it any more. Idempotent."""
        if self._slot is not None:
            self._ring.give_back(self._slot)
            self._slot = None
