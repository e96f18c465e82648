# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The NIXL transport between processes, over the real library and loopback TCP.

What every transport promises is in test_transport_protocol.py.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError, UnsupportedError, transports
from kvxfer.errors import TransferError
from kvxfer.transports._library import transport as library_transport
from kvxfer.transports._library.memory_kind import HOST, MemoryKinds
from kvxfer.transports._nixl.payload import NixlPayload, agent_name_of, nixl_name
from kvxfer.transports.protocol import Description, DescriptionError, RegionTable, WriteState
from support import library_environment
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
from support.transport_cases import CASES, Memory

needs_nixl = pytest.mark.skipif(
    not CASES["nixl"].is_installed,
    reason="nixl_cu13 is not installed: pip install --no-deps nixl-cu13==1.5.1",
)
Senders = Callable[..., Sender]
MIB = 1 << 20


@pytest.fixture
def senders() -> Iterator[Senders]:
    library_environment.apply(library_environment.NIXL)
    made: list[Sender] = []

    def make(size_bytes: int, name: str = "sender", **options: Any) -> Sender:
        made.append(Sender(transports.create("nixl", name, **options), size_bytes))
        return made[-1]

    yield make
    for sender in made:
        sender.agent.close()


def start_target(size_bytes: int, name: str = "target") -> AgentProcess:
    return AgentProcess("nixl", name, size_bytes)


# --- bytes and notifications --------------------------------------------------------------------


@needs_nixl
def test_odd_sizes_land_in_poisoned_memory_of_another_process(senders: Senders) -> None:
    sender = senders(300_001)
    with start_target(300_001) as target:
        peer = sender.add(target)
        sizes = [1, 3, 575, 576, 577, 4095, 4097, 65537, 131_071]
        starts = np.cumsum([0, *sizes[:-1]])
        runs = [
            (int(start), int(start) + 7, size) for start, size in zip(starts, sizes, strict=True)
        ]
        handle = sender.agent.post(peer, sender.runs(target, *runs), b"req-1")
        assert sender.settle(handle) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"req-1"]
        content, total = target.call("content"), sum(sizes)
        assert content[7 : 7 + total] == sender.memory.bytes[:total].tobytes()
        assert set(content[:7] + content[7 + total :]) == {0xA5}
        assert target.call("guards_are_untouched")


@needs_nixl
def test_ten_thousand_writes_in_one_post(senders: Senders) -> None:
    count, row_bytes = 10_000, 576
    sender = senders(count * row_bytes)
    with start_target(count * row_bytes) as target:
        peer = sender.add(target)
        places = np.random.default_rng(3).permutation(count)
        starts = np.arange(count) * row_bytes
        runs = np.stack([starts, places * row_bytes, np.full(count, row_bytes)], axis=1)
        handle = sender.agent.post(peer, sender.runs(target, *map(tuple, runs.tolist())), b"rows")
        assert sender.settle(handle) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"rows"]
        landed = np.frombuffer(target.call("content"), np.uint8).reshape(count, row_bytes)
        assert (landed[places] == sender.memory.bytes.reshape(count, row_bytes)).all()
        assert sender.agent.counters["writes"] == count


@needs_nixl
def test_one_name_in_another_is_another_message(senders: Senders) -> None:
    sender = senders(64)
    with start_target(64) as target:
        peer = sender.add(target)
        sent = [b"req-1", b"req-10", b"req-1", b"req-100"]
        handles = [sender.agent.post(peer, sender.whole(target), message) for message in sent]
        assert sender.settle(*handles) == [WriteState.DONE] * 4
        assert sorted(heard(sender, target, 4)) == sorted(sent)


@needs_nixl
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
                    pass
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


