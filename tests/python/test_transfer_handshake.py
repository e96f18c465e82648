# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the two sides must agree about, and that nothing is written where they do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from kvxfer import HeadSharding, InvalidArgumentError, Plane, PlaneKind, PoolLayout, Sharding
from kvxfer.transfer import RoomState
from kvxfer.transfer.completion import Completion
from kvxfer.transfer.messages import Credit, Grant, Hello, Request, decode_frame, encode_frame
from kvxfer.transfer.terms import SideTerms
from support.transfer_world import LATENT, Rank, Transfer, World

Change = Callable[[Any], Any]


def rewriting(world: World, kind: type, change: Change) -> None:
    """Change every message of a kind on its way."""

    def rewrite(frame: bytes) -> bytes:
        identity, message = decode_frame(frame)
        if not isinstance(message, kind):
            return frame
        return encode_frame(identity, change(message))

    world.hub.rewrite = rewrite


def with_terms(**fields: Any) -> Change:
    return lambda request: msgspec.structs.replace(
        request, terms=msgspec.structs.replace(request.terms, **fields)
    )


def with_fields(**fields: Any) -> Change:
    return lambda message: msgspec.structs.replace(message, **fields)


def other_side(request: Request) -> SideTerms:
    return msgspec.structs.replace(request.terms.source, page_size=8)


CHANGES: dict[str, tuple[Change, str]] = {
    "version": (with_terms(version=7), "version: expected 1, got 7"),
    "source": (
        lambda request: with_terms(source=other_side(request))(request),
        "source: expected page_size 4, .* got page_size 8",
    ),
    "destination": (
        lambda request: with_terms(destination=other_side(request))(request),
        "destination: expected page_size 4, ranks 2, .* got page_size 8",
    ),
    "planes": (
        lambda request: with_terms(planes=request.terms.planes[:1])(request),
        r"planes: expected \[layer 0 LATENT 12 of 12 B, layer 1 LATENT 4 of 4 B\], "
        r"got \[layer 0 LATENT 12 of 12 B\]",
    ),
    "prefix": (
        with_terms(prefix=8),
        r"terms for positions \[8, 16\) differ: owed_bytes: expected 64, got 128",
    ),
    "prefix that is not aligned": (
        with_terms(prefix=4, owed_bytes=96),
        "prefix is 4, expected a multiple of 8",
    ),
    "end": (with_terms(end=17), "owed_bytes: expected 144, got 128"),
    "end before prefix": (with_terms(end=0, prefix=8), "end"),
    "owed_bytes": (with_terms(owed_bytes=0), "owed_bytes: expected 128, got 0"),
    "mode none": (with_terms(mode="none"), "landing mode is 'none', but 128 bytes are owed"),
    "mode landing": (with_terms(mode="landing"), "landing regions have 0 bytes"),
    "region_bytes": (with_terms(region_bytes=64), "landing regions have 64 bytes in mode 'in_pl"),
    "page beyond the pool": (
        with_fields(pages=np.array([3, 32], dtype="<i8").tobytes()),
        "32",
    ),
    "negative page": (with_fields(pages=np.array([3, -1], dtype="<i8").tobytes()), "-1"),
    "page twice": (with_fields(pages=np.array([3, 3], dtype="<i8").tobytes()), "3"),
    "half a page id": (with_fields(pages=bytes(12)), "12 bytes, expected a multiple of 8"),
    "too few pages": (
        with_fields(pages=np.array([3], dtype="<i8").tobytes()),
        r"cover positions \[0, 8\), expected \[0, 16\)",
    ),
    "first position": (with_fields(first_position=8), r"cover positions \[8, 24\)"),
    "metadata outside": (with_fields(metadata=(4096, 16)), "metadata at 0x1000 with 16 bytes"),
    "region granted in place": (
        with_fields(grants=[Grant(0, 1, 4096)]),
        "landing region 0 granted to in_place",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_that_differs_is_refused_by_name_on_both_sides(name: str) -> None:
    change, message = CHANGES[name]
    world = World()
    rewriting(world, Request, change)
    transfer = Transfer(world, [world.add("p0")], [world.add("d0", Sharding(2, 0))], 16)
    transfer.open()
    transfer.send(16, is_final=True)
    world.poll(6)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert room.error is not None
        assert room.error.kind == "refused"
        with pytest.raises(type(room.error), match=message):
            raise room.error
    assert world.wire.posts == []
    assert not transfer.receivers[0].pages_held
    transfer.check_untouched()
    world.check_idle()


def test_a26_page_ids_beyond_the_pool_are_refused_before_posting() -> None:
    """vllm#52234 (i): page ids [3, 9] of a pool of 8."""
    world = World()
    source, destination = world.add("p0", page_count=8), world.add("d0", page_count=8)
    with pytest.raises(InvalidArgumentError, match=r"9.*8|8.*9"):
        destination.manager.open_receiver(1, [source.address], [3, 9], end=8)
    rewriting(world, Request, with_fields(pages=np.array([3, 9], dtype="<i8").tobytes()))
    transfer = Transfer(world, [source], [destination], 8)
    transfer.run()
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "9" in str(room.error)
        assert "8" in str(room.error)
    assert world.wire.posts == []


def test_a_request_for_an_earlier_life_of_the_source_is_refused() -> None:
    world = World()
    rewriting(world, Request, with_fields(source_generation=1))
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8)
    transfer.open()
    world.poll(6)
    assert transfer.receivers[0].state is RoomState.FAILED
    assert "restarted" in str(transfer.receivers[0].error)
    assert transfer.senders[0].state is RoomState.BOOTSTRAPPING, "it waits for the right request"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_fields(transport="nixl"), "transport is 'nixl', expected 'scripted'"),
        (with_fields(memory=[]), "not inside one region"),
        (with_fields(memory=[(64, 4096), (128, 4096)]), "overlaps"),
        (with_fields(description=b"damaged"), "description"),
        (
            lambda hello: msgspec.structs.replace(
                hello, pool=msgspec.structs.replace(hello.pool, page_count=10**6)
            ),
            "is not inside one region that its owner registered",
        ),
        (
            lambda hello: msgspec.structs.replace(
                hello, pool=msgspec.structs.replace(hello.pool, page_count=0)
            ),
            "page_count",
        ),
    ],
)
def test_a_hello_that_does_not_hold_is_refused_by_name_on_both_sides(
    change: Change, message: str
) -> None:
    world = World()
    rewriting(world, Hello, change)
    source, destination = world.add("p0"), world.add("d0")
    receiver = destination.manager.open_receiver(5, [source.address], [1, 2], end=8)
    world.poll(4)
    assert receiver.state is RoomState.FAILED
    with pytest.raises(Exception, match=message):
        raise receiver.error or AssertionError
    assert source.manager.peer_names == []
    world.hub.rewrite = lambda frame: frame
    again = Transfer(world, [source], [destination], 8, room=6)
    again.run()
    again.check_rows()


