# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A post of the loopback transport and how far it has come."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvxfer.transports.protocol import WriteHandle, WriteState

if TYPE_CHECKING:
    from kvxfer.transports._loopback.outbound import OutboundPeer


class WriteFault(RuntimeError):  # noqa: N818 - the post ends, the connection goes on
    """A post cannot be carried out; other posts to the same peer can."""


class LoopbackHandle(WriteHandle):
    """A post, its runs, and two marks in their bytes taken as one sequence.

    Attributes
    ----------
    link : OutboundPeer
        Where the post waits for its turn.
    moved_bytes : int
        Bytes that are read from the source already.
    settled_bytes : int
        Bytes of those that nobody touches any more: in the target's memory, or given up.
    """

    __slots__ = (
        "_ends_bytes",
        "_writes",
        "is_released",
        "link",
        "moved_bytes",
        "notification",
        "settled_bytes",
        "state",
    )

    def __init__(
        self, link: "OutboundPeer", writes: NDArray[np.int64], notification: bytes
    ) -> None:
        ends_bytes = np.cumsum(writes[:, 2])
        super().__init__(link.name, len(writes), int(ends_bytes[-1]) if len(writes) else 0)
        self.link = link
        self.notification = notification
        self.state = WriteState.RUNNING
        self.moved_bytes = 0
        self.settled_bytes = 0
        self.is_released = False
        self._writes = writes
        self._ends_bytes = ends_bytes

    @property
    def has_more(self) -> bool:
        """Whether bytes are left to move."""
        return self.error is None and self.moved_bytes < self.size_bytes

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that have left the source and may still be written to the destination."""
        return self.moved_bytes - self.settled_bytes

    def next_runs(self, limit_bytes: int, limit_count: int) -> NDArray[np.int64]:
        """Return the runs that follow ``moved_bytes``, cut at both limits.

        Returns
        -------
        int64 array, shape (run_count, 3), host
            Source address, destination address, bytes; at least one run while any byte is left.
        """
        stop_bytes = min(self.moved_bytes + limit_bytes, self.size_bytes)
        first = int(np.searchsorted(self._ends_bytes, self.moved_bytes, side="right"))
        last = int(np.searchsorted(self._ends_bytes, stop_bytes, side="left"))
        runs = self._writes[first : min(last + 1, first + limit_count)].copy()
        if len(runs):
            skipped_bytes = self.moved_bytes - int(self._ends_bytes[first]) + int(runs[0, 2])
            runs[0] += (skipped_bytes, skipped_bytes, -skipped_bytes)
            runs[-1, 2] -= max(self.moved_bytes + int(runs[:, 2].sum()) - stop_bytes, 0)
        return runs
