# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The target's end of a connection: greets a writer, takes its chunks and its notifications."""

import contextlib
import os
from collections import deque
from dataclasses import dataclass

from kvxfer.transports._loopback.connection import Connection, ConnectionEnded, close_all
from kvxfer.transports._loopback.gate import reopen
from kvxfer.transports._loopback.memfd import ReceivedArea
from kvxfer.transports._loopback.messages import (
    VERSION,
    Ack,
    Area,
    Data,
    Hello,
    Message,
    Notify,
    PacketError,
    Refuse,
    Welcome,
)
from kvxfer.transports.protocol import RegionTable

# Bounds one call of process; chunks are bounded by the slots of an area.
_MAX_MESSAGES = 64


@dataclass(frozen=True)
class Host:
    """What a writer may touch: the agent's regions, and the gate it has to pass."""

    regions: RegionTable
    gate_fd: int


class InboundPeer:
    """One writer. Not thread-safe."""

    def __init__(self, connection: Connection, host: Host) -> None:
        self._connection = connection
        self._host = host
        self._sender: str | None = None
        self._area: ReceivedArea | None = None

    @property
    def name(self) -> str:
        """The writer's agent name, a placeholder until it has said it."""
        return self._sender or f"process {self._connection.pid}"

    def process(self, inbox: deque[tuple[str, bytes]]) -> None:
        """Take what has arrived, a bounded number of messages; notifications go to the inbox.

        Raises
        ------
        ConnectionEnded
            After the last message of a writer that is gone.
        PacketError
            For a writer that does not keep to the protocol; it has been told why.
        """
        try:
            for _ in range(_MAX_MESSAGES):
                received = self._connection.receive()
                if received is None:
                    return
                self._take(*received, inbox)
        except PacketError as error:
            with contextlib.suppress(ConnectionEnded):
                self._connection.send(Refuse(str(error)))
            raise

    def fileno(self) -> int:
        """Return the connection's descriptor, for a selector."""
        return self._connection.fileno()

    def close(self) -> None:
        """End the connection and unmap the writer's memory."""
        self._connection.close()
        if self._area is not None:
            self._area.close()
            self._area = None

    def _take(self, message: Message, fds: list[int], inbox: deque[tuple[str, bytes]]) -> None:
        if isinstance(message, Area) and self._sender and not self._area and len(fds) == 1:
            self._area = ReceivedArea(message, fds[0])
            return
        close_all(fds)
        if isinstance(message, Hello) and self._sender is None:
            self._welcome(message)
        elif isinstance(message, Notify) and self._sender is not None:
            inbox.append((self._sender, message.text))
        elif isinstance(message, Data) and self._area is not None:
            reason = self._area.copy_out(message, self._host.regions, self._connection)
            if not self._connection.send(Ack(message.chunk, reason)):
                raise ConnectionEnded("the writer takes no answers")
        else:
            raise PacketError(f"{type(message).__name__} is out of place")

    def _welcome(self, hello: Hello) -> None:
        if hello.version != VERSION:
            raise PacketError(f"loopback version {hello.version}, expected {VERSION}")
        fd = reopen(self._host.gate_fd)
        try:
            if not self._connection.send(Welcome(), (fd,)):
                raise ConnectionEnded("the writer takes no answers")
        finally:
            os.close(fd)
        self._sender = hello.agent_name
