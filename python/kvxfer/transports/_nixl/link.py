# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One generation of a peer over NIXL, and the posts to it.

A transfer is polled until NIXL says DONE or that the peer is gone, whatever became of its room: no
call stops it, and a release, a removal of the peer or a deregistration would only take away the
means to see when its source is no longer read. For the same reason NIXL forgets a peer only after
the last transfer to it. The generation stands in the NIXL name, so that a restarted peer can be
added while transfers to the one before it are still running.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer.errors import TransferError
from kvxfer.transports._library.ledger import Ledger, Post
from kvxfer.transports._library.link import Link
from kvxfer.transports._library.memory_kind import HOST, MemoryKinds
from kvxfer.transports._nixl.agent import NixlAgent, NixlFault, NotPosted, PeerGone, Side
from kvxfer.transports._nixl.payload import NixlPayload, nixl_name
from kvxfer.transports.protocol import Description, DescriptionError, WriteState


class NixlPost(Post):
    """A post and what is left of it in NIXL."""

    __slots__ = ("fault", "is_polled", "transfers")

    def __init__(self, link: "NixlLink", writes: NDArray[np.int64], notification: bytes) -> None:
        super().__init__(link, writes, notification)
        self.transfers: list[Any] = []
        self.fault: str | None = None
        self.is_polled = threading.Lock()


