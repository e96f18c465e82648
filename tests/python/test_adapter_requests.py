# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Senders, receivers and managers as schedulers use them: states, failures, metadata, the end."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError
from kvxfer.adapters import EngineMemory, MetadataArray, RankManager, RequestReceiver, RequestSender
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.transfer import LocalPool, RoomState, TransferOptions, ZmqChannel
from support.adapter_world import Job, Site, Worker, held, wait_until
from support.scripted_transport import ScriptedTransport, ScriptedWire


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as made:
        yield made
        made.check_idle()


@pytest.fixture
def manual() -> Iterator[Site]:
    """A site on whose wire nothing completes before the test says so."""
    with Site(wire=ScriptedWire()) as made:
        yield made
        made.wire.completes_on_poll = 1  # type: ignore[union-attr]
        made.check_idle()


def wire_of(site: Site) -> ScriptedWire:
    assert site.wire is not None
    return site.wire


def test_states_are_those_that_schedulers_know(manual: Site) -> None:
    assert [(state.name, state.value) for state in RoomState] == [
        ("FAILED", 0),
        ("BOOTSTRAPPING", 1),
        ("WAITING_FOR_INPUT", 2),
        ("TRANSFERRING", 3),
        ("SUCCESS", 4),
    ]
    source, destination = manual.add("p"), manual.add("d")
    job = Job([source], [destination], 10, item=0)
    job.open_senders()
    sender, receiver = job.senders[0], RequestReceiver(destination.manager, 6)
    assert (sender.poll(), receiver.poll()) == (RoomState.BOOTSTRAPPING,) * 2
    receiver.init([source.address])
    assert receiver.poll() is RoomState.WAITING_FOR_INPUT
    assert not receiver.pages_held
    job.open_receivers()
    wait_until(lambda: sender.poll() is RoomState.WAITING_FOR_INPUT)
    assert job.receivers[0].poll() is RoomState.WAITING_FOR_INPUT
    job.init().send(10, is_final=True)
    wait_until(lambda: bool(wire_of(manual).running()))
    assert sender.poll() is RoomState.TRANSFERRING
    assert job.receivers[0].pages_held
    wire_of(manual).completes_on_poll = 1
    job.wait().check()
    assert sender.failure_reason is None
    sender.failure_exception()
    receiver.clear()
    assert receiver.poll() is RoomState.FAILED
    given_up = RequestSender(source.manager, 6)
    wait_until(lambda: given_up.poll() is RoomState.FAILED)
    assert "given up by the engine" in (given_up.failure_reason or "")


def test_a_manager_has_one_named_thread_until_it_is_closed() -> None:
    before = set(threading.enumerate())
    with Site() as site:
        managers = [site.add("p").manager, site.add("d").manager]
        started = set(threading.enumerate()) - before
        assert {t.name for t in started} == {f"kvxfer {m.name}" for m in managers}
        assert [m.worker_name for m in managers] == [f"kvxfer {m.name}" for m in managers]
        managers[0].close()
        assert {t.name for t in threading.enumerate()} & {f"kvxfer {managers[0].name}"} == set()
        managers[0].close()
        with pytest.raises(InvalidArgumentError, match="was closed"):
            RequestSender(managers[0], 5)
    assert set(threading.enumerate()) == before


