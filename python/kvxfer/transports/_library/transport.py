# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The part of the transport protocol that does not depend on the library below."""

import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.errors import TransferError
from kvxfer.transports._library.call_gate import CallGate
from kvxfer.transports._library.ledger import Ledger, Post
from kvxfer.transports._library.link import Link
from kvxfer.transports._library.memory_kind import HOST, MemoryKinds, device_index, loaded_driver
from kvxfer.transports.protocol import (
    Description,
    RegionTable,
    WriteHandle,
    WriteState,
    check_agent_name,
    check_notification,
    check_writes,
)

GENERATION_BYTES = 16
_CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class WriteCost:
    """Cost of one write in microseconds, for host and for device memory."""

    host_us: float
    device_us: float


class LibraryTransport(ABC):
    """One agent over an outside library. Subclasses say how the library does each thing.

    Lock order: a peer's gate, then a link's own lock, then ``_lock`` or the ledger's.
    """

    def __init__(self, name: str, agent_name: str, cost: WriteCost, max_running_posts: int) -> None:
        self.name = name
        self.agent_name = check_agent_name(agent_name)
        self.write_cost_us = cost.host_us
        self._cost = cost
        self._max_running_posts = max_running_posts
        self._generation = os.urandom(GENERATION_BYTES)
        self._regions = RegionTable(f"agent {agent_name!r}")
        self._devices: dict[int, int] = {}
        self._ledger = Ledger(agent_name)
        self._gate = CallGate(agent_name)
        self._links: dict[str, Link] = {}
        self._retired: list[Link] = []
        # One peer is added or removed by one thread at a time; another peer does not wait for it.
        self._peer_gates: dict[str, threading.Lock] = {}
        self._receiving = threading.Lock()
        self._lock = threading.RLock()
        self._is_destroyed = False

    # --- what the library does ------------------------------------------------------------------

    @abstractmethod
    def _register(self, address: int, size_bytes: int, device: int) -> None: ...

    @abstractmethod
    def _deregister(self, address: int) -> None: ...

    @abstractmethod
    def _payload(self, kinds: MemoryKinds) -> bytes: ...

    @abstractmethod
    def _connect(self, description: Description) -> Link: ...

    @abstractmethod
    def _receive(self) -> list[tuple[str, bytes]]: ...

    @abstractmethod
    def _destroy(self, links: list[Link]) -> None:
        """End the library's agent. After the return it reads nothing and takes no write."""

    # --- the protocol ---------------------------------------------------------------------------

    def register_memory(self, address: int, size_bytes: int) -> None:
        """See ``Transport.register_memory``. Device memory is known by its address."""
        with self._gate.passing(), self._lock:
            self._regions.add(address, size_bytes)
            device = device_index(address, loaded_driver())
            try:
                self._register(address, size_bytes, device)
            except BaseException:
                self._regions.remove(address)
                raise
            self._devices[address] = device
            if device != HOST:
                self.write_cost_us = self._cost.device_us

    def deregister_memory(self, address: int) -> None:
        """See ``Transport.deregister_memory``."""
        with self._lock:
            self._regions.remove(address)
            del self._devices[address]
            if self._gate.enter():
                try:
                    self._deregister(address)
                finally:
                    self._gate.leave()

    def describe(self) -> bytes:
        """See ``Transport.describe``."""
        with self._gate.passing(), self._lock:
            payload = self._payload(MemoryKinds.of(self._regions, self._devices))
            return Description(
                self.name, self.agent_name, self._generation, payload, self._regions
            ).encode()

    def add_peer(self, description: bytes) -> str:
        """See ``Transport.add_peer``."""
        found = Description.decode(description, self.name)
        if found.generation == self._generation:
            raise InvalidArgumentError(f"the description is that of {self.agent_name!r} itself")
        with self._gate.passing(), self._peer_gate(found.agent_name):
            known = self._links.get(found.agent_name)
            if known is not None and known.generation == found.generation and not known.error:
                known.refresh(found)
            else:
                self._replace(found.agent_name, self._connect(found))
            return found.agent_name

    def remove_peer(self, peer: str) -> None:
        """See ``Transport.remove_peer``. What the library holds for it goes with its last post."""
        if not self._gate.enter():
            return
        try:
            with self._peer_gate(peer):
                self._replace(peer, None)
        finally:
            self._gate.leave()

    def post(self, peer: str, writes: NDArray[np.int64], notification: bytes = b"") -> WriteHandle:
        """See ``Transport.post``."""
        try:
            with self._gate.passing():
                return self._post(peer, writes, notification)
        except (InvalidArgumentError, TransferError):
            self._ledger.count_refusal()
            raise

    def poll(self, handle: WriteHandle) -> WriteState:
        """See ``Transport.poll``."""
        post = self._ledger.own(handle)
        if not post.state.has_ended and self._gate.enter():
            try:
                post.link.advance(post)
                self._dispose_of_retired()
            finally:
                self._gate.leave()
        return post.state

    def drain_notifications(self) -> list[tuple[str, bytes]]:
        """See ``Transport.drain_notifications``. Drives every post of this agent, too."""
        if not self._gate.enter():
            return []
        try:
            with self._receiving:
                heard = self._receive()
            with self._lock:
                links = [*self._links.values(), *self._retired]
            for link in links:
                link.advance()
            self._dispose_of_retired()
        finally:
            self._gate.leave()
        self._ledger.count_notifications(len(heard))
        return heard

    def release(self, handle: WriteHandle) -> None:
        """See ``Transport.release``."""
        self._ledger.release(handle)

    def close(self) -> None:
        """See ``Transport.close``.

        Raises
        ------
        DeadlineError
            If another thread's call does not return; the agent lives on and its memory is in use.
        """
        self._gate.shut(_CLOSE_TIMEOUT_S)
        with self._lock:
            if self._is_destroyed:
                return
            self._is_destroyed = True
            self._destroy([*self._links.values(), *self._retired])
            self._links.clear()
            self._retired.clear()
        self._ledger.end_all(f"agent {self.agent_name!r} was closed")

    @property
    def counters(self) -> dict[str, int]:
        """See ``Transport.counters``."""
        return self._ledger.counters

    # --- inside ---------------------------------------------------------------------------------

    def _post(self, peer: str, writes: NDArray[np.int64], notification: bytes) -> Post:
        check_notification(notification)
        with self._lock:
            link = self._links.get(peer)
            if link is None:
                raise TransferError("peer_unknown", peer, None, "no peer of this name was added")
            checked = check_writes(writes, self._regions, link.regions)
        if not len(checked) and not notification:
            raise InvalidArgumentError("post has neither a write nor a notification")
        if link.error is not None:
            raise TransferError("peer_dead", peer, None, link.error)
        if link.running_count >= self._max_running_posts:
            raise TransferError(
                "limit",
                peer,
                None,
                f"{link.running_count} posts have not ended, "
                f"expected fewer than {self._max_running_posts}",
            )
        post = link.start(checked, notification)
        self._ledger.admit(post)
        return post

    def _peer_gate(self, peer: str) -> threading.Lock:
        with self._lock:
            return self._peer_gates.setdefault(peer, threading.Lock())

    def _replace(self, peer: str, link: Link | None) -> None:
        """Put a link in the place of the one that is there; call it with the peer's gate."""
        with self._lock:
            known = self._links.pop(peer, None)
            if link is not None:
                self._links[peer] = link
            if known is not None:
                self._retired.append(known)
        if known is not None:
            known.retire()
            self._dispose_of_retired()

    def _dispose_of_retired(self) -> None:
        if not self._retired:
            return
        with self._lock:
            over = [link for link in self._retired if link.is_retired and not link.running_count]
            self._retired = [link for link in self._retired if link not in over]
        for link in over:
            link.dispose()
