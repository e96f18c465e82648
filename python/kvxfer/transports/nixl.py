# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The NIXL transport: one-sided writes through NIXL's UCX backend, host and device memory.

Needs the package nixl-cu13 (``pip install kvxfer[nixl]``; with ``pip install --no-deps
nixl-cu13==1.5.1`` it brings no torch and no CUDA wheels). UCX chooses the lanes; its environment,
for example ``UCX_TLS`` and ``UCX_NET_DEVICES``, has to be set before the first agent is made.

What to know about it:

- Progress happens in ``poll`` and ``drain_notifications``. Over TCP the target has to call them,
  too, or nothing lands. ``progress_thread=True`` moves that into a thread of NIXL's that spins.
- NIXL never gives a frozen peer up: posts to it stay RUNNING, and go on when it does.
- A post to a dead peer ends FAILED within milliseconds, and later ones are refused.
- ``post`` blocks while NIXL hands out the writes: about 4 us for each over TCP, 6 us between GPUs
  that share memory. Other calls of the same agent wait for that long. Prepared descriptor lists
  would save 2 % of it, so there are none.
- Memory that peers know must stay mapped: a write to an unmapped address kills this process.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Literal

from kvxfer import UnsupportedError
from kvxfer.errors import TransferError
from kvxfer.transports._library.link import Link
from kvxfer.transports._library.memory_kind import MemoryKinds
from kvxfer.transports._library.transport import LibraryTransport, WriteCost
from kvxfer.transports._library.write_cost import chosen_write_cost
from kvxfer.transports._nixl.agent import NixlAgent, NixlFault, NixlLibrary
from kvxfer.transports._nixl.link import NixlLink
from kvxfer.transports._nixl.payload import NixlPayload, agent_name_of, nixl_name
from kvxfer.transports.protocol import Description, check_agent_name

NAME = "nixl"

# Over TCP on a loopback interface, and between H200s that share memory (cuda_ipc).
DEFAULT_WRITE_COST = WriteCost(host_us=3.5, device_us=6.5)

_MAX_RUNNING_POSTS = 4096
_PACKAGES = ("nixl_cu13", "nixl_cu12")


class NixlTransport(LibraryTransport):
    """One agent, made by ``create``."""

    def __init__(
        self,
        library: NixlLibrary,
        agent_name: str,
        cost: WriteCost,
        backend_options: Mapping[str, str],
        has_progress_thread: bool,
    ) -> None:
        super().__init__(NAME, agent_name, cost, _MAX_RUNNING_POSTS)
        own_name = nixl_name(self.agent_name, self._generation)
        self._agent = NixlAgent(library, own_name, backend_options, has_progress_thread)
        self._kinds = MemoryKinds.of(self._regions, self._devices)

    def _register(self, address: int, size_bytes: int, device: int) -> None:
        try:
            self._agent.register(address, size_bytes, device)
        except NixlFault as fault:
            raise TransferError("transport", "", None, str(fault)) from fault
        self._kinds = MemoryKinds.of(self._regions, {**self._devices, address: device})

    def _deregister(self, address: int) -> None:
        self._kinds = MemoryKinds.of(self._regions, self._devices)
        try:
            self._agent.deregister(address)
        except NixlFault as fault:
            raise TransferError("transport", "", None, str(fault)) from fault

    def _payload(self, kinds: MemoryKinds) -> bytes:
        return NixlPayload(kinds, self._agent.metadata()).encode()

    def _connect(self, description: Description) -> Link:
        return NixlLink(self._ledger, description, self._agent, lambda: self._kinds)

    def _receive(self) -> list[tuple[str, bytes]]:
        try:
            heard = self._agent.notifications()
        except NixlFault as fault:
            raise TransferError("transport", "", None, str(fault)) from fault
        named = ((agent_name_of(name), message) for name, message in heard)
        return [(name, message) for name, message in named if name is not None]

    def _destroy(self, links: list[Link]) -> None:
        for link in links:
            link.abandon()
        self._agent.destroy()


def create(
    agent_name: str,
    *,
    write_cost_us: float | Literal["measure"] | None = None,
    backend_options: Mapping[str, str] | None = None,
    progress_thread: bool = False,
) -> NixlTransport:
    """Make an agent.

    Parameters
    ----------
    agent_name : str
        Printable ASCII, unique among the agents that meet each other.
    write_cost_us : float, "measure" or None
        Cost of one write in microseconds. "measure": two agents of this process find it out over
        host memory, in about 0.1 s. None: 3.5 for host memory, 6.5 once device memory is
        registered.
    backend_options : mapping of str to str
        What NIXL's UCX backend takes, over ``{"ucx_error_handling_mode": "peer"}``. With mode
        "none" UCX may use shared memory for writes, and the death of a peer is not noticed.
    progress_thread : bool
        Let NIXL spin in a thread of its own, one core per agent, so that peers make progress here
        while nobody polls.

    Raises
    ------
    UnsupportedError
        If NIXL is not installed, is older than 1.5, or cannot make the UCX backend.
    """
    check_agent_name(agent_name)
    library = _load_library()
    options = {"ucx_error_handling_mode": "peer", **(backend_options or {})}

    def make(name: str, cost: WriteCost = DEFAULT_WRITE_COST) -> NixlTransport:
        return NixlTransport(library, name, cost, options, progress_thread)

    return make(agent_name, chosen_write_cost(write_cost_us, DEFAULT_WRITE_COST, make))


def _load_library() -> NixlLibrary:
    for package in _PACKAGES:
        try:
            library = NixlLibrary(_module(f"{package}._api"), _module(f"{package}._bindings"))
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError) and error.name == package:
                continue
            raise UnsupportedError(
                f"{package} is installed but cannot be loaded: {error}"
            ) from error
        if not hasattr(library.api, "nixl_thread_sync_t"):
            raise UnsupportedError(f"{package} is too old: expected NIXL 1.5 or newer")
        return library
    raise UnsupportedError(
        "transport 'nixl' needs the package nixl-cu13, which is not installed; "
        "install it with pip install 'kvxfer[nixl]'"
    )


def _module(path: str) -> ModuleType:
    return importlib.import_module(path)