def test_work_is_done_by_the_managers_thread_alone(site: Site) -> None:
    threads: set[str] = set()

    class Posts(ScriptedTransport):
        def post(self, *arguments: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().post(*arguments)

        def poll(self, handle: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().poll(handle)

    source, destinations = site.add("p"), site.group("d", 2)
    source.transport.__class__ = Posts
    Job([source], destinations, 40).run(9, 23).check()
    assert threads == {source.manager.worker_name}


def test_peers_that_come_later_are_served_like_the_first(site: Site) -> None:
    source, first = site.add("p"), site.group("d", 2)
    Job([source], first, 21, room=1).run().check()
    early = Job([source], first, 30, room=2).open()
    late_plain, late_sharded = site.add("x"), site.group("y", 4)
    late = [
        Job([source], [late_plain], 21, room=3, item=1).run(),
        Job([source], late_sharded, 21, room=4, item=2).run(),
    ]
    early.send(30, is_final=True)
    for job in [early.wait(), *late]:
        job.check()
    assert len(source.manager.peer_names) == 7


def test_a27_a_room_that_is_open_fails_the_second_request_and_not_the_first(site: Site) -> None:
    """sglang#40125: the id comes from a client."""
    source, destination = site.add("p"), site.add("d")
    job = Job([source], [destination], 21).open()
    again = RequestSender(source.manager, job.room)
    assert again.poll() is RoomState.FAILED
    with pytest.raises(TransferError, match=r"room 5: is open already") as caught:
        again.failure_exception()
    assert (caught.value.kind, caught.value.room) == ("duplicate", 5)
    received_again = RequestReceiver(destination.manager, job.room)
    received_again.init([source.address])
    received_again.send_metadata([1], 4)
    assert received_again.poll() is RoomState.FAILED
    assert "is open already" in (received_again.failure_reason or "")
    for second in (again, received_again):
        assert not second.pages_held
        second.abort()
        second.clear()
    job.send(21, is_final=True)
    job.wait().check()
    third = Job([source], [destination], 17, seed=9).run()
    third.check()
    assert third.senders[0].transfer_metrics.segments == 1


@pytest.mark.parametrize("room", [0, -1, 2**64, True, "5"])
def test_a_room_id_that_cannot_be_one_fails_its_request(site: Site, room: Any) -> None:
    manager = site.add("p").manager
    receiver = RequestReceiver(manager, room)
    receiver.init([manager.address])
    receiver.send_metadata([1], 4)
    for request in (RequestSender(manager, room), receiver):
        assert request.poll() is RoomState.FAILED
        assert "expected an integer in [1, 2**64)" in (request.failure_reason or "")
        assert request.result.failure is not None
        assert request.transfer_metrics.bytes == 0


@pytest.mark.parametrize(
    ("pages", "end", "prefix", "words"),
    [
        ([64], 4, 0, "64"),
        ([-1], 4, 0, "-1"),
        ([3, 3], 8, 0, "3"),
        ([3], 5, 0, r"expected \[0, 5\)"),
        ([3], 8, 3, "prefix is 3, expected a multiple of 4"),
    ],
)
def test_a_request_that_cannot_be_fails_by_itself(
    site: Site, pages: list[int], end: int, prefix: int, words: str
) -> None:
    source, destination = site.add("p"), site.add("d")
    receiver = RequestReceiver(destination.manager, 5)
    receiver.init([source.address])
    receiver.send_metadata(pages, end, prefix_tokens=prefix)
    assert receiver.poll() is RoomState.FAILED
    with pytest.raises(TransferError, match=words):
        receiver.failure_exception()
    assert receiver.is_abort_release_safe
    Job([source], [destination], 9).run().check()


def test_a_receiver_is_told_its_sources_first_and_its_pages_once(site: Site) -> None:
    source, destination = site.add("p"), site.add("d")
    receiver = RequestReceiver(destination.manager, 5)
    with pytest.raises(InvalidArgumentError, match="expected at least one"):
        receiver.init([])
    with pytest.raises(InvalidArgumentError, match="once, after init"):
        receiver.send_metadata([1], 4)
    receiver.init([source.address])
    receiver.send_metadata([1], 4)
    with pytest.raises(InvalidArgumentError, match="once, after init"):
        receiver.send_metadata([1], 4)
    receiver.clear()
    assert receiver.poll() is RoomState.FAILED
    # The source keeps the abort for a sender that is opened later.
    RequestSender(source.manager, 5).clear()


@pytest.mark.parametrize("aborts", ["sender", "receiver", "receiver before its pages"])
def test_an_abort_reaches_the_other_side_with_its_words(site: Site, aborts: str) -> None:
    source, destination = site.add("p"), site.add("d")
    job = Job([source], [destination], 21)
    job.open_senders()
    if aborts == "receiver before its pages":
        receiver = RequestReceiver(destination.manager, job.room)
        receiver.init([source.address])
        job.receivers.append(receiver)
    else:
        job.open_receivers()
        wait_until(lambda: job.senders[0].poll() is RoomState.WAITING_FOR_INPUT)
    (job.senders if aborts == "sender" else job.receivers)[0].abort("client went away")
    job.wait()
    job.check_failed("aborted", "client went away")
    other = job.receivers[0] if aborts == "sender" else job.senders[0]
    assert other.result.failure is not None
    assert other.result.failure.peer == (source if aborts == "sender" else destination).name
    wait_until(lambda: job.receivers[0].is_abort_release_safe)
    Job([source], [destination], 21, room=6).run().check()


def test_pages_of_an_aborted_request_are_released_when_its_writes_are_over(manual: Site) -> None:
    source, destination = manual.add("p"), manual.add("d")
    job = Job([source], [destination], 21).open()
    job.send(21, is_final=True)
    wait_until(lambda: bool(wire_of(manual).running()))
    job.receivers[0].abort("client went away")
    job.wait()
    sender, receiver = job.senders[0], job.receivers[0]
    sender.clear()
    receiver.clear()
    assert not receiver.is_abort_release_safe
    assert sender.pages_held
    wire_of(manual).complete_all()
    wait_until(lambda: receiver.is_abort_release_safe and not sender.pages_held)
    assert job.states == [RoomState.FAILED] * 2


def test_late_notifications_change_nothing(manual: Site) -> None:
    """The bytes land, the room is given up, then the notification comes: twice."""
    wire = wire_of(manual)
    wire.completes_on_poll, wire.holds_notifications = 1, True
    source, destination = manual.add("p"), manual.add("d")
    job = Job([source], [destination], 21, item=1).open()
    job.send(21, is_final=True)
    wait_until(lambda: bool(wire.held))
    job.receivers[0].abort()
    job.wait()
    job.receivers[0].clear()
    metadata = destination.metadata.copy()
    again = Job([source], [destination], 13, seed=3, item=2).open()
    wire.repeat(0)
    wire.deliver()
    wait_until(lambda: held(destination).get("receiver_rooms") == 1)
    assert job.receivers[0].poll() is RoomState.FAILED
    assert np.array_equal(destination.metadata, metadata)
    wire.holds_notifications = False
    again.send(13, is_final=True)
    again.wait().check()


def test_metadata_is_in_the_engines_arrays_with_success_and_not_before(site: Site) -> None:
    """sglang#27374: an item is used again while it still holds the last request's metadata."""
    source, destination = site.add("p"), site.add("d")
    Job([source], [destination], 9, room=1, item=3).run().check()
    source.metadata[3] += 1
    before = destination.metadata.copy()
    job = Job([source], [destination], 21, room=2, item=3).open()
    job.send(9, is_final=False)
    wait_until(lambda: job.receivers[0].poll() is RoomState.TRANSFERRING)
    assert np.array_equal(destination.metadata, before)
    job.send(21, is_final=True)
    source.metadata[3] += 1
    sent = source.metadata[3] - 1
    job.wait()
    assert job.states == [RoomState.SUCCESS] * 2
    assert np.array_equal(destination.metadata[3], sent), "copied when the send was made"


def test_metadata_of_another_size_fails_the_receiver(site: Site) -> None:
    source, destination = site.add("p"), site.add("d")
    short = MetadataArray(destination.metadata.ctypes.data, 20, 16)
    object.__setattr__(destination.manager.memory, "metadata", [short])
    job = Job([source], [destination], 9, item=3).run()
    words = {r.failure_reason or "" for r in job.requests}
    assert any("24 bytes, expected" in reason for reason in words), words
    assert job.receivers[0].poll() is RoomState.FAILED


@pytest.mark.parametrize("items", [[[8]], [[-1]], [[0], [1]], []])
def test_state_items_that_do_not_exist_are_refused(site: Site, items: Any) -> None:
    job = Job([site.add("p")], [site.add("d")], 9).open()
    with pytest.raises(InvalidArgumentError, match=r"expected (0 to 7|1)"):
        job.senders[0].send(job.source_pages[0].ids, 9, state_items=items)
    job.senders[0].send(job.source_pages[0].ids, 9)
    job.wait().check()


class Faulty(ScriptedTransport):
    """Cannot be polled for a number of times."""

    fault_count = 0

    def drain_notifications(self) -> list[tuple[str, bytes]]:
        if self.fault_count > 0:
            self.fault_count -= 1
            raise TransferError("transport", "", None, "the library is out of order")
        return super().drain_notifications()


def faulty(worker: Worker) -> Faulty:
    worker.transport.__class__ = Faulty
    assert isinstance(worker.transport, Faulty)
    return worker.transport


def test_a_transport_that_recovers_fails_no_request(site: Site) -> None:
    source, destination = site.add("p"), site.add("d")
    job = Job([source], [destination], 21).open()
    faulty(source).fault_count = 20
    job.send(21, is_final=True)
    job.wait().check()
    assert source.manager.counters["failed_polls"] == 20


def test_a_transport_that_does_not_recover_fails_what_is_open(site: Site) -> None:
    source, destination = site.add("p"), site.add("d")
    job = Job([source], [destination], 21).open()
    transport = faulty(source)
    transport.fault_count = 10**9
    wait_until(lambda: job.senders[0].poll().is_over)
    transport.fault_count = 0
    job.wait()
    job.check_failed("aborted", "50 polls in a row failed: TransferError: the library is out of")
    Job([source], [destination], 21, room=6).run().check()


def test_closing_ends_what_is_open_and_says_so(site: Site) -> None:
    source, destination = site.add("p"), site.add("d")
    job = Job([source], [destination], 21).open()
    source.manager.close()
    job.wait()
    job.check_failed("aborted", "the manager was closed")


def test_closing_waits_for_writes_and_can_be_tried_again(manual: Site) -> None:
    source, destination = manual.add("p"), manual.add("d")
    job = Job([source], [destination], 21).open()
    job.send(21, is_final=True)
    wait_until(lambda: bool(wire_of(manual).running()))
    with pytest.raises(DeadlineError, match=r"writes of rooms \[5\] were not over within 0.1 s"):
        source.manager.close(timeout_s=0.1)
    wire_of(manual).complete_all()
    source.manager.close()
    assert source.manager.counters["transport_live_handles"] == 0


def test_a_manager_that_cannot_start_leaves_nothing() -> None:
    before = threading.active_count()
    with Site() as site:
        worker = site.add("p")
        transport = site.wire.create("q") if site.wire else ScriptedWire().create("q")
        bad = EngineMemory(state=[[_array(worker)]])
        pool = LocalPool(worker.layout, worker.manager.pool.plane_addresses)
        channel = ZmqChannel()
        with pytest.raises(InvalidArgumentError, match="overlaps"):
            RankManager(pool, transport, channel, TransferOptions(pack_tokens=8), memory=bad)
        again = RankManager(pool, transport, channel, TransferOptions(pack_tokens=8))
        again.close()
        channel.close()
    assert threading.active_count() == before


def _array(worker: Worker) -> Any:
    from kvxfer.adapters import StateArray

    address = worker.arrays[0].ctypes.data
    return StateArray(kind="conv", address=address, item_bytes=8, item_count=2)
