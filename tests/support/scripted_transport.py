# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A transport between agents of one process that does what a test tells it to.

It copies bytes when a write completes, not when it is posted, so that a source that was reused too
early shows in the target. By default nothing completes until the test says so::

    wire = ScriptedWire()
    sender, receiver = wire.create("sender"), wire.create("receiver")
    ...
    post = wire.last_post               # what the code under test posted
    wire.complete(post)                 # bytes land, the notification arrives
    wire.complete_write(post, 1)        # one write of it; the post is DONE after its last write
    wire.fail(post, "cable pulled")     # FAILED; complete_write before it leaves a partial post
    wire.lose(post); wire.drain(post, lands=True)       # LOST, then DRAINED after all
    wire.refuse_next("backend", "no memory")            # the next post raises
    wire.kill("receiver")               # posts from and to it FAIL, new ones are refused
    wire.completes_on_poll = 3          # instead: each post completes at its third poll
    wire.holds_notifications = True     # keep them in wire.held; deliver, drop, repeat, reorder
    wire.deliver(2); wire.drop(0); wire.repeat(0)

Everything that happened stays in ``wire.posts`` and ``wire.events``. All methods of wires and
transports may be called from any thread.
"""

import ctypes
import itertools
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.errors import TransferError
from kvxfer.transports.protocol import (
    COUNTER_NAMES,
    Description,
    RegionTable,
    WriteHandle,
    WriteState,
    check_agent_name,
    check_notification,
    check_writes,
)

NAME = "scripted"


@dataclass(frozen=True)
class Notification:
    """A notification between the completion of its post and the target's inbox."""

    sender: str
    target: "ScriptedTransport"
    message: bytes


class ScriptedPost(WriteHandle):
    """A handle with everything that a test may want to look at."""

    __slots__ = (
        "is_released",
        "landed",
        "notification",
        "poll_count",
        "sender",
        "state",
        "target",
        "writes",
    )

    def __init__(
        self,
        sender: "ScriptedTransport",
        target: "ScriptedTransport",
        writes: NDArray[np.int64],
        notification: bytes,
    ) -> None:
        super().__init__(target.agent_name, len(writes), int(writes[:, 2].sum()))
        self.sender = sender
        self.target = target
        self.writes = writes
        self.notification = notification
        self.state = WriteState.RUNNING
        self.landed: set[int] = set()
        self.poll_count = 0
        self.is_released = False


