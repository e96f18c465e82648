# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Events that cannot be asked, executors that take nothing: one room fails, polling goes on."""

from concurrent.futures import Executor, Future
from typing import Any

import pytest
from msgspec import structs

from kvxfer import PackBufferLayout, PackPlan, PageTable, Relayout, Segment
from kvxfer.transfer import RoomState
from kvxfer.transfer.copies import HostCopies
from kvxfer.transfer.messages import Request, decode_frame, encode_frame
from support.transfer_world import Transfer, World


class Broken:
    """An event that cannot be asked, as after a fault of a device."""

    def query(self) -> bool:
        raise RuntimeError("device is gone")


class BrokenCopies(HostCopies):
    """Copies whose end cannot be asked."""

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> Any:
        return LateBroken()

    def unpack(self, relayout: Relayout, segment: Segment, region: Any, table: PageTable) -> Any:
        return LateBroken()


class LateBroken(Broken):
    """Can be asked once."""

    was_asked = False

    def query(self) -> bool:
        if self.was_asked:
            return super().query()
        self.was_asked = True
        return False


class ShutExecutor(Executor):
    """Takes nothing."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("cannot schedule new futures")


class CancellingExecutor(Executor):
    """Was shut down before it came to what it had taken."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        future.cancel()
        return future


@pytest.mark.parametrize(
    ("side", "fields", "message"),
    [
        ("source", {"copies": BrokenCopies()}, "device is gone"),
        ("destination", {"copies": BrokenCopies()}, "device is gone"),
        ("source", {"executor": ShutExecutor()}, "cannot schedule new futures"),
        ("destination", {"executor": ShutExecutor()}, "cannot schedule new futures"),
        ("source", {"executor": CancellingExecutor()}, "CancelledError"),
        ("destination", {"executor": CancellingExecutor()}, "CancelledError"),
    ],
)
def test_what_cannot_be_run_or_asked_fails_its_room_alone(
    side: str, fields: dict[str, Any], message: str
) -> None:
    world = World()
    source = world.add("p0", **(fields if side == "source" else {}))
    destination = world.add("d0", **(fields if side == "destination" else {}))
    transfer = Transfer(world, [source], [destination], 16, landing="landing")
    transfer.run()
    for end in transfer.rooms:
        assert end.state is RoomState.FAILED
        assert message in str(end.error)
    world.check_idle()


@pytest.mark.parametrize(
    ("receiver_fields", "options", "message"),
    [
        ({"kind": "k" * 65}, {}, "cannot be sent: Expected `str` of length <= 64"),
        ({}, {"landing_depth": 65, "landing_region_count": 130}, "`array` of length <= 64"),
    ],
)
def test_a_request_that_its_source_would_drop_fails_the_room_at_once(
    receiver_fields: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    world = World()
    sources, destination = world.group("p", 2), world.add("d0", **options)
    state = (
        [destination.state_component(row_bytes=8, offset=0, **receiver_fields)]
        if (receiver_fields)
        else []
    )
    transfer = Transfer(world, sources, [destination], 16, landing="landing")
    transfer.open(state=state)
    world.finish(*transfer.rooms)
    assert message in str(transfer.receivers[0].error)
    assert {room.state for room in transfer.rooms} == {RoomState.FAILED}
    world.check_idle()


def test_a_long_reason_reaches_receivers_that_ask_later() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    source.manager.open_sender(5).abort("why " * 2000)
    receiver = destination.manager.open_receiver(5, [source.address], [1], end=4)
    world.poll(4)
    assert receiver.state is RoomState.FAILED
    assert str(receiver.error).count("why") == 1024


def test_a_reason_without_utf8_bytes_reaches_the_receivers() -> None:
    """As the text of an OSError about a file whose name is not UTF-8."""
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8)
    transfer.open()
    world.poll(4)
    transfer.senders[0].abort("no such file: a\udce9")
    world.poll(2)
    assert "no such file: a?" in str(transfer.receivers[0].error)


def test_a_request_whose_sizes_overflow_is_refused() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")

    def rewrite(frame: bytes) -> bytes:
        identity, message = decode_frame(frame)
        if isinstance(message, Request):
            state = [structs.replace(message.state[0], row_bytes=2**62, row_count=2**62)]
            message = structs.replace(message, state=state)
        return encode_frame(identity, message)

    world.hub.rewrite = rewrite
    transfer = Transfer(world, [source], [destination], 8)
    transfer.open(state=[destination.state_component("ssm", 0, 16)])
    world.finish(*transfer.rooms)
    assert transfer.senders[0].error is not None
    assert transfer.senders[0].error.kind == "refused"
    world.check_idle()


def test_an_engine_event_that_raises_fails_its_room_alone() -> None:
    world = World()
    source, destinations = world.add("p0"), [world.add("d0"), world.add("d1")]
    broken, good = (
        Transfer(world, [source], [rank], 8, room=room)
        for room, rank in enumerate(destinations, start=1)
    )
    for transfer, ready in ((broken, Broken()), (good, None)):
        transfer.open()
        transfer.send(8, is_final=True, ready=ready)
    world.finish(*broken.rooms, *good.rooms)
    assert "the engine's event raised RuntimeError: device is gone" in str(broken.senders[0].error)
    assert broken.receivers[0].state is RoomState.FAILED
    good.check_rows()
    world.check_idle()
