# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A NIXL agent whose errors are ours, and whose transfers end only with it or by themselves.

NIXL's exceptions have no common base. They are turned into ``NixlFault`` here and leave nowhere.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer import UnsupportedError
from kvxfer.transports._library.memory_kind import HOST


class NixlFault(Exception):  # noqa: N818 - becomes a state or an error of ours
    """NIXL refused or failed; how far it came is unknown."""


class PeerGone(NixlFault):
    """The connection to the peer has ended, and with it every transfer on it."""


class NotPosted(NixlFault):
    """The transfer was never posted."""


@dataclass(frozen=True)
class NixlLibrary:
    """The modules ``_api`` and ``_bindings`` of an installed NIXL."""

    api: ModuleType
    bindings: ModuleType

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Every exception class of NIXL."""
        found = (getattr(self.bindings, name) for name in dir(self.bindings))
        return tuple(f for f in found if isinstance(f, type) and issubclass(f, Exception))


@dataclass(frozen=True)
class Side:
    """One side of a transfer, all on one kind of memory.

    Attributes
    ----------
    descriptors : uint64 array, shape (write_count, 3), host
        Address, bytes, device.
    memory_type : str
        "DRAM" or "VRAM".
    """

    descriptors: NDArray[np.uint64]
    memory_type: str

    @classmethod
    def of(cls, addresses: NDArray[np.int64], sizes: NDArray[np.int64], device: Any) -> "Side":
        """Build from addresses, sizes in bytes, and one device or one per write."""
        descriptors = np.empty((len(addresses), 3), np.uint64)
        descriptors[:, 0], descriptors[:, 1] = addresses, sizes
        is_host = bool(np.all(device == HOST))
        descriptors[:, 2] = 0 if is_host else device
        return cls(descriptors, "DRAM" if is_host else "VRAM")


class NixlAgent:
    """One agent with one UCX backend, in strict thread mode."""

    def __init__(
        self,
        library: NixlLibrary,
        name: str,
        backend_options: Mapping[str, str],
        has_progress_thread: bool,
    ) -> None:
        self._errors = library.errors
        self._gone: type[Exception] = library.bindings.nixlRemoteDisconnectError
        self._not_posted: type[Exception] = library.bindings.nixlNotPostedError
        self._registrations: dict[int, Any] = {}
        self._holders: Counter[str] = Counter()
        # Between loading a peer and counting it nobody may forget it.
        self._holding = threading.Lock()
        # NIXL locks its agent for the length of a call. Releasing and removing keep the GIL in
        # there, so they wait for a long post here, where they do not stop every other thread.
        self._posting = threading.Lock()
        config = library.api.nixl_agent_config(
            enable_prog_thread=has_progress_thread,
            enable_listen_thread=False,
            backends=[],
            sync_mode=library.api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        )
        set_up_errors: tuple[type[Exception], ...] = (*self._errors, RuntimeError, TypeError)
        try:
            self._agent: Any = library.api.nixl_agent(name, config)
            self._agent.create_backend("UCX", dict(backend_options))
        except set_up_errors as error:
            raise UnsupportedError(
                f"NIXL cannot make a UCX backend with {dict(backend_options)}: {_text(error)}"
            ) from error

    # --- memory and peers -----------------------------------------------------------------------

    def register(self, address: int, size_bytes: int, device: int) -> None:
        """Register a region."""
        side = Side.of(np.array([address]), np.array([size_bytes]), device)
        try:
            registration = self._agent.register_memory(
                side.descriptors, mem_type=side.memory_type, backends=["UCX"]
            )
        except self._errors as error:
            raise self._fault("registration", error) from error
        if registration is None:
            raise NixlFault("registration: NIXL did not take the descriptors")
        self._registrations[address] = registration

    def deregister(self, address: int) -> None:
        """Take the registration of a region back."""
        registration = self._registrations.pop(address)
        try:
            self._agent.deregister_memory(registration)
        except self._errors as error:
            raise self._fault("deregistration", error) from error

    def metadata(self) -> bytes:
        """Return what a peer needs to reach this agent."""
        try:
            return bytes(self._agent.get_agent_metadata())
        except self._errors as error:
            raise self._fault("own metadata", error) from error

    def load(self, metadata: bytes, name: str) -> None:
        """Make a peer known, or add to what is known of it. Each call wants a ``forget``."""
        with self._holding:
            try:
                loaded = self._agent.add_remote_agent(metadata)
            except self._errors as error:
                raise self._fault(f"metadata of {name}", error) from error
            loaded_name = loaded.decode("ascii", "replace") if isinstance(loaded, bytes) else loaded
            if loaded_name != name:
                raise NixlFault(f"metadata is of agent {loaded_name!r}, expected {name!r}")
            self._holders[name] += 1

    def is_held_once(self, name: str) -> bool:
        """Whether one ``forget`` would remove the peer."""
        return self._holders[name] == 1

    def forget(self, name: str) -> None:
        """Remove a peer with the last of its holders. Transfers to it have ended before."""
        with self._holding:
            self._holders[name] -= 1
            if self._holders[name] <= 0:
                del self._holders[name]
                with self._posting:
                    self._agent.remove_remote_agent(name)

    # --- transfers ------------------------------------------------------------------------------

    def make_transfer(self, name: str, source: Side, destination: Side) -> Any:
        """Return a transfer that has not been posted."""
        try:
            sides = [
                self._agent.get_xfer_descs(side.descriptors, mem_type=side.memory_type)
                for side in (source, destination)
            ]
            if None in sides:
                raise NixlFault("transfer: NIXL did not take the descriptors")
            return self._agent.initialize_xfer("WRITE", *sides, name, backends=["UCX"])
        except self._errors as error:
            raise self._fault("transfer", error) from error

    def post(self, transfer: Any) -> None:
        """Post a transfer. Blocks while NIXL hands out its writes, not for the peer."""
        try:
            with self._posting:
                self._agent.transfer(transfer)
        except self._errors as error:
            raise self._fault("post", error) from error

    def is_done(self, transfer: Any) -> bool:
        """Drive progress; True once every byte is in the target's memory."""
        try:
            return bool(self._agent.check_xfer_state(transfer) == "DONE")
        except self._errors as error:
            raise self._fault("transfer", error) from error

    def release(self, transfer: Any) -> None:
        """Give back a transfer that has ended."""
        try:
            with self._posting:
                transfer.release()
        except self._errors as error:
            raise self._fault("release", error) from error

    # --- notifications --------------------------------------------------------------------------

    def notify(self, name: str, message: bytes) -> None:
        """Send a message."""
        try:
            self._agent.send_notif(name, message)
        except self._errors as error:
            raise self._fault("notification", error) from error

    def notifications(self) -> list[tuple[str, bytes]]:
        """Drive progress and return the messages that came, with the names of their agents."""
        try:
            by_name: dict[str, list[bytes]] = self._agent.get_new_notifs()
        except self._errors as error:
            raise self._fault("notifications", error) from error
        return [(name, message) for name, messages in by_name.items() for message in messages]

    def destroy(self) -> None:
        """End the agent. Nobody may hold a transfer of it."""
        self._registrations.clear()
        self._agent = None

    def _fault(self, what: str, error: Exception) -> NixlFault:
        kind = NixlFault
        if isinstance(error, self._gone):
            kind = PeerGone
        elif isinstance(error, self._not_posted):
            kind = NotPosted
        return kind(f"{what}: {_text(error)}")


def _text(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
