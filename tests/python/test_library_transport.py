# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What NIXL and Mooncake do too rarely to wait for, with a stand-in for the library."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError
from kvxfer.errors import DeadlineError, TransferError
from kvxfer.transports._library.call_gate import CallGate
from kvxfer.transports._library.ledger import Ledger
from kvxfer.transports._library.memory_kind import HOST, MemoryKinds, device_index, loaded_driver
from kvxfer.transports._library.transport import WriteCost
from kvxfer.transports._library.write_cost import chosen_write_cost, measured_write_cost_us
from kvxfer.transports._nixl.agent import NixlFault, NotPosted, PeerGone, Side
from kvxfer.transports._nixl.link import NixlLink
from kvxfer.transports._nixl.payload import NixlPayload, nixl_name
from kvxfer.transports.protocol import Description, RegionTable, WriteState
from support.scripted_transport import ScriptedWire

GENERATION = b"g" * 16
NO_WRITES = np.empty((0, 3), dtype=np.int64)
HOST_REGION, DEVICE_REGION, OTHER_DEVICE_REGION = 0x1000, 0x2000, 0x3000


class FakeAgent:
    """In the place of a NixlAgent: ``steps`` maps a call to what it returns or raises."""

    def __init__(self) -> None:
        self.transfers: list[tuple[Side, Side]] = []
        self.steps: dict[str, Callable[[Any], Any]] = {}
        self.calls: list[tuple[str, Any]] = []

    def load(self, metadata: bytes, name: str) -> None: ...

    def forget(self, name: str) -> None:
        self.calls.append(("forget", name))

    def is_held_once(self, name: str) -> bool:
        return True

    def make_transfer(self, name: str, source: Side, destination: Side) -> int:
        self.transfers.append((source, destination))
        number = len(self.transfers) - 1
        self._step("make", number)
        return number

    def post(self, transfer: int) -> None:
        self._step("post", transfer)

    def is_done(self, transfer: int) -> bool:
        return bool(self._step("is_done", transfer))

    def release(self, transfer: int) -> None:
        self._step("release", transfer)

    def notify(self, name: str, message: bytes) -> None:
        self._step("notify", message)

    def done(self, name: str) -> list[Any]:
        """Arguments of the calls of a name."""
        return [argument for call, argument in self.calls if call == name]

    def _step(self, call: str, argument: Any) -> Any:
        self.calls.append((call, argument))
        return self.steps.get(call, lambda _: True)(argument)


def raising(error: Exception, at: object = None) -> Callable[[Any], None]:
    def step(argument: Any) -> bool:
        if at is None or argument == at:
            raise error
        return True

    return step


class World:
    """One link over a fake agent, between agents with host memory and two GPUs."""

    def __init__(self) -> None:
        regions = RegionTable("peer")
        for address in (HOST_REGION, DEVICE_REGION, OTHER_DEVICE_REGION):
            regions.add(address, 0x1000)
        kinds = MemoryKinds(regions.as_array()[:, 0], np.array([HOST, 0, 1], np.int32))
        name = nixl_name("peer", GENERATION)
        payload = NixlPayload(kinds, name.encode()).encode()
        description = Description("nixl", "peer", GENERATION, payload, regions)
        self.fake = FakeAgent()
        agent: Any = self.fake
        self.ledger = Ledger("own")
        self.link = NixlLink(self.ledger, description, agent, lambda: kinds)

    def post(self, *writes: tuple[int, int, int], message: bytes = b"") -> Any:
        array = np.array(writes, np.int64).reshape(-1, 3)
        post = self.link.start(array, message)
        self.ledger.admit(post)
        return post

    def mixed(self, message: bytes = b"") -> Any:
        """A post of two transfers: host to host, and GPU to host."""
        return self.post(
            (HOST_REGION, HOST_REGION, 8), (DEVICE_REGION, HOST_REGION + 8, 8), message=message
        )


@pytest.fixture
def world() -> World:
    return World()


# --- kinds of memory ----------------------------------------------------------------------------


