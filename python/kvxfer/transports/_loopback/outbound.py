# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The writing end of a connection: queued posts, in order, over the path the target allows."""

import os
import struct
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from kvxfer.errors import TransferError
from kvxfer.transports._loopback.connection import Connection, ConnectionEnded, close_all
from kvxfer.transports._loopback.handle import LoopbackHandle, WriteFault
from kvxfer.transports._loopback.memfd import MemfdPath
from kvxfer.transports._loopback.messages import (
    VERSION,
    Ack,
    Area,
    Hello,
    Message,
    Notify,
    PacketError,
    Refuse,
    Welcome,
)
from kvxfer.transports._loopback.process_vm import ProcessVmPath
from kvxfer.transports.protocol import (
    Description,
    DescriptionError,
    WriteState,
    check_agent_name,
)

OPENING = "opening"
# Bounds one call of advance where writes are small: a call moves up to 1,024 of them.
_MAX_CALLS = 16
_PAYLOAD = struct.Struct("<q")


@dataclass(frozen=True)
class Limits:
    """What one agent puts up with."""

    data_path: str
    slice_bytes: int
    slot_count: int
    max_queued_posts: int


class Owner(Protocol):
    """The transport that a peer belongs to."""

    def count_settled(self, state: WriteState) -> None:
        """Count a post that has come to a state."""
        ...


def encode_payload(socket_name: str, probe_address: int) -> bytes:
    """Return what a description carries for this transport."""
    return _PAYLOAD.pack(probe_address) + socket_name.encode("ascii")


def decode_payload(payload: bytes) -> tuple[str, int]:
    """Return the socket's name and the address of the nonce.

    Raises
    ------
    DescriptionError
        If the payload holds something else.
    """
    try:
        (probe_address,) = _PAYLOAD.unpack_from(payload)
        return check_agent_name(payload[_PAYLOAD.size :].decode("ascii")), probe_address
    except (struct.error, ValueError) as error:
        raise DescriptionError(f"loopback payload of {len(payload)} bytes: {error}") from error


