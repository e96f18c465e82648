# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""One rank's ends of a connector: for each group of layers a transport, a channel, a manager."""

import contextlib
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kvxfer import transports
from kvxfer.adapters._connector.settings import ConnectorSettings
from kvxfer.adapters.manager import RankManager
from kvxfer.transfer import LocalPool, ZmqChannel

__all__ = ["RankEnds"]


class RankEnds:
    """Opens and closes what moves one rank's rows.

    Groups have page tables of their own, so each has a manager. A model with one kind of attention
    has one group.

    Parameters
    ----------
    name : str
        What peers call this rank; a random part is added, so that a restarted engine is another.
    pools : sequence of LocalPool
        One per group.
    settings : ConnectorSettings
    """

    def __init__(self, name: str, pools: Sequence[LocalPool], settings: ConnectorSettings) -> None:
        self._closing = contextlib.ExitStack()
        self.managers: list[RankManager] = []
        life = secrets.token_hex(4)
        try:
            for group, pool in enumerate(pools):
                self.managers.append(self._open(f"{name}-{group}-{life}", pool, settings))
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Control address of each group's manager."""
        return tuple(manager.address for manager in self.managers)

    def close(self) -> None:
        """End every request and close everything, the last opened first. Idempotent."""
        self._closing.close()

    def _open(self, name: str, pool: LocalPool, settings: ConnectorSettings) -> RankManager:
        channel = ZmqChannel(
            settings.listen, advertise=settings.advertise or None, secret=settings.secret()
        )
        self._closing.callback(channel.close)
        transport = transports.create(settings.transport, name, **settings.transport_options)
        self._closing.callback(transport.close)
        manager = RankManager(pool, transport, channel, settings.transfer_options())
        self._closing.callback(manager.close)
        return manager
