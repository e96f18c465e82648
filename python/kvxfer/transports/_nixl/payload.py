# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a NIXL agent tells its peers beside its regions.

Layout, little endian: region count (uint32), device of each region in address order (int32, -1 for
host memory), NIXL's own metadata.
"""

import struct
from dataclasses import dataclass
from typing import Self

import numpy as np

from kvxfer.transports._library.memory_kind import HOST, MemoryKinds
from kvxfer.transports.protocol import Description, DescriptionError

_COUNT = struct.Struct("<I")
_GENERATION_DIGITS = 32


@dataclass(frozen=True)
class NixlPayload:
    """Devices of the regions and NIXL's metadata."""

    kinds: MemoryKinds
    metadata: bytes

    def encode(self) -> bytes:
        """Return the bytes of the payload."""
        devices = self.kinds.devices.astype("<i4")
        return _COUNT.pack(len(devices)) + devices.tobytes() + self.metadata

    @classmethod
    def decode(cls, description: Description) -> Self:
        """Return what a description holds.

        Raises
        ------
        DescriptionError
            If it does not fit the regions beside it, or is the metadata of another agent.
        """
        payload, who = description.payload, f"description of {description.agent_name!r}"
        if len(payload) < _COUNT.size:
            raise DescriptionError(f"{who} has a payload of {len(payload)} bytes")
        region_count = _COUNT.unpack_from(payload)[0]
        devices_end = _COUNT.size + 4 * region_count
        if region_count != len(description.regions) or devices_end > len(payload):
            raise DescriptionError(
                f"{who} has devices for {region_count} regions, expected {len(description.regions)}"
            )
        devices = np.frombuffer(payload[_COUNT.size : devices_end], dtype="<i4").astype(np.int32)
        if (devices < HOST).any():
            raise DescriptionError(f"{who} has device {devices.min()}, expected at least {HOST}")
        metadata = payload[devices_end:]
        # NIXL acts on the name inside before it returns it, and a wrong one would be a known peer.
        name = nixl_name(description.agent_name, description.generation)
        if name.encode("ascii") not in metadata:
            raise DescriptionError(f"{who} has metadata of another agent than {name!r}")
        starts = description.regions.as_array()[:, 0].copy()
        return cls(MemoryKinds(starts, devices), metadata)


def nixl_name(agent_name: str, generation: bytes) -> str:
    """Return the name that NIXL knows one generation of an agent by."""
    return f"{agent_name}#{generation.hex()}"


def agent_name_of(name: str) -> str | None:
    """Return the agent name in a NIXL name, None for one that is not made here."""
    agent_name, separator, generation = name.rpartition("#")
    is_ours = separator and len(generation) == _GENERATION_DIGITS and agent_name
    return agent_name if is_ours else None
