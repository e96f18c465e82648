# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The Mooncake transport: one-sided writes through Mooncake's transfer engine.

Needs mooncake-transfer-engine-non-cuda (``pip install kvxfer[mooncake-cpu]``) for host memory, or
mooncake-transfer-engine-cuda13 on GPU machines (``pip install kvxfer[mooncake]``), and the Debian
packages libibverbs1 and libnuma1. Mooncake's environment, for example ``MC_FORCE_TCP=1``, has to be
set before the first agent is made.

What to know about it:

- Bytes move in threads of the engine on both sides. Notifications go over a connection of our own
  and are sent and taken in ``poll`` and ``drain_notifications``: both sides have to call them.
- At most 1,024 writes to a peer are outstanding, whatever is posted; polling submits the next.
- A write that fails at once is submitted again, twice at most: Mooncake refuses a good write when
  earlier ones have cost it its connections. One that fails for good makes its post LOST. That is
  DRAINED when every write of it has ended and the peer has shown that it runs, or when the peer is
  gone; until then neither side's memory may be reused. A frozen peer keeps posts RUNNING for 30 s
  (``MC_TCP_PROGRESS_TIMEOUT_SEC``), then LOST.
- ``add_peer`` waits for the peer's engine: up to a minute where its process is frozen.
- The engine listens on all interfaces, whatever ``host`` says; notifications are taken at ``host``.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal
from weakref import WeakValueDictionary

from kvxfer import InvalidArgumentError, UnsupportedError
from kvxfer.errors import TransferError
from kvxfer.transports._library.link import Link
from kvxfer.transports._library.memory_kind import MemoryKinds
from kvxfer.transports._library.transport import LibraryTransport, WriteCost
from kvxfer.transports._library.write_cost import chosen_write_cost
from kvxfer.transports._mooncake.channel import Channel
from kvxfer.transports._mooncake.engine import EngineFault, MooncakeEngine
from kvxfer.transports._mooncake.frames import Hello
from kvxfer.transports._mooncake.link import MooncakeLink, Route, Window
from kvxfer.transports._mooncake.mailbox import Mailbox
from kvxfer.transports._mooncake.payload import MooncakePayload
from kvxfer.transports._mooncake.session_names import SessionNames
from kvxfer.transports.protocol import Description, check_agent_name

NAME = "mooncake"

# Over TCP on a loopback interface.
DEFAULT_WRITE_COST = WriteCost(host_us=12.5, device_us=12.5)

_MAX_RUNNING_POSTS = 4096
_OUTSTANDING_WRITES_LIMIT = 1024


@dataclass(frozen=True)
class Limits:
    """What one agent asks of its peers.

    Attributes
    ----------
    max_outstanding_writes : int
        Writes to one peer that have been submitted and have not ended.
    settle_s : float
        How long a peer that runs is given to write what has reached its kernel.
    """

    max_outstanding_writes: int = _OUTSTANDING_WRITES_LIMIT
    settle_s: float = 1.0


