# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Registered regions, and the check of a write list against them.

The libraries below do not check for us: NIXL takes overlaps and lengths that wrap, both take null
or unmapped addresses in some form, and a negative length has been seen to write outside a region.
"""

from bisect import bisect_right
from operator import index
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError

# Addresses and sizes travel as int64 in write lists; sums of sizes have to stay int64 too.
_ADDRESS_LIMIT = 2**63
_POST_LIMIT_BYTES = 2**62


class RegionTable:
    """Disjoint regions of one agent's memory, in address order.

    One thread at a time may change it; any thread may check against it meanwhile.

    Parameters
    ----------
    owner : str
        Who owns the memory; stands in messages.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._addresses: list[int] = []
        self._sizes_bytes: list[int] = []
        self._arrays = _region_arrays([], [])

    @classmethod
    def from_array(cls, owner: str, regions: NDArray[np.int64]) -> Self:
        """Build a table from an int64 array of shape (region_count, 2): address, bytes."""
        table = cls(owner)
        for address, size_bytes in regions.tolist():
            table.add(address, size_bytes)
        return table

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, address: int, size_bytes: int) -> None:
        """Register a region.

        Raises
        ------
        InvalidArgumentError
            For a null or negative address, a size below 1 byte, an end at or beyond 2**63, or an
            overlap.
        """
        address, size_bytes = index(address), index(size_bytes)
        if address <= 0:
            raise InvalidArgumentError(f"region address is {address}, expected a positive address")
        if size_bytes <= 0:
            raise InvalidArgumentError(
                f"region at {address:#x} has {size_bytes} bytes, expected at least 1"
            )
        if address + size_bytes > _ADDRESS_LIMIT:
            raise InvalidArgumentError(
                f"region at {address:#x} of {size_bytes} bytes ends beyond 2**63"
            )
        place = bisect_right(self._addresses, address)
        for neighbour in (place - 1, place):
            self._refuse_overlap(neighbour, address, size_bytes)
        self._addresses.insert(place, address)
        self._sizes_bytes.insert(place, size_bytes)
        self._arrays = _region_arrays(self._addresses, self._sizes_bytes)

    def remove(self, address: int) -> None:
        """Forget the region that begins at ``address``.

        Raises
        ------
        InvalidArgumentError
            If no region begins there.
        """
        address = index(address)
        place = bisect_right(self._addresses, address) - 1
        if place < 0 or self._addresses[place] != address:
            raise InvalidArgumentError(
                f"no region of {self.owner} begins at {address:#x}; "
                f"{len(self)} regions are registered"
            )
        del self._addresses[place], self._sizes_bytes[place]
        self._arrays = _region_arrays(self._addresses, self._sizes_bytes)

    def as_array(self) -> NDArray[np.int64]:
        """Return an int64 array of shape (region_count, 2): address, bytes; in address order."""
        return np.stack(self._arrays, axis=1)

    def first_outside(
        self, addresses: NDArray[np.int64], sizes_bytes: NDArray[np.int64]
    ) -> int | None:
        """Return the index of the first range that is empty or not inside one region, or None."""
        starts, region_sizes = self._arrays
        if not len(starts):
            return 0 if len(addresses) else None
        place = np.searchsorted(starts, addresses, side="right") - 1
        is_above = place >= 0
        place = np.maximum(place, 0)
        # Where the address is at or above the region's start, neither difference can overflow.
        left_bytes = region_sizes[place] - (addresses - starts[place])
        is_inside = is_above & (sizes_bytes >= 1) & (sizes_bytes <= left_bytes)
        return None if is_inside.all() else int(np.argmin(is_inside))

    def describe_nearest(self, address: int) -> str:
        """Return words for the region at or below an address, for messages."""
        starts, region_sizes = self._arrays
        if not len(starts):
            return f"{self.owner} has no registered region"
        place = max(int(np.searchsorted(starts, address, side="right")) - 1, 0)
        start, size_bytes = int(starts[place]), int(region_sizes[place])
        return (
            f"the nearest region of {self.owner} is "
            f"[{start:#x}, {start + size_bytes:#x}) of {size_bytes} bytes"
        )

    def _refuse_overlap(self, place: int, address: int, size_bytes: int) -> None:
        if not 0 <= place < len(self._addresses):
            return
        start, old_bytes = self._addresses[place], self._sizes_bytes[place]
        if start < address + size_bytes and address < start + old_bytes:
            raise InvalidArgumentError(
                f"region [{address:#x}, {address + size_bytes:#x}) overlaps "
                f"[{start:#x}, {start + old_bytes:#x}), which {self.owner} has registered"
            )


def check_writes(
    writes: NDArray[np.int64], source: RegionTable, destination: RegionTable
) -> NDArray[np.int64]:
    """Return a write list as a contiguous copy, after checking both sides of every write.

    Parameters
    ----------
    writes : int64 array, shape (write_count, 3), host
        Source address, destination address, bytes.
    source, destination : RegionTable
        The agent's own regions and those that the peer described.

    Raises
    ------
    InvalidArgumentError
        If the array has another type or shape, for the first write that is shorter than 1 byte
        or not inside one region on either side, or for 2**62 bytes and more in all.

    Notes
    -----
    Cost: O(write_count log region_count), without a Python loop.
    """
    if not isinstance(writes, np.ndarray) or writes.dtype != np.int64:
        kind = writes.dtype if isinstance(writes, np.ndarray) else type(writes).__name__
        raise InvalidArgumentError(f"writes is {kind}, expected an int64 array")
    if writes.ndim != 2 or writes.shape[1] != 3:
        raise InvalidArgumentError(f"writes has shape {writes.shape}, expected (write_count, 3)")
    checked = np.array(writes, order="C")
    for side, column, table in (("source", 0, source), ("destination", 1, destination)):
        bad = table.first_outside(checked[:, column], checked[:, 2])
        if bad is not None:
            address, size_bytes = int(checked[bad, column]), int(checked[bad, 2])
            raise InvalidArgumentError(
                f"write {bad} of {len(checked)}: {side} address {address:#x} with {size_bytes} "
                f"bytes is not inside one registered region; {table.describe_nearest(address)}"
            )
    total_bytes = float(checked[:, 2].sum(dtype=np.float64))
    if total_bytes >= _POST_LIMIT_BYTES:
        raise InvalidArgumentError(
            f"writes have about {total_bytes:.3g} bytes, expected less than 2**62"
        )
    return checked


def _region_arrays(
    addresses: list[int], sizes_bytes: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array(addresses, dtype=np.int64), np.array(sizes_bytes, dtype=np.int64)
