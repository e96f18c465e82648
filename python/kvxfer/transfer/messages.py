# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Control messages between managers, and the frame that carries one.

A frame says who sent it before anything of it is decoded, so that a peer of another protocol
version can be refused by name. Layout, little endian: magic (4 bytes), version (uint16),
generation (uint64), name (uint8 length, ASCII), address (uint16 length, ASCII), body (msgpack).
Nothing in a frame is code or pickle, and every number is bounded by its type.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kvxfer import Error, InvalidArgumentError
from kvxfer.transfer.terms import PoolTerms, RelayoutTerms, StateTerms

__all__ = [
    "MAX_FRAME_BYTES",
    "PROTOCOL_VERSION",
    "Abort",
    "Credit",
    "Drained",
    "ForeignVersionError",
    "Grant",
    "Hello",
    "Identity",
    "MalformedFrameError",
    "Message",
    "Ping",
    "Pong",
    "Refused",
    "Request",
    "Want",
    "clipped",
    "decode_frame",
    "encode_frame",
]

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 8 << 20
MAX_NAME_BYTES = 255
MAX_ADDRESS_BYTES = 1024

_MAGIC = b"KVXC"
_HEAD = struct.Struct("<4sHQ")

Int: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
RoomId: TypeAlias = Annotated[int, Meta(ge=1)]
_MAX_TEXT = 4096
Text: TypeAlias = Annotated[str, Meta(max_length=_MAX_TEXT)]


class Hello(Struct, tag="hello", forbid_unknown_fields=True, frozen=True):
    """What a manager is: sent once per peer, and again when either side has restarted.

    ``memory`` lists (address, bytes) of everything that peers may write; ``description`` is the
    transport's own.
    """

    is_reply_wanted: bool
    transport: Annotated[str, Meta(max_length=255)]
    description: Annotated[bytes, Meta(max_length=4 << 20)]
    write_cost_us: Annotated[float, Meta(ge=0)]
    pool: PoolTerms
    memory: Annotated[list[tuple[Int, Int]], Meta(max_length=65536)]


class Ping(Struct, tag="ping", forbid_unknown_fields=True, frozen=True):
    """A heartbeat; any message of the peer answers it."""


class Pong(Struct, tag="pong", forbid_unknown_fields=True, frozen=True):
    """The answer to a ping."""


class Refused(Struct, tag="refused", forbid_unknown_fields=True, frozen=True):
    """The answer to a hello that its receiver cannot work with."""

    message: Text


