# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What an adapter keeps for one generation of one peer."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from kvxfer.transports._library.ledger import Ledger, Post
from kvxfer.transports.protocol import Description


class Link(ABC):
    """One generation of one peer. All methods may be called from any thread.

    Attributes
    ----------
    name : str
        The peer's agent name.
    error : str or None
        Why no post can reach this generation any more.
    is_retired : bool
        Whether the peer was removed or replaced: posts that run are polled to their end.
    """

    def __init__(self, ledger: Ledger, description: Description) -> None:
        self.name = description.agent_name
        self.generation = description.generation
        self.regions = description.regions
        self.error: str | None = None
        self.is_retired = False
        self.ledger = ledger

    @property
    @abstractmethod
    def running_count(self) -> int:
        """Posts that have not ended."""

    @abstractmethod
    def refresh(self, description: Description) -> None:
        """Take the regions of a newer description of the same generation."""

    @abstractmethod
    def start(self, writes: NDArray[np.int64], notification: bytes) -> Post:
        """Start a checked post. Its state changes in ``advance`` only.

        Raises
        ------
        TransferError
            If nothing of it was sent.
        """

    @abstractmethod
    def advance(self, post: Post | None = None) -> None:
        """Drive progress without waiting for the peer: of one post where that is cheaper."""

    @abstractmethod
    def retire(self) -> None:
        """Take no posts any more; those that run become LOST until they have ended."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of every post, because the agent ends with all that runs."""

    @abstractmethod
    def dispose(self) -> None:
        """Give back what the library holds for the peer; nothing runs and nothing will start."""