@needs_nixl
def test_a_frozen_peer_keeps_a_post_running_and_gets_it_late(senders: Senders) -> None:
    sender = senders(16 * MIB)
    sender.memory.bytes[:] = OLD
    with start_target(16 * MIB) as target, start_target(16 * MIB, "other") as other:
        peer, other_peer = sender.add(target), sender.add(other)
        target.freeze()
        handle = sender.agent.post(peer, sender.whole(target, piece_count=4), b"late")
        message = sender.agent.post(peer, NO_WRITES, b"message")
        assert sender.poll_for(handle, seconds=0.5) == {WriteState.RUNNING}
        with pytest.raises(InvalidArgumentError, match="RUNNING"):
            sender.agent.release(handle)
        alive = sender.agent.post(other_peer, sender.whole(other), b"y")
        assert sender.settle(alive) == [WriteState.DONE]
        target.thaw()
        assert sender.settle(handle, message) == [WriteState.DONE] * 2
        sender.memory.bytes[:] = NEW
        assert sorted(heard(sender, target, 2)) == [b"late", b"message"]
        assert count_bytes(target, OLD) == 16 * MIB
        assert heard(sender, other, 1) == [b"y"]


@needs_nixl
def test_a_post_given_up_is_lost_until_its_last_byte_is_read(senders: Senders) -> None:
    """No call of NIXL stops a transfer: what is written into the source before the end arrives."""
    sender = senders(16 * MIB)
    sender.memory.bytes[:] = OLD
    with start_target(16 * MIB) as target:
        peer = sender.add(target)
        target.freeze()
        handle = sender.agent.post(peer, sender.whole(target), b"never")
        sender.agent.remove_peer(peer)
        assert sender.poll_for(handle, seconds=0.3) == {WriteState.LOST}
        assert "'target' was removed" in str(handle.error)
        with pytest.raises(InvalidArgumentError, match="LOST"):
            sender.agent.release(handle)
        target.thaw()
        assert sender.settle(handle) == [WriteState.DRAINED]
        sender.memory.bytes[:] = NEW
        assert sender.add(target) == peer
        assert sender.settle(sender.agent.post(peer, NO_WRITES, b"after")) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"after"]
        assert (count_bytes(target, OLD), count_bytes(target, NEW)) == (16 * MIB, 0)
        sender.agent.release(handle)
        counters = sender.agent.counters
        assert (counters["lost"], counters["drained"], counters["failed"]) == (1, 1, 0)


@needs_nixl
def test_closing_stops_a_transfer_that_is_under_way(senders: Senders) -> None:
    # The thread would go on sending without anybody polling.
    sender = senders(32 * MIB, progress_thread=True)
    sender.memory.bytes[:] = OLD
    with start_target(32 * MIB) as target:
        peer = sender.add(target)
        sender.settle(sender.agent.post(peer, sender.runs(target, (0, 0, 1))))
        target.freeze()
        handle = sender.agent.post(peer, sender.whole(target), b"never")
        sender.poll_for(handle, seconds=0.1)
        sender.agent.close()
        sender.memory.bytes[:] = NEW
        assert sender.agent.poll(handle) is WriteState.FAILED
        target.thaw()
        for _ in range(200):
            assert target.call("hear") == []
        assert count_bytes(target, NEW) == 0


@needs_nixl
def test_a_killed_peer_ends_its_posts_and_no_others(senders: Senders) -> None:
    sender = senders(16 * MIB)
    with start_target(16 * MIB) as target, start_target(16 * MIB, "other") as other:
        peer, other_peer = sender.add(target), sender.add(other)
        target.freeze()
        doomed = [sender.agent.post(peer, sender.whole(target), b"x") for _ in range(3)]
        alive = sender.agent.post(other_peer, sender.whole(other), b"y")
        sender.poll_for(doomed[0], seconds=0.05)
        target.kill()
        assert sender.settle(*doomed) == [WriteState.FAILED] * 3
        assert all("'target'" in str(handle.error) for handle in doomed)
        for writes in (sender.whole(other), NO_WRITES):
            with pytest.raises((TransferError, InvalidArgumentError)) as caught:
                sender.agent.post(peer, writes, b"z")
            if not len(writes):
                assert getattr(caught.value, "kind", None) == "peer_dead"
        assert sender.settle(alive) == [WriteState.DONE]
        assert other.call("content") == sender.memory.bytes.tobytes()