class Grant(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Leave to write one segment into a landing region: once, under this generation."""

    region: Int
    generation: Int
    address: Int


class Request(Struct, tag="request", forbid_unknown_fields=True, frozen=True):
    """What a receiver asks of one source for one room.

    ``source_generation`` is the generation of the source's manager that the receiver computed
    ``terms`` with. ``pages`` holds int64 page ids, little endian, of the receiver's rank.
    """

    room: RoomId
    room_generation: Int
    source_generation: Int
    source_index: Int
    terms: RelayoutTerms
    first_position: Int
    pages: Annotated[bytes, Meta(max_length=4 << 20)]
    state: Annotated[list[StateTerms], Meta(max_length=4096)]
    metadata: tuple[Int, Int] | None
    grants: Annotated[list[Grant], Meta(max_length=64)]


class Want(Struct, tag="want", forbid_unknown_fields=True, frozen=True):
    """A source has a segment ready for a room, and no region to write it into.

    ``grant_count``: grants that it had received by then. A receiver that has made more has answered
    already: the two messages have crossed.
    """

    room: RoomId
    room_generation: Int
    grant_count: Int


class Credit(Struct, tag="credit", forbid_unknown_fields=True, frozen=True):
    """Regions that a source may write next."""

    room: RoomId
    room_generation: Int
    grants: Annotated[list[Grant], Meta(max_length=64)]


class Abort(Struct, tag="abort", forbid_unknown_fields=True, frozen=True):
    """The room has failed at its sender. ``is_to_source`` tells the two directions apart.

    ``is_drained``: no write of the room to this peer is left (from a source only). ``was_asked``:
    the receiver had sent its request before (from a receiver only).
    """

    room: RoomId
    room_generation: Int
    is_to_source: bool
    kind: Annotated[str, Meta(max_length=32)]
    message: Text
    is_drained: bool
    was_asked: bool = False


class Drained(Struct, tag="drained", forbid_unknown_fields=True, frozen=True):
    """A source's answer to an abort: whether any of its writes into the room is left."""

    room: RoomId
    room_generation: Int
    is_drained: bool


Message: TypeAlias = Hello | Refused | Ping | Pong | Request | Want | Credit | Abort | Drained

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class MalformedFrameError(Error):
    """Bytes that are no frame of ours."""


class ForeignVersionError(MalformedFrameError):
    """A frame of another protocol version, with the identity of who sent it."""

    def __init__(self, identity: "Identity", version: int) -> None:
        super().__init__(
            f"peer {identity.name} at {identity.address} speaks protocol version {version}, "
            f"expected {PROTOCOL_VERSION}"
        )
        self.identity = identity
        self.version = version


@dataclass(frozen=True)
class Identity:
    """Who sent a frame: agent name, where its control channel listens, and which life of it."""

    name: str
    address: str
    generation: int

    def __post_init__(self) -> None:
        for what, text, limit in (
            ("name", self.name, MAX_NAME_BYTES),
            ("address", self.address, MAX_ADDRESS_BYTES),
        ):
            if not (1 <= len(text) <= limit and text.isascii() and text.isprintable()):
                raise InvalidArgumentError(
                    f"{what} {text!r:.80} is not 1 to {limit} characters of printable ASCII"
                )


def clipped(text: str) -> str:
    r"""Return a text that may be sent: not too long, and without what UTF-8 has no bytes for.

    Examples
    --------
    >>> clipped("no such file: a\udce9")
    'no such file: a?'
    """
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode("utf-8")


def encode_frame(identity: Identity, message: Message, version: int = PROTOCOL_VERSION) -> bytes:
    """Return the bytes of one message.

    Raises
    ------
    InvalidArgumentError
        If they are more than ``MAX_FRAME_BYTES``, or a field is out of the bounds that the receiver
        checks: it would drop the message without a word.
    """
    body = _ENCODER.encode(message)
    try:
        _DECODER.decode(body)
    except msgspec.ValidationError as error:
        kind = type(message).__name__
        raise InvalidArgumentError(f"control message {kind} cannot be sent: {error}") from error
    name, address = identity.name.encode("ascii"), identity.address.encode("ascii")
    frame = b"".join(
        (
            _HEAD.pack(_MAGIC, version, identity.generation),
            struct.pack("<B", len(name)),
            name,
            struct.pack("<H", len(address)),
            address,
            body,
        )
    )
    if len(frame) > MAX_FRAME_BYTES:
        raise InvalidArgumentError(
            f"control message {type(message).__name__} has {len(frame)} bytes, "
            f"expected at most {MAX_FRAME_BYTES}"
        )
    return frame


def decode_frame(frame: bytes) -> tuple[Identity, Message]:
    """Return who sent a frame, and its message.

    Raises
    ------
    ForeignVersionError
        For a frame of another protocol version.
    MalformedFrameError
        For anything else that is not a whole frame with a valid message.
    """
    if not _HEAD.size < len(frame) <= MAX_FRAME_BYTES:
        raise MalformedFrameError(
            f"frame has {len(frame)} bytes, expected {_HEAD.size + 1} to {MAX_FRAME_BYTES}"
        )
    magic, version, generation = _HEAD.unpack_from(frame)
    if magic != _MAGIC:
        raise MalformedFrameError(f"frame begins with {magic!r}, expected {_MAGIC!r}")
    name, at = _take_text(frame, _HEAD.size, "<B")
    address, at = _take_text(frame, at, "<H")
    try:
        identity = Identity(name, address, generation)
    except InvalidArgumentError as error:
        raise MalformedFrameError(f"frame has a bad sender: {error}") from error
    if version != PROTOCOL_VERSION:
        raise ForeignVersionError(identity, version)
    try:
        return identity, _DECODER.decode(frame[at:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedFrameError(f"frame of {identity.name}: {error}") from error


def _take_text(frame: bytes, at: int, length_format: str) -> tuple[str, int]:
    size = struct.calcsize(length_format)
    if at + size > len(frame):
        raise MalformedFrameError(f"frame of {len(frame)} bytes ends inside its head")
    (length,) = struct.unpack_from(length_format, frame, at)
    raw = frame[at + size : at + size + length]
    if len(raw) != length or not raw.isascii():
        raise MalformedFrameError(f"frame of {len(frame)} bytes has a bad name or address")
    return raw.decode("ascii"), at + size + length
