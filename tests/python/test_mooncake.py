# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The Mooncake transport between processes, over the real library and loopback TCP.

What every transport promises is in test_transport_protocol.py.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError, UnsupportedError, transports
from kvxfer.errors import TransferError
from kvxfer.transports._mooncake.payload import MooncakePayload
from kvxfer.transports.protocol import (
    MAX_NOTIFICATION_BYTES,
    Description,
    WriteHandle,
    WriteState,
)
from support import library_environment, mooncake_pool
from support.agent_process import AgentProcess, RemoteError
from support.library_agents import (
    NEW,
    NO_WRITES,
    OLD,
    Sender,
    count_bytes,
    heard,
    hide_modules,
)
from support.transport_cases import CASES

needs_mooncake = pytest.mark.skipif(
    not CASES["mooncake"].is_installed,
    reason="mooncake is not installed: pip install mooncake-transfer-engine-non-cuda",
)
Senders = Callable[..., Sender]
MIB = 1 << 20


@pytest.fixture
def senders() -> Iterator[Senders]:
    library_environment.apply(library_environment.MOONCAKE)
    made: list[Sender] = []

    def make(size_bytes: int, name: str = "sender") -> Sender:
        made.append(Sender(mooncake_pool.make_agent(name), size_bytes))
        return made[-1]

    yield make
    for sender in made:
        sender.agent.close()


def start_target(size_bytes: int, name: str = "target") -> AgentProcess:
    return AgentProcess("mooncake", name, size_bytes)


# --- bytes and notifications --------------------------------------------------------------------


@needs_mooncake
def test_odd_sizes_land_in_poisoned_memory_of_another_process(senders: Senders) -> None:
    sender = senders(300_001)
    with start_target(300_001) as target:
        peer = sender.add(target)
        sizes = [1, 3, 575, 576, 577, 4095, 4097, 65537, 131_071]
        starts = np.cumsum([0, *sizes[:-1]])
        runs = [(a, a + 7, size) for a, size in zip(starts.tolist(), sizes, strict=True)]
        handle = sender.agent.post(peer, sender.runs(target, *runs), b"req-1")
        assert sender.settle(handle) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"req-1"]
        content, total = target.call("content"), sum(sizes)
        assert content[7 : 7 + total] == sender.memory.bytes[:total].tobytes()
        assert set(content[:7] + content[7 + total :]) == {0xA5}
        assert target.call("guards_are_untouched")


