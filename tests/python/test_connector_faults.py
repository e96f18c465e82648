# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Loads that fail, are given up or refused: pages come back, reasons have names, others go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kvxfer import Plane, PlaneKind, PoolLayout
from kvxfer.adapters import EngineMemory
from kvxfer.adapters._connector.offer import GroupTerms, Offer
from kvxfer.adapters._connector.orders import GroupPages, LoadOrder, SendOrder, StepOrders
from kvxfer.adapters._connector.record import summary
from kvxfer.adapters._connector.scheduler import RequestView
from kvxfer.adapters._connector.shape import EngineShape
from kvxfer.adapters._connector.worker import ConnectorWorker, Ended
from kvxfer.errors import TransferError
from kvxfer.transfer import Failure, LocalPool, RoomResult, RoomState
from support.connector_world import EngineSpec, FakeEngine, Model, drive

TOKENS = 21
FROM, TO = [[9, 4, 17, 2, 30, 11]], [[8, 25, 14, 1, 6, 21]]
QUICK = {"bootstrap_deadline_s": 1.0, "waiting_deadline_s": 1.0, "drain_deadline_s": 1.0}


def engine(name: str, tp: int = 1, receivers: int = 1, **options: Any) -> FakeEngine:
    spec = EngineSpec(EngineShape(4, tp), settings={"options": options})
    return FakeEngine(name, Model(), spec, EngineShape(4, receivers))


@pytest.fixture
def pair() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    with engine("p", tp=2) as prefill, engine("d") as decode:
        yield prefill, decode


def test_a_load_and_a_send_are_recorded(pair: tuple[FakeEngine, FakeEngine]) -> None:
    prefill, decode = pair
    decode.load("d1", prefill.prefill("p1", TOKENS, FROM), TOKENS, TO)
    drive(pair, lambda: decode.is_received("d1") and prefill.is_sent("p1"))
    (received,) = [rank.worker.record.take() for rank in decode.ranks]
    sent = [rank.worker.record.take() for rank in prefill.ranks]
    row_bytes = 2 * 4 * 8  # layers, heads, bytes
    assert received["received_bytes"] == [TOKENS * row_bytes]
    assert [values["sent_bytes"] for values in sent] == [[TOKENS * row_bytes / 2]] * 2
    assert summary(received)["loads"] == 1
    assert summary(sent[0])["sends"] == 1
    assert [rank.worker.record.take() for rank in decode.ranks] == [{}]


def test_a_load_that_is_given_up_frees_both_sides(pair: tuple[FakeEngine, FakeEngine]) -> None:
    prefill, decode = pair
    params = prefill.prefill("p1", TOKENS, FROM)
    prefill.scheduler.take_orders()  # the prefill ranks do not begin
    view = RequestView("d1", params, TOKENS)
    decode.load("d1", params, TOKENS, TO)
    decode.step()
    assert not decode.is_received("d1")
    decode.scheduler.finished(view, TO, is_complete=False)
    drive([decode], lambda: decode.is_received("d1"))
    assert all("aborted" in reason for reason in decode.failures("d1"))
    assert decode.ranks[0].worker.record.take() == {}  # nobody's fault
    decode.check()


def test_an_offer_that_is_released_frees_the_prefill_pages(
    pair: tuple[FakeEngine, FakeEngine],
) -> None:
    prefill, decode = pair
    params = prefill.prefill("p1", TOKENS, FROM)
    assert decode.load("d1", params, TOKENS, TO, computed=24) == 0
    drive(pair, lambda: prefill.is_sent("p1"))
    assert [rank.worker.record.take() for rank in prefill.ranks] == [{}, {}]
    drive(pair, lambda: all(rank.worker.open_count == 0 for rank in decode.ranks))
    decode.check()


def test_an_engine_that_does_not_fit_fails_the_load_and_frees_the_pages() -> None:
    with engine("p", receivers=2) as prefill, engine("d") as decode:
        decode.load("d1", prefill.prefill("p1", TOKENS, FROM), TOKENS, TO)
        drive([prefill, decode], lambda: decode.is_received("d1") and prefill.is_sent("p1"))
        (reason,) = decode.failures("d1")
        assert 'set "decode"' in reason
        assert decode.ranks[0].worker.record.take() == {"failures": ["refused"]}
        decode.check()


