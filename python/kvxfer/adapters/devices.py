# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One transport agent per GPU of a process, each on the network interface near to it."""

import threading
from collections.abc import Callable, Mapping

from kvxfer import InvalidArgumentError
from kvxfer.transports.protocol import Transport

__all__ = ["DeviceAgents"]


class DeviceAgents:
    """Makes the agent of a GPU when it is first asked for, and returns the same one afterwards.

    One agent for all GPUs would send everything through one interface.

    Parameters
    ----------
    interfaces : mapping of int to str
        Network interface of each GPU, by the GPU's index in this process.
    make : callable
        Makes an agent for a GPU and its interface, for instance by
        ``transports.create("mooncake", name, device_name=interface)``.
    """

    def __init__(
        self, interfaces: Mapping[int, str], make: Callable[[int, str], Transport]
    ) -> None:
        if not interfaces:
            raise InvalidArgumentError("interfaces are empty, expected one entry per GPU")
        self._interfaces = dict(interfaces)
        self._make = make
        self._agents: dict[int, Transport] = {}
        self._lock = threading.Lock()

    def agent(self, gpu: int | None = None) -> Transport:
        """Return the agent of a GPU, without one that of the first GPU of the mapping.

        Raises
        ------
        InvalidArgumentError
            For a GPU without an interface; names those that have one.
        """
        chosen = next(iter(self._interfaces)) if gpu is None else gpu
        if chosen not in self._interfaces:
            raise InvalidArgumentError(
                f"GPU {chosen} has no network interface, expected one of {list(self._interfaces)}"
            )
        with self._lock:
            if chosen not in self._agents:
                self._agents[chosen] = self._make(chosen, self._interfaces[chosen])
            return self._agents[chosen]

    @property
    def in_use(self) -> dict[int, str]:
        """Interfaces of the GPUs whose agents were made."""
        with self._lock:
            return {gpu: self._interfaces[gpu] for gpu in self._agents}

    def close(self) -> None:
        """Close every agent that was made."""
        with self._lock:
            agents, self._agents = self._agents, {}
        for agent in agents.values():
            agent.close()
