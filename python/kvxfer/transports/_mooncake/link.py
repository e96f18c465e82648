# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One generation of a peer over Mooncake, and the posts to it.

Above some 2,060 outstanding writes to a peer Mooncake fails them or never ends them, and the peer
can stay unusable: at most ``max_outstanding_writes`` are submitted, over all posts and threads, and
each poll submits as many as have ended.

Mooncake refuses good writes when all of its connections to a peer were ended by earlier ones, for
example by writes that the peer rejected, and connects again after that. A write that fails at once
is therefore submitted again, while the peer's mailbox says that it lives.

When a write fails for good, the others that were submitted go on, for minutes where the peer is
frozen (each of Mooncake's four connections gives up one write per 30 s). The post is LOST until
each of them has ended. Even then, and where a failed write was made up for, bytes may lie in the
peer's kernel, and its engine writes them to their places when the process goes on; so the peer has
to show that it runs, and is given ``settle_s`` on top. A peer whose end is certain writes nothing
any more. Where only the network has broken, nothing is certain: the post stays LOST until this
agent is closed.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer.errors import TransferError
from kvxfer.transports._library.ledger import Ledger, Post
from kvxfer.transports._library.link import Link
from kvxfer.transports._mooncake import engine as library
from kvxfer.transports._mooncake.channel import Channel
from kvxfer.transports._mooncake.engine import MooncakeEngine
from kvxfer.transports._mooncake.post import MooncakePost, SubmittedWrite
from kvxfer.transports.protocol import Description, WriteState

_LOG = logging.getLogger("kvxfer.transports")

# A message stays in our memory only while the peer's kernel takes no more: 1 MiB is a frozen peer.
_MAX_PENDING_BYTES = 1 << 20
# Writes end nearly in order; four connections work on them at a time.
_LOOK_AHEAD = 16
# Mooncake connects again one second after it has refused a write; the second try waits for that.
_MAX_RETRY_COUNT = 2
# A refusal comes within milliseconds; one that takes longer is a connection that got stuck.
_REFUSAL_S = 2.0


class Window:
    """Counts the outstanding writes to one engine, over all links that lead to it.

    There is more than one where a peer was removed and added again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take a place for one write; False where none is free."""
        with self._lock:
            is_free = self._count < self._limit
            self._count += is_free
            return is_free

    def give_back(self) -> None:
        """Free the place of a write that has ended."""
        with self._lock:
            self._count -= 1


@dataclass(frozen=True)
class Route:
    """How one engine's writes reach another's.

    Attributes
    ----------
    session : str
        Name under which Mooncake knows the target.
    window : Window
        The target's places.
    settle_s : float
        How long a peer that runs is given to write what has reached its kernel.
    """

    engine: MooncakeEngine
    session: str
    window: Window
    settle_s: float


class MooncakeLink(Link):
    """One generation of a peer. A thread that wants to move it while another does goes on."""

    def __init__(
        self,
        ledger: Ledger,
        description: Description,
        route: Route,
        channel: Channel,
    ) -> None:
        super().__init__(ledger, description)
        self._route = route
        self._channel = channel
        self._posts: deque[MooncakePost] = deque()
        self._outstanding: deque[SubmittedWrite] = deque()
        self._moving = threading.Lock()

    @property
    def running_count(self) -> int:
        """Posts that have not ended."""
        return len(self._posts)

    def refresh(self, description: Description) -> None:
        """Take newer regions. Mooncake's targets check every write themselves."""
        self.regions = description.regions

    def start(self, writes: NDArray[np.int64], notification: bytes) -> Post:
        """Queue a post and submit what the limit allows."""
        post = MooncakePost(self, writes, notification)
        with self._moving:
            if self.is_retired:
                raise TransferError("peer_unknown", self.name, None, "the peer was removed")
            self._watch_peer()
            if self.error is not None:
                raise TransferError("peer_dead", self.name, None, self.error)
            if self._channel.pending_bytes > _MAX_PENDING_BYTES:
                raise TransferError(
                    "limit",
                    self.name,
                    None,
                    f"{self._channel.pending_bytes} bytes of notifications wait for a peer that "
                    f"does not take them, expected at most {_MAX_PENDING_BYTES}",
                )
            self._posts.append(post)
            self._submit()
        return post

    def advance(self, post: Post | None = None) -> None:
        """Move every post of the peer."""
        is_idle = not self._posts and not self._channel.pending_bytes
        if is_idle or not self._moving.acquire(blocking=False):
            return
        try:
            self._watch_peer()
            self._collect()
            self._submit()
            self._finish()
        finally:
            self._moving.release()

    def retire(self) -> None:
        """Submit nothing more; posts with outstanding writes are LOST until those have ended."""
        with self._moving:
            self.is_retired = True
            self._watch_peer()
            self._collect()
            for post in self._posts:
                self._fail(post, "was removed")
            self._finish()

    def abandon(self) -> None:
        """Let go of every post, because the agent ends with all that runs."""
        self._posts.clear()
        self._outstanding.clear()
        self._channel.close()

    def dispose(self) -> None:
        """End the connection to the peer's mailbox."""
        self._channel.close()

    # --- with the lock --------------------------------------------------------------------------

    def _watch_peer(self) -> None:
        self._channel.pump()
        if self._channel.error is not None and self.error is None:
            self.error = f"the connection has ended: {self._channel.error}"
        if self.error is not None:
            for post in self._posts:
                # The peer cannot show any more that nothing of an unsure post can land.
                if post.is_waiting or (post.is_unsure and not post.outstanding_count):
                    self._fail(post, self.error)

    def _collect(self) -> None:
        """Ask the oldest outstanding writes how they stand."""
        running: list[SubmittedWrite] = []
        while self._outstanding and len(running) < _LOOK_AHEAD:
            write = self._outstanding.popleft()
            status = self._route.engine.status(write.write_id)
            if status in (library.RUNNING, library.TIMED_OUT):
                running.append(write)
            else:
                self._route.window.give_back()
                write.post.outstanding_count -= 1
            if status not in (library.RUNNING, library.DONE):
                self._note_failure(write, status)
        self._outstanding.extendleft(reversed(running))

    def _note_failure(self, write: SubmittedWrite, status: int) -> None:
        """Have a write submitted again where it was refused at once, or fail its post."""
        post = write.post
        post.is_unsure = True
        is_refusal = status == library.FAILED and time.monotonic() - write.since_s < _REFUSAL_S
        is_reachable = self.error is None and not self.is_retired
        if is_refusal and is_reachable and post.retry_counts[write.index] < _MAX_RETRY_COUNT:
            post.retry_counts[write.index] += 1
            post.refused.append(write.index)
            _LOG.debug("peer %r: write %d of %r was refused", self.name, write.index, post)
        else:
            self._fail(post, f"failed a write: Mooncake's code {status}")

    def _submit(self) -> None:
        for post in self._posts:
            while post.is_waiting:
                if not self._route.window.take():
                    return
                index = post.take_next()
                write = post.writes[index].tolist()
                write_id = self._route.engine.submit(self._route.session, *write)
                if write_id:
                    post.outstanding_count += 1
                    self._outstanding.append(
                        SubmittedWrite(write_id, post, index, time.monotonic())
                    )
                else:
                    self._route.window.give_back()
                    post.is_unsure = True
                    self._fail(post, "was not sent a write: Mooncake gave no id")

    def _finish(self) -> None:
        for post in list(self._posts):
            if post.outstanding_count or post.is_waiting or not self._is_quiet(post):
                continue
            if post.fault is None:
                self._deliver(post)
            state = WriteState.DONE if post.fault is None else WriteState.FAILED
            self.ledger.settle(post, state, post.fault)
            self._posts.remove(post)

    def _deliver(self, post: MooncakePost) -> None:
        """Send the notification of a post whose bytes are all in place."""
        if self.error is not None:
            self._fail(post, self.error)
            return
        if post.notification:
            self._channel.notify(post.notification)

    def _is_quiet(self, post: MooncakePost) -> bool:
        """Say whether the peer writes nothing of a post any more, once all its writes ended."""
        if not post.is_unsure or self._channel.is_peer_gone:
            return True
        if not post.ping:
            post.ping = self._channel.ping()
        if post.quiet_at_s is None and self._channel.last_pong >= post.ping:
            post.quiet_at_s = time.monotonic() + self._route.settle_s
        return post.quiet_at_s is not None and time.monotonic() >= post.quiet_at_s

    def _fail(self, post: MooncakePost, reason: str) -> None:
        """Keep the first reason. The post is LOST unless nothing of it can land any more."""
        post.fault = post.fault or f"peer {self.name!r} {reason}"
        is_open = post.outstanding_count or post.is_unsure
        if is_open and not self._channel.is_peer_gone:
            self.ledger.settle(post, WriteState.LOST, post.fault)
