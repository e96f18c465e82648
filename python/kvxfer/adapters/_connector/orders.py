# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a scheduler side tells the worker sides, once per engine step."""

from dataclasses import dataclass, field

from kvxfer.adapters._connector.offer import Offer
from kvxfer.adapters._connector.shape import EngineShape

__all__ = ["GroupPages", "LoadOrder", "SendOrder", "StepOrders"]


@dataclass(frozen=True)
class GroupPages:
    """A request's pages in one group of layers, from a position on.

    Attributes
    ----------
    first_position : int
        Position of the first row of the first page: a multiple of the group's page size x
        decode context parallel ranks.                                           [unit: tokens]
    end : int
        One past the last position that moves.                                   [unit: tokens]
    pages : tuple of int
    """

    first_position: int
    end: int
    pages: tuple[int, ...]


@dataclass(frozen=True)
class SendOrder:
    """Every prefill rank: keep these pages, and write their rows to whoever asks for the room."""

    request_id: str
    room: int
    groups: tuple[GroupPages, ...]
    receivers: EngineShape


@dataclass(frozen=True)
class LoadOrder:
    """Every decode rank: ask for the rows of an offer, or fail the load for the reason given.

    ``refusal`` is empty unless the engines do not fit each other.
    """

    request_id: str
    offer: Offer | None
    groups: tuple[GroupPages, ...] = ()
    refusal: str = ""


@dataclass
class StepOrders:
    """Orders of one step.

    Attributes
    ----------
    sends, loads : list
    releases : list of Offer
        Offers that nobody will load: their pages are free at the prefill engine.
    aborts : list of str
        Requests whose load is not wanted any more.
    """

    sends: list[SendOrder] = field(default_factory=list)
    loads: list[LoadOrder] = field(default_factory=list)
    releases: list[Offer] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