class OutstandingWrites:
    """Watches an agent's engine."""

    def __init__(self, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._submit, self._status = agent._engine.submit, agent._engine.status
        self._running: set[int] = set()
        self.most = 0
        monkeypatch.setattr(agent._engine, "submit", self._watched_submit)
        monkeypatch.setattr(agent._engine, "status", self._watched_status)

    def _watched_submit(self, *write: Any) -> int:
        write_id: int = self._submit(*write)
        self._running.add(write_id)
        self.most = max(self.most, len(self._running))
        return write_id

    def _watched_status(self, write_id: int) -> int:
        status: int = self._status(write_id)
        if status:
            self._running.discard(write_id)
        return status


@needs_mooncake
def test_never_more_writes_are_outstanding_than_mooncake_stands(
    senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above some 2,060 Mooncake fails them all, whatever thread or batch they are from."""
    count, row_bytes = 10_000, 576
    sender = senders(count * row_bytes)
    outstanding = OutstandingWrites(sender.agent, monkeypatch)
    with start_target(count * row_bytes) as target:
        peer = sender.add(target)
        places = np.random.default_rng(3).permutation(count)
        starts = np.arange(count) * row_bytes
        runs = np.stack([starts, places * row_bytes, np.full(count, row_bytes)], axis=1)
        writes = sender.runs(target, *map(tuple, runs.tolist()))
        with ThreadPoolExecutor(4) as pool:
            quarters = [writes[number::4] for number in range(4)]
            handles = list(pool.map(lambda part: sender.agent.post(peer, part, b"q"), quarters))
        assert sender.settle(*handles) == [WriteState.DONE] * 4
        assert heard(sender, target, 4) == [b"q"] * 4
        landed = np.frombuffer(target.call("content"), np.uint8).reshape(count, row_bytes)
        assert (landed[places] == sender.memory.bytes.reshape(count, row_bytes)).all()
    assert outstanding.most == 1024
    assert sender.agent.counters["writes"] == count


@needs_mooncake
def test_a_peer_added_again_waits_for_the_writes_to_it_that_still_run(
    senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = senders(16 * MIB)
    outstanding = OutstandingWrites(sender.agent, monkeypatch)
    with start_target(16 * MIB) as target:
        handles = []
        for _ in range(4):
            peer = sender.add(target)
            handles.append(sender.agent.post(peer, sender.whole(target, 1024), b"never"))
            sender.agent.remove_peer(peer)
        ends = sender.settle(*handles)
        assert set(ends) <= {WriteState.FAILED, WriteState.DRAINED}
        again = sender.agent.post(sender.add(target), sender.whole(target, 1024), b"again")
        assert sender.settle(again) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"again"]
        assert target.call("content") == sender.memory.bytes.tobytes()
    assert outstanding.most <= 1024


@needs_mooncake
def test_one_name_in_another_is_another_message(senders: Senders) -> None:
    sender = senders(64)
    with start_target(64) as target:
        peer = sender.add(target)
        sent = [b"req-1", b"req-10", b"req-1", b"req-100", b"n" * MAX_NOTIFICATION_BYTES]
        handles = [sender.agent.post(peer, sender.whole(target), message) for message in sent]
        assert sender.settle(*handles) == [WriteState.DONE] * 5
        assert sorted(heard(sender, target, 5)) == sorted(sent)


@needs_mooncake
def test_four_threads_on_one_agent_and_two_peers(senders: Senders) -> None:
    sender = senders(64 * 1024)
    with start_target(64 * 1024, "even") as even, start_target(64 * 1024, "odd") as odd:
        targets = {sender.add(target): target for target in (even, odd)}

        def work(worker: int) -> None:
            for number in range(60):
                peer = ("even", "odd")[number % 2]
                runs = sender.whole(targets[peer], piece_count=16)[worker::4]
                handle = sender.agent.post(peer, runs, b"%d-%d" % (worker, number))
                while not sender.agent.poll(handle).has_ended:
                    time.sleep(0.0001)
                assert sender.agent.poll(handle) is WriteState.DONE
                sender.agent.release(handle)

        with ThreadPoolExecutor(4) as pool:
            for job in [pool.submit(work, worker) for worker in range(4)]:
                job.result(timeout=60)
        expected = [b"%d-%d" % (worker, number) for worker in range(4) for number in range(60)]
        got = [heard(sender, target, 120) for target in (even, odd)]
        assert sorted(got[0] + got[1]) == sorted(expected)
        assert even.call("content") == odd.call("content") == sender.memory.bytes.tobytes()
        counters = sender.agent.counters
        assert (counters["posted"], counters["live_handles"], counters["done"]) == (240, 0, 240)


# --- peers that stop, die and come back ---------------------------------------------------------


@needs_mooncake
def test_a_frozen_peer_makes_a_post_lost_until_it_runs_again(senders: Senders) -> None:
    """All writes have ended long before that, but bytes of them lie in the peer's kernel."""
    sender = senders(16 * MIB)
    sender.memory.bytes[:] = OLD
    with start_target(16 * MIB) as target, start_target(4096, "other") as other:
        peer, other_peer = sender.add(target), sender.add(other)
        target.freeze()
        handle = sender.agent.post(peer, sender.whole(target, piece_count=4), b"never")
        assert sender.agent.poll(handle) is WriteState.RUNNING
        alive = sender.agent.post(other_peer, sender.runs(other, (0, 0, 4096)), b"y")
        assert sender.settle(alive) == [WriteState.DONE]
        assert sender.wait_for(handle, WriteState.LOST) is WriteState.LOST
        assert "peer 'target' failed a write" in str(handle.error)
        assert sender.poll_for(handle, seconds=0.5) == {WriteState.LOST}
        with pytest.raises(InvalidArgumentError, match="LOST"):
            sender.agent.release(handle)
        target.thaw()
        assert sender.settle(handle) == [WriteState.DRAINED]
        landed = target.call("content")
        sender.memory.bytes[:] = NEW
        after = sender.agent.post(peer, NO_WRITES, b"after")
        assert sender.settle(after) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"after"]
        assert target.call("content") == landed
        assert count_bytes(target, NEW) == 0
        sender.agent.release(handle)
        assert heard(sender, other, 1) == [b"y"]


@needs_mooncake
def test_a_lost_post_waits_for_its_last_write(senders: Senders) -> None:
    """Sixteen writes on four connections: the first four fail, the others land when it runs."""
    sender = senders(16 * MIB)
    sender.memory.bytes[:] = OLD
    with start_target(16 * MIB) as target:
        peer = sender.add(target)
        target.freeze()
        handle = sender.agent.post(peer, sender.whole(target, piece_count=16), b"never")
        sender.wait_for(handle, WriteState.LOST)
        target.thaw()
        assert sender.settle(handle) == [WriteState.DRAINED]
        landed = target.call("content")
        assert landed.count(OLD) >= 8 * MIB
        sender.memory.bytes[:] = NEW
        again = sender.agent.post(peer, sender.runs(target, (0, 0, 1)), b"after")
        assert sender.settle(again) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"after"]
        assert count_bytes(target, NEW) == 1


