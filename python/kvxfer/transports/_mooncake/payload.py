# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Where an agent's engine and mailbox are reached: two ports (uint16, little endian), the host."""

import struct
from dataclasses import dataclass
from typing import Self

from kvxfer.transports.protocol import Description, DescriptionError

_PORTS = struct.Struct("<HH")
_MAX_HOST_BYTES = 255


@dataclass(frozen=True)
class MooncakePayload:
    """Addresses of one agent."""

    host: str
    engine_port: int
    mailbox_port: int

    def encode(self) -> bytes:
        """Return the bytes of the payload."""
        return _PORTS.pack(self.engine_port, self.mailbox_port) + self.host.encode("ascii")

    @classmethod
    def decode(cls, description: Description) -> Self:
        """Return what a description holds.

        Raises
        ------
        DescriptionError
            If it holds anything else.
        """
        payload = description.payload
        host_bytes = payload[_PORTS.size :]
        is_host = 1 <= len(host_bytes) <= _MAX_HOST_BYTES and host_bytes.isascii()
        host = host_bytes.decode("ascii", "replace")
        if not is_host or not host.isprintable() or ":" in host:
            raise DescriptionError(
                f"description of {description.agent_name!r} has the host {host_bytes[:32]!r}"
            )
        engine_port, mailbox_port = _PORTS.unpack_from(payload)
        if not engine_port or not mailbox_port:
            raise DescriptionError(
                f"description of {description.agent_name!r} has the ports {engine_port} and "
                f"{mailbox_port}, expected 1 to 65535"
            )
        return cls(host, engine_port, mailbox_port)
