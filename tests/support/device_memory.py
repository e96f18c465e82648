# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Poisoned memory of GPU 0 with the interface of Memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.transport_cases import POISON, Memory


class DeviceMemory(Memory):
    """Bytes and guards on the GPU; ``bytes`` is a copy on the host."""

    def __init__(self, size_bytes: int) -> None:
        import torch

        self._torch: Any = torch
        self._device_bytes = torch.full((3 * size_bytes,), POISON, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.size_bytes = size_bytes
        self.address = self._device_bytes.data_ptr() + size_bytes

    @property
    def _all(self) -> NDArray[np.uint8]:  # type: ignore[override]
        self._torch.cuda.synchronize()
        host: NDArray[np.uint8] = self._device_bytes.cpu().numpy()
        return host

    @property
    def bytes(self) -> NDArray[np.uint8]:  # type: ignore[override]
        return self._all[self.size_bytes : 2 * self.size_bytes]

    def fill(self, seed: int) -> None:
        random = np.random.default_rng(seed).integers(0, 256, self.size_bytes, np.uint8)
        inside = self._device_bytes[self.size_bytes : 2 * self.size_bytes]
        inside.copy_(self._torch.from_numpy(random))
        self._torch.cuda.synchronize()
