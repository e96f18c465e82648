# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The completion message: the notification that a transport delivers after a segment's bytes.

One line of ASCII with a fixed number of fields; the source's name is last, so that it may hold any
printable character. It is parsed whole, never by prefix.
"""

import re
from dataclasses import dataclass

from kvxfer import Error
from kvxfer.transfer.messages import PROTOCOL_VERSION

__all__ = ["NO_REGION", "BadCompletionError", "Completion"]

NO_REGION = -1

_MAX_UINT64 = 2**64 - 1
_MAX_INT64 = 2**63 - 1
_LINE = re.compile(
    rb"kvxfer/([0-9]{1,4}) ([0-9]{1,20}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) "
    rb"([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) (-1|[0-9]{1,19}) ([0-9]{1,19}) "
    rb"([01]) ([01]) ([01]) "
    rb"([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9a-f]{16}) ([ -~]{1,255})"
)


class BadCompletionError(Error):
    """A notification that is not a completion message of this version."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a source tells a destination when a segment has arrived.

    Attributes
    ----------
    room, room_generation : int
        The room and which use of its id, as the receiver's request named them.
    source_index : int
        Place of the source among the receiver's sources.
    segment : int
        Number of the segment for this destination, from 0 without gaps.
    begin, end : int
        Positions of the segment.                                                  [unit: tokens]
    size_bytes : int
        Bytes of rows that were written for it.
    region, region_generation : int
        Landing region that holds them; ``NO_REGION`` where they lie in their final rows.
    is_final : bool
        Last segment of the room; state and metadata have arrived too.
    is_drained : bool
        No write of the room to this destination is left.
    has_more : bool
        Another segment for this destination is ready to go.
    state_count, state_bytes, metadata_bytes : int
        What came with the final segment.
    state_mark : int
        Of the state slices that came with it; see ``mark_of_sent``.
    digest : str
        Of the terms that both sides computed, 16 hexadecimal digits.
    source : str
        Agent name of the source.
    """

    room: int
    room_generation: int
    source_index: int
    segment: int
    begin: int
    end: int
    size_bytes: int
    region: int = NO_REGION
    region_generation: int = 0
    is_final: bool = False
    is_drained: bool = False
    has_more: bool = False
    state_count: int = 0
    state_bytes: int = 0
    metadata_bytes: int = 0
    state_mark: int = 0
    digest: str
    source: str

    def encode(self) -> bytes:
        """Return the line, at most 600 bytes of ASCII.

        Examples
        --------
        >>> done = Completion(room=7, room_generation=1, source_index=0, segment=2, begin=16,
        ...     end=21, size_bytes=640, is_final=True, digest="00c0ffee00c0ffee", source="dec_0 a")
        >>> Completion.decode(done.encode()) == done
        True
        """
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        fields = (int(value) if isinstance(value, bool) else value for value in values)
        return f"kvxfer/{PROTOCOL_VERSION} {' '.join(str(f) for f in fields)}".encode("ascii")

    @classmethod
    def decode(cls, line: bytes) -> "Completion":
        """Return what a line says.

        Raises
        ------
        BadCompletionError
            For anything that ``encode`` of this version does not write.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadCompletionError(f"notification {line[:64]!r} is not a completion message")
        version, *numbers = (int(field) for field in match.groups()[:-2])
        if version != PROTOCOL_VERSION:
            raise BadCompletionError(
                f"completion message has version {version}, expected {PROTOCOL_VERSION}"
            )
        room, *rest = numbers
        if not 1 <= room <= _MAX_UINT64 or max(rest) > _MAX_INT64:
            raise BadCompletionError(f"completion message {line[:64]!r} has a number out of range")
        names = list(cls.__dataclass_fields__)
        values = dict(zip(names[: len(numbers)], numbers, strict=True))
        is_final, is_drained, has_more = (
            bool(values.pop(name)) for name in ("is_final", "is_drained", "has_more")
        )
        digest, source = (field.decode("ascii") for field in match.groups()[-2:])
        return cls(
            **values,
            is_final=is_final,
            is_drained=is_drained,
            has_more=has_more,
            digest=digest,
            source=source,
        )
