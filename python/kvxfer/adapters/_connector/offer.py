# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a prefill engine says about a finished request; a router carries it to a decode engine."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from kvxfer import InvalidArgumentError
from kvxfer.adapters._connector.shape import EngineShape

__all__ = ["GroupTerms", "Offer", "RankReport", "decode_offer", "encode_offer"]

VERSION = 1

Address = Annotated[str, Meta(min_length=1, max_length=256)]
# Routers may be written in a language whose numbers are doubles.
Room = Annotated[int, Meta(ge=1, lt=2**53)]


class GroupTerms(Struct, frozen=True, forbid_unknown_fields=True):
    """Layers that share one page table.

    Attributes
    ----------
    page_size : int
        Rows of a page on one rank.
    layers : tuple of int
        Global ids of the group's layers, rising, over all pipeline stages.
    has_whole_pages : bool
        The engine orders the bytes of a page in a way of its own, as tiles: only whole pages mean
        something, and only to an engine with the same page size.
    """

    page_size: Annotated[int, Meta(ge=1)]
    layers: tuple[Annotated[int, Meta(ge=0)], ...]
    has_whole_pages: bool = False


class RankReport(Struct, frozen=True):
    """What one rank's worker side tells its scheduler side: address and terms of each group."""

    addresses: tuple[Address, ...]
    groups: tuple[GroupTerms, ...]


class Offer(Struct, frozen=True, forbid_unknown_fields=True):
    """A request whose rows wait at a prefill engine.

    Attributes
    ----------
    room : int
        Id of the request's transfer on every rank of both engines.
    end : int
        Positions whose rows are there.                                          [unit: tokens]
    shape, receivers : EngineShape
        Of the prefill engine, and of the decode engine that it expects to ask.
    groups : tuple of GroupTerms
    addresses : tuple
        Control addresses by pipeline stage, tensor-parallel rank and group.
    """

    version: int
    room: Room
    end: Annotated[int, Meta(ge=1)]
    shape: EngineShape
    receivers: EngineShape
    groups: tuple[GroupTerms, ...]
    addresses: tuple[tuple[tuple[Address, ...], ...], ...]

    def sources(self, group: int, tp_ranks: list[int]) -> list[str]:
        """Return the addresses of some ranks' ends of a group, over all pipeline stages."""
        return [stage[rank][group] for stage in self.addresses for rank in tp_ranks]


def encode_offer(offer: Offer) -> dict[str, Any]:
    """Return an offer as values that JSON knows."""
    built: dict[str, Any] = msgspec.to_builtins(offer)
    return built


def decode_offer(value: Any) -> Offer:
    """Return the offer in a router's values.

    Raises
    ------
    InvalidArgumentError
        If it is none, or one of another version.
    """
    version = value.get("version") if isinstance(value, dict) else None
    if version != VERSION:
        raise InvalidArgumentError(f"offer has version {version!r}, expected {VERSION}")
    try:
        offer = msgspec.convert(value, Offer)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"offer of a prefill engine: {error}") from error
    offer.shape.check()
    offer.receivers.check()
    sizes = {(len(stage), len(rank)) for stage in offer.addresses for rank in stage}
    if len(offer.addresses) != offer.shape.pp_size or sizes != {
        (offer.shape.tp_size, len(offer.groups))
    }:
        raise InvalidArgumentError(
            "offer of a prefill engine: expected one address for each of "
            f"{offer.shape.pp_size} stages x {offer.shape.tp_size} ranks x "
            f"{len(offer.groups)} groups"
        )
    return offer