class MooncakeTransport(LibraryTransport):
    """One agent, made by ``create``."""

    def __init__(
        self,
        agent_name: str,
        cost: WriteCost,
        make_engine: Callable[[], MooncakeEngine],
        host: str,
        limits: Limits,
    ) -> None:
        super().__init__(NAME, agent_name, cost, _MAX_RUNNING_POSTS)
        self._host = host
        self._limits = limits
        self._sessions = SessionNames()
        self._windows: WeakValueDictionary[str, Window] = WeakValueDictionary()
        # This finds out whether the host is one of this machine; Mooncake takes any.
        self._mailbox = Mailbox(host, self._generation)
        try:
            self._engine = make_engine()
        except BaseException:
            self._mailbox.close()
            raise

    def _register(self, address: int, size_bytes: int, device: int) -> None:
        try:
            self._engine.register(address, size_bytes, device)
        except EngineFault as fault:
            raise TransferError("transport", "", None, str(fault)) from fault

    def _deregister(self, address: int) -> None:
        try:
            self._engine.deregister(address)
        except EngineFault as fault:
            raise TransferError("transport", "", None, str(fault)) from fault

    def _payload(self, kinds: MemoryKinds) -> bytes:
        del kinds  # a target knows its own memory
        return MooncakePayload(self._host, self._engine.port, self._mailbox.port).encode()

    def _connect(self, description: Description) -> Link:
        name, payload = description.agent_name, MooncakePayload.decode(description)
        hello = Hello(description.generation, self.agent_name)
        try:
            session = self._sessions.name_of(
                payload.host, payload.engine_port, description.generation
            )
            channel = Channel((payload.host, payload.mailbox_port), hello)
        except OSError as error:
            raise TransferError("peer_dead", name, None, f"cannot be reached: {error}") from error
        try:
            self._engine.open(session)
        except EngineFault as fault:
            channel.close()
            raise TransferError("peer_dead", name, None, str(fault)) from fault
        with self._lock:
            window = self._windows.get(session)
            if window is None:
                window = Window(self._limits.max_outstanding_writes)
                self._windows[session] = window
        route = Route(self._engine, session, window, self._limits.settle_s)
        return MooncakeLink(self._ledger, description, route, channel)

    def _receive(self) -> list[tuple[str, bytes]]:
        return self._mailbox.receive()

    def _destroy(self, links: list[Link]) -> None:
        # Peers take the end of the connections for the end of the engine, so that comes first.
        self._engine.destroy()
        for link in links:
            link.abandon()
        self._mailbox.close()


def create(
    agent_name: str,
    *,
    host: str = "127.0.0.1",
    protocol: str = "tcp",
    device_name: str = "",
    write_cost_us: float | Literal["measure"] | None = None,
    max_outstanding_writes: int = _OUTSTANDING_WRITES_LIMIT,
    settle_s: float = 1.0,
) -> MooncakeTransport:
    """Make an agent.

    Parameters
    ----------
    agent_name : str
        Printable ASCII, unique among the agents that meet each other.
    host : str
        Name or IPv4 address of this machine under which peers reach it.
    protocol, device_name : str
        What Mooncake takes; it uses RDMA wherever it finds a device, unless ``MC_FORCE_TCP`` is
        set.
    write_cost_us : float, "measure" or None
        Cost of one write in microseconds. "measure": two agents of this process find it out over
        host memory, in about 1 s. None: 12.5.
    max_outstanding_writes : int
        Writes to one peer at a time, 1 to 1,024.
    settle_s : float
        After a failure, how long a peer that runs is given to write what has reached it.

    Raises
    ------
    UnsupportedError
        If Mooncake is not installed or cannot be loaded.
    InvalidArgumentError
        For a host that is not of this machine, or a limit out of range.
    """
    if not 1 <= max_outstanding_writes <= _OUTSTANDING_WRITES_LIMIT:
        raise InvalidArgumentError(
            f"max_outstanding_writes is {max_outstanding_writes}, expected 1 to "
            f"{_OUTSTANDING_WRITES_LIMIT}"
        )
    check_agent_name(agent_name)
    limits = Limits(max_outstanding_writes, settle_s)
    module = _load_library()

    def make(name: str, cost: WriteCost = DEFAULT_WRITE_COST) -> MooncakeTransport:
        def make_engine() -> MooncakeEngine:
            return MooncakeEngine(module, host, protocol, device_name)

        return MooncakeTransport(name, cost, make_engine, host, limits)

    return make(agent_name, chosen_write_cost(write_cost_us, DEFAULT_WRITE_COST, make))


def _load_library() -> ModuleType:
    try:
        return importlib.import_module("mooncake.engine")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"transport 'mooncake' needs a package that is not installed ({error}); install it "
            "with pip install 'kvxfer[mooncake-cpu]' for host memory, or "
            "'kvxfer[mooncake]' on a machine with CUDA 13"
        ) from error
    except ImportError as error:
        raise UnsupportedError(
            f"Mooncake is installed but cannot be loaded: {error}; it needs the Debian packages "
            "libibverbs1 and libnuma1, and kvxfer[mooncake] a CUDA driver, too; without one "
            "there is kvxfer[mooncake-cpu]"
        ) from error
