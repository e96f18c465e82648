# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The posts of one agent: their states, their release, and the counters."""

import threading
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.transports.protocol import COUNTER_NAMES, WriteHandle, WriteState

if TYPE_CHECKING:
    from kvxfer.transports._library.link import Link


class Post(WriteHandle):
    """One post.

    Attributes
    ----------
    state : WriteState
        Changed by the ledger alone.
    link : Link
        The generation of the peer that it goes to.
    notification : bytes
        What the target is to be told once every byte is in its memory.
    """

    __slots__ = ("is_released", "link", "notification", "state")

    def __init__(self, link: "Link", writes: NDArray[np.int64], notification: bytes) -> None:
        super().__init__(link.name, len(writes), int(writes[:, 2].sum()))
        self.link = link
        self.notification = notification
        self.state = WriteState.RUNNING
        self.is_released = False


class Ledger:
    """Keeps posts alive until they are released, whatever the caller does with their handles.

    A handle of NIXL that is collected is released, and a release stops nothing: after that nobody
    can tell when its source is no longer read. All methods may be called from any thread.
    """

    def __init__(self, agent_name: str) -> None:
        self._agent_name = agent_name
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTER_NAMES, 0)
        self._live: set[Post] = set()

    def admit(self, post: Post) -> None:
        """Take a post that has been started."""
        with self._lock:
            self._live.add(post)
            self._counts["posted"] += 1
            self._counts["writes"] += post.write_count
            self._counts["bytes"] += post.size_bytes

    def count_refusal(self) -> None:
        """Count a post that raised."""
        with self._lock:
            self._counts["refused"] += 1

    def count_notifications(self, count: int) -> None:
        """Count notifications that were handed out."""
        with self._lock:
            self._counts["notifications"] += count

    def settle(self, post: Post, state: WriteState, error: str | None = None) -> None:
        """Set the state of a post that has not ended; the first error stays.

        One that was LOST ends DRAINED, however it ended.
        """
        with self._lock:
            self._settle(post, state, error)

    def end_all(self, error: str) -> None:
        """End every post that has not: the agent is gone, so nothing is read any more."""
        with self._lock:
            for post in self._live:
                self._settle(post, WriteState.FAILED, error)

    def own(self, handle: WriteHandle) -> Post:
        """Return a handle as a post of this agent.

        Raises
        ------
        InvalidArgumentError
            For another agent's handle and for one that was released.
        """
        if not isinstance(handle, Post) or handle.link.ledger is not self:
            raise InvalidArgumentError(f"handle {handle!r} is not of agent {self._agent_name!r}")
        if handle.is_released:
            raise InvalidArgumentError(f"handle was released before: {handle!r}")
        return handle

    def release(self, handle: WriteHandle) -> None:
        """Forget a post that has ended.

        Raises
        ------
        InvalidArgumentError
            As ``own`` does, and while the post is RUNNING or LOST.
        """
        with self._lock:
            post = self.own(handle)
            if not post.state.has_ended:
                raise InvalidArgumentError(
                    f"handle is {post.state.name}, expected DONE, FAILED or DRAINED: {post!r}"
                )
            post.is_released = True
            self._live.discard(post)
            self._counts["released"] += 1

    @property
    def counters(self) -> dict[str, int]:
        """Counters by the names of ``COUNTER_NAMES``."""
        with self._lock:
            live_handles = self._counts["posted"] - self._counts["released"]
            return {**self._counts, "live_handles": live_handles}

    def _settle(self, post: Post, state: WriteState, error: str | None) -> None:
        if post.state.has_ended or post.state is state:
            return
        if post.state is WriteState.LOST:
            state = WriteState.DRAINED
        post.error = post.error or error
        post.state = state
        self._counts[state.value] += 1