@needs_mooncake
def test_closing_stops_a_transfer_that_is_under_way() -> None:
    library_environment.apply(library_environment.MOONCAKE)
    sender = Sender(transports.create("mooncake", "sender"), 64 * MIB)
    sender.memory.bytes[:] = OLD
    with start_target(64 * MIB) as target:
        peer = sender.add(target)
        target.freeze()
        handle = sender.agent.post(peer, sender.whole(target, piece_count=8), b"never")
        sender.poll_for(handle, seconds=0.1)
        sender.agent.close()
        sender.memory.bytes[:] = NEW
        assert sender.agent.poll(handle) is WriteState.FAILED
        target.thaw()
        for _ in range(200):
            assert target.call("hear") == []
        assert count_bytes(target, NEW) == 0


@needs_mooncake
def test_a_killed_peer_ends_its_posts_and_no_others(senders: Senders) -> None:
    sender = senders(16 * MIB)
    with start_target(16 * MIB) as target, start_target(16 * MIB, "other") as other:
        peer, other_peer = sender.add(target), sender.add(other)
        target.freeze()
        writes = sender.whole(target, piece_count=8)
        doomed = [sender.agent.post(peer, writes, b"x") for _ in range(3)]
        alive = sender.agent.post(other_peer, sender.whole(other), b"y")
        sender.poll_for(doomed[0], seconds=0.05)
        target.kill()
        ends = sender.settle(*doomed)
        assert set(ends) <= {WriteState.FAILED, WriteState.DRAINED}
        assert all("'target'" in str(handle.error) for handle in doomed)
        with pytest.raises(TransferError) as caught:
            sender.agent.post(peer, writes, b"z")
        assert (caught.value.kind, caught.value.peer) == ("peer_dead", "target")
        assert sender.settle(alive) == [WriteState.DONE]
        assert other.call("content") == sender.memory.bytes.tobytes()
        for handle in [*doomed, alive]:
            sender.agent.release(handle)
        assert sender.agent.counters["live_handles"] == 0


@needs_mooncake
def test_a_restarted_peer_is_written_at_its_new_place(senders: Senders) -> None:
    sender = senders(8 * MIB)
    with start_target(8 * MIB) as target:
        peer = sender.add(target)
        target.freeze()
        lost = sender.agent.post(peer, sender.whole(target), b"1")
        with start_target(8 * MIB) as restarted:
            assert sender.add(restarted) == peer
            assert sender.agent.poll(lost) is WriteState.LOST
            handle = sender.agent.post(peer, sender.whole(restarted), b"2")
            assert sender.settle(handle) == [WriteState.DONE]
            assert heard(sender, restarted, 1) == [b"2"]
            assert restarted.call("content") == sender.memory.bytes.tobytes()
            assert sender.agent.poll(lost) is WriteState.LOST
            target.kill()
            assert sender.settle(lost) == [WriteState.DRAINED]
            after = sender.agent.post(peer, sender.whole(restarted), b"3")
            assert sender.settle(after) == [WriteState.DONE]


