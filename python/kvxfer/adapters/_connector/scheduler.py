# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of a connector: what to load, what to send, and what to tell the peer."""

import logging
import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvxfer import InvalidArgumentError
from kvxfer.adapters._connector.offer import (
    VERSION,
    GroupTerms,
    Offer,
    RankReport,
    decode_offer,
    encode_offer,
)
from kvxfer.adapters._connector.orders import GroupPages, LoadOrder, SendOrder, StepOrders
from kvxfer.adapters._connector.shape import EngineShape

__all__ = ["ConnectorScheduler", "RequestView"]

_log = logging.getLogger("kvxfer")

# Names that routers between prefill and decode engines know; the offer stands under ours.
_WANTS_SEND, _HAS_OFFER, _OFFER = "do_remote_decode", "do_remote_prefill", "kvxfer"


@dataclass(frozen=True)
class RequestView:
    """What a scheduler side needs to know of an engine's request.

    Attributes
    ----------
    request_id : str
    params : mapping or None
        What the router put beside the request.
    prompt_tokens : int
    computed_tokens : int
        Tokens whose rows this engine has already.
    """

    request_id: str
    params: Mapping[str, Any] | None
    prompt_tokens: int
    computed_tokens: int = 0


class ConnectorScheduler:
    """Decides for one engine. Holds no memory, opens nothing, never waits.

    Pages are the engine's ids, one list per group of layers; ``null_page`` stands where a group
    keeps no rows, as before a sliding window.

    Parameters
    ----------
    shape : EngineShape
        Of this engine.
    receivers : EngineShape
        Of the decode engines that ask this one.
    null_page : int
    """

    def __init__(self, shape: EngineShape, receivers: EngineShape, null_page: int = 0) -> None:
        shape.check()
        receivers.check()
        self.shape = shape
        self._receivers = receivers
        self._null_page = null_page
        self._groups: tuple[GroupTerms, ...] = ()
        self._addresses: tuple[tuple[tuple[str, ...], ...], ...] = ()
        self._orders = StepOrders()
        self._taken: set[str] = set()
        self._loading: set[str] = set()
        self.counters: Counter[str] = Counter()

    def set_ranks(self, reports: Mapping[tuple[int, int], RankReport]) -> None:
        """Take what the worker sides report, by (pipeline stage, tensor-parallel rank).

        Raises
        ------
        InvalidArgumentError
            If a rank is missing, or ranks group their layers differently.
        """
        expected = {
            (stage, rank)
            for stage in range(self.shape.pp_size)
            for rank in range(self.shape.tp_size)
        }
        if set(reports) != expected:
            raise InvalidArgumentError(
                f"workers of (stage, rank) {sorted(reports)} reported, expected {sorted(expected)}"
            )
        self._addresses = tuple(
            tuple(reports[stage, rank].addresses for rank in range(self.shape.tp_size))
            for stage in range(self.shape.pp_size)
        )
        self._groups = _joined_groups(list(reports.values()))

    # -- decode engine --------------------------------------------------------------------------

    def external_tokens(self, request: RequestView) -> int:
        """Return how many tokens beyond ``computed_tokens`` can be loaded. Changes nothing."""
        if not self._has_offer(request):
            return 0
        offer, refusal = self._offer_of(request)
        if offer is None or refusal:
            return max(0, request.prompt_tokens - request.computed_tokens)
        if not self._is_aligned(offer, request.computed_tokens):
            return 0
        return max(0, offer.end - request.computed_tokens)

    def allocated(
        self, request: RequestView, pages: Sequence[Sequence[int]], external_tokens: int
    ) -> None:
        """Note that pages stand ready for a load, or that the engine needs none.

        A second call for the same request changes nothing.
        """
        if not self._has_offer(request):
            return
        self._taken.add(request.request_id)
        offer, refusal = self._offer_of(request)
        if external_tokens <= 0:
            if offer is not None and not refusal:
                self._note_alignment(offer, request)
            self._release(request, offer)
            return
        self._loading.add(request.request_id)
        if offer is None or refusal:
            _log.error("request %s: %s", request.request_id, refusal)
            self.counters["offers_refused"] += 1
            self._orders.loads.append(LoadOrder(request.request_id, offer, refusal=refusal))
            return
        groups = tuple(
            self._pages_from(index, pages[index], request.computed_tokens, offer.end)
            for index in range(len(self._groups))
        )
        self._orders.loads.append(LoadOrder(request.request_id, offer, groups))

    # -- prefill engine and end of a request ------------------------------------------------------

    def finished(
        self, request: RequestView, pages: Sequence[Sequence[int]], *, is_complete: bool
    ) -> dict[str, Any] | None:
        """Note the end of a request; ``is_complete``: it was not aborted and has all its tokens.

        Returns
        -------
        dict or None
            What the router passes on to the decode engine. Unless it is None, the pages belong to
            the connector until the worker sides have reported the request as sent.
        """
        if self._has_offer(request):
            self._release(request, self._offer_of(request)[0])
        self._taken.discard(request.request_id)
        if request.request_id in self._loading:
            self._loading.discard(request.request_id)
            self._orders.aborts.append(request.request_id)
        if not (request.params or {}).get(_WANTS_SEND) or not is_complete:
            return None
        if request.computed_tokens < 1:
            return None
        offer = self._make_offer(request)
        groups = tuple(
            self._pages_from(index, pages[index], 0, offer.end)
            for index in range(len(self._groups))
        )
        self._orders.sends.append(
            SendOrder(request.request_id, offer.room, groups, offer.receivers)
        )
        return {_HAS_OFFER: True, _WANTS_SEND: False, _OFFER: encode_offer(offer)}

    # -- every step -----------------------------------------------------------------------------

    def take_orders(self) -> StepOrders:
        """Return what happened since the last call."""
        orders, self._orders = self._orders, StepOrders()
        return orders

    def received(self, request_id: str) -> None:
        """Note that a load has ended, well or not."""
        self._loading.discard(request_id)

    # -- own ------------------------------------------------------------------------------------

    def _has_offer(self, request: RequestView) -> bool:
        is_offered = bool((request.params or {}).get(_HAS_OFFER))
        return is_offered and request.request_id not in self._taken

    def _offer_of(self, request: RequestView) -> tuple[Offer | None, str]:
        """Return the offer and why it cannot be taken, or an empty text."""
        try:
            offer = decode_offer((request.params or {}).get(_OFFER))
        except InvalidArgumentError as error:
            return None, str(error)
        return offer, self._misfit(offer, request.prompt_tokens)

    def _misfit(self, offer: Offer, prompt_tokens: int) -> str:
        if offer.receivers != self.shape:
            return (
                f"the prefill engine expects a decode engine with {_words(offer.receivers)}, "
                f'this one has {_words(self.shape)}: set "decode" in its connector configuration'
            )
        theirs, ours = ([g.layers for g in groups] for groups in (offer.groups, self._groups))
        if theirs != ours:
            return f"the prefill engine groups its layers as {theirs}, expected {ours}"
        if any(g.has_whole_pages for g in self._groups) and offer.groups != self._groups:
            return (
                f"the prefill engine has pages of {[g.page_size for g in offer.groups]} rows, "
                f"expected {[g.page_size for g in self._groups]}: only whole pages can be moved"
            )
        if offer.end > prompt_tokens:
            return f"the prefill engine has {offer.end} tokens, the prompt here {prompt_tokens}"
        return ""

    def _is_aligned(self, offer: Offer, computed_tokens: int) -> bool:
        """Whether what is here already ends with a page of both engines.

        Where it does not, this engine computes the rest: its shared pages are never written over.
        """
        return all(
            computed_tokens % math.lcm(self._page_tokens(ours), self._page_tokens(theirs, offer))
            == 0
            for ours, theirs in zip(self._groups, offer.groups, strict=True)
        )

    def _note_alignment(self, offer: Offer, request: RequestView) -> None:
        if self._is_aligned(offer, request.computed_tokens):
            return
        _log.warning(
            "request %s: %d tokens are cached here, not a multiple of the prefill engine's pages, "
            "so the rest is computed here; one page size for both engines avoids that",
            request.request_id,
            request.computed_tokens,
        )
        self.counters["prefixes_unaligned"] += 1

    def _page_tokens(self, group: GroupTerms, offer: Offer | None = None) -> int:
        return group.page_size * (self.shape if offer is None else offer.shape).dcp_size

    def _pages_from(self, group: int, pages: Sequence[int], begin: int, end: int) -> GroupPages:
        """Return the pages of the positions [begin, end), without the leading null pages."""
        page_tokens = self._page_tokens(self._groups[group])
        first, last = begin // page_tokens, -(-end // page_tokens)
        while first < last and pages[first] == self._null_page:
            first += 1
        if self._groups[group].has_whole_pages:
            end = last * page_tokens
        return GroupPages(first * page_tokens, end, tuple(pages[first:last]))

    def _make_offer(self, request: RequestView) -> Offer:
        return Offer(
            version=VERSION,
            room=secrets.randbelow(2**53 - 1) + 1,
            end=request.computed_tokens,
            shape=self.shape,
            receivers=self._receivers,
            groups=self._groups,
            addresses=self._addresses,
        )

    def _release(self, request: RequestView, offer: Offer | None) -> None:
        self._taken.add(request.request_id)
        if offer is not None:
            self._orders.releases.append(offer)


def _joined_groups(reports: list[RankReport]) -> tuple[GroupTerms, ...]:
    """Return the groups with the layers of all pipeline stages."""
    shapes = {tuple(group.page_size for group in report.groups) for report in reports}
    if len(shapes) != 1:
        raise InvalidArgumentError(
            f"ranks have page sizes {sorted(shapes)}, expected the same groups on every rank"
        )
    return tuple(
        GroupTerms(
            groups[0].page_size,
            tuple(sorted({layer for group in groups for layer in group.layers})),
            groups[0].has_whole_pages,
        )
        for groups in zip(*(report.groups for report in reports), strict=True)
    )


def _words(shape: EngineShape) -> str:
    return ", ".join(f"{name} {getattr(shape, name)}" for name in shape.__struct_fields__)