def test_a_prefill_engine_that_is_gone_fails_the_load() -> None:
    with engine("d", **QUICK) as decode:
        with engine("p") as gone:
            params = gone.prefill("p1", TOKENS, FROM)
        decode.load("d1", params, TOKENS, TO)
        drive([decode], lambda: decode.is_received("d1"))
        assert len(decode.failures("d1")) == 1
        (kind,) = decode.ranks[0].worker.record.take()["failures"]
        assert kind in ("deadline", "peer_lost")
        decode.check()


def test_pages_that_nobody_asks_for_are_freed_in_time() -> None:
    with engine("p", **QUICK) as prefill:
        prefill.prefill("p1", TOKENS, FROM)
        drive([prefill], lambda: prefill.is_sent("p1"))
        assert prefill.ranks[0].worker.record.take() == {"failures": ["deadline"]}


def test_a_second_use_of_an_offer_fails_alone(pair: tuple[FakeEngine, FakeEngine]) -> None:
    prefill, decode = pair
    params = prefill.prefill("p1", TOKENS, FROM)
    decode.load("d1", params, TOKENS, TO)
    decode.load("d2", params, TOKENS, [[3, 5, 7, 10, 12, 13]])
    drive(pair, lambda: decode.is_received("d1") and decode.is_received("d2"))
    assert decode.failures("d1") == []
    assert len(decode.failures("d2")) == 1
    decode.check((TO, 0, TOKENS))


def test_a_decode_engine_that_was_restarted_loads_again() -> None:
    with engine("p") as prefill:
        for life in range(2):
            with engine("d") as decode:
                params = prefill.prefill(f"p{life}", TOKENS, FROM)
                decode.load("d1", params, TOKENS, TO)
                drive([prefill, decode], lambda: decode.is_received("d1"))
                assert decode.failures("d1") == []
                decode.check((TO, 0, TOKENS))


def test_fifty_requests_at_once(pair: tuple[FakeEngine, FakeEngine]) -> None:
    prefill, decode = pair
    spec = EngineSpec(EngineShape(4), page_count=128)
    with FakeEngine("many", Model(), spec, EngineShape(4)) as many:
        wanted = {}
        for index in range(50):
            params = prefill.prefill(f"p{index}", 7, [[1 + index % 15, 16 + index % 15]])
            wanted[f"d{index}"] = [[1 + 2 * index, 2 + 2 * index]]
            many.load(f"d{index}", params, 7, wanted[f"d{index}"])
        drive([prefill, many], lambda: all(map(many.is_received, wanted)))
        assert not any(map(many.failures, wanted))
        many.check(*((pages, 0, 7) for pages in wanted.values()))
        drive([prefill], lambda: all(prefill.is_sent(f"p{i}") for i in range(50)))
    assert decode.ended[0].received == set()


@dataclass
class StubRoom:
    """A room whose writes have not ended."""

    state: RoomState = RoomState.FAILED
    pages_held: bool = True
    failure: Failure | None = field(default_factory=lambda: Failure("peer_lost", "x", 1, "gone"))

    @property
    def error(self) -> TransferError | None:
        return self.failure and self.failure.as_error()

    def send(self, *_: Any, **__: Any) -> None:
        pass

    def abort(self, message: str) -> None:
        pass

    def result(self) -> RoomResult:
        return RoomResult(1, self.state, failure=self.failure)


class StubManager:
    """A manager that opens one room for everything."""

    def __init__(self) -> None:
        self.room = StubRoom()
        self.pool = LocalPool(PoolLayout(4, 32, [Plane(0, PlaneKind.KEY, 8)]), (4096,))
        self.memory = EngineMemory()

    def admit(self, side: str, open_room: Any) -> StubRoom:
        return self.room

    def connect(self, *addresses: str) -> None:
        pass

    def sent(self) -> None:
        pass

    def wake(self) -> None:
        pass


@pytest.mark.parametrize("side", ["sent", "received"])
def test_pages_stay_while_writes_may_reach_them(side: str) -> None:
    shape, manager = EngineShape(1), StubManager()
    worker = ConnectorWorker(shape, 0, [cast(Any, manager)], [4])
    group = GroupPages(0, TOKENS, tuple(FROM[0]))
    offer = Offer(
        version=1,
        room=1,
        end=TOKENS,
        shape=shape,
        receivers=shape,
        groups=(GroupTerms(4, (0,)),),
        addresses=((("tcp://h:1",),),),
    )
    orders = StepOrders()
    if side == "sent":
        orders.sends.append(SendOrder("r", 1, (group,), shape))
    else:
        orders.loads.append(LoadOrder("r", offer, (group,)))
    worker.apply(orders)
    assert worker.collect() == Ended()
    manager.room.pages_held = False
    assert getattr(worker.collect(), side) == {"r"}