class ScriptedWire:
    """All agents that can meet, and the test's commands to what is between them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.posts: list[ScriptedPost] = []
        self.events: list[tuple[str, str]] = []
        self.held: list[Notification] = []
        self.holds_notifications = False
        self.completes_on_poll: int | None = None
        self.refusal: tuple[str, str] | None = None
        self.agents: dict[bytes, ScriptedTransport] = {}
        self.generations = itertools.count(1)

    def create(self, agent_name: str, *, write_cost_us: float = 0.0) -> "ScriptedTransport":
        """Make an agent. A second one of the same name is another generation of it."""
        return ScriptedTransport(self, agent_name, write_cost_us)

    @property
    def last_post(self) -> ScriptedPost:
        with self.lock:
            return self.posts[-1]

    def running(self, peer: str | None = None) -> list[ScriptedPost]:
        """Posts that are RUNNING or LOST, in the order in which they were posted."""
        with self.lock:
            return [p for p in self.posts if not p.state.has_ended and peer in (None, p.peer)]

    def live(self) -> list[ScriptedPost]:
        """Posts that have not been released."""
        with self.lock:
            return [p for p in self.posts if not p.is_released]

    # --- data -----------------------------------------------------------------------------------

    def complete(self, post: ScriptedPost) -> None:
        """Let every write land that has not, and the notification follow."""
        with self.lock:
            self._expect(post, WriteState.RUNNING)
            for number in range(len(post.writes)):
                self._land(post, number)
            self._finish(post)

    def complete_write(self, post: ScriptedPost, number: int) -> None:
        """Let one write of a post land; the post is DONE with its last one."""
        with self.lock:
            self._expect(post, WriteState.RUNNING)
            self._land(post, number)
            if len(post.landed) == len(post.writes):
                self._finish(post)

    def complete_all(self) -> None:
        """Complete every RUNNING post in posting order."""
        with self.lock:
            for post in self.running():
                if post.state is WriteState.RUNNING:
                    self.complete(post)

    def fail(self, post: ScriptedPost, error: str = "failed by the script") -> None:
        """End a post with an error; what has landed of it stays."""
        with self.lock:
            self._expect(post, WriteState.RUNNING)
            self._set_state(post, WriteState.FAILED, error)

    def lose(self, post: ScriptedPost, error: str = "lost by the script") -> None:
        """Make a post's outcome ambiguous."""
        with self.lock:
            self._expect(post, WriteState.RUNNING)
            self._set_state(post, WriteState.LOST, error)

    def drain(self, post: ScriptedPost, *, lands: bool = False) -> None:
        """End a LOST post, with its bytes landing late or not at all, without a notification."""
        with self.lock:
            self._expect(post, WriteState.LOST)
            if lands:
                for number in range(len(post.writes)):
                    self._land(post, number)
            self._set_state(post, WriteState.DRAINED, post.error)

    def refuse_next(self, kind: str, message: str = "refused by the script") -> None:
        """Make the next post of any agent raise a TransferError."""
        with self.lock:
            self.refusal = (kind, message)

    def kill(self, agent_name: str) -> None:
        """End every agent of that name as a killed process would: nothing of it moves again."""
        with self.lock:
            for agent in [a for a in self.agents.values() if a.agent_name == agent_name]:
                self.end_agent(agent, f"peer {agent_name!r} was killed")
                agent.is_killed = True

    # --- notifications ----------------------------------------------------------------------------

    def deliver(self, count: int | None = None) -> None:
        """Deliver the first held notifications, all of them when no count is given."""
        with self.lock:
            taken = self.held[:count]
            del self.held[:count]
            for notification in taken:
                self._deliver(notification)

    def drop(self, number: int = 0) -> Notification:
        """Take a held notification away."""
        with self.lock:
            dropped = self.held.pop(number)
            self.events.append(("drop", dropped.message.decode()))
            return dropped

    def repeat(self, number: int = 0) -> None:
        """Deliver a held notification and keep it."""
        with self.lock:
            self._deliver(self.held[number])

    def reorder(self, order: list[int]) -> None:
        """Put the held notifications into another order."""
        with self.lock:
            if sorted(order) != list(range(len(self.held))):
                raise ValueError(f"order {order} is not one of {len(self.held)} notifications")
            self.held = [self.held[number] for number in order]

    # --- inside -----------------------------------------------------------------------------------

    def _expect(self, post: ScriptedPost, state: WriteState) -> None:
        if post.state is not state:
            raise ValueError(f"post is {post.state.name}, expected {state.name}: {post!r}")

    def _land(self, post: ScriptedPost, number: int) -> None:
        if number in post.landed:
            return
        source, destination, size_bytes = post.writes[number].tolist()
        ctypes.memmove(destination, source, size_bytes)
        post.landed.add(number)

    def _finish(self, post: ScriptedPost) -> None:
        self._set_state(post, WriteState.DONE, None)
        if post.notification:
            sent = Notification(post.sender.agent_name, post.target, post.notification)
            if self.holds_notifications:
                self.held.append(sent)
            else:
                self._deliver(sent)

    def _set_state(self, post: ScriptedPost, state: WriteState, error: str | None) -> None:
        post.state = state
        post.error = error
        post.sender.counts[state.value] += 1
        self.events.append((state.value, post.notification.decode()))

    def _deliver(self, notification: Notification) -> None:
        notification.target.inbox.append((notification.sender, notification.message))
        self.events.append(("deliver", notification.message.decode()))

    def end_agent(self, agent: "ScriptedTransport", error: str) -> None:
        """End everything that touches an agent's memory, in either direction."""
        agent.is_closed = True
        self.agents.pop(agent.generation, None)
        for post in self.running():
            if agent in (post.sender, post.target):
                ended = WriteState.DRAINED if post.state is WriteState.LOST else WriteState.FAILED
                self._set_state(post, ended, error)


