# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Finds out what one write costs whatever its size, from the difference of two posts."""

import math
import statistics
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.transports._library.transport import WriteCost
from kvxfer.transports.protocol import Transport, WriteState

_WRITE_BYTES = 256
_WRITE_COUNT = 512
_ROUND_COUNT = 5
_DEADLINE_S = 10.0


def chosen_write_cost(
    wanted: float | Literal["measure"] | None,
    default: WriteCost,
    make: Callable[[str], Transport],
) -> WriteCost:
    """Return the cost that the caller gave, had measured, or left to the default.

    Raises
    ------
    InvalidArgumentError
        For anything but a finite number of at least 0, "measure" and None.
    """
    if wanted is None:
        return default
    if wanted == "measure":
        return WriteCost(measured_write_cost_us(make), default.device_us)
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
    if not is_number or not math.isfinite(wanted) or wanted < 0:
        raise InvalidArgumentError(
            f"write_cost_us is {wanted!r}, expected a finite number of at least 0, or 'measure'"
        )
    return WriteCost(float(wanted), float(wanted))


def measured_write_cost_us(make: Callable[[str], Transport]) -> float:
    """Write the same bytes in one write and in many, between two agents of this process.

    Parameters
    ----------
    make : callable
        Makes an agent by name.

    Returns
    -------
    float
        Median difference per write in microseconds, at least 0.

    Raises
    ------
    DeadlineError
        If a post does not end within 10 s.
    TransferError
        If it fails.
    """
    names = ("write-cost-source", "write-cost-target")
    size_bytes = _WRITE_BYTES * _WRITE_COUNT
    memories = [np.zeros(size_bytes, np.uint8) for _ in names]
    source_address, target_address = (memory.ctypes.data for memory in memories)
    offsets = _WRITE_BYTES * np.random.default_rng(0).permutation(_WRITE_COUNT).astype(np.int64)
    sizes_bytes = np.full_like(offsets, _WRITE_BYTES)
    columns = [source_address + offsets, target_address + offsets[::-1], sizes_bytes]
    many = np.stack(columns, axis=1)
    one = np.array([[source_address, target_address, size_bytes]], np.int64)
    source, target = (make(name) for name in names)
    try:
        source.register_memory(source_address, size_bytes)
        target.register_memory(target_address, size_bytes)
        peer = source.add_peer(target.describe())
        _post_us(source, target, peer, many)
        differences = [
            _post_us(source, target, peer, many) - _post_us(source, target, peer, one)
            for _ in range(_ROUND_COUNT)
        ]
    finally:
        source.close()
        target.close()
    return max(0.0, statistics.median(differences) / (_WRITE_COUNT - 1))


def _post_us(source: Transport, target: Transport, peer: str, writes: NDArray[np.int64]) -> float:
    begin = time.perf_counter()
    handle = source.post(peer, writes)
    while not (state := source.poll(handle)).has_ended:
        target.drain_notifications()
        if time.perf_counter() - begin > _DEADLINE_S:
            raise DeadlineError(
                "deadline", peer, None, f"a post of {len(writes)} writes is {state.name}"
            )
    if state is not WriteState.DONE:
        raise TransferError("transport", peer, None, f"the probe ended {state.name}")
    source.release(handle)
    return 1e6 * (time.perf_counter() - begin)
