# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Peers in processes of their own that are killed, frozen, restarted or deaf.

After each of them other requests succeed with the right bytes, the failed one says which peer and
why, and no memory is used again before its write has ended.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kvxfer.adapters import RequestReceiver
from kvxfer.transfer import RoomState
from support.adapter_process import RemoteJob, WorkerProcess
from support.adapter_world import Job, Site, Worker, held, wait_until
from support.transport_cases import CASES

pytestmark = pytest.mark.timeout(150)

# Those over which nothing lands while the target stands still.
TRANSPORTS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not CASES[name].is_installed, reason=f"{CASES[name].needs_module} is not installed"
        ),
    )
    for name in ("loopback-memfd", "nixl", "mooncake")
]
# Six segments at a capacity of 8 tokens.
TOKENS = 41


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(
    processes: ExitStack, transport: str, role: str, seed: int, **options: Any
) -> WorkerProcess:
    """Start rank 1 of a destination that deals tokens to two ranks."""
    name = f"{role}.{transport}"
    return processes.enter_context(WorkerProcess(transport, name, seed, 1, 2, **options))


def check(job: RemoteJob) -> None:
    """Wait for the end on both sides and compare every byte of the destinations."""
    job.wait()
    wait_until(lambda: {"SUCCESS", "FAILED"} >= set(job.far_states()), "receivers are over")
    assert set(job.far_states()) == {"SUCCESS"}, job.far_reasons()
    job.check()


def live_handles(worker: Worker) -> int:
    return worker.manager.counters["transport_live_handles"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_is_killed_in_mid_transfer_fails_alone_and_may_return(
    transport: str, processes: ExitStack
) -> None:
    with Site(transport) as site:
        source = site.add("p", page_count=256, pack_buffer_count=6, heartbeat_interval_s=1.0)
        victim = start(processes, transport, "victim", 70)
        healthy = start(processes, transport, "healthy", 71)
        doomed = RemoteJob([source], [victim], TOKENS, room=2).open()
        other = RemoteJob([source], [healthy], TOKENS, room=3).open()
        for job in (doomed, other):
            job.send(17, is_final=False)
        wait_until(lambda: doomed.senders[0].transfer_metrics.bytes > 0)
        victim.freeze()
        for job in (doomed, other):
            job.send(TOKENS, is_final=True)
        wait_until(lambda: live_handles(source) > 0)
        victim.kill()
        check(other)
        doomed.wait()
        failure = doomed.senders[0].result.failure
        assert failure is not None
        assert failure.kind in ("transport", "peer_lost")
        assert (failure.peer, failure.room) == (victim.name, 2)
        assert victim.name in (doomed.senders[0].failure_reason or "")
        wait_until(lambda: not held(source), "writes to the dead peer are over")
        returned = start(processes, transport, "victim", 72)
        check(RemoteJob([source], [returned], TOKENS, room=4, seed=11).run())
        check(RemoteJob([source], [healthy], TOKENS, room=5, seed=12).run())
        site.check_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_stands_still_beyond_the_deadline_fails_alone_and_goes_on(
    transport: str, processes: ExitStack
) -> None:
    """One request runs into its deadline, one is aborted while its write is under way."""
    with Site(transport) as site:
        source = site.add("p", page_count=256, pack_buffer_count=6, transfer_deadline_s=3.0)
        frozen = start(processes, transport, "frozen", 73)
        healthy = start(processes, transport, "healthy", 74)
        # Two segments each, so that four of the six buffers are held.
        late = RemoteJob([source], [frozen], 13, room=2, seed=21).open()
        aborted = RemoteJob([source], [frozen], 13, room=3, seed=22).open()
        frozen.freeze()
        for job in (late, aborted):
            job.send(13, is_final=True)
        wait_until(lambda: live_handles(source) >= 2)
        aborted.senders[0].abort("client went away")
        check(RemoteJob([source], [healthy], TOKENS, room=4, seed=23).run())
        late.wait()
        failure = late.senders[0].result.failure
        assert failure is not None
        assert (failure.kind, failure.peer, failure.room) == ("deadline", frozen.name, 2)
        assert "within 3 s" in failure.message
        assert held(source)["pack_buffers_leased"] >= 2, "their writes have not ended"
        frozen.thaw()
        wait_until(lambda: not held(source), "writes are over")
        for job, words in ((late, "did not end within 3 s"), (aborted, "client went away")):
            wait_until(lambda job=job: job.far_states() == ["FAILED"])  # type: ignore[misc]
            assert words in job.far_reasons()[0]
            assert source.name in job.far_reasons()[0]
            wait_until(lambda job=job: job.far_held() == [False])  # type: ignore[misc]
            assert job.states == [RoomState.FAILED]
        check(RemoteJob([source], [frozen], TOKENS, room=5, seed=24).run())
        site.check_idle()


@pytest.mark.timeout(150)
def test_a33_ten_thousand_requests_to_a_stalled_peer_are_all_answered(
    processes: ExitStack,
) -> None:
    """sglang#31144: the peer is known, stands still, and takes no more control messages."""
    with Site("loopback-memfd") as site:
        # Pages stay held however long the rest takes.
        decode = site.add("d", page_count=256, drain_deadline_s=600.0)
        healthy = site.add("p", page_count=256)
        stalled = processes.enter_context(WorkerProcess("loopback-memfd", "stalled", 75))
        decode.manager.connect(stalled.address)
        wait_until(lambda: stalled.name in decode.manager.peer_names)
        stalled.freeze()
        requests = []
        for room in range(1, 10_001):
            request = RequestReceiver(decode.manager, room)
            request.init([stalled.address])
            request.send_metadata(range(256), 1024)
            requests.append(request)
        wait_until(lambda: all(request.poll().is_over for request in requests), "all are over")
        for request in requests:
            failure = request.result.failure
            assert failure is not None
            assert failure.kind == "peer_lost"
            assert failure.peer in (stalled.name, stalled.address)
            assert "its queue is full" in failure.message
        counters = decode.manager.counters
        assert counters["messages_refused"] > 0
        assert counters["messages_sent"] < 10_000
        Job([healthy], [decode], TOKENS, room=10_001).run().check()
        assert held(decode)["held_page_rooms"] > 0, "those that were asked may still write"
        stalled.thaw()
        words = "the peer has said that it does not write"
        wait_until(lambda: not held(decode), words, wait_s=90.0)
