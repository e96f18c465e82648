# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A post over Mooncake, and how far its writes have come."""

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer.transports._library.ledger import Post
from kvxfer.transports._library.link import Link


class MooncakePost(Post):
    """A post, and how far its writes have come.

    Attributes
    ----------
    next_write : int
        Index of the first write that has not been submitted.
    outstanding_count : int
        Writes that have been submitted and have not ended.
    refused : deque[int]
        Indices of writes that are to be submitted again.
    retry_counts : Counter[int]
        How often each of them was, by index.
    is_unsure : bool
        Whether a write has failed, of which bytes may be on their way.
    ping : int
        Number of the Ping that was sent after the last write had ended, 0 before that.
    quiet_at_s : float or None
        When the peer will have written everything it got; monotonic time.
    """

    __slots__ = (
        "fault",
        "is_unsure",
        "next_write",
        "outstanding_count",
        "ping",
        "quiet_at_s",
        "refused",
        "retry_counts",
        "writes",
    )

    def __init__(self, link: Link, writes: NDArray[np.int64], notification: bytes) -> None:
        super().__init__(link, writes, notification)
        self.writes = writes
        self.next_write = 0
        self.outstanding_count = 0
        self.refused: deque[int] = deque()
        self.retry_counts: Counter[int] = Counter()
        self.fault: str | None = None
        self.is_unsure = False
        self.ping = 0
        self.quiet_at_s: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it has writes that are still to be submitted."""
        has_more = bool(self.refused) or self.next_write < self.write_count
        return self.fault is None and has_more

    def take_next(self) -> int:
        """Return the index of the write to submit next."""
        if self.refused:
            return self.refused.popleft()
        self.next_write += 1
        return self.next_write - 1


@dataclass(frozen=True, slots=True)
class SubmittedWrite:
    """A write that has not ended, and when it was submitted (monotonic time)."""

    write_id: int
    post: MooncakePost
    index: int
    since_s: float
