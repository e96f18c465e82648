# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What every transport promises, and the pieces that every transport needs once.

A transport moves bytes between registered memory of two agents with one-sided writes and tells the
target by a notification that they have arrived. The promises are no stronger than what NIXL and
Mooncake were seen to keep: a posted write cannot be taken back, a release is not a cancel, progress
happens only inside calls, and deadlines belong to the caller.
"""

from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.transports._description import Description, DescriptionError, check_agent_name
from kvxfer.transports._regions import RegionTable, check_writes

__all__ = [
    "COUNTER_NAMES",
    "MAX_NOTIFICATION_BYTES",
    "Description",
    "DescriptionError",
    "RegionTable",
    "Transport",
    "WriteHandle",
    "WriteState",
    "check_agent_name",
    "check_notification",
    "check_writes",
]

# Mooncake drops longer text without an error; 1 KiB is ample for a completion message.
MAX_NOTIFICATION_BYTES = 1024

COUNTER_NAMES = (
    "posted",  # handles given out
    "released",  # handles taken back
    "live_handles",  # posted - released
    "writes",  # writes of all posts
    "bytes",  # bytes of all posts
    "refused",  # posts that raised: nothing of them was sent
    "done",  # handles by the state they reached
    "failed",
    "lost",
    "drained",
    "notifications",  # handed out by drain_notifications
)


class WriteState(Enum):
    """State of one post."""

    RUNNING = "running"
    """Not finished. The source is read at any time, the destination is undefined."""
    DONE = "done"
    """Every byte is in the target's memory and the notification is on its way."""
    FAILED = "failed"
    """Ended with an error: nothing is read or written any more, the destination is undefined."""
    LOST = "lost"
    """Ambiguous: source and destination may still be in use. Neither may be reused."""
    DRAINED = "drained"
    """Was LOST and is proven over: as FAILED."""

    @property
    def has_ended(self) -> bool:
        """True where the source may be reused and the handle be released."""
        return self in (WriteState.DONE, WriteState.FAILED, WriteState.DRAINED)


class WriteHandle:
    """One post. Opaque: only the transport that made it can say how it stands.

    Attributes
    ----------
    peer : str
        Name of the target.
    write_count, size_bytes : int
        What was posted.
    error : str or None
        Why the post is FAILED, LOST or DRAINED, set at the latest by the ``poll`` that says so.
    """

    __slots__ = ("error", "peer", "size_bytes", "write_count")

    def __init__(self, peer: str, write_count: int = 0, size_bytes: int = 0) -> None:
        self.peer = peer
        self.write_count = write_count
        self.size_bytes = size_bytes
        self.error: str | None = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(peer={self.peer!r}, write_count={self.write_count}, "
            f"size_bytes={self.size_bytes}, error={self.error!r})"
        )


@runtime_checkable
class Transport(Protocol):
    """One agent's end of a transport.

    Every method may be called from any thread, except that ``drain_notifications`` belongs to one.
    Progress is made inside ``poll`` and ``drain_notifications`` and nowhere else, on both sides:
    keep polling while any room is open, also when the own part is over. A peer that fails never
    disturbs another peer.

    Attributes
    ----------
    name : str
        Name of the transport, as ``create`` takes it.
    agent_name : str
        Name under which peers know this agent.
    write_cost_us : float
        Estimated cost of one write whatever its size, in microseconds: decides whether runs go to
        their final rows or as one write into a landing region. 0.0 where writes cost nothing.
    """

    name: str
    agent_name: str
    write_cost_us: float

    def register_memory(self, address: int, size_bytes: int) -> None:
        """Make ``size_bytes`` from ``address`` readable by own posts and writable by peers.

        Register before ``describe``: peers know the regions that were described to them. The memory
        stays mapped until it is deregistered and every peer that knows it is gone.

        Raises
        ------
        InvalidArgumentError
            For a null address, a size below 1 byte, or an overlap with a registered region.
        """
        ...

    def deregister_memory(self, address: int) -> None:
        """Forget the region that begins at ``address``.

        Writes that peers have under way into it may still land.

        Raises
        ------
        InvalidArgumentError
            If no region begins there.
        """
        ...

    def describe(self) -> bytes:
        """Return what a peer needs to write here: opaque, framed and checksummed bytes."""
        ...

    def add_peer(self, description: bytes) -> str:
        """Make a described agent known and return its name.

        Again with the same generation: refreshes the regions, keeps the rest. With another
        generation of the same name (a restart): replaces the old one, as ``remove_peer`` would.

        Raises
        ------
        DescriptionError
            For a damaged, foreign or unsupported description; nothing has changed.
        TransferError
            If the agent cannot be reached; nothing has changed.
        """
        ...

    def remove_peer(self, peer: str) -> None:
        """Forget a peer. Unknown names are ignored.

        Its running posts end FAILED where the transport can prove that they are over, else they
        become LOST. Polling goes on for both; no memory is freed or taken back.
        """
        ...

    def post(self, peer: str, writes: NDArray[np.int64], notification: bytes = b"") -> WriteHandle:
        """Start writing runs into a peer's memory, then send it a notification.

        Every write is checked before anything is sent. May block for as long as the bytes take, but
        not on a peer that does not answer.

        Parameters
        ----------
        peer : str
            Name returned by ``add_peer``.
        writes : int64 array, shape (write_count, 3), host
            Source address, destination address, bytes. Each side of a write lies in one registered
            region. Copied: the array may be reused, the memory it names may not. Which of two
            writes to the same bytes wins is undefined.
        notification : bytes
            ASCII, at most ``MAX_NOTIFICATION_BYTES``. Becomes visible to the target after all bytes
            of the post, at most once, never after a failure. Empty: none. No order is promised
            between posts. With no writes the post is a message only.

        Raises
        ------
        InvalidArgumentError
            For a write out of bounds, a malformed list, a bad notification, or nothing to send.
        TransferError
            ``kind`` is "peer_unknown", "peer_dead", or "limit" when too much is queued for a peer
            that does not take it.
        """
        ...

    def poll(self, handle: WriteHandle) -> WriteState:
        """Drive progress and return the state of a post. Never waits for a peer."""
        ...

    def drain_notifications(self) -> list[tuple[str, bytes]]:
        """Drive progress and return (sender's agent name, notification) of what has arrived."""
        ...

    def release(self, handle: WriteHandle) -> None:
        """Give a handle back: exactly once, and only after its post has ended.

        Raises
        ------
        InvalidArgumentError
            While the post is RUNNING or LOST, the second time, or for another transport's handle.
        """
        ...

    def close(self) -> None:
        """End the agent. After the return no own memory is read, and none is written by peers.

        Idempotent. Posts that still run end FAILED, or LOST where that cannot be proven at once;
        handles can be polled and released afterwards.
        """
        ...

    @property
    def counters(self) -> dict[str, int]:
        """Return the counters named in ``COUNTER_NAMES``; a transport may add its own."""
        ...


def check_notification(notification: object) -> bytes:
    """Return a notification that may be sent.

    Raises
    ------
    InvalidArgumentError
        If it is not bytes, is longer than ``MAX_NOTIFICATION_BYTES``, or is not ASCII.
    """
    if not isinstance(notification, bytes):
        kind = type(notification).__name__
        raise InvalidArgumentError(f"notification is a {kind}, expected bytes")
    if len(notification) > MAX_NOTIFICATION_BYTES:
        raise InvalidArgumentError(
            f"notification has {len(notification)} bytes, expected at most {MAX_NOTIFICATION_BYTES}"
        )
    if not notification.isascii():
        raise InvalidArgumentError(f"notification {notification[:32]!r}... is not ASCII")
    return notification
