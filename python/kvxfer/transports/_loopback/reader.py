# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The receiving half of a loopback agent: its listener, its writers and its inbox."""

import os
import select
import threading
import time
from collections import deque

from kvxfer.errors import TransferError
from kvxfer.transports._loopback.connection import accept, listen
from kvxfer.transports._loopback.gate import make_gate, try_lock_out
from kvxfer.transports._loopback.inbound import Host, InboundPeer
from kvxfer.transports._loopback.messages import PacketError
from kvxfer.transports.protocol import RegionTable

_MAX_INBOX = 65_536
_MAX_ACCEPTS = 64


class Reader:
    """Accepts writers and takes what they send. One thread at a time, the others go on.

    Attributes
    ----------
    inbox : deque[tuple[str, bytes]]
        Notifications with their sender's name. When it is full, nothing more is read.
    rejected_count : int
        Writers that broke the protocol.
    """

    def __init__(self, agent_name: str, socket_name: str, regions: RegionTable) -> None:
        self.inbox: deque[tuple[str, bytes]] = deque()
        self.rejected_count = 0
        self._agent_name = agent_name
        self._listener = listen(socket_name)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._host = Host(regions, make_gate())
        self._writers: dict[int, InboundPeer] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def read(self) -> None:
        """Accept and read a bounded amount, unless another thread is at it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_closed or len(self.inbox) >= _MAX_INBOX:
                return
            for fd, _ in self._epoll.poll(0):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._process(self._writers[fd])
        finally:
            self._lock.release()

    def close(self, timeout_s: float) -> None:
        """End every writer's connection, then wait until none is inside a write.

        Raises
        ------
        TransferError
            "lost" if that takes longer than the timeout.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise self._lost("the own thread that reads", timeout_s)
        try:
            if self._is_closed:
                return
            self._is_closed = True
            names = sorted({writer.name for writer in self._writers.values()})
            self._drop_everything()
            while not (is_quiet := try_lock_out(self._host.gate_fd)):
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.001)
            os.close(self._host.gate_fd)
        finally:
            self._lock.release()
        if not is_quiet:
            raise self._lost(f"one of the writers {names}", timeout_s)

    def _drop_everything(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTS):
            connection = accept(self._listener)
            if connection is None:
                return
            writer = InboundPeer(connection, self._host)
            self._writers[writer.fileno()] = writer
            self._epoll.register(writer.fileno(), select.EPOLLIN)
            self._process(writer)

    def _process(self, writer: InboundPeer) -> None:
        try:
            writer.process(self.inbox)
        except (OSError, PacketError) as error:
            self.rejected_count += isinstance(error, PacketError)
            self._epoll.unregister(writer.fileno())
            del self._writers[writer.fileno()]
            writer.close()

    def _lost(self, who: str, timeout_s: float) -> TransferError:
        message = f"{who} has not ended a copy into this agent's memory within {timeout_s} s"
        return TransferError("lost", self._agent_name, None, message)