def test_a_hello_in_another_agents_name_is_refused() -> None:
    world = World()
    source, destination, other = world.add("p0"), world.add("d0"), world.add("x0")
    description = other.transport.describe()
    rewriting(world, Hello, with_fields(description=description))
    receiver = destination.manager.open_receiver(5, [source.address], [1, 2], end=8)
    world.poll(4)
    assert receiver.state is RoomState.FAILED
    assert "is of agent 'x0', but the message is from" in str(receiver.error)


@pytest.mark.parametrize("where", ["request", "credit"])
def test_a_region_outside_registered_memory_is_never_written(where: str) -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0", landing_region_count=2)
    outside = Grant(0, 1, 4096)

    def change(message: Any) -> Any:
        return msgspec.structs.replace(message, grants=[outside])

    rewriting(world, Request if where == "request" else Credit, change)
    transfer = Transfer(world, [source], [destination], 40, landing="landing")
    transfer.open()
    transfer.send(40, is_final=True)
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "landing region 0 at 0x1000" in str(room.error)
    ranges = [(s.address, s.end) for s in destination.manager._spans]
    for post in world.wire.posts:
        for address, size in post.writes[:, 1:]:
            assert any(a <= address and address + size <= end for a, end in ranges)


def test_in_place_is_refused_for_rows_that_must_be_unpacked() -> None:
    world = World()
    sources = world.group("p", 2)
    transfer = Transfer(world, sources, [world.add("d0")], 8, landing="in_place")
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "landing is 'in_place', but the destination rows" in str(room.error)