def test_writes_are_grouped_by_the_kinds_of_memory_on_either_side(world: World) -> None:
    world.post(
        (HOST_REGION, HOST_REGION, 1),
        (DEVICE_REGION + 4, OTHER_DEVICE_REGION, 2),
        (HOST_REGION + 8, DEVICE_REGION, 3),
        (OTHER_DEVICE_REGION, DEVICE_REGION + 8, 4),
        (DEVICE_REGION, HOST_REGION + 8, 5),
    )
    found = {
        (source.memory_type, destination.memory_type): (
            source.descriptors.tolist(),
            destination.descriptors.tolist(),
        )
        for source, destination in world.fake.transfers
    }
    assert found == {
        ("DRAM", "DRAM"): ([[HOST_REGION, 1, 0]], [[HOST_REGION, 1, 0]]),
        ("DRAM", "VRAM"): ([[HOST_REGION + 8, 3, 0]], [[DEVICE_REGION, 3, 0]]),
        ("VRAM", "DRAM"): ([[DEVICE_REGION, 5, 0]], [[HOST_REGION + 8, 5, 0]]),
        ("VRAM", "VRAM"): (
            [[DEVICE_REGION + 4, 2, 0], [OTHER_DEVICE_REGION, 4, 1]],
            [[OTHER_DEVICE_REGION, 2, 1], [DEVICE_REGION + 8, 4, 0]],
        ),
    }
    assert world.fake.done("post") == [0, 1, 2, 3]


class FakeDriver:
    """Knows one stretch of device memory of GPU 3 and one of pinned host memory."""

    def cuPointerGetAttribute(self, out: Any, attribute: int, address: Any) -> int:  # noqa: N802
        values = {0x5000: {2: 2, 9: 3}, 0x6000: {2: 1, 9: 3}}.get(address.value)
        if values is None:
            return 1
        out._obj.value = values[attribute]
        return 0


@pytest.mark.parametrize(("address", "device"), [(0x5000, 3), (0x6000, HOST), (0x7000, HOST)])
def test_the_driver_says_which_gpu_an_address_is_on(address: int, device: int) -> None:
    assert device_index(address, FakeDriver()) == device
    assert device_index(address, None) == HOST


def test_host_memory_is_host_memory_with_or_without_a_driver() -> None:
    buffer = ctypes.create_string_buffer(64)
    assert device_index(ctypes.addressof(buffer), loaded_driver()) == HOST


# --- faults -------------------------------------------------------------------------------------


def test_a_post_of_two_transfers_is_done_and_told_when_both_are(world: World) -> None:
    post = world.mixed(b"both")
    world.fake.steps["is_done"] = lambda transfer: transfer == 1
    world.link.advance(post)
    assert (post.state, world.fake.done("notify")) == (WriteState.RUNNING, [])
    world.fake.steps["is_done"] = lambda transfer: transfer == 0
    world.link.advance()
    assert (post.state, world.fake.done("notify")) == (WriteState.DONE, [b"both"])
    assert sorted(world.fake.done("release")) == [0, 1]
    assert world.link.running_count == 0


def test_nothing_is_posted_when_a_transfer_cannot_be_made(world: World) -> None:
    world.fake.steps["make"] = raising(NixlFault("not found"), at=1)
    with pytest.raises(TransferError, match="not found") as caught:
        world.mixed()
    assert (caught.value.kind, caught.value.peer) == ("transport", "peer")
    assert (world.fake.done("post"), world.fake.done("release")) == ([], [0])
    assert world.link.running_count == 0


def test_a_peer_that_is_gone_at_the_post_refuses_it_and_the_next(world: World) -> None:
    world.fake.steps["post"] = raising(PeerGone("gone"))
    with pytest.raises(TransferError) as caught:
        world.mixed()
    assert caught.value.kind == "peer_dead"
    assert sorted(world.fake.done("release")) == [0, 1]
    assert "gone" in str(world.link.error)


def test_a_peer_that_goes_between_two_transfers_fails_the_post(world: World) -> None:
    world.fake.steps["post"] = raising(PeerGone("gone"), at=1)
    post = world.mixed(b"never")
    assert world.fake.done("release") == [1]
    world.link.advance(post)
    assert (post.state, post.error) == (WriteState.FAILED, "peer 'peer': gone")
    assert (world.fake.done("notify"), world.fake.done("release")) == ([], [1, 0])