@needs_mooncake
def test_a_peer_at_the_address_of_an_earlier_one_is_another_peer_to_mooncake(
    senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mooncake would go on with what it knew of the earlier engine, such as its port."""
    sender = senders(4096)
    sessions: list[str] = []
    agent: Any = sender.agent
    submit = agent._engine.submit

    def watched(session: str, *run: int) -> Any:
        sessions.append(session)
        return submit(session, *run)

    monkeypatch.setattr(agent._engine, "submit", watched)
    with start_target(4096) as target:
        description = Description.decode(target.call("describe"), "mooncake")
        payload = MooncakePayload.decode(description)
        for earlier in (b"first", b"second"):
            agent._sessions.name_of(payload.host, payload.engine_port, earlier)
        handle = sender.agent.post(sender.add(target), sender.whole(target), b"here")
        assert sender.settle(handle) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"here"]
        assert target.call("content") == sender.memory.bytes.tobytes()
        assert sessions == [f"127.0.0.001:{payload.engine_port}"]


@needs_mooncake
def test_an_unregistered_destination_fails_one_post(senders: Senders) -> None:
    sender = senders(4096)
    with start_target(4096) as target:
        peer = sender.add(target)
        target.call("deregister")
        handle = sender.agent.post(peer, sender.whole(target), b"never")
        assert sender.settle(handle) == [WriteState.DRAINED]
        assert "'target' failed a write" in str(handle.error)
        message = sender.agent.post(peer, NO_WRITES, b"still there")
        assert sender.settle(message) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"still there"]
        assert target.call("is_untouched")
        assert sender.add(target) == peer
        with pytest.raises(InvalidArgumentError, match="has no registered region"):
            sender.agent.post(peer, sender.whole(target), b"x")


@needs_mooncake
def test_a_peer_that_takes_no_messages_gets_a_limit_and_then_what_was_taken(
    senders: Senders,
) -> None:
    sender = senders(64)
    with start_target(64) as target, start_target(64, "other") as other:
        peer, other_peer = sender.add(target), sender.add(other)
        target.freeze()
        handles: list[WriteHandle] = []
        refusal = None
        for number in range(50_000):
            try:
                handles.append(sender.agent.post(peer, NO_WRITES, b"%d" % number + b"." * 1000))
            except TransferError as error:
                refusal = error
                break
            sender.agent.poll(handles[-1])
        assert refusal is not None
        assert (refusal.kind, refusal.peer) == ("limit", "target")
        assert sender.settle(*handles) == [WriteState.DONE] * len(handles)
        healthy = sender.agent.post(other_peer, NO_WRITES, b"y")
        assert sender.settle(healthy) == [WriteState.DONE]
        assert heard(sender, other, 1) == [b"y"]
        target.thaw()
        got = heard(sender, target, len(handles))
        assert [int(message.rstrip(b".")) for message in got] == list(range(len(handles)))


# --- set-up -------------------------------------------------------------------------------------


@needs_mooncake
def test_a_peer_that_is_not_there_is_dead(senders: Senders) -> None:
    sender = senders(64)
    with start_target(64) as target:
        blob = target.call("describe")
    for _ in range(2):
        with pytest.raises(TransferError, match="cannot be reached") as caught:
            sender.agent.add_peer(blob)
        assert (caught.value.kind, caught.value.peer) == ("peer_dead", "target")


@needs_mooncake
def test_an_agent_sets_no_environment_and_starts_no_thread(senders: Senders) -> None:
    library_environment.apply(library_environment.MOONCAKE)
    before, thread_count = dict(os.environ), threading.active_count()
    senders(64)
    assert dict(os.environ) == before
    assert threading.active_count() == thread_count


@needs_mooncake
def test_options_are_checked_before_an_engine_is_made() -> None:
    library_environment.apply(library_environment.MOONCAKE)
    for bad in (0, -1, 1025):
        with pytest.raises(InvalidArgumentError, match="max_outstanding_writes"):
            transports.create("mooncake", "a", max_outstanding_writes=bad)
    for bad_host in ("", "no.such.host.invalid", "203.0.113.9", "::1"):
        with pytest.raises(InvalidArgumentError, match="host"):
            transports.create("mooncake", "a", host=bad_host)
    with pytest.raises(InvalidArgumentError, match="write_cost_us"):
        transports.create("mooncake", "a", write_cost_us=-1)


@needs_mooncake
def test_the_cost_of_a_write_is_measured_or_a_default(senders: Senders) -> None:
    assert senders(64).agent.write_cost_us == 12.5
    agent = transports.create("mooncake", "b", write_cost_us="measure")
    assert 0.0 <= agent.write_cost_us < 1e4
    agent.close()


@needs_mooncake
def test_errors_of_a_process_are_ours() -> None:
    library_environment.apply(library_environment.MOONCAKE)
    with start_target(64) as target, pytest.raises(RemoteError, match=r"^DescriptionError: "):
        target.call("add_peer", b"nonsense")


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_modules(monkeypatch, "mooncake")
    with pytest.raises(UnsupportedError, match=r"kvxfer\[mooncake-cpu\].*kvxfer\[mooncake\]"):
        transports.create("mooncake", "agent")