def test_a_forged_in_place_mode_for_strided_rows_is_refused() -> None:
    world = World()
    rewriting(world, Request, with_terms(mode="in_place", region_bytes=0))
    transfer = Transfer(world, world.group("p", 2), [world.add("d0")], 8)
    transfer.open()
    world.finish(*transfer.rooms)
    assert {room.state for room in transfer.rooms} == {RoomState.FAILED}
    assert "rows are strided" in str(transfer.receivers[0].error)
    assert world.wire.posts == []


def test_sources_that_leave_a_plane_uncovered_are_refused() -> None:
    world = World()
    stages = [world.add("p0", planes=LATENT[:1])]
    transfer = Transfer(world, stages, [world.add("d0")], 8)
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert "plane (layer 1, LATENT) of the destination: no source writes" in str(room.error)


def test_sources_that_leave_tokens_uncovered_are_refused() -> None:
    world = World()
    sources = world.group("p", 3)[:2]
    transfer = Transfer(world, sources, [world.add("d0")], 8)
    transfer.open()
    world.finish(*transfer.rooms)
    assert "source ranks [0, 1] hold 2 of every 3 tokens" in str(transfer.receivers[0].error)


def test_two_sources_that_hold_the_same_rows_are_refused() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0"), world.add("p1")], [world.add("d0")], 8)
    transfer.open()
    world.finish(*transfer.rooms)
    assert "2 sources write all of its tokens" in str(transfer.receivers[0].error)


def test_a_missing_head_slice_is_refused() -> None:
    def rank(name: str, ranks: int, rank: int) -> Rank:
        heads = HeadSharding(4, ranks, rank)
        plane = Plane(0, PlaneKind.KEY, heads.head_count * 8, head_bytes=8)
        return world.add(name, layout=PoolLayout(4, 8, [plane], heads=heads))

    world = World()
    sources = [rank(f"p{index}", 4, index) for index in (0, 1, 3)]
    transfer = Transfer(world, sources, [rank("d0", 1, 0)], 8)
    transfer.open()
    world.finish(*transfer.rooms)
    assert "no source writes bytes [16, 24) of its rows" in str(transfer.receivers[0].error)


def test_a_draft_whose_writer_is_not_asked_is_refused() -> None:
    """The lowest rank of a group writes replicated rows; here only another one is asked."""
    draft = Plane(2, PlaneKind.KEY, 6, is_replicated=True)
    world = World()
    sources = world.group("p", 2)
    sources.append(world.add("draft1", Sharding(2, 1), planes=[draft]))
    transfer = Transfer(world, sources, [world.add("d0", planes=[*LATENT, draft])], 16)
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert "plane (layer 2, KEY) of the destination: no source writes bytes [0, 6)" in str(
            room.error
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefix": 4}, "prefix is 4, expected a multiple of 8"),
        ({"prefix": -8}, "prefix is -8"),
        ({"end": -1}, "end is -1, expected at least the prefix 0"),
        ({"end": 25}, r"pages cover positions \[0, 24\), expected \[0, 25\)"),
        ({"sources": []}, "expected at least one, each once"),
        ({"sources": ["mem://p0", "mem://p0"]}, "expected at least one, each once"),
        ({"metadata_bytes": 10**6}, "metadata_bytes is 1000000, expected at most"),
        ({"room": 2**64}, "room is 18446744073709551616"),
        ({"room": True}, "room is True"),
    ],
)
def test_open_receiver_checks_its_arguments(fields: dict[str, Any], message: str) -> None:
    world = World()
    world.add("p0")
    rank = world.add("d0", Sharding(2, 0))
    arguments = {"room": 1, "sources": ["mem://p0"], "pages": [1, 2, 3], "end": 20, **fields}
    with pytest.raises(InvalidArgumentError, match=message):
        rank.manager.open_receiver(
            arguments.pop("room"), arguments.pop("sources"), arguments.pop("pages"), **arguments
        )
    assert rank.manager.counters["receiver_rooms"] == 0
    assert rank.manager.counters["metadata_slots_leased"] == 0


