# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a scheduler side decides, in the order in which engines ask it."""

from __future__ import annotations

from typing import Any

import pytest

from kvxfer import InvalidArgumentError
from kvxfer.adapters._connector.offer import GroupTerms, Offer, RankReport, decode_offer
from kvxfer.adapters._connector.orders import GroupPages, LoadOrder, SendOrder
from kvxfer.adapters._connector.scheduler import ConnectorScheduler, RequestView
from kvxfer.adapters._connector.shape import EngineShape

TOKENS = 21
PAGES = [[7, 3, 9, 4, 5, 11]]


def scheduler(
    shape: EngineShape | None = None,
    receivers: EngineShape | None = None,
    groups: tuple[GroupTerms, ...] = (GroupTerms(4, (0, 1)),),
) -> ConnectorScheduler:
    shape = shape or EngineShape(4)
    made = ConnectorScheduler(shape, receivers or EngineShape(4))
    reports = {
        (stage, rank): RankReport(tuple(f"tcp://h:{rank}{g}" for g in range(len(groups))), groups)
        for stage in range(shape.pp_size)
        for rank in range(shape.tp_size)
    }
    made.set_ranks(reports)
    return made


def offered(prefill: ConnectorScheduler | None = None, tokens: int = TOKENS) -> dict[str, Any]:
    prefill = prefill or scheduler()
    view = RequestView("p", {"do_remote_decode": True}, tokens, tokens)
    params = prefill.finished(view, PAGES, is_complete=True)
    assert params is not None
    return params


def view(params: Any, computed: int = 0, tokens: int = TOKENS) -> RequestView:
    return RequestView("d", params, tokens, computed)


def test_a_finished_prefill_is_offered_and_sent() -> None:
    prefill = scheduler(EngineShape(4, 2))
    params = offered(prefill)
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    offer = decode_offer(params["kvxfer"])
    assert (offer.end, offer.shape, offer.receivers) == (TOKENS, EngineShape(4, 2), EngineShape(4))
    assert offer.addresses == ((("tcp://h:00",), ("tcp://h:10",)),)
    groups = (GroupPages(0, TOKENS, tuple(PAGES[0])),)
    assert prefill.take_orders().sends == [SendOrder("p", offer.room, groups, EngineShape(4))]
    assert prefill.take_orders().sends == []
    rooms = {decode_offer(offered(prefill)["kvxfer"]).room for _ in range(50)}
    assert len(rooms) == 50
    assert max(rooms) < 2**53  # routers may count in doubles


@pytest.mark.parametrize(
    ("params", "computed", "is_complete"),
    [
        (None, TOKENS, True),
        ({}, TOKENS, True),
        ({"do_remote_decode": False}, TOKENS, True),
        ({"do_remote_decode": True}, TOKENS, False),
        ({"do_remote_decode": True}, 0, True),
    ],
)
def test_other_ends_of_requests_keep_no_pages(
    params: Any, computed: int, is_complete: bool
) -> None:
    prefill = scheduler()
    request = RequestView("p", params, TOKENS, computed)
    assert prefill.finished(request, PAGES, is_complete=is_complete) is None
    assert prefill.take_orders().sends == []


def test_an_offer_is_loaded_once() -> None:
    params, decode = offered(), scheduler()
    for _ in range(3):  # asking changes nothing
        assert decode.external_tokens(view(params)) == TOKENS
    decode.allocated(view(params), PAGES, TOKENS)
    (load,) = decode.take_orders().loads
    assert load.refusal == ""
    assert load.groups == (GroupPages(0, TOKENS, tuple(PAGES[0])),)
    # Engines tell of pages a second time after the load, and ask again after a preemption.
    decode.allocated(view(params), PAGES, 0)
    decode.received("d")
    assert decode.external_tokens(view(params)) == 0
    decode.allocated(view(params), PAGES, 0)
    assert decode.finished(view(params), PAGES, is_complete=True) is None
    orders = decode.take_orders()
    assert (orders.loads, orders.releases, orders.aborts) == ([], [], [])


def test_only_what_is_missing_is_loaded() -> None:
    params, decode = offered(), scheduler()
    assert decode.external_tokens(view(params, computed=8)) == TOKENS - 8
    decode.allocated(view(params, computed=8), PAGES, TOKENS - 8)
    assert decode.take_orders().loads[0].groups == (GroupPages(8, TOKENS, (9, 4, 5, 11)),)


def test_an_offer_that_nobody_needs_is_released_once() -> None:
    params, decode = offered(), scheduler()
    full = view(params, computed=24)
    assert decode.external_tokens(full) == 0
    decode.allocated(full, PAGES, 0)
    decode.allocated(full, PAGES, 0)
    decode.finished(full, PAGES, is_complete=True)
    assert decode.take_orders().releases == [decode_offer(params["kvxfer"])]


def test_a_request_that_ends_before_its_pages_are_there_releases_the_offer() -> None:
    params, decode = offered(), scheduler()
    decode.external_tokens(view(params))
    decode.finished(view(params), PAGES, is_complete=False)
    orders = decode.take_orders()
    assert (len(orders.releases), orders.aborts) == (1, [])