class OutboundPeer:
    """One target. Everything except ``enqueue`` is done by whoever holds the mover's lock.

    A thread that wants to move a peer's bytes while another does so goes on without waiting.

    Attributes
    ----------
    error : str or None
        Why the connection has ended. From then on every post ends.
    path_reason : str
        Why the path is not process_vm, empty where it is.
    """

    def __init__(
        self,
        description: Description,
        connection: Connection,
        limits: Limits,
        owner: Owner,
    ) -> None:
        self.owner = owner
        self.name = description.agent_name
        self.generation = description.generation
        self.regions = description.regions
        self.error: str | None = None
        self.path_reason = ""
        self._connection = connection
        self._limits = limits
        self._path: ProcessVmPath | MemfdPath | None = None
        self._probe_address = decode_payload(description.payload)[1]
        self._posts: deque[LoopbackHandle] = deque()
        self._mover = threading.Lock()

    @property
    def data_path(self) -> str:
        """Name of the path, "opening" until the target has answered."""
        return OPENING if self._path is None else self._path.name

    @property
    def is_idle(self) -> bool:
        """Whether polling would do nothing for this peer."""
        return not self._posts and (self._path is not None or self.error is not None)

    def is_alive(self) -> bool:
        """Say whether the target still holds the connection."""
        return self.error is None and self._connection.is_alive()

    def greet(self, own_generation: bytes, own_name: str) -> None:
        """Say who connects. The packet is the first on the connection, so there is room for it."""
        try:
            if not self._connection.send(Hello(VERSION, own_generation, own_name)):
                raise ConnectionEnded("the connection takes no packet")
        except ConnectionEnded:
            self._connection.close()
            raise

    def enqueue(self, handle: LoopbackHandle) -> None:
        """Put a post behind those that wait.

        Raises
        ------
        TransferError
            "peer_dead" after the connection has ended, "limit" when too many posts wait.
        """
        if self.error is not None:
            raise TransferError("peer_dead", self.name, None, self.error)
        if len(self._posts) >= self._limits.max_queued_posts:
            raise TransferError(
                "limit",
                self.name,
                None,
                f"{len(self._posts)} posts wait for a peer that does not take them, expected fewer "
                f"than {self._limits.max_queued_posts}",
            )
        self._posts.append(handle)

    def advance(self) -> None:
        """Move at most one slice, without waiting for the target or for another thread."""
        if not self._mover.acquire(blocking=False):
            return
        try:
            self._advance()
        finally:
            self._mover.release()

    def end(self, reason: str, timeout_s: float) -> None:
        """End the connection and every post: FAILED, or LOST while the target is copying."""
        if not self._mover.acquire(timeout=timeout_s):
            raise TransferError(
                "lost", self.name, None, f"a slice has not ended within {timeout_s} s"
            )
        try:
            if self.error is None:
                self._end(reason)
            self._end_posts()
        finally:
            self._mover.release()

    # --- with the mover's lock --------------------------------------------------------------------

    def _advance(self) -> None:
        if self.error is None:
            try:
                has_packet, is_alive = self._connection.look()
                if has_packet:
                    self._receive()
                if not is_alive:
                    raise ConnectionEnded("the connection was closed")
                if self._path is not None:
                    self._move(self._path)
            except (OSError, PacketError) as error:
                self._end(f"connection to {self.name!r} ended: {error}")
        if self.error is not None:
            self._end_posts()

    def _move(self, path: ProcessVmPath | MemfdPath) -> None:
        left_bytes = self._limits.slice_bytes
        left_calls = _MAX_CALLS
        while self._posts:
            handle = self._posts[0]
            while handle.has_more and left_bytes > 0 and left_calls > 0:
                moved_bytes = self._move_once(path, handle, left_bytes)
                left_bytes -= moved_bytes
                left_calls = left_calls - 1 if moved_bytes else 0
            if not self._finish(handle):
                return
            self._posts.popleft()

    def _move_once(
        self, path: ProcessVmPath | MemfdPath, handle: LoopbackHandle, limit_bytes: int
    ) -> int:
        try:
            return path.move(handle, limit_bytes)
        except WriteFault as fault:
            handle.error = str(fault)
            return 0

    def _finish(self, handle: LoopbackHandle) -> bool:
        """Give a post its end if it has come to it."""
        if handle.in_flight_bytes:
            return False
        if handle.error:
            self._settle(handle, WriteState.FAILED)
            return True
        if handle.settled_bytes < handle.size_bytes:
            return False
        if handle.notification and not self._connection.send(Notify(handle.notification)):
            return False
        self._settle(handle, WriteState.DONE)
        return True

    def _receive(self) -> None:
        while (received := self._connection.receive()) is not None:
            message, fds = received
            if isinstance(message, Welcome) and self._path is None and len(fds) == 1:
                self._open_path(fds[0])
                continue
            close_all(fds)
            self._answer(message)

    def _answer(self, message: Message) -> None:
        if isinstance(message, Refuse):
            self._end(f"peer {self.name!r} refused: {message.reason}")
            raise ConnectionEnded(message.reason)
        if not isinstance(message, Ack) or not isinstance(self._path, MemfdPath):
            raise PacketError(f"{type(message).__name__} is out of place")
        self._path.settle(message)

    def _open_path(self, gate_fd: int) -> None:
        if self._limits.data_path == MemfdPath.name:
            self.path_reason = "as told"
            os.close(gate_fd)
        else:
            path = ProcessVmPath(self._connection, gate_fd)
            try:
                path.probe(self._probe_address, self.generation)
            except ConnectionEnded:
                path.close()
                raise
            except OSError as error:
                path.close()
                self.path_reason = str(error)
            else:
                self._path = path
                return
            if self._limits.data_path == ProcessVmPath.name:
                raise ConnectionEnded(f"process_vm cannot be used: {self.path_reason}")
        slot_bytes = max(self._limits.slice_bytes // self._limits.slot_count, 1)
        self._path = MemfdPath(self._connection, Area(self._limits.slot_count, slot_bytes))

    def _end(self, reason: str) -> None:
        if self.error is None:
            self.error = reason
            self._connection.close()

    def _end_posts(self) -> None:
        """End what waits. Bytes in flight are given up once the target is known not to copy."""
        if self._path is not None:
            if not self._path.lock_out():
                for handle in self._posts:
                    if handle.in_flight_bytes and handle.state is WriteState.RUNNING:
                        self._settle(handle, WriteState.LOST)
                return
            self._path.close()
            self._path = None
        while self._posts:
            handle = self._posts.popleft()
            was_lost = handle.state is WriteState.LOST
            self._settle(handle, WriteState.DRAINED if was_lost else WriteState.FAILED)

    def _settle(self, handle: LoopbackHandle, state: WriteState) -> None:
        if state is not WriteState.DONE and handle.error is None:
            handle.error = self.error
        handle.state = state
        self.owner.count_settled(state)
