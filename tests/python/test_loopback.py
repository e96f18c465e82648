# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The loopback transport between processes: both data paths, and every way a peer can go away.

What every transport promises is in test_transport_protocol.py.
"""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError
from kvxfer.errors import TransferError
from kvxfer.transports import loopback
from kvxfer.transports._loopback import inbound, process_vm, reader
from kvxfer.transports._loopback.connection import ConnectionEnded
from kvxfer.transports._loopback.gate import reopen
from kvxfer.transports.loopback import LoopbackTransport
from kvxfer.transports.protocol import WriteHandle, WriteState
from support.agent_process import AgentProcess
from support.transport_cases import WAIT_S, Memory, receive, settle

PATHS = ["process_vm", "memfd"]
NO_WRITES = np.empty((0, 3), dtype=np.int64)


class Sender:
    """An agent of this process with filled, registered memory."""

    def __init__(self, size_bytes: int, **options: Any) -> None:
        self.agent = loopback.create("sender", **options)
        self.memory = Memory(size_bytes)
        self.memory.fill(seed=size_bytes)
        self.agent.register_memory(self.memory.address, size_bytes)

    def runs(self, target_address: int, *runs: tuple[int, int, int]) -> NDArray[np.int64]:
        bases = np.array([self.memory.address, target_address, 0], dtype=np.int64)
        return np.array(runs, dtype=np.int64).reshape(-1, 3) + bases

    def whole(self, target_address: int) -> NDArray[np.int64]:
        return self.runs(target_address, (0, 0, self.memory.size_bytes))

    def open(self, target: AgentProcess) -> str:
        """Add the target and wait until it has greeted."""
        peer = self.agent.add_peer(target.call("describe"))
        wait_until(lambda: self.agent.data_path(peer)[0] != "opening", self.agent)
        return peer


class Agents:
    """Makes senders and targets in this process and closes them after the test."""

    def __init__(self) -> None:
        self.made: list[LoopbackTransport] = []

    def sender(self, size_bytes: int, **options: Any) -> Sender:
        sender = Sender(size_bytes, **options)
        self.made.append(sender.agent)
        return sender

    def target(self, size_bytes: int, name: str = "target") -> tuple[LoopbackTransport, Memory]:
        target, memory = loopback.create(name), Memory(size_bytes)
        self.made.append(target)
        target.register_memory(memory.address, size_bytes)
        return target, memory

    def greeted_target(self, sender: Sender) -> tuple[LoopbackTransport, Memory]:
        """A target of the sender's size that has greeted it."""
        target, memory = self.target(sender.memory.size_bytes)
        peer = sender.agent.add_peer(target.describe())
        wait_until(lambda: sender.agent.data_path(peer)[0] != "opening", sender.agent, target)
        return target, memory


@pytest.fixture
def agents() -> Iterator[Agents]:
    agents = Agents()
    yield agents
    for agent in agents.made:
        agent.close()


def wait_until(is_true: Any, *agents: LoopbackTransport) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        for agent in agents:
            agent.drain_notifications()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S} s")
        time.sleep(0.0005)


def heard(target: AgentProcess, count: int) -> list[tuple[str, bytes]]:
    """What the target has been told, once it is at least so much."""
    wait_until(lambda: len(target.call("hear")) >= count)
    found: list[tuple[str, bytes]] = target.call("hear")
    return found


def post_until_refused(
    agent: LoopbackTransport, peer: str, handles: list[WriteHandle]
) -> TransferError:
    """Post messages, adding their handles, until the agent refuses one."""
    for number in range(100_000):
        try:
            handles.append(agent.post(peer, NO_WRITES, b"%d" % number + b"." * 900))
        except TransferError as refusal:
            return refusal
    raise AssertionError(f"{len(handles)} posts were taken")


# --- bytes between processes --------------------------------------------------------------------


@pytest.mark.parametrize("data_path", PATHS)
def test_bytes_reach_another_process(agents: Agents, data_path: str) -> None:
    size_bytes = (5 << 20) + 3
    sender = agents.sender(size_bytes, data_path=data_path)
    with AgentProcess("loopback", "target", size_bytes) as target:
        peer = sender.open(target)
        assert sender.agent.data_path(peer)[0] == data_path
        settle(sender.agent, [sender.agent.post(peer, sender.whole(target.address), b"x")], [])
        assert heard(target, 1) == [("sender", b"x")]
        assert target.call("content") == sender.memory.bytes.tobytes()
        assert target.call("guards_are_untouched")