def test_send_checks_its_arguments() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 16)
    transfer.open()
    (sender,) = transfer.senders
    pages = transfer.source_pages[0].ids
    for arguments, message in (
        ({"end": 17, "is_final": True}, "source pages end at position 16, expected at least 17"),
        ({"end": 8, "is_final": False, "metadata": b"x"}, "go with the final send only"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            sender.send(pages, **arguments)
    sender.send(pages, 9, is_final=False)
    with pytest.raises(InvalidArgumentError, match="end is 5, expected at least 9"):
        sender.send(pages, 5, is_final=False)
    sender.send(pages, 16, is_final=True)
    with pytest.raises(InvalidArgumentError, match="the final send was made already"):
        sender.send(pages, 16, is_final=True)
    world.finish(*transfer.rooms)
    transfer.check_rows()


@pytest.mark.parametrize("end", [15, 17])
def test_a_final_send_must_end_where_the_receivers_said(end: int) -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 16)
    transfer.open()
    transfer.senders[0].send(list(range(5)), end, is_final=True)
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert f"send ends at {end}, but the receivers asked for positions up to 16" in str(
            room.error
        )


def test_receivers_of_one_room_must_want_the_same_positions() -> None:
    world = World()
    source, destinations = world.add("p0"), world.group("d", 2)
    sender = source.manager.open_sender(5, 2)
    receivers = [
        rank.manager.open_receiver(5, [source.address], [1, 2], prefix=prefix, end=16)
        for rank, prefix in zip(destinations, (0, 8), strict=True)
    ]
    world.finish(sender, *receivers)
    assert "prefix is 8 for d1, but 0 for d0" in str(sender.error)
    assert {room.state for room in receivers} == {RoomState.FAILED}


def test_one_receiver_too_many_is_refused_alone() -> None:
    world = World()
    transfer = Transfer(world, [world.add("p0")], [world.add("d0")], 8)
    transfer.open()
    world.poll(3)
    late = world.add("d1").manager.open_receiver(5, [transfer.sources[0].address], [1, 2], end=8)
    world.poll(4)
    assert "room has its 1 receivers already: d0" in str(late.error)
    transfer.send(8, is_final=True)
    world.finish(*transfer.rooms)
    transfer.check_rows()


def test_a_receiver_that_asks_twice_fails_the_room() -> None:
    world = World()
    source, rank = world.add("p0"), world.add("d0")
    sender = source.manager.open_sender(5, 2)
    first = rank.manager.open_receiver(5, [source.address], [1], end=4)
    world.poll(3)
    (request,) = [f for a, f in world.hub.log if isinstance(decode_frame(f)[1], Request)]
    identity, message = decode_frame(request)
    again = msgspec.structs.replace(message, room_generation=message.room_generation + 1)
    world.hub.queues[source.address].append(request)
    world.poll(1)
    assert sender.state is RoomState.BOOTSTRAPPING, "a repeat changes nothing"
    world.hub.queues[source.address].append(encode_frame(identity, again))
    world.poll(3)
    assert "receiver d0 has asked for this room already" in str(sender.error)
    assert first.state is RoomState.FAILED


def test_another_worker_at_the_address_of_a_peer_is_its_successor() -> None:
    world = World()
    source, rank = world.add("p0"), world.add("d0")
    pending = Transfer(world, [source], [rank], 8, room=1)
    pending.open()
    world.poll(3)
    world.stop(source)
    successor = world.add("p1", address=source.address)
    successor.manager.connect(rank.address)
    world.poll(3)
    assert "source p0 was restarted" in str(pending.receivers[0].error)
    assert not pending.receivers[0].pages_held
    again = Transfer(world, [successor], [rank], 8, room=2)
    again.run()
    again.check_rows()


def test_roles_are_kept_apart() -> None:
    world = World()
    source, destination = world.add("p0", role="sender"), world.add("d0", role="receiver")
    with pytest.raises(InvalidArgumentError, match="role 'receiver' and cannot send"):
        destination.manager.open_sender(1)
    with pytest.raises(InvalidArgumentError, match="role 'sender' and cannot receive"):
        source.manager.open_receiver(1, ["mem://d0"], [1], end=4)
    transfer = Transfer(world, [source], [destination], 16, metadata_bytes=4)
    transfer.run(metadata=b"both")
    transfer.check_rows()
    assert transfer.receivers[0].metadata == b"both"


def test_memory_is_registered_before_the_first_peer_is_met() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    destination.manager.connect(source.address)
    with pytest.raises(InvalidArgumentError, match="was described already"):
        destination.manager.register_memory(4096, 16)


def test_metadata_that_is_missing_or_too_long_is_refused_by_name() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0", metadata_slot_bytes=64)
    cases = {1: (None, "final send has none"), 2: (b"123456789", "9 bytes, expected at most 8")}
    for room, (metadata, message) in cases.items():
        transfer = Transfer(world, [source], [destination], 4, room=room, metadata_bytes=8)
        transfer.run(metadata=metadata)
        for end in transfer.rooms:
            assert end.state is RoomState.FAILED
            assert message in str(end.error)
    world.check_idle()


def test_more_metadata_than_was_wanted_is_not_taken_for_it() -> None:
    world = World()
    world.wire.holds_notifications = True
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4, metadata_bytes=8)
    transfer.open()
    transfer.send(4, is_final=True, metadata=b"12345678")
    world.poll_until(lambda: len(world.wire.held) == 1)
    genuine = Completion.decode(world.wire.drop().message)
    destination.transport.inbox.append(("p0", replace(genuine, metadata_bytes=9).encode()))
    world.poll(2)
    assert "metadata has 9 bytes, expected at most 8" in str(transfer.receivers[0].error)
    world.check_idle()


