# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Packets of the loopback transport, one per message, little endian.

An agent that writes sends Hello, then Data and Notify; the target answers Welcome or Refuse once,
then one Ack per Data. Every packet comes from another process and is checked before it is used.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer.transports.protocol import MAX_NOTIFICATION_BYTES, check_agent_name

VERSION = 1
GENERATION_BYTES = 16
MAX_PACKET_BYTES = 32 << 10
MAX_DATA_ENTRIES = 1024
_MAX_REASON_BYTES = 512

_HELLO = struct.Struct(f"<H{GENERATION_BYTES}s")
_AREA = struct.Struct("<Iq")
_DATA = struct.Struct("<QI")
_ACK = struct.Struct("<Q")


class PacketError(ValueError):
    """A packet is not one that this version sends."""


@dataclass(frozen=True)
class Hello:
    """Who connects, and whom it expects to find."""

    version: int
    generation: bytes
    agent_name: str

    def encode(self) -> bytes:
        return b"H" + _HELLO.pack(self.version, self.generation) + self.agent_name.encode("ascii")


@dataclass(frozen=True)
class Welcome:
    """The target takes writes; carries the target's gate as a file descriptor."""

    def encode(self) -> bytes:
        return b"W"


@dataclass(frozen=True)
class Refuse:
    """The target takes no writes, and why."""

    reason: str

    def encode(self) -> bytes:
        return b"R" + _reason_bytes(self.reason)


@dataclass(frozen=True)
class Area:
    """Slots of the memory that Data refers to; carries it as a file descriptor."""

    slot_count: int
    slot_bytes: int

    def encode(self) -> bytes:
        return b"M" + _AREA.pack(self.slot_count, self.slot_bytes)


@dataclass(frozen=True)
class Data:
    """The bytes that lie dense in a slot belong to these places.

    ``entries`` is an int64 array of shape (entry_count, 2): destination address, bytes.
    """

    chunk: int
    slot: int
    entries: NDArray[np.int64]

    def encode(self) -> bytes:
        return b"D" + _DATA.pack(self.chunk, self.slot) + self.entries.astype("<i8").tobytes()


@dataclass(frozen=True)
class Ack:
    """A chunk has been copied, or was not for the given reason; its slot is free."""

    chunk: int
    reason: str

    def encode(self) -> bytes:
        return b"A" + _ACK.pack(self.chunk) + _reason_bytes(self.reason)


@dataclass(frozen=True)
class Notify:
    """A notification whose data is in place."""

    text: bytes

    def encode(self) -> bytes:
        return b"N" + self.text


Message = Hello | Welcome | Refuse | Area | Data | Ack | Notify


def decode(packet: bytes) -> Message:
    """Return what a packet says.

    Raises
    ------
    PacketError
        If it is none of the messages, or holds a value out of range.
    """
    decoder = _DECODERS.get(packet[:1])
    if decoder is None:
        raise PacketError(f"packet of {len(packet)} bytes begins with {packet[:1]!r}")
    try:
        return decoder(packet[1:])
    except (struct.error, ValueError) as error:
        raise PacketError(f"packet {packet[:1]!r} of {len(packet)} bytes: {error}") from error


def _decode_hello(body: bytes) -> Hello:
    version, generation = _HELLO.unpack_from(body)
    name = check_agent_name(body[_HELLO.size :].decode("ascii"))
    return Hello(version, generation, name)


def _decode_welcome(body: bytes) -> Welcome:
    if body:
        raise ValueError("expected no body")
    return Welcome()


def _decode_refuse(body: bytes) -> Refuse:
    return Refuse(_reason(body))


def _decode_area(body: bytes) -> Area:
    return Area(*_AREA.unpack(body))


def _decode_data(body: bytes) -> Data:
    chunk, slot = _DATA.unpack_from(body)
    raw = body[_DATA.size :]
    if not raw or len(raw) % 16 or len(raw) > 16 * MAX_DATA_ENTRIES:
        raise ValueError(f"expected 1 to {MAX_DATA_ENTRIES} entries of 16 bytes")
    return Data(chunk, slot, np.frombuffer(raw, dtype="<i8").astype(np.int64).reshape(-1, 2))


def _decode_ack(body: bytes) -> Ack:
    return Ack(_ACK.unpack_from(body)[0], _reason(body[_ACK.size :]))


def _decode_notify(body: bytes) -> Notify:
    if not 1 <= len(body) <= MAX_NOTIFICATION_BYTES or not body.isascii():
        raise ValueError(f"expected 1 to {MAX_NOTIFICATION_BYTES} bytes of ASCII")
    return Notify(body)


def _reason(body: bytes) -> str:
    return body[:_MAX_REASON_BYTES].decode("ascii", "replace").replace("\ufffd", "?")


def _reason_bytes(reason: str) -> bytes:
    return reason.encode("ascii", "replace")[:_MAX_REASON_BYTES]


_DECODERS: dict[bytes, Callable[[bytes], Message]] = {
    b"H": _decode_hello,
    b"W": _decode_welcome,
    b"R": _decode_refuse,
    b"M": _decode_area,
    b"D": _decode_data,
    b"A": _decode_ack,
    b"N": _decode_notify,
}