@needs_nixl
def test_a_restarted_peer_is_written_at_its_new_place(senders: Senders) -> None:
    sender = senders(MIB)
    with start_target(MIB) as target:
        peer = sender.add(target)
        assert sender.settle(sender.agent.post(peer, sender.whole(target), b"1"))
        target.freeze()
        lost = sender.agent.post(peer, sender.whole(target), b"2")
        with start_target(MIB) as restarted:
            assert sender.add(restarted) == peer
            assert sender.agent.poll(lost) is WriteState.LOST
            handle = sender.agent.post(peer, sender.whole(restarted), b"3")
            assert sender.settle(handle) == [WriteState.DONE]
            assert heard(sender, restarted, 1) == [b"3"]
            assert restarted.call("content") == sender.memory.bytes.tobytes()
            assert sender.agent.poll(lost) is WriteState.LOST
            target.kill()
            assert sender.settle(lost) == [WriteState.DRAINED]
            after = sender.agent.post(peer, sender.whole(restarted), b"4")
            assert sender.settle(after) == [WriteState.DONE]


@needs_nixl
def test_unmapped_memory_costs_the_target_its_life_and_the_sender_one_post(
    senders: Senders,
) -> None:
    sender = senders(8 * MIB)
    with start_target(8 * MIB) as target, start_target(8 * MIB, "other") as other:
        peer, other_peer = sender.add(target), sender.add(other)
        target.call("unmap")
        handle = sender.agent.post(peer, sender.whole(target), b"x")
        assert sender.settle(handle) == [WriteState.FAILED]
        alive = sender.agent.post(other_peer, sender.whole(other), b"y")
        assert sender.settle(alive) == [WriteState.DONE]
        assert other.call("content") == sender.memory.bytes.tobytes()


@needs_nixl
def test_a_region_that_is_gone_is_refused_once_it_is_known(senders: Senders) -> None:
    sender = senders(4096)
    with start_target(4096) as target:
        peer = sender.add(target)
        sender.settle(sender.agent.post(peer, sender.whole(target)))
        target.call("deregister")
        assert sender.add(target) == peer
        with pytest.raises(InvalidArgumentError, match="has no registered region"):
            sender.agent.post(peer, sender.whole(target), b"x")
        message = sender.agent.post(peer, NO_WRITES, b"still there")
        assert sender.settle(message) == [WriteState.DONE]
        assert heard(sender, target, 1) == [b"still there"]


# --- descriptions -------------------------------------------------------------------------------


def described(target: AgentProcess) -> tuple[Description, NixlPayload]:
    description = Description.decode(target.call("describe"), "nixl")
    return description, NixlPayload.decode(description)


def with_payload(description: Description, payload: bytes) -> bytes:
    return Description(
        "nixl",
        description.agent_name,
        description.generation,
        payload,
        description.regions,
    ).encode()


@needs_nixl
def test_metadata_that_nixl_does_not_take_changes_nothing(senders: Senders) -> None:
    sender = senders(4096)
    with start_target(4096) as target, start_target(4096, "other") as other:
        other_peer = sender.add(other)
        description, payload = described(target)
        foreign = described(other)[1]
        cut = NixlPayload(payload.kinds, payload.metadata[:-9]).encode()
        for bad in (b"", b"\0" * 3, payload.encode()[:12], cut, foreign.encode()):
            with pytest.raises(DescriptionError, match="'target'"):
                sender.agent.add_peer(with_payload(description, bad))
        with pytest.raises(TransferError) as caught:
            sender.agent.post("target", sender.whole(target))
        assert caught.value.kind == "peer_unknown"
        alive = sender.agent.post(other_peer, sender.whole(other), b"y")
        assert sender.settle(alive) == [WriteState.DONE]
        assert heard(sender, other, 1) == [b"y"]