def test_metadata_comes_from_the_first_source_alone() -> None:
    world = World()
    sources = world.group("p", 2)
    transfer = Transfer(world, sources, [world.add("d0")], 16, metadata_bytes=8)
    transfer.open()
    for index, (sender, pages) in enumerate(
        zip(transfer.senders, transfer.source_pages, strict=True)
    ):
        sender.send(pages.ids, 16, is_final=True, metadata=b"from %d" % index)
    world.finish(*transfer.rooms)
    assert transfer.receivers[0].metadata == b"from 0"
    world.check_idle()


def test_a_retry_is_not_refused_by_what_its_receiver_gave_up_before_asking() -> None:
    """The source's room failed without a request, and the next request is for its next use."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    first = source.manager.open_sender(5)
    given_up = destination.manager.open_receiver(5, [source.address, "mem://nobody"], [1, 2], end=8)
    world.poll(3)
    given_up.abort("changed its mind")
    world.poll(3)
    assert "changed its mind" in str(first.error)
    retry = Transfer(world, [source], [destination], 8, room=5)
    pages = retry.destination_pages[0].ids
    retry.receivers.append(destination.manager.open_receiver(5, [source.address], pages, end=8))
    world.poll(3)
    assert not retry.receivers[0].state.is_over
    retry.senders.append(source.manager.open_sender(5))
    retry.send(8, is_final=True)
    world.finish(*retry.rooms)
    retry.check_rows()


def test_a_retry_is_not_refused_by_what_another_receiver_has_yet_to_hear() -> None:
    world = World()
    source = world.add("p0")
    asked, late = world.add("d0"), world.add("d1")
    source.manager.open_sender(5, 2).abort("no memory")
    first = asked.manager.open_receiver(5, [source.address], [1, 2], end=8)
    world.poll(4)
    assert "no memory" in str(first.error)
    retry = Transfer(world, [source], [asked], 8, room=5)
    pages = retry.destination_pages[0].ids
    retry.receivers.append(asked.manager.open_receiver(5, [source.address], pages, end=8))
    world.poll(3)
    assert not retry.receivers[0].state.is_over
    told = late.manager.open_receiver(5, [source.address], [1, 2], end=8)
    world.poll(4)
    assert "no memory" in str(told.error)
    retry.senders.append(source.manager.open_sender(5))
    retry.send(8, is_final=True)
    world.finish(*retry.rooms)
    retry.check_rows()
    world.check_idle()


def test_a_request_behind_an_abort_hears_why_the_room_failed() -> None:
    """Both came before the room was opened; the abort ends it, and the request is answered."""
    world = World()
    source = world.add("p0")
    aborting, asking = world.add("d0"), world.add("d1")
    given_up = aborting.manager.open_receiver(5, [source.address, "mem://nobody"], [1, 2], end=8)
    world.poll(3)
    given_up.abort("changed its mind")
    world.poll(2)
    asked = asking.manager.open_receiver(5, [source.address], [1, 2], end=8)
    world.poll(4)
    source.manager.open_sender(5, 2)
    world.poll(2)
    assert "changed its mind" in str(asked.error)