class NixlLink(Link):
    """One generation of a peer.

    Raises
    ------
    DescriptionError
        If the description is not one that this NIXL understands.
    """

    def __init__(
        self,
        ledger: Ledger,
        description: Description,
        agent: NixlAgent,
        own_kinds: Callable[[], MemoryKinds],
    ) -> None:
        super().__init__(ledger, description)
        self._agent = agent
        self._own_kinds = own_kinds
        self._nixl_name = nixl_name(description.agent_name, description.generation)
        self._kinds = self._load(description)
        self._running: set[NixlPost] = set()
        # Held while a post is started, and by whatever must not meet a half-started one.
        self._starting = threading.Lock()

    @property
    def running_count(self) -> int:
        """Posts that have not ended."""
        return len(self._running)

    def refresh(self, description: Description) -> None:
        """Take newer regions. NIXL adds to what it knows and removes nothing but whole peers."""
        with self._starting:
            known = {tuple(row) for row in self.regions.as_array().tolist()}
            described = {tuple(row) for row in description.regions.as_array().tolist()}
            is_idle = not self._running and self._agent.is_held_once(self._nixl_name)
            if not known <= described and is_idle:
                self._agent.forget(self._nixl_name)
                self._kinds = self._load(description)
            elif known != described:
                self._kinds = self._load(description)
                self._agent.forget(self._nixl_name)
            self.regions = description.regions

    def start(self, writes: NDArray[np.int64], notification: bytes) -> Post:
        """Post one transfer per pair of memory kinds, or the message alone."""
        post = NixlPost(self, writes, notification)
        with self._starting:
            if self.is_retired:
                raise TransferError("peer_unknown", self.name, None, "the peer was removed")
            if len(writes):
                self._start(post, self._make_transfers(writes))
            else:
                self._notify(post)
            self._running.add(post)
        return post

    def advance(self, post: Post | None = None) -> None:
        """Poll one post, or all that run."""
        for each in list(self._running) if post is None else [post]:
            assert isinstance(each, NixlPost)
            # A post that another thread is polling needs no second one.
            if each.is_polled.acquire(blocking=False):
                try:
                    self._advance(each)
                finally:
                    each.is_polled.release()

    def retire(self) -> None:
        """Take no posts any more; those that run are LOST until they have ended."""
        with self._starting:
            self.is_retired = True
            for post in list(self._running):
                self.ledger.settle(post, WriteState.LOST, f"peer {self.name!r} was removed")

    def abandon(self) -> None:
        """Let go of every transfer, because the agent ends with all that runs."""
        for post in list(self._running):
            self._release(post.transfers)
            post.transfers.clear()
        self._running.clear()

    def dispose(self) -> None:
        """Let NIXL forget the peer."""
        self._agent.forget(self._nixl_name)

    # --- inside ---------------------------------------------------------------------------------

    def _load(self, description: Description) -> MemoryKinds:
        payload = NixlPayload.decode(description)
        try:
            self._agent.load(payload.metadata, self._nixl_name)
        except NixlFault as fault:
            raise DescriptionError(f"description of {self.name!r}: {fault}") from fault
        return payload.kinds

    def _make_transfers(self, writes: NDArray[np.int64]) -> list[Any]:
        transfers: list[Any] = []
        try:
            for source, destination in self._sides(writes):
                transfers.append(self._agent.make_transfer(self._nixl_name, source, destination))
        except NixlFault as fault:
            self._release(transfers)
            raise TransferError("transport", self.name, None, str(fault)) from fault
        return transfers

    def _sides(self, writes: NDArray[np.int64]) -> list[tuple[Side, Side]]:
        """Return both sides of the writes, grouped by the kinds of memory on either side."""
        own = self._own_kinds()
        sources, destinations, sizes = writes[:, 0], writes[:, 1], writes[:, 2]
        if not own.has_device_memory and not self._kinds.has_device_memory:
            return [(Side.of(sources, sizes, HOST), Side.of(destinations, sizes, HOST))]
        own_devices = own.devices_at(sources)
        peer_devices = self._kinds.devices_at(destinations)
        groups = 2 * (own_devices == HOST) + (peer_devices == HOST)
        found = []
        for group in np.unique(groups):
            i = np.flatnonzero(groups == group)
            source = Side.of(sources[i], sizes[i], own_devices[i])
            found.append((source, Side.of(destinations[i], sizes[i], peer_devices[i])))
        return found

    def _start(self, post: NixlPost, transfers: list[Any]) -> None:
        for number, transfer in enumerate(transfers):
            try:
                self._agent.post(transfer)
            except NixlFault as fault:
                is_gone = isinstance(fault, PeerGone)
                unposted = transfers[number if is_gone else number + 1 :]
                self._release(unposted)
                self._fail(post, fault)
                if is_gone and number == 0:
                    raise TransferError("peer_dead", self.name, None, str(fault)) from fault
                if not is_gone:
                    post.transfers.append(transfer)
                    self.ledger.settle(post, WriteState.LOST, post.fault)
                return
            post.transfers.append(transfer)

    def _notify(self, post: NixlPost) -> None:
        try:
            self._agent.notify(self._nixl_name, post.notification)
        except NixlFault as fault:
            self._fail(post, fault)
            kind = "peer_dead" if isinstance(fault, PeerGone) else "transport"
            raise TransferError(kind, self.name, None, str(fault)) from fault
        post.notification = b""

    def _advance(self, post: NixlPost) -> None:
        if post not in self._running:
            return
        for transfer in list(post.transfers):
            try:
                is_over = self._agent.is_done(transfer)
            except (PeerGone, NotPosted) as fault:
                self._fail(post, fault)
                is_over = True
            except NixlFault as fault:
                self._fail(post, fault)
                self.ledger.settle(post, WriteState.LOST, post.fault)
                continue
            if is_over:
                self._release([transfer])
                post.transfers.remove(transfer)
        if not post.transfers:
            self._finish(post)

    def _finish(self, post: NixlPost) -> None:
        if post.notification and post.fault is None and post.state is WriteState.RUNNING:
            # The fault is kept in the post.
            with contextlib.suppress(TransferError):
                self._notify(post)
        state = WriteState.DONE if post.fault is None else WriteState.FAILED
        self.ledger.settle(post, state, post.fault)
        self._running.discard(post)

    def _fail(self, post: NixlPost, fault: NixlFault) -> None:
        post.fault = post.fault or f"peer {self.name!r}: {fault}"
        if isinstance(fault, PeerGone):
            self.error = self.error or f"the connection has ended: {fault}"

    def _release(self, transfers: list[Any]) -> None:
        for transfer in transfers:
            # What NIXL does not take back goes with the agent.
            with contextlib.suppress(NixlFault):
                self._agent.release(transfer)
