# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The frame around what an agent tells its peers about itself.

A truncated blob that reaches NIXL makes the peer's name unusable for the life of the agent, so the
frame is checked in full before a transport sees any of it. Nothing in it is code or pickle.

Layout, little endian: magic (8 bytes), version (uint16), total length (uint32), the fields
transport, agent name, generation and payload (each a uint32 length and that many bytes), region
count (uint32), regions (int64 address, int64 bytes), CRC32 of everything before it (uint32).
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.transports._regions import RegionTable

_MAGIC = b"KVXFERTD"
_VERSION = 1
_HEAD = struct.Struct("<8sHI")
_COUNT = struct.Struct("<I")
_MAX_TOTAL_BYTES = 16 << 20
_MAX_NAME_BYTES = 255


class DescriptionError(InvalidArgumentError):
    """A peer's description is damaged, foreign or of another version."""


@dataclass(frozen=True)
class Description:
    """What an agent tells its peers.

    Attributes
    ----------
    transport, agent_name : str
        Names, printable ASCII.
    generation : bytes
        Differs between any two agents that ever had the same name.
    payload : bytes
        What the transport itself needs.
    regions : RegionTable
        The agent's registered regions.
    """

    transport: str
    agent_name: str
    generation: bytes
    payload: bytes
    regions: RegionTable

    def encode(self) -> bytes:
        """Return the framed bytes."""
        region_array = self.regions.as_array().astype("<i8")
        fields = (
            self.transport.encode("ascii"),
            self.agent_name.encode("ascii"),
            self.generation,
            self.payload,
        )
        body = b"".join(_COUNT.pack(len(field)) + field for field in fields)
        body += _COUNT.pack(len(region_array)) + region_array.tobytes()
        total_bytes = _HEAD.size + len(body) + _COUNT.size
        if total_bytes > _MAX_TOTAL_BYTES:
            raise InvalidArgumentError(
                f"description has {total_bytes} bytes, expected at most {_MAX_TOTAL_BYTES}"
            )
        framed = _HEAD.pack(_MAGIC, _VERSION, total_bytes) + body
        return framed + _COUNT.pack(zlib.crc32(framed))

    @classmethod
    def decode(cls, blob: bytes, transport: str) -> Self:
        """Check a frame in full and return what it holds.

        Parameters
        ----------
        blob : bytes
            What a peer sent.
        transport : str
            The only transport whose descriptions are taken.

        Raises
        ------
        DescriptionError
            For anything but an undamaged description of this version and transport.
        """
        reader = _Reader(_check_frame(blob))
        found = reader.name("transport")
        if found != transport:
            raise DescriptionError(f"description is of transport {found!r}, expected {transport!r}")
        agent_name = reader.name("agent")
        generation, payload = reader.field("generation"), reader.field("payload")
        if not generation:
            raise DescriptionError("description has no generation")
        region_array = reader.regions()
        try:
            regions = RegionTable.from_array(f"peer {agent_name!r}", region_array)
        except InvalidArgumentError as error:
            raise DescriptionError(f"description of {agent_name!r}: {error}") from error
        return cls(transport, agent_name, generation, payload, regions)


def check_agent_name(name: object) -> str:
    """Return an agent's name.

    Raises
    ------
    InvalidArgumentError
        Unless it is 1 to 255 characters of printable ASCII.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME_BYTES:
        raise InvalidArgumentError(
            f"agent name {name!r:.80} is not a string of 1 to {_MAX_NAME_BYTES} characters"
        )
    if not (name.isascii() and name.isprintable()):
        raise InvalidArgumentError(f"agent name {name!r} is not printable ASCII")
    return name


class _Reader:
    """Takes fields from the front of a body whose checksum has been checked."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def field(self, what: str) -> bytes:
        return self._take(_COUNT.unpack(self._take(_COUNT.size, what))[0], what)

    def name(self, what: str) -> str:
        try:
            return check_agent_name(self.field(f"{what} name").decode("ascii"))
        except (UnicodeDecodeError, InvalidArgumentError) as error:
            raise DescriptionError(f"description has a bad {what} name: {error}") from error

    def regions(self) -> NDArray[np.int64]:
        region_count = _COUNT.unpack(self._take(_COUNT.size, "region count"))[0]
        raw = self._take(16 * region_count, "regions")
        if self._at != len(self._body):
            raise DescriptionError(
                f"description has {len(self._body) - self._at} bytes after its last field"
            )
        return np.frombuffer(raw, dtype="<i8").astype(np.int64).reshape(region_count, 2)

    def _take(self, size_bytes: int, what: str) -> bytes:
        taken = self._body[self._at : self._at + size_bytes]
        if len(taken) != size_bytes:
            raise DescriptionError(
                f"description ends inside its {what}: expected {size_bytes} bytes, got {len(taken)}"
            )
        self._at += size_bytes
        return taken


def _check_frame(blob: object) -> bytes:
    """Return the body of a frame: what stands between the head and the checksum."""
    if not isinstance(blob, bytes):
        raise DescriptionError(f"description is a {type(blob).__name__}, expected bytes")
    if not _HEAD.size + _COUNT.size <= len(blob) <= _MAX_TOTAL_BYTES:
        raise DescriptionError(
            f"description has {len(blob)} bytes, expected "
            f"{_HEAD.size + _COUNT.size} to {_MAX_TOTAL_BYTES}"
        )
    magic, version, total_bytes = _HEAD.unpack_from(blob)
    if magic != _MAGIC:
        raise DescriptionError(f"description begins with {magic!r}, expected {_MAGIC!r}")
    if version != _VERSION:
        raise DescriptionError(f"description has version {version}, expected {_VERSION}")
    if total_bytes != len(blob):
        raise DescriptionError(
            f"description has {len(blob)} bytes, but was written with {total_bytes}"
        )
    expected = _COUNT.unpack_from(blob, len(blob) - _COUNT.size)[0]
    found = zlib.crc32(blob[: -_COUNT.size])
    if found != expected:
        raise DescriptionError(f"description has checksum {found:#010x}, expected {expected:#010x}")
    return blob[_HEAD.size : -_COUNT.size]