def test_a_post_whose_transfer_may_run_is_lost_until_that_is_known(world: World) -> None:
    world.fake.steps["post"] = raising(NixlFault("who knows"), at=0)
    post = world.mixed(b"never")
    assert post.state is WriteState.LOST
    assert world.fake.done("release") == [1]
    world.fake.steps["is_done"] = raising(NotPosted("was never posted"))
    world.link.advance(post)
    assert (post.state, post.error) == (WriteState.DRAINED, "peer 'peer': who knows")
    assert world.fake.done("notify") == []


def test_an_error_while_polling_proves_nothing(world: World) -> None:
    post = world.mixed(b"never")
    world.fake.steps["is_done"] = raising(NixlFault("not found"))
    for _ in range(3):
        world.link.advance(post)
        assert post.state is WriteState.LOST
    assert world.fake.done("release") == []
    with pytest.raises(InvalidArgumentError, match="LOST"):
        world.ledger.release(post)
    world.fake.steps["is_done"] = lambda _: True
    world.link.advance(post)
    assert post.state is WriteState.DRAINED
    assert world.fake.done("notify") == []
    world.ledger.release(post)
    counters = world.ledger.counters
    assert (counters["lost"], counters["drained"], counters["live_handles"]) == (1, 1, 0)


def test_a_notification_that_cannot_be_sent_fails_the_post(world: World) -> None:
    post = world.mixed(b"x")
    world.fake.steps["notify"] = raising(PeerGone("gone"))
    world.link.advance(post)
    assert (post.state, post.error) == (WriteState.FAILED, "peer 'peer': gone")


def test_what_the_library_does_not_take_back_hurts_nobody(world: World) -> None:
    world.fake.steps["release"] = raising(NixlFault("still active"))
    post = world.mixed()
    world.link.advance(post)
    assert post.state is WriteState.DONE


def test_a_retired_link_takes_no_post(world: World) -> None:
    running = world.mixed(b"never")
    world.link.retire()
    assert running.state is WriteState.LOST
    with pytest.raises(TransferError) as caught:
        world.mixed()
    assert caught.value.kind == "peer_unknown"
    world.link.advance()
    assert (running.state, world.fake.done("notify")) == (WriteState.DRAINED, [])


def test_a_post_polled_by_two_threads_ends_once(world: World) -> None:
    post = world.mixed(b"x")
    entered, may_go = threading.Event(), threading.Event()

    def slow(_: object) -> bool:
        entered.set()
        return may_go.wait(10)

    world.fake.steps["is_done"] = slow
    worker = threading.Thread(target=world.link.advance, args=(post,))
    worker.start()
    assert entered.wait(10)
    world.link.advance(post)
    assert post.state is WriteState.RUNNING
    may_go.set()
    worker.join(10)
    assert (post.state, world.fake.done("notify")) == (WriteState.DONE, [b"x"])
    assert sorted(world.fake.done("release")) == [0, 1]


# --- the gate and the cost of a write -----------------------------------------------------------


def test_a_gate_waits_for_the_calls_inside_and_names_how_many() -> None:
    gate = CallGate("own")
    assert gate.enter()
    with pytest.raises(DeadlineError, match="1 calls of agent 'own'"):
        gate.shut(0.01)
    assert not gate.enter()
    with pytest.raises(InvalidArgumentError, match="agent 'own' is closed"), gate.passing():
        raise AssertionError("the gate is shut")
    gate.leave()
    gate.shut(0.0)


def test_a_probe_that_does_not_end_or_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvxfer.transports._library.write_cost._DEADLINE_S", 0.01)
    with pytest.raises(DeadlineError, match="512 writes is RUNNING"):
        measured_write_cost_us(ScriptedWire().create)
    wire = ScriptedWire()
    wire.completes_on_poll = 1
    assert measured_write_cost_us(wire.create) >= 0.0
    assert (wire.live(), wire.agents) == ([], {})


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "fast", True, [1]])
def test_a_cost_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^write_cost_us is "):
        chosen_write_cost(bad, WriteCost(1.0, 2.0), ScriptedWire().create)
    assert chosen_write_cost(None, WriteCost(1.0, 2.0), ScriptedWire().create).device_us == 2.0
    assert chosen_write_cost(7, WriteCost(1.0, 2.0), ScriptedWire().create).device_us == 7.0