class ScriptedTransport:
    """One agent on a ScriptedWire."""

    def __init__(self, wire: ScriptedWire, agent_name: str, write_cost_us: float) -> None:
        self.name = NAME
        self.agent_name = check_agent_name(agent_name)
        self.write_cost_us = write_cost_us
        self.wire = wire
        self.generation = b"%d" % next(wire.generations)
        self.inbox: list[tuple[str, bytes]] = []
        self.counts = dict.fromkeys(COUNTER_NAMES, 0)
        self.is_closed = False
        self.is_killed = False
        self._regions = RegionTable(f"agent {agent_name!r}")
        self._peers: dict[str, tuple[ScriptedTransport, RegionTable]] = {}
        with wire.lock:
            wire.agents[self.generation] = self

    def register_memory(self, address: int, size_bytes: int) -> None:
        with self.wire.lock:
            self._refuse_closed()
            self._regions.add(address, size_bytes)

    def deregister_memory(self, address: int) -> None:
        with self.wire.lock:
            self._regions.remove(address)

    def describe(self) -> bytes:
        with self.wire.lock:
            self._refuse_closed()
            return Description(NAME, self.agent_name, self.generation, b"", self._regions).encode()

    def add_peer(self, description: bytes) -> str:
        found = Description.decode(description, NAME)
        with self.wire.lock:
            self._refuse_closed()
            if found.generation == self.generation:
                raise InvalidArgumentError(f"the description is that of {self.agent_name!r} itself")
            target = self.wire.agents.get(found.generation)
            if target is None or target.agent_name != found.agent_name:
                raise TransferError(
                    "peer_dead", found.agent_name, None, "no agent of this generation lives"
                )
            known = self._peers.get(found.agent_name)
            if known is not None and known[0] is not target:
                self.remove_peer(found.agent_name)
            self._peers[found.agent_name] = (target, found.regions)
            return found.agent_name

    def remove_peer(self, peer: str) -> None:
        with self.wire.lock:
            if self._peers.pop(peer, None) is None:
                return
            for post in self.wire.running(peer):
                if post.sender is self and post.state is WriteState.RUNNING:
                    self.wire.lose(post, f"peer {peer!r} was removed")

    def post(self, peer: str, writes: NDArray[np.int64], notification: bytes = b"") -> ScriptedPost:
        with self.wire.lock:
            try:
                post = self._checked_post(peer, writes, notification)
            except (InvalidArgumentError, TransferError):
                self.counts["refused"] += 1
                raise
            self.wire.posts.append(post)
            self.wire.events.append(("post", notification.decode()))
            self.counts["posted"] += 1
            self.counts["writes"] += post.write_count
            self.counts["bytes"] += post.size_bytes
            return post

    def poll(self, handle: WriteHandle) -> WriteState:
        with self.wire.lock:
            post = self._own(handle)
            post.poll_count += 1
            if (
                post.state is WriteState.RUNNING
                and self.wire.completes_on_poll is not None
                and post.poll_count >= self.wire.completes_on_poll
            ):
                self.wire.complete(post)
            return post.state

    def drain_notifications(self) -> list[tuple[str, bytes]]:
        with self.wire.lock:
            taken, self.inbox = self.inbox, []
            self.counts["notifications"] += len(taken)
            return taken

    def release(self, handle: WriteHandle) -> None:
        with self.wire.lock:
            post = self._own(handle)
            if not post.state.has_ended:
                raise InvalidArgumentError(f"handle is {post.state.name}, expected an ended one")
            post.is_released = True
            self.wire.events.append(("release", post.notification.decode()))
            self.counts["released"] += 1

    def close(self) -> None:
        with self.wire.lock:
            if not self.is_closed:
                self.wire.end_agent(self, f"agent {self.agent_name!r} was closed")

    @property
    def counters(self) -> dict[str, int]:
        with self.wire.lock:
            live_handles = self.counts["posted"] - self.counts["released"]
            return {**self.counts, "live_handles": live_handles}

    def _checked_post(
        self, peer: str, writes: NDArray[np.int64], notification: bytes
    ) -> ScriptedPost:
        self._refuse_closed()
        check_notification(notification)
        if peer not in self._peers:
            raise TransferError("peer_unknown", peer, None, "no peer of this name was added")
        target, regions = self._peers[peer]
        checked = check_writes(writes, self._regions, regions)
        if not len(checked) and not notification:
            raise InvalidArgumentError("post has neither a write nor a notification")
        if target.is_closed:
            raise TransferError("peer_dead", peer, None, "the peer is gone")
        if self.wire.refusal is not None:
            kind, message = self.wire.refusal
            self.wire.refusal = None
            raise TransferError(kind, peer, None, message)
        return ScriptedPost(self, target, checked, notification)

    def _own(self, handle: WriteHandle) -> ScriptedPost:
        if not isinstance(handle, ScriptedPost) or handle.sender is not self:
            raise InvalidArgumentError(f"handle {handle!r} is not of agent {self.agent_name!r}")
        if handle.is_released:
            raise InvalidArgumentError(f"handle was released before: {handle!r}")
        return handle

    def _refuse_closed(self) -> None:
        if self.is_closed:
            raise InvalidArgumentError(f"agent {self.agent_name!r} is closed")


def create(agent_name: str, *, wire: ScriptedWire, write_cost_us: float = 0.0) -> ScriptedTransport:
    """Make an agent, as ``kvxfer.transports.create`` calls it."""
    return wire.create(agent_name, write_cost_us=write_cost_us)