@pytest.mark.parametrize("data_path", PATHS)
def test_odd_sizes_and_single_bytes_reach_another_process(agents: Agents, data_path: str) -> None:
    sender = agents.sender(100_000, data_path=data_path, slice_bytes=1001)
    with AgentProcess("loopback", "target", 100_000) as target:
        expected = np.frombuffer(target.call("content"), np.uint8).copy()
        generator = np.random.default_rng(3)
        runs = [(2 * number, 2 * number + 1, 1) for number in range(10_000)]
        runs += [(at, at, int(generator.integers(1, 999))) for at in range(20_000, 99_000, 1000)]
        for source, destination, size_bytes in runs:
            piece = sender.memory.bytes[source : source + size_bytes]
            expected[destination : destination + size_bytes] = piece
        peer = sender.open(target)
        settle(sender.agent, [sender.agent.post(peer, sender.runs(target.address, *runs))], [])
        assert target.call("content") == expected.tobytes()
        assert target.call("guards_are_untouched")


def test_a_target_writes_back(agents: Agents) -> None:
    sender = agents.sender(4096)
    before = sender.memory.bytes.copy()
    with AgentProcess("loopback", "target", 4096) as target:
        target.call("fill", 99)
        back = target.call("add_peer", sender.agent.describe())
        target.call("post", back, [(target.address, sender.memory.address, 4096)], b"back")
        assert receive(sender.agent, 1) == [("target", b"back")]
        assert sender.memory.bytes.tobytes() == target.call("content") != before.tobytes()


def test_a_notification_outlives_its_sender(agents: Agents) -> None:
    receiver = agents.sender(4096)
    with AgentProcess("loopback", "target", 4096) as target:
        back = target.call("add_peer", receiver.agent.describe())
        target.call("post", back, [(target.address, receiver.memory.address, 4096)], b"first")
        assert receive(receiver.agent, 1) == [("target", b"first")]
        target.call("post", back, [], b"last")
        wait_until(lambda: target.call("states") == ["DONE", "DONE"])
        content = target.call("content")
    assert receive(receiver.agent, 1) == [("target", b"last")]
    assert receiver.memory.bytes.tobytes() == content


# --- which way the bytes go ---------------------------------------------------------------------


