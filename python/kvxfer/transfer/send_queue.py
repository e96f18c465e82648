# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the engine handed over for one room, and its cut into segments."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvxfer import InvalidArgumentError, PageTable, Segment, split_segments
from kvxfer.transfer.copies import Ready
from kvxfer.transfer.destination import Destination
from kvxfer.transfer.dispatch import PlannedSegment

__all__ = ["Send", "SendQueue"]


@dataclass(frozen=True)
class Send:
    """One call of the engine."""

    table: PageTable
    end: int
    is_final: bool
    ready: Ready | None


class _All:
    """Several events as one."""

    def __init__(self, events: Sequence[Ready]) -> None:
        self._events = events

    def query(self) -> bool:
        return all(event.query() for event in self._events)


class SendQueue:
    """Keeps sends until it is known for whom they are, then cuts them.

    Sends follow each other without gaps, the first from the receivers' prefix on.
    """

    def __init__(self) -> None:
        self._sends: list[Send] = []
        self._position = 0
        self._last_end = 0
        self._is_final_given = False
        # Events of sends that made no segment: their rows go with the next one.
        self._unmet: list[Ready] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be cut."""
        return not self._sends

    def add(self, send: Send) -> None:
        """Take one call of the engine.

        Raises
        ------
        InvalidArgumentError
            If it follows the final one, goes back, or has too few pages.
        """
        if self._is_final_given:
            raise InvalidArgumentError("the final send was made already")
        if send.end < self._last_end:
            raise InvalidArgumentError(
                f"end is {send.end}, expected at least {self._last_end}, where the last send ended"
            )
        if send.end > send.table.end_position:
            raise InvalidArgumentError(
                f"source pages end at position {send.table.end_position}, "
                f"expected at least {send.end}"
            )
        self._sends.append(send)
        self._last_end = send.end
        self._is_final_given = send.is_final

    def cut(
        self, destinations: Sequence[Destination], capacity_tokens: int | None
    ) -> list[PlannedSegment]:
        """Return the segments of everything that was added since the last call.

        Raises
        ------
        InvalidArgumentError
            If a send does not fit what the receivers asked for.
        """
        sends, self._sends = self._sends, []
        planned: list[PlannedSegment] = []
        for send in sends:
            segments = self._cut_one(send, destinations[0], capacity_tokens)
            self._unmet += [send.ready] if send.ready is not None else []
            if segments:
                ready = _All(self._unmet) if self._unmet else None
                planned += [PlannedSegment(s, send.table, ready) for s in segments]
                self._unmet = []
        return planned

    def clear(self) -> None:
        """Forget what was not cut."""
        self._sends.clear()

    def _cut_one(
        self, send: Send, destination: Destination, capacity_tokens: int | None
    ) -> list[Segment]:
        if send.end > destination.end or (send.is_final and send.end != destination.end):
            raise InvalidArgumentError(
                f"send ends at {send.end}, "
                f"but the receivers asked for positions up to {destination.end}"
            )
        begin = max(self._position, destination.prefix)
        if send.end <= begin and not send.is_final:
            return []
        segments = split_segments(
            begin,
            send.end,
            is_final=send.is_final,
            prefix=destination.prefix,
            alignment_tokens=destination.relayout.alignment_tokens,
            capacity_tokens=capacity_tokens,
        )
        if segments and begin < segments[-1].end and send.table.first_position > begin:
            raise InvalidArgumentError(
                f"source pages begin at position {send.table.first_position}, "
                f"expected at most {begin}"
            )
        self._position = segments[-1].end if segments else begin
        return segments


def check_extras(is_final: bool, has_extras: bool) -> None:
    """Refuse state or metadata with a send that is not final.

    Raises
    ------
    InvalidArgumentError
    """
    if has_extras and not is_final:
        raise InvalidArgumentError("state and metadata go with the final send only")