def test_a_payload_must_fit_its_regions() -> None:
    regions = RegionTable("x")
    regions.add(4096, 64)
    regions.add(8192, 64)
    metadata = nixl_name("x", b"g" * 16).encode()
    starts = np.array([4096, 8192])
    good = NixlPayload(MemoryKinds(starts, np.array([HOST, 3], np.int32)), metadata).encode()
    decoded = NixlPayload.decode(Description("nixl", "x", b"g" * 16, good, regions))
    assert decoded.kinds.devices.tolist() == [HOST, 3]
    assert decoded.kinds.starts.tolist() == [4096, 8192]
    assert decoded.metadata == metadata
    bad_device = NixlPayload(MemoryKinds(starts, np.array([-2, 0], np.int32)), metadata).encode()
    one_region = NixlPayload(MemoryKinds(starts[:1], np.zeros(1, np.int32)), metadata).encode()
    for bad in (bad_device, one_region, good[:3], good[:8], good.replace(b"#", b"%")):
        with pytest.raises(DescriptionError, match="description of 'x'"):
            NixlPayload.decode(Description("nixl", "x", b"g" * 16, bad, regions))


@pytest.mark.parametrize("name", ["a", "a#b", "#", "n" * 255])
def test_a_name_survives_its_generation(name: str) -> None:
    assert agent_name_of(nixl_name(name, os.urandom(16))) == name


@pytest.mark.parametrize("name", ["", "stranger", "a#12", "#" + "0" * 32])
def test_a_name_that_is_not_ours_is_none(name: str) -> None:
    assert agent_name_of(name) is None


# --- set-up -------------------------------------------------------------------------------------


@needs_nixl
def test_an_agent_sets_no_environment_and_starts_no_thread(senders: Senders) -> None:
    library_environment.apply(library_environment.NIXL)
    before, thread_count = dict(os.environ), threading.active_count()
    senders(64)
    assert dict(os.environ) == before
    assert threading.active_count() == thread_count


@needs_nixl
def test_a_refused_registration_leaves_nothing(
    senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, memory = senders(64), Memory(64)
    monkeypatch.setattr(library_transport, "device_index", lambda address, driver: 99)
    with pytest.raises(TransferError, match="registration") as caught:
        sender.agent.register_memory(memory.address, 64)
    assert caught.value.kind == "transport"
    monkeypatch.undo()
    sender.agent.register_memory(memory.address, 64)


@needs_nixl
def test_the_cost_of_a_write_is_given_measured_or_a_default(senders: Senders) -> None:
    assert senders(64, "a").agent.write_cost_us == 3.5
    assert senders(64, "b", write_cost_us=2).agent.write_cost_us == 2.0
    assert 0.0 <= senders(64, "c", write_cost_us="measure").agent.write_cost_us < 1e4
    for bad in (-1, float("nan"), float("inf"), "fast", True):
        with pytest.raises(InvalidArgumentError, match="write_cost_us"):
            transports.create("nixl", "d", write_cost_us=bad)


@needs_nixl
def test_a_backend_that_cannot_be_made_is_named(senders: Senders) -> None:
    with pytest.raises(UnsupportedError, match="UCX backend"):
        senders(64, backend_options={"ucx_error_handling_mode": "bogus"})


@needs_nixl
def test_errors_of_a_process_are_ours() -> None:
    library_environment.apply(library_environment.NIXL)
    with start_target(64) as target, pytest.raises(RemoteError, match=r"^DescriptionError: "):
        target.call("add_peer", b"nonsense")


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_modules(monkeypatch, "nixl_cu13", "nixl_cu12")
    with pytest.raises(UnsupportedError, match=r"pip install 'kvxfer\[nixl\]'"):
        transports.create("nixl", "agent")


@needs_nixl
def test_half_a_library_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_modules(monkeypatch, "nixl_cu13._bindings")
    with pytest.raises(UnsupportedError, match="nixl_cu13 is installed but cannot be loaded"):
        transports.create("nixl", "agent")
