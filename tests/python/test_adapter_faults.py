# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Many requests at once with every kind of end, and destinations that cannot be written."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvxfer.adapters import EngineMemory, StateArray
from kvxfer.errors import TransferError
from kvxfer.transfer import RoomState
from kvxfer.transfer.completion import Completion
from kvxfer.transports.protocol import WriteHandle, WriteState
from support.adapter_world import Job, Site, Worker, held, wait_until
from support.scripted_transport import ScriptedPost, ScriptedTransport, ScriptedWire
from support.transfer_world import Pages, copy_arrays, move_rows
from support.transport_cases import CASES

pytestmark = pytest.mark.timeout(150)


def installed(*names: str) -> list[Any]:
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                not CASES[name].is_installed, reason=f"{CASES[name].needs_module} is not installed"
            ),
        )
        for name in names
    ]


REAL = installed("loopback-process_vm", "loopback-memfd", "nixl", "mooncake")


class PageStore:
    """Pages of one pool, handed out in shuffled order and taken back when nothing holds them."""

    def __init__(self, page_count: int, seed: int) -> None:
        self.free = np.random.default_rng(seed).permutation(page_count).tolist()

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count, "the test opens more at once than its pools hold"
        return taken


class Mix:
    """Opens requests of every kind and every end, and compares whole pools afterwards."""

    # What the engines do to a request. After "landing" all fail it, the two of "after" and
    # "receiver gives up" only where they come in time.
    ENDS = (
        "sent at once",
        "sent in parts",
        "prefix is all",
        "landing",
        "sender gives up before",
        "sender gives up after",
        "receiver gives up",
        "receiver gives up at once",
        "no metadata",
    )

    def __init__(self, site: Site, **options: Any) -> None:
        self.ends: Counter[str] = Counter()
        self.sources = [site.add("p", page_count=512, pack_buffer_count=4, **options)]
        self.plain = [site.add("x", page_count=512, **options)]
        self.sharded = site.group("y", 2, page_count=512, **options)
        self.workers = [*self.sources, *self.plain, *self.sharded]
        self.renew(0)

    def renew(self, seed: int) -> None:
        """Forget what was moved: every page may be used again."""
        self.stores = {id(w): PageStore(512, seed + i) for i, w in enumerate(self.workers)}
        self.before = {id(w): w.snapshot() for w in self.workers}
        self.torn: dict[int, set[int]] = {id(w): set() for w in self.workers}

    def start(self, room: int) -> tuple[Job, str]:
        """Open a request and do to it what its number says."""
        end_kind = self.ENDS[room % len(self.ENDS)]
        destinations = self.plain if room // len(self.ENDS) % 2 else self.sharded
        prefix = 16 if room % 5 == 0 else 0
        end = prefix if end_kind == "prefix is all" else prefix + 9 + room % 9
        job = Job(self.sources, destinations, end, prefix, room, item=room % 8)
        job.landing = "landing" if end_kind == "landing" else None
        job.source_pages = [Pages(self._take(w, -(-end // 4))) for w in job.sources]
        job.destination_pages = [
            Pages(self._take(w, -(-(end - prefix) // w.layout.widened_page_tokens)), prefix)
            for w in destinations
        ]
        job.open_senders()
        if end_kind == "no metadata":
            job.item = None
            job.open_receivers()
            job.item = 0
        else:
            job.open_receivers()
        if end_kind == "receiver gives up at once":
            job.receivers[-1].abort("client went away")
        return job, end_kind

    def go_on(self, job: Job, end_kind: str) -> None:
        """Send what there is to send."""
        wait_until(lambda: job.senders[0].poll() is not RoomState.BOOTSTRAPPING)
        if end_kind == "sender gives up before":
            job.senders[0].abort("prefill failed")
        if job.senders[0].poll() is RoomState.FAILED:
            return
        job.init()
        if end_kind in ("sent in parts", "receiver gives up"):
            job.send(job.prefix + 6, is_final=False)
        if end_kind == "receiver gives up":
            job.receivers[0].abort("client went away")
        job.send(job.end, is_final=True)
        if end_kind == "sender gives up after":
            job.senders[0].abort("prefill failed")

    def finish(self, job: Job, end_kind: str) -> None:
        """Wait for the end and take the pages back when they are free."""
        job.wait()
        wait_until(lambda: not any(request.pages_held for request in job.requests))
        states = {request.poll() for request in job.requests}
        self.ends[f"{end_kind}: {'success' if states == {RoomState.SUCCESS} else 'failed'}"] += 1
        for request in job.requests:
            if request.poll() is RoomState.FAILED:
                assert request.result.failure is not None
                assert request.result.failure.room == job.room
        for receiver, worker, pages in zip(
            job.receivers, job.destinations, job.destination_pages, strict=True
        ):
            if receiver.poll() is RoomState.SUCCESS:
                given = list(zip(job.sources, job.source_pages, strict=True))
                arrays = self.before[id(worker)]
                move_rows(given, worker, pages, (job.prefix, job.end), arrays)  # type: ignore[arg-type]
            else:
                self.torn[id(worker)] |= set(pages.ids)
        for request in job.requests:
            request.clear()

    def check_pools(self) -> None:
        """Assert that every page holds the rows of its request, or what it held before.

        Pages are not used twice between renewals, so that what a failed request may have written
        is known.
        """
        for worker in self.workers:
            whole = sorted(set(range(512)) - self.torn[id(worker)])
            for plane, got, want in zip(
                worker.layout.planes, worker.arrays, copy_arrays(self.before[id(worker)]),
                strict=True,
            ):  # fmt: skip
                shape = (512, plane.page_stride_bytes)
                assert np.array_equal(got.reshape(shape)[whole], want.reshape(shape)[whole])

    def _take(self, worker: Worker, count: int) -> list[int]:
        return self.stores[id(worker)].take(count)


def run_mix(mix: Mix, rooms: Sequence[int], at_once: int) -> None:
    for first in range(0, len(rooms), at_once):
        started = [mix.start(room) for room in rooms[first : first + at_once]]
        for job, end_kind in started:
            mix.go_on(job, end_kind)
        for job, end_kind in started:
            mix.finish(job, end_kind)


@pytest.mark.parametrize("transport", REAL)
def test_sixty_requests_with_every_end_leave_nothing(transport: str) -> None:
    with Site(transport) as site:
        mix = Mix(site)
        run_mix(mix, range(1, 61), at_once=20)
        mix.check_pools()
        site.check_idle()
        ends = mix.ends
        assert ends.total() == 60
        for end_kind in ("sent at once", "sent in parts", "prefix is all", "landing"):
            assert ends[f"{end_kind}: failed"] == 0, ends
            assert ends[f"{end_kind}: success"] >= 6
        for end_kind in ("sender gives up before", "receiver gives up at once", "no metadata"):
            assert ends[f"{end_kind}: success"] == 0, ends
            assert ends[f"{end_kind}: failed"] >= 6
        for worker in site.workers:
            counters = worker.manager.counters
            assert counters["transport_posted"] == counters["transport_released"]
            assert counters["failed_polls"] == 0


class Fateful(ScriptedTransport):
    """Decides by the room's number how a post ends."""

    def post(self, peer: str, writes: Any, notification: bytes = b"") -> ScriptedPost:
        room = _room_of(notification)
        if room is not None and room % 20 == 7:
            raise TransferError("backend", peer, None, "no descriptors left")
        return super().post(peer, writes, notification)

    def poll(self, handle: WriteHandle) -> WriteState:
        assert isinstance(handle, ScriptedPost)
        room = _room_of(handle.notification)
        with self.wire.lock:
            if room is not None and handle.state is WriteState.RUNNING:
                if room % 20 == 11:
                    self.wire.fail(handle, "cable pulled")
                elif room % 20 == 13:
                    self.wire.lose(handle, "no answer")
            elif handle.state is WriteState.LOST and handle.poll_count >= 3:
                self.wire.drain(handle, lands=True)
            return super().poll(handle)


def _room_of(notification: bytes) -> int | None:
    return Completion.decode(notification).room if notification else None


def test_a35_a_thousand_requests_with_every_end_leave_nothing() -> None:
    """vllm#18204, sglang#14072, Mooncake#2350, LMCache#1339: 50 at a time, over real threads."""
    wire = ScriptedWire()
    wire.completes_on_poll = 1
    threads = threading.active_count()
    ends: Counter[str] = Counter()
    with Site(wire=wire) as site:
        mix = Mix(site)
        for worker in site.workers:
            worker.transport.__class__ = Fateful
        for first in range(1, 1001, 50):
            mix.renew(first)
            run_mix(mix, range(first, first + 50), at_once=50)
            mix.check_pools()
            wire.posts.clear()
            wire.events.clear()
        ends = mix.ends
        site.check_idle()
        for worker in site.workers:
            counters = worker.transport.counters
            assert counters["posted"] == counters["released"]
        source = mix.sources[0].manager
        counters = source.counters
        totals = source.totals["sender"]
        assert (totals.requests, ends.total()) == (1000, 1000)
        assert counters["failed_transport"] >= 40
        assert counters["failed_aborted"] >= 100
        assert counters["transport_failed"] > 0
        assert counters["transport_drained"] > 0
        assert sum(n for end, n in ends.items() if end.endswith("success")) >= 300
    assert threading.active_count() == threads


@pytest.mark.parametrize("transport", REAL)
def test_a_destination_that_was_not_registered_is_refused_before_anything_is_sent(
    transport: str,
) -> None:
    stray = np.zeros((8, 48), dtype=np.uint8)
    with Site(transport) as site:
        source, destination, healthy = site.add("p"), site.add("d"), site.add("x")
        Job([source], [destination], 9, room=1, item=1).run().check()
        known = destination.manager.memory
        arrays = [
            StateArray(kind=f"conv.{part}", address=stray.ctypes.data, item_bytes=48, item_count=8)
            for part in range(2)
        ]
        posted = source.manager.counters["transport_posted"]
        destination.manager._memory = EngineMemory([arrays], known.metadata)
        job = Job([source], [destination], 21, room=2, item=2)
        job.open_senders()
        job.open_receivers()
        job.wait()
        job.check_failed("refused", "is not inside one region")
        assert destination.name in (job.senders[0].failure_reason or "")
        assert source.manager.counters["transport_posted"] == posted
        assert not stray.any()
        destination.manager._memory = known
        for receiver in ([destination], [healthy]):
            Job([source], receiver, 21, room=3, seed=9, item=3).run().check()
        site.check_idle()


@pytest.mark.parametrize("transport", installed("loopback-memfd", "mooncake"))
def test_a_destination_that_took_its_registration_back_fails_alone(transport: str) -> None:
    """Where the target checks: nothing lands, and the request says whose memory it is."""
    with Site(transport) as site:
        source, destination, healthy = site.add("p"), site.add("d"), site.add("x")
        Job([source], [destination], 9, room=1).run().check()
        spans = destination.manager.pool.spans
        for span in spans:
            destination.transport.deregister_memory(span.address)
        job = Job([source], [destination], 21, room=2, seed=5, landing="in_place").open()
        job.send(21, is_final=True)
        job.wait()
        failure = job.senders[0].result.failure
        assert failure is not None
        assert (failure.kind, failure.peer, failure.room) == ("transport", destination.name, 2)
        assert job.receivers[0].poll() is RoomState.FAILED
        for got, want in zip(destination.arrays, job.before[0], strict=True):
            assert np.array_equal(got, want)
        Job([source], [healthy], 21, room=3, seed=9).run().check()
        wait_until(lambda: not held(source), "writes are over")
        for span in spans:
            destination.transport.register_memory(span.address, span.size_bytes)
        # Memory that is registered after it was described is no promise of a transport: Mooncake's
        # engines keep what they knew of it for a while.
        if transport != "mooncake":
            Job([source], [destination], 21, room=4, seed=6).run().check()
        site.check_idle()
