# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A Mooncake engine, used through the few calls that do not wait for a peer.

Writes are submitted one by one and asked for one by one, because only that tells how each of them
ended: the blocking calls answer -1 while bytes still flow, and so does the status of a batch. Never
given a notification of Mooncake's own: sending one to a frozen peer takes 60 s under a lock that
every completion of the engine needs, and is then reported as sent.
"""

import ctypes
import time
from types import ModuleType
from typing import Any

from kvxfer import InvalidArgumentError
from kvxfer.transports._library.memory_kind import HOST

DONE = 1
RUNNING = 0
FAILED = -1
TIMED_OUT = -2
"""Results of ``MooncakeEngine.status``; the id of a write lives on in RUNNING and TIMED_OUT."""

_OPEN_TIMEOUT_S = 10.0


class EngineFault(Exception):  # noqa: N818 - becomes an error of ours
    """Mooncake returned a code that is not success."""


class MooncakeEngine:
    """One engine. Every method may be called from any thread."""

    def __init__(self, module: ModuleType, host: str, protocol: str, device_name: str) -> None:
        self._engine: Any = module.TransferEngine()
        code = self._engine.initialize(host, "P2PHANDSHAKE", protocol, device_name)
        if code:
            raise InvalidArgumentError(
                f"Mooncake cannot make an engine at host {host!r} with protocol {protocol!r} and "
                f"device {device_name!r}: code {code}"
            )
        self.port: int = self._engine.get_rpc_port()
        self._byte = ctypes.create_string_buffer(1)

    def register(self, address: int, size_bytes: int, device: int) -> None:
        """Register a region."""
        location = "*" if device == HOST else f"cuda:{device}"
        code = self._engine.register_memory(address, size_bytes, location)
        if code:
            raise EngineFault(
                f"registration of {size_bytes} bytes at {address:#x} ({location}): code {code}"
            )

    def deregister(self, address: int) -> None:
        """Take the registration of a region back."""
        code = self._engine.unregister_memory(address)
        if code:
            raise EngineFault(f"deregistration of {address:#x}: code {code}")

    def open(self, session: str) -> None:
        """Make sure that writes to a peer need no handshake any more, which would block them.

        The first handshake holds a lock of the engine for as long as the peer takes, so the peer
        is asked first, outside that lock, whether it answers at all.
        """
        code = self._engine.send_probe(session)
        if code:
            raise EngineFault(f"no answer from {session}: code {code}")
        # Nothing is transferred for a length of zero.
        address = ctypes.addressof(self._byte)
        write_id = self._engine.transfer_submit_write(session, address, address, 0)
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        while write_id and self.status(write_id) == RUNNING:
            if time.monotonic() > deadline:
                raise EngineFault(f"{session} has not opened within {_OPEN_TIMEOUT_S} s")
            time.sleep(0.001)

    def submit(self, session: str, source: int, destination: int, size_bytes: int) -> int:
        """Start one write and return its id, 0 where nothing was started."""
        return int(self._engine.transfer_submit_write(session, source, destination, size_bytes))

    def status(self, write_id: int) -> int:
        """Return how a write stands. An id is a pointer: after DONE and FAILED it is freed."""
        return int(self._engine.transfer_check_status(write_id))

    def destroy(self) -> None:
        """End the engine with all that runs."""
        self._engine = None
