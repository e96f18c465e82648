# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A control channel between managers of one process, which a test can stall, cut and listen to."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class ControlHub:
    """All channels that can reach each other.

    ``stalled`` addresses take nothing: their queue counts as full. What is sent to a ``cut``
    address is lost on the way. ``rewrite`` may change a message on the way. ``log`` holds
    (address, message) of everything that was taken.
    """

    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    log: list[tuple[str, bytes]] = field(default_factory=list)
    limit_count: int = 10_000
    rewrite: Callable[[bytes], bytes] = lambda message: message

    def create(self, address: str) -> "MemoryChannel":
        """Open a channel; what was queued for an earlier one of the address is gone."""
        self.queues[address] = deque()
        return MemoryChannel(self, address)


class MemoryChannel:
    """One end."""

    def __init__(self, hub: ControlHub, address: str) -> None:
        self.address = address
        self.forgotten: list[str] = []
        self._hub = hub
        self._queue = hub.queues[address]

    def send(self, address: str, message: bytes) -> bool:
        hub = self._hub
        queue = hub.queues.get(address)
        if address in hub.stalled or (queue is not None and len(queue) >= hub.limit_count):
            return False
        hub.log.append((address, message))
        if queue is not None and address not in hub.cut:
            queue.append(hub.rewrite(message))
        return True

    def receive(self) -> list[bytes]:
        messages = list(self._queue)
        self._queue.clear()
        return messages

    def forget(self, address: str) -> None:
        self.forgotten.append(address)

    def close(self) -> None:
        if self._hub.queues.get(self.address) is self._queue:
            del self._hub.queues[self.address]