def refuse_process_vm(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(name: str, pid: int, runs: NDArray[np.int64]) -> int:
        raise OSError(number, f"{name}: {os.strerror(number)}")

    monkeypatch.setattr(process_vm, "_transfer", refuse)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_without_permission_the_bytes_take_the_memfd_and_say_so(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_process_vm(monkeypatch, number)
    sender = agents.sender(4096)
    with AgentProcess("loopback", "target", 4096) as target:
        peer = sender.open(target)
        name, reason = sender.agent.data_path(peer)
        assert name == "memfd"
        assert os.strerror(number) in reason
        settle(sender.agent, [sender.agent.post(peer, sender.whole(target.address))], [])
        assert target.call("content") == sender.memory.bytes.tobytes()


def test_insisting_on_process_vm_without_permission_fails(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_process_vm(monkeypatch, errno.EPERM)
    sender = agents.sender(4096, data_path="process_vm")
    with AgentProcess("loopback", "target", 4096) as target:
        peer = sender.agent.add_peer(target.call("describe"))
        handle = sender.agent.post(peer, sender.whole(target.address), b"x")
        settle(sender.agent, [handle], [])
        assert sender.agent.poll(handle) is WriteState.FAILED
        assert "process_vm cannot be used" in str(handle.error)
        assert target.call("is_untouched")


@pytest.mark.parametrize("has_forked_memory", [False, True])
def test_a_stranger_with_the_targets_process_id_is_not_written(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, has_forked_memory: bool
) -> None:
    sender = agents.sender(4096)
    with (
        AgentProcess("loopback", "target", 4096) as target,
        AgentProcess("loopback", "stranger", 4096) as stranger,
    ):
        peer = sender.agent.add_peer(target.call("describe"))
        link = sender.agent._peers[peer]
        link._connection.pid = stranger.pid
        if has_forked_memory:
            link._probe_address = stranger.address
        wait_until(lambda: sender.agent.data_path(peer)[0] != "opening", sender.agent)
        assert sender.agent.data_path(peer)[0] == "memfd"
        settle(sender.agent, [sender.agent.post(peer, sender.whole(target.address))], [])
        assert target.call("content") == sender.memory.bytes.tobytes()
        assert stranger.call("is_untouched")


@pytest.mark.parametrize("most_bytes", [1, 777, 4096])
def test_a_call_that_moves_less_than_asked_is_continued(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    whole_transfer = process_vm._transfer

    def short_transfer(name: str, pid: int, runs: NDArray[np.int64]) -> int:
        ends_bytes = np.cumsum(runs[:, 2])
        some = runs[: np.searchsorted(ends_bytes, most_bytes) + 1].copy()
        some[-1, 2] -= max(int(some[:, 2].sum()) - most_bytes, 0)
        return whole_transfer(name, pid, some)

    sender = agents.sender(5000)
    target, memory = agents.greeted_target(sender)
    monkeypatch.setattr(process_vm, "_transfer", short_transfer)
    runs = [(at, 4999 - at - 6, 7) for at in range(0, 4993, 7)]
    expected = memory.bytes.copy()
    for source, destination, size_bytes in runs:
        piece = sender.memory.bytes[source : source + size_bytes]
        expected[destination : destination + size_bytes] = piece
    settle(
        sender.agent, [sender.agent.post("target", sender.runs(memory.address, *runs))], [target]
    )
    assert (memory.bytes == expected).all()


def test_memory_that_is_not_there_fails_the_post_and_not_the_peer(agents: Agents) -> None:
    sender = agents.sender(8192, data_path="process_vm")
    target, memory = agents.target(4096)
    target.register_memory(4096, 4096)
    peer = sender.agent.add_peer(target.describe())
    bad = sender.agent.post(peer, sender.runs(0, (0, memory.address, 4096), (0, 4096, 4096)), b"x")
    good = sender.agent.post(peer, sender.runs(memory.address, (0, 0, 4096)), b"y")
    told = settle(sender.agent, [bad, good], [target])
    told += receive(target, 1 - len(told), [sender.agent])
    assert sender.agent.poll(bad) is WriteState.FAILED
    assert os.strerror(errno.EFAULT) in str(bad.error)
    assert "to 0x1000" in str(bad.error)
    assert sender.agent.poll(good) is WriteState.DONE
    assert told == [("sender", b"y")]


def test_the_target_checks_each_chunk_against_its_own_regions(agents: Agents) -> None:
    sender = agents.sender(4096, data_path="memfd")
    target, memory = agents.target(4096)
    peer = sender.agent.add_peer(target.describe())
    target.deregister_memory(memory.address)
    handle = sender.agent.post(peer, sender.whole(memory.address), b"x")
    assert settle(sender.agent, [handle], [target]) == []
    assert sender.agent.poll(handle) is WriteState.FAILED
    assert "agent 'target' has no registered region" in str(handle.error)
    assert receive(target, 0, [sender.agent]) == []
    assert memory.is_untouched()


def test_a_post_with_a_refused_chunk_ends_after_its_other_chunks(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbound, "_MAX_MESSAGES", 1)
    sender = agents.sender(4000, data_path="memfd", slice_bytes=4000)
    target, memory = agents.greeted_target(sender)
    target.deregister_memory(memory.address)
    target.register_memory(memory.address + 1000, 3000)
    handle = sender.agent.post("target", sender.whole(memory.address), b"x")
    marks = []
    while not sender.agent.poll(handle).has_ended:
        marks.append(handle.in_flight_bytes)
        assert target.drain_notifications() == []
    assert {3000, 2000, 1000} <= set(marks)
    assert sender.agent.poll(handle) is WriteState.FAILED
    assert "is not inside one region" in str(handle.error)
    assert (memory.bytes[:1000] == 0xA5).all()
    assert receive(target, 0, [sender.agent]) == []


# --- peers that die, freeze or come back --------------------------------------------------------


@pytest.mark.parametrize("data_path", PATHS)
def test_killing_the_target_in_mid_post_fails_it(agents: Agents, data_path: str) -> None:
    sender = agents.sender(8 << 20, data_path=data_path, slice_bytes=64 << 10)
    with AgentProcess("loopback", "target", 8 << 20) as target:
        peer = sender.open(target)
        handles = [
            sender.agent.post(peer, sender.whole(target.address), b"%d" % number)
            for number in range(3)
        ]
        wait_until(lambda: handles[0].moved_bytes > 0, sender.agent)
        target.kill()
        settle(sender.agent, handles, [])
        assert [sender.agent.poll(handle) for handle in handles] == [WriteState.FAILED] * 3
        assert all("target" in str(handle.error) for handle in handles)
        for handle in handles:
            sender.agent.release(handle)
        with pytest.raises(TransferError) as caught:
            sender.agent.post(peer, sender.whole(target.address))
        assert (caught.value.kind, caught.value.peer) == ("peer_dead", "target")
        assert sender.agent.counters["live_handles"] == 0


@pytest.mark.parametrize("data_path", PATHS)
def test_a_frozen_target_blocks_nobody_and_goes_on_afterwards(
    agents: Agents, data_path: str
) -> None:
    sender = agents.sender(1 << 20, data_path=data_path, max_queued_posts=20)
    other, other_memory = agents.target(1 << 20, "other")
    sender.agent.add_peer(other.describe())
    with AgentProcess("loopback", "target", 1 << 20) as target:
        peer = sender.open(target)
        target.freeze()
        handles = [sender.agent.post(peer, sender.whole(target.address), b"data")]
        refusal = post_until_refused(sender.agent, peer, handles)
        assert refusal.kind == "limit"
        running = [h for h in handles if not sender.agent.poll(h).has_ended]
        assert len(running) == 20
        told = settle(
            sender.agent,
            [sender.agent.post("other", sender.whole(other_memory.address), b"y")],
            [other],
        )
        assert told + receive(other, 1 - len(told)) == [("sender", b"y")]
        target.thaw()
        settle(sender.agent, handles, [])
        assert {sender.agent.poll(handle) for handle in handles} == {WriteState.DONE}
        told = heard(target, len(handles))
        assert len(told) == len({message for _, message in told}) == len(handles)
        assert target.call("content") == sender.memory.bytes.tobytes()


def test_a_target_that_died_is_dead_although_its_child_holds_the_connection(
    agents: Agents,
) -> None:
    sender = agents.sender(4096)
    with AgentProcess("loopback", "target", 4096) as target:
        peer = sender.open(target)
        child = target.call("leave_a_fork")
        target.kill()
        try:
            assert post_until_refused(sender.agent, peer, []).kind == "peer_dead"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_target_that_never_polls_leaves_posts_running_and_removable(agents: Agents) -> None:
    sender = agents.sender(4096)
    target, memory = agents.target(4096)
    peer = sender.agent.add_peer(target.describe())
    handle = sender.agent.post(peer, sender.whole(memory.address), b"x")
    for _ in range(100):
        assert sender.agent.poll(handle) is WriteState.RUNNING
    sender.agent.remove_peer(peer)
    assert sender.agent.poll(handle) is WriteState.FAILED
    assert receive(target, 0) == []
    assert memory.is_untouched()


@pytest.mark.parametrize("data_path", PATHS)
def test_a_restarted_target_is_another_generation(agents: Agents, data_path: str) -> None:
    sender = agents.sender(4096, data_path=data_path)
    with AgentProcess("loopback", "target", 4096) as first:
        sender.open(first)
        old_description = first.call("describe")
        old_address = first.address
    with AgentProcess("loopback", "target", 8192) as second:
        with pytest.raises(TransferError) as caught:
            sender.agent.add_peer(old_description)
        assert caught.value.kind == "peer_dead"
        peer = sender.open(second)
        if not second.address <= old_address < second.address + 8192:
            with pytest.raises(InvalidArgumentError, match="destination address"):
                sender.agent.post(peer, sender.whole(old_address))
        with pytest.raises(TransferError):
            sender.agent.add_peer(old_description)
        settle(sender.agent, [sender.agent.post(peer, sender.whole(second.address), b"x")], [])
        assert heard(second, 1) == [("sender", b"x")]
        assert second.call("content")[:4096] == sender.memory.bytes.tobytes()
        assert second.call("guards_are_untouched")


def test_posts_to_a_replaced_generation_end_and_the_old_memory_stays(agents: Agents) -> None:
    sender = agents.sender(4096)
    old, old_memory = agents.target(4096)
    new, new_memory = agents.target(4096)
    sender.agent.add_peer(old.describe())
    handle = sender.agent.post("target", sender.whole(old_memory.address), b"old")
    sender.agent.add_peer(new.describe())
    assert sender.agent.poll(handle) is WriteState.FAILED
    assert "replaced" in str(handle.error)
    assert receive(old, 0, [sender.agent]) == []
    told = settle(
        sender.agent,
        [sender.agent.post("target", sender.whole(new_memory.address), b"new")],
        [new, old],
    )
    assert told + receive(new, 1 - len(told)) == [("sender", b"new")]
    assert old_memory.is_untouched()


# --- the gates: nobody is in the middle of a copy -----------------------------------------------


def test_removing_a_peer_that_is_copying_is_lost_until_it_has_stopped(agents: Agents) -> None:
    sender = agents.sender(4096, data_path="memfd")
    target, memory = agents.greeted_target(sender)
    handle = sender.agent.post("target", sender.whole(memory.address), b"x")
    assert handle.in_flight_bytes == 4096
    fd = reopen(sender.agent._peers["target"]._path._fd)
    fcntl.flock(fd, fcntl.LOCK_SH)
    sender.agent.remove_peer("target")
    assert sender.agent.poll(handle) is WriteState.LOST
    with pytest.raises(InvalidArgumentError, match="LOST"):
        sender.agent.release(handle)
    os.close(fd)
    assert sender.agent.poll(handle) is WriteState.DRAINED
    assert "removed" in str(handle.error)
    sender.agent.release(handle)
    counters = sender.agent.counters
    assert (counters["lost"], counters["drained"], counters["failed"]) == (1, 1, 0)
    assert receive(target, 0) == []
    assert memory.is_untouched()


def test_chunks_of_an_ended_connection_are_not_copied(agents: Agents) -> None:
    sender = agents.sender(4096, data_path="memfd")
    target, memory = agents.greeted_target(sender)
    handle = sender.agent.post("target", sender.whole(memory.address), b"x")
    assert handle.in_flight_bytes == 4096
    sender.agent.remove_peer("target")
    assert sender.agent.poll(handle) is WriteState.FAILED
    assert receive(target, 0) == []
    assert memory.is_untouched()


def test_closing_names_the_writers_while_one_is_inside_a_write(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "_SLICE_TIMEOUT_S", 0.05)
    sender = agents.sender(4096, data_path="process_vm")
    target, _ = agents.greeted_target(sender)
    fd = reopen(sender.agent._peers["target"]._path._gate_fd)
    fcntl.flock(fd, fcntl.LOCK_SH)
    with pytest.raises(TransferError, match="sender") as caught:
        target.close()
    assert caught.value.kind == "lost"
    os.close(fd)


def test_nothing_is_written_once_the_target_has_closed(agents: Agents) -> None:
    sender = agents.sender(1 << 20, data_path="process_vm", slice_bytes=4096)
    target, memory = agents.greeted_target(sender)
    handle = sender.agent.post("target", sender.whole(memory.address), b"x")
    assert 0 < handle.moved_bytes < 1 << 20
    target.close()
    moved_bytes = handle.moved_bytes
    settle(sender.agent, [handle], [])
    assert sender.agent.poll(handle) is WriteState.FAILED
    assert handle.moved_bytes == moved_bytes
    assert memory.bytes[:moved_bytes].tobytes() == sender.memory.bytes[:moved_bytes].tobytes()
    assert (memory.bytes[moved_bytes:] == 0xA5).all()


def test_a_write_that_comes_after_the_target_has_closed_is_not_made(agents: Agents) -> None:
    sender = agents.sender(1 << 16, data_path="process_vm", slice_bytes=4096)
    target, memory = agents.greeted_target(sender)
    handle = sender.agent.post("target", sender.whole(memory.address))
    path = sender.agent._peers["target"]._path
    target.close()
    memory.bytes[:] = 0xA5
    with pytest.raises(ConnectionEnded):
        path.move(handle, 4096)
    assert memory.is_untouched()


# --- slices, bounds and leaks -------------------------------------------------------------------


@pytest.mark.parametrize("data_path", PATHS)
def test_one_call_moves_at_most_one_slice(agents: Agents, data_path: str) -> None:
    sender = agents.sender(10_000, data_path=data_path, slice_bytes=1000)
    target, memory = agents.greeted_target(sender)
    handle = sender.agent.post("target", sender.whole(memory.address))
    marks = [handle.moved_bytes]
    while not sender.agent.poll(handle).has_ended:
        marks.append(handle.moved_bytes)
        target.drain_notifications()
    marks.append(handle.moved_bytes)
    steps = np.diff(np.array([0, *marks]))
    assert steps.max() == 1000
    assert marks[-1] == 10_000
    assert memory.bytes.tobytes() == sender.memory.bytes.tobytes()


def test_a_huge_list_of_small_writes_is_moved_in_slices(agents: Agents) -> None:
    sender = agents.sender(100_000, data_path="process_vm")
    target, memory = agents.greeted_target(sender)
    places = np.arange(100_000)
    runs = np.stack([places, places[::-1], np.ones_like(places)], axis=1)
    handle = sender.agent.post("target", sender.runs(memory.address, *runs.tolist()))
    assert handle.moved_bytes == 16 * 1024
    settle(sender.agent, [handle], [target])
    assert memory.bytes.tobytes() == sender.memory.bytes[::-1].tobytes()


def test_a_full_inbox_holds_notifications_back_without_losing_any(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MAX_INBOX", 10)
    monkeypatch.setattr(inbound, "_MAX_MESSAGES", 8)
    sender = agents.sender(16)
    target, _ = agents.greeted_target(sender)
    handles = [sender.agent.post("target", NO_WRITES, b"%d" % n) for n in range(100)]
    settle(sender.agent, handles, [])
    for _ in range(1000):
        target._reader.read()
    assert 10 <= len(target._reader.inbox) < 100
    assert [int(message) for _, message in receive(target, 100)] == list(range(100))


def test_two_hundred_peers_leave_no_descriptor_and_no_handle(agents: Agents) -> None:
    sender = agents.sender(4096)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(200):
        data_path = PATHS[number % 2]
        source = loopback.create("source", data_path=data_path)
        target, memory = loopback.create(f"target-{number}"), Memory(4096)
        source.register_memory(sender.memory.address, 4096)
        target.register_memory(memory.address, 4096)
        peer = source.add_peer(target.describe())
        handle = source.post(peer, sender.whole(memory.address), b"x")
        if number % 5 != 0:
            settle(source, [handle], [target])
        if number % 3 == 0:
            source.remove_peer(peer)
        first, second = (source, target) if number % 7 else (target, source)
        first.close()
        second.close()
        assert source.poll(handle).has_ended
        source.release(handle)
        assert source.counters["live_handles"] == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_peers_that_die_leave_no_descriptor(agents: Agents) -> None:
    sender = agents.sender(4096)
    counts = []
    for _ in range(3):
        with AgentProcess("loopback", "target", 4096) as target:
            peer = sender.open(target)
            target.call("post", target.call("add_peer", sender.agent.describe()), [], b"x")
            assert receive(sender.agent, 1) == [("target", b"x")]
        assert post_until_refused(sender.agent, peer, []).kind == "peer_dead"
        receive(sender.agent, 0)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[0] == counts[1] == counts[2]


def test_no_name_is_made_in_shared_memory(agents: Agents) -> None:
    sender = agents.sender(4096, data_path="memfd")
    agents.greeted_target(sender)
    assert [path for path in Path("/dev/shm").iterdir() if "kvxfer" in path.name] == []


# --- options and other users --------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"data_path": "pigeon"},
        {"slice_bytes": 0},
        {"max_queued_posts": 0},
        {"write_cost_us": -1.0},
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        loopback.create("agent", **options)


def test_the_cost_of_a_write_is_zero_unless_told(agents: Agents) -> None:
    assert agents.sender(16).agent.write_cost_us == 0.0
    assert agents.sender(16, write_cost_us=6.5).agent.write_cost_us == 6.5


def test_another_users_agent_is_refused(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = agents.sender(16)
    target, _ = agents.target(16)
    description = target.describe()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(TransferError, match="user id") as caught:
        sender.agent.add_peer(description)
    assert caught.value.kind == "backend"
    monkeypatch.undo()
    assert target.drain_notifications() == []
    target.close()
