# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Tells device memory from host memory by its address.

Both libraries must be told at registration. The CUDA driver knows, and it is asked only where this
process has loaded it already: without it there is no device memory.
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvxfer.transports.protocol import RegionTable

HOST = -1
"""Stands for host memory where a device index is wanted."""

_ATTRIBUTE_MEMORY_TYPE = 2
_ATTRIBUTE_DEVICE_ORDINAL = 9
_MEMORY_TYPE_DEVICE = 2


def loaded_driver() -> Any:
    """Return the CUDA driver library of this process, None where it has not been loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def device_index(address: int, driver: Any) -> int:
    """Return the index of the GPU that an address belongs to, HOST for host memory.

    Parameters
    ----------
    address : int
    driver : CDLL or None
        What ``loaded_driver`` returned.
    """
    if driver is None:
        return HOST
    memory_type = ctypes.c_uint(0)
    ordinal = ctypes.c_int(HOST)
    for value, attribute in (
        (memory_type, _ATTRIBUTE_MEMORY_TYPE),
        (ordinal, _ATTRIBUTE_DEVICE_ORDINAL),
    ):
        # An error means that the driver has not mapped the address: plain host memory.
        if driver.cuPointerGetAttribute(ctypes.byref(value), attribute, ctypes.c_uint64(address)):
            return HOST
    return ordinal.value if memory_type.value == _MEMORY_TYPE_DEVICE else HOST


@dataclass(frozen=True)
class MemoryKinds:
    """Which device each region of one agent lies on.

    Attributes
    ----------
    starts : int64 array, shape (region_count,), host
        Region addresses, ascending.
    devices : int32 array, shape (region_count,), host
        Device index of each region, HOST for host memory.
    """

    starts: NDArray[np.int64]
    devices: NDArray[np.int32]

    @classmethod
    def of(cls, regions: RegionTable, devices: dict[int, int]) -> Self:
        """Build from a region table and the devices by region address."""
        starts = regions.as_array()[:, 0].copy()
        return cls(starts, np.array([devices[start] for start in starts.tolist()], np.int32))

    @property
    def has_device_memory(self) -> bool:
        """Whether any region is not host memory."""
        return bool((self.devices != HOST).any())

    def devices_at(self, addresses: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the device of each address, all of which lie in regions."""
        return self.devices[np.searchsorted(self.starts, addresses, side="right") - 1]