def test_a_request_that_ends_while_it_loads_aborts_the_load() -> None:
    params, decode = offered(), scheduler()
    decode.allocated(view(params), PAGES, TOKENS)
    decode.finished(view(params), PAGES, is_complete=False)
    orders = decode.take_orders()
    assert (len(orders.loads), orders.releases, orders.aborts) == (1, [], ["d"])


def test_a_prefix_between_two_pages_of_the_source_is_computed_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = offered(scheduler(groups=(GroupTerms(16, (0, 1)),)))
    decode = scheduler()
    assert decode.external_tokens(view(params, computed=8)) == 0
    assert decode.external_tokens(view(params, computed=16)) == TOKENS - 16
    assert decode.counters["prefixes_unaligned"] == 0
    decode.allocated(view(params, computed=8), PAGES, 0)
    assert decode.counters["prefixes_unaligned"] == 1
    assert "8 tokens are cached here" in caplog.text
    assert len(decode.take_orders().releases) == 1


def test_null_pages_before_a_window_are_left_out() -> None:
    groups = (GroupTerms(4, (0,)), GroupTerms(4, (1,)))
    params, decode = offered_groups(groups), scheduler(groups=groups)
    decode.allocated(view(params), [PAGES[0], [0, 0, 0, 8, 2, 6]], TOKENS)
    assert decode.take_orders().loads[0].groups == (
        GroupPages(0, TOKENS, tuple(PAGES[0])),
        GroupPages(12, TOKENS, (8, 2, 6)),
    )


def test_tiled_pages_are_counted_whole() -> None:
    groups = (GroupTerms(4, (0, 1), has_whole_pages=True),)
    prefill = scheduler(groups=groups)
    offered(prefill)
    assert prefill.take_orders().sends[0].groups == (GroupPages(0, 24, tuple(PAGES[0])),)


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        (scheduler(), scheduler(EngineShape(4, 2)), 'set "decode"'),
        (scheduler(groups=(GroupTerms(4, (0,)),)), scheduler(), "groups its layers"),
        (
            scheduler(groups=(GroupTerms(8, (0, 1), has_whole_pages=True),)),
            scheduler(groups=(GroupTerms(4, (0, 1), has_whole_pages=True),)),
            r"pages of \[8\] rows, expected \[4\]",
        ),
    ],
)
def test_engines_that_do_not_fit_fail_the_load_by_name(
    prefill: ConnectorScheduler, decode: ConnectorScheduler, message: str
) -> None:
    params = offered(prefill)
    assert decode.external_tokens(view(params)) == TOKENS
    decode.allocated(view(params), PAGES, TOKENS)
    (load,) = decode.take_orders().loads
    assert load.offer is not None  # whose pages are given back
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(load.refusal)


def test_a_longer_offer_than_the_prompt_fails_the_load() -> None:
    params, decode = offered(), scheduler()
    short = view(params, tokens=20)
    decode.allocated(short, PAGES, decode.external_tokens(short))
    assert "has 21 tokens, the prompt here 20" in decode.take_orders().loads[0].refusal


@pytest.mark.parametrize(
    "offer",
    [None, {}, 7, {"version": 2}, {"version": 1}, {"version": 1, "room": 0}],
)
def test_what_is_no_offer_fails_the_load_and_nothing_else(offer: Any) -> None:
    decode = scheduler()
    params = {"do_remote_prefill": True, "kvxfer": offer}
    assert decode.external_tokens(view(params)) == TOKENS
    decode.allocated(view(params), PAGES, TOKENS)
    assert decode.take_orders().loads == [
        LoadOrder("d", None, refusal=decode_error(offer)),
    ]
    assert decode.counters["offers_refused"] == 1


def test_an_offer_with_missing_addresses_is_refused() -> None:
    values = offered()["kvxfer"]
    values["shape"]["tp_size"] = 2
    with pytest.raises(InvalidArgumentError, match="1 stages x 2 ranks x 1 groups"):
        decode_offer(values)


def test_ranks_that_are_missing_or_differ_are_refused() -> None:
    made = ConnectorScheduler(EngineShape(4, 2), EngineShape(4))
    report = RankReport(("tcp://h:1",), (GroupTerms(4, (0,)),))
    with pytest.raises(InvalidArgumentError, match=r"expected \[\(0, 0\), \(0, 1\)\]"):
        made.set_ranks({(0, 0): report})
    other = RankReport(("tcp://h:1",), (GroupTerms(8, (0,)),))
    with pytest.raises(InvalidArgumentError, match="page sizes"):
        made.set_ranks({(0, 0): report, (0, 1): other})


def offered_groups(groups: tuple[GroupTerms, ...]) -> dict[str, Any]:
    prefill = scheduler(groups=groups)
    request = RequestView("p", {"do_remote_decode": True}, TOKENS, TOKENS)
    params = prefill.finished(request, [PAGES[0]] * len(groups), is_complete=True)
    assert params is not None
    return params


def decode_error(offer: Any) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        decode_offer(offer)
    return str(raised.value)


def test_an_offer_survives_a_router_that_speaks_json() -> None:
    import json

    params = offered()
    carried = json.loads(json.dumps(params))
    assert decode_offer(carried["kvxfer"]) == decode_offer(params["kvxfer"])
    assert isinstance(decode_offer(carried["kvxfer"]), Offer)
