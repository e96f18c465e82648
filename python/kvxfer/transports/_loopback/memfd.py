# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The way round where the kernel allows no other: through memory that both processes map.

The writer owns a memfd cut into slots. It copies runs dense into a free slot and says in a packet
where they belong; the target checks that against its own regions, copies them there when it polls,
and answers, which frees the slot. The memfd is its own gate: the target copies under its lock.
"""

import ctypes
import fcntl
import mmap
import os
from collections import deque

import numpy as np

from kvxfer.transports._loopback.connection import Connection, ConnectionEnded
from kvxfer.transports._loopback.gate import passing, reopen, try_lock_out
from kvxfer.transports._loopback.handle import LoopbackHandle
from kvxfer.transports._loopback.messages import MAX_DATA_ENTRIES, Ack, Area, Data, PacketError
from kvxfer.transports.protocol import RegionTable

# A target that maps a file which its writer can shrink dies of SIGBUS at the writer's will.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_AREA_BYTES = 1 << 30


class MemfdPath:
    """Writes of one peer through slots of a shared memfd."""

    name = "memfd"

    def __init__(self, connection: Connection, area: Area) -> None:
        self._connection = connection
        self._area = area
        size_bytes = area.slot_count * area.slot_bytes
        self._fd = os.memfd_create("kvxfer-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size_bytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self._slots = _Mapping(self._fd, size_bytes)
        self._is_announced = False
        self._free_slots = deque(range(area.slot_count))
        self._next_chunk = 0
        self._in_flight: dict[int, tuple[LoopbackHandle, int, int]] = {}

    def move(self, handle: LoopbackHandle, limit_bytes: int) -> int:
        """Hand the next bytes of a post to the target and return how many: 0 when it must catch up.

        Raises
        ------
        ConnectionEnded
            If the target is gone.
        """
        if not self._free_slots or not self._announce():
            return 0
        slot = self._free_slots[0]
        runs = handle.next_runs(min(limit_bytes, self._area.slot_bytes), MAX_DATA_ENTRIES)
        place = self._slots.address + slot * self._area.slot_bytes
        for source, _, size_bytes in runs.tolist():
            ctypes.memmove(place, source, size_bytes)
            place += size_bytes
        if not self._connection.send(Data(self._next_chunk, slot, runs[:, 1:])):
            return 0
        moved_bytes = int(runs[:, 2].sum())
        self._free_slots.popleft()
        self._in_flight[self._next_chunk] = (handle, moved_bytes, slot)
        self._next_chunk += 1
        handle.moved_bytes += moved_bytes
        return moved_bytes

    def settle(self, ack: Ack) -> None:
        """Take the target's answer to a chunk; a reason ends the post once nothing is in flight."""
        if ack.chunk not in self._in_flight:
            raise PacketError(f"answer to chunk {ack.chunk}, which is not in flight")
        handle, moved_bytes, slot = self._in_flight.pop(ack.chunk)
        self._free_slots.append(slot)
        handle.settled_bytes += moved_bytes
        if ack.reason and handle.error is None:
            handle.error = ack.reason

    def lock_out(self) -> bool:
        """Say whether the target copies nothing more; call it after closing the connection."""
        return try_lock_out(self._fd)

    def close(self) -> None:
        """Unmap and close the slots."""
        self._slots.close()
        os.close(self._fd)

    def _announce(self) -> bool:
        if not self._is_announced:
            fd = reopen(self._fd)
            try:
                self._is_announced = self._connection.send(self._area, (fd,))
            finally:
                os.close(fd)
        return self._is_announced


class ReceivedArea:
    """A writer's slots as the target sees them. Takes over the descriptor.

    Raises
    ------
    PacketError
        If the memory is not what the message says, or could shrink; the descriptor is closed.
    """

    def __init__(self, area: Area, fd: int) -> None:
        try:
            self._area = area
            size_bytes = area.slot_count * area.slot_bytes
            if area.slot_bytes < 1 or not 1 <= size_bytes <= _MAX_AREA_BYTES:
                raise PacketError(f"{area} is not 1 to {_MAX_AREA_BYTES} bytes")
            if os.fstat(fd).st_size != size_bytes:
                raise PacketError(f"memfd has {os.fstat(fd).st_size} bytes, expected {size_bytes}")
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise PacketError("memfd is not sealed against shrinking")
            self._slots = _Mapping(fd, size_bytes)
        except OSError as error:
            os.close(fd)
            raise PacketError(f"memfd cannot be used: {error}") from error
        except PacketError:
            os.close(fd)
            raise
        self._fd = fd

    def copy_out(self, data: Data, regions: RegionTable, connection: Connection) -> str:
        """Copy a chunk to its places; returns why not, or an empty string.

        Raises
        ------
        PacketError
            If the chunk is not inside one slot.
        ConnectionEnded
            If the writer has ended the connection: it may have given the destination up.
        """
        bad = regions.first_outside(data.entries[:, 0], data.entries[:, 1])
        if bad is not None:
            address, size_bytes = data.entries[bad].tolist()
            return (
                f"destination {address:#x} with {size_bytes} bytes is not inside one region; "
                f"{regions.describe_nearest(address)}"
            )
        total_bytes = sum(data.entries[:, 1].tolist())
        if data.slot >= self._area.slot_count or total_bytes > self._area.slot_bytes:
            raise PacketError(f"chunk of {total_bytes} bytes in slot {data.slot} of {self._area}")
        with passing(self._fd) as is_open:
            # The order matters: the writer ends the connection before it takes the lock.
            if not (is_open and connection.is_alive()):
                raise ConnectionEnded("the writer is gone")
            place = self._slots.address + data.slot * self._area.slot_bytes
            for destination, size_bytes in data.entries.tolist():
                ctypes.memmove(destination, place, size_bytes)
                place += size_bytes
        return ""

    def close(self) -> None:
        """Unmap and close the slots."""
        self._slots.close()
        os.close(self._fd)


class _Mapping:
    """A shared mapping with its address."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._map = mmap.mmap(fd, size_bytes)
        self._view = np.frombuffer(self._map, dtype=np.uint8)
        self.address = self._view.ctypes.data

    def close(self) -> None:
        del self._view
        self._map.close()
