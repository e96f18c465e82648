# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults that other projects reported about peers: bad geometry, room ids, early and late messages,
restarts, stalls.
"""

import socket
import threading
import time
from dataclasses import replace

import pytest

from kvxfer import Plane, PlaneKind, Sharding
from kvxfer.errors import TransferError
from kvxfer.transfer import RoomState, TransferOptions, ZmqChannel
from kvxfer.transfer.completion import BadCompletionError, Completion
from kvxfer.transfer.messages import (
    Abort,
    Identity,
    Ping,
    Request,
    decode_frame,
    encode_frame,
)
from support.transfer_world import LATENT, Pages, Rank, Transfer, World


def messages_to(world: World, rank: Rank, kind: type) -> list[tuple[Identity, object]]:
    """Messages of one kind that were sent to a rank."""
    decoded = [decode_frame(frame) for address, frame in world.hub.log if address == rank.address]
    return [(identity, message) for identity, message in decoded if isinstance(message, kind)]


def latents(*row_bytes: int) -> list[Plane]:
    return [Plane(layer, PlaneKind.LATENT, size) for layer, size in enumerate(row_bytes)]


def test_a18_a_peer_of_other_geometry_fails_alone_and_by_name() -> None:
    """sglang#33043: row bytes [8, 8, 2] against [8, 8]; then a good peer, an abort, noise."""
    world = World()
    source = world.add("p0", planes=latents(8, 8))
    bad = world.add("d1", Sharding(2, 0), planes=latents(8, 8, 2))
    first = Transfer(world, [source], [bad], 8, room=1)
    first.open()
    world.finish(*first.rooms)
    for room in first.rooms:
        assert room.state is RoomState.FAILED
        assert room.error is not None
        assert room.error.kind == "refused"
        for planes in (first.sources[0].layout.planes, bad.layout.planes):
            words = ", ".join(f"layer {p.layer} LATENT {p.row_bytes} B" for p in planes)
            assert f"[{words}]" in str(room.error)
    for noise in (b"", b"KVXC", b"\x80\x04.", b"K" * 10_000, encode_frame(
        Identity("x", "mem://x", 1), Ping()
    )[:-1]):  # fmt: skip
        world.hub.queues[source.address].append(noise)
    good = Transfer(
        world, [source], [world.add("d2", Sharding(2, 0), planes=latents(8, 8))], 8, room=2
    )
    good.run()
    good.check_rows()
    first.receivers[0].abort()
    world.poll(3)
    assert source.manager.counters["frames_malformed"] == 5
    world.check_idle()


@pytest.mark.parametrize("source_has_less", [True, False])
def test_a20_row_bytes_of_each_plane_must_agree(source_has_less: bool) -> None:
    """TensorRT-LLM#16505: 8 elements of fp8 against the same number of fp16 in one layer."""
    world = World()
    narrow, wide = latents(16, 8), latents(16, 16)
    source = world.add("p0", planes=narrow if source_has_less else wide)
    destination = world.add("d0", planes=wide if source_has_less else narrow)
    transfer = Transfer(world, [source], [destination], 4)
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "row_bytes" in str(room.error)
        assert "8" in str(room.error)
        assert "16" in str(room.error)
    assert world.wire.posts == []


def test_a20_element_types_must_agree() -> None:
    """TensorRT-LLM#16505."""
    world = World()
    source = world.add("p0", planes=[Plane(0, PlaneKind.LATENT, 8, dtype="float8_e4m3fn")])
    destination = world.add("d0", planes=[Plane(0, PlaneKind.LATENT, 8, dtype="float16")])
    transfer = Transfer(world, [source], [destination], 4)
    transfer.open()
    world.finish(*transfer.rooms)
    for room in transfer.rooms:
        assert "float8_e4m3fn" in str(room.error)
        assert "float16" in str(room.error)


def test_a21_page_sizes_that_differ_are_served() -> None:
    """sglang#14439, #14474: prefill pages of 32, decode pages of 64."""
    world = World()
    sources = [world.add("p0", page_size=32, pack_tokens=64)]
    transfer = Transfer(world, sources, world.group("d", 2, page_size=64), 150)
    transfer.run()
    transfer.check_rows()


def test_a21_a_pair_that_cannot_be_served_is_refused_on_both_sides_at_once() -> None:
    """sglang#14439: a receiver without landing regions cannot take strided rows."""
    world = World()
    sources = world.group("p", 2, page_size=32)
    plain = world.add("d0", page_size=64, landing_region_count=0)
    transfer = Transfer(world, sources, [plain], 64, room=1)
    transfer.open()
    world.poll(6)
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED, "at once, not at a deadline"
        assert room.error is not None
        assert room.error.kind == "refused"
        assert "landing regions have 0" in str(room.error)
    matching = Transfer(world, sources, [world.add("d1", page_size=64)], 64, room=2)
    matching.run()
    matching.check_rows()


def test_a27_a_duplicate_room_is_refused_and_the_first_goes_on() -> None:
    """sglang#40125."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    first = Transfer(world, [source], [destination], 8)
    first.open()
    for open_again in (
        lambda: source.manager.open_sender(5),
        lambda: destination.manager.open_receiver(5, [source.address], [9], end=4),
    ):
        with pytest.raises(TransferError, match="room 5: is open already") as caught:
            open_again()
        assert caught.value.kind == "duplicate"
    first.send(8, is_final=True)
    world.finish(*first.rooms)
    first.check_rows()
    third = Transfer(world, [source], [destination], 12, seed=30)
    third.run()
    third.check_rows()
    assert third.receivers[0].result().metrics.segments == 1
    assert source.manager.sender_state(6) is RoomState.FAILED
    assert destination.manager.receiver_state(6) is RoomState.FAILED


def test_a27_messages_of_an_earlier_use_of_the_id_change_nothing() -> None:
    """sglang#40125: no old completions."""
    world = World()
    world.wire.holds_notifications = True
    source, destination = world.add("p0"), world.add("d0")
    first = Transfer(world, [source], [destination], 8)
    first.open()
    first.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.held) == 1)
    first.receivers[0].abort()
    world.poll(3)
    second = Transfer(world, [source], [destination], 8)
    second.open()
    world.poll(2)
    world.wire.deliver(1)
    world.poll(2)
    assert second.receivers[0].state is RoomState.WAITING_FOR_INPUT
    assert destination.manager.counters["completions_late"] == 1
    second.send(8, is_final=True)
    world.wire.holds_notifications = False
    world.finish(*second.rooms)
    assert second.receivers[0].state is RoomState.SUCCESS


def test_a27_a_repeated_abort_does_not_end_the_next_use_of_the_id() -> None:
    """The receiver asks for the end of its writes again, and the answer crosses the question."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    first = Transfer(world, [source], [destination], 8, room=5)
    first.open()
    world.wire.completes_on_poll = None
    first.send(8, is_final=True)
    world.poll(3)
    first.receivers[0].abort()
    world.poll(2)
    assert first.receivers[0].pages_held
    world.clock.advance(TransferOptions().heartbeat_interval_s)
    destination.manager.poll()
    queue = world.hub.queues[source.address]
    repeated = list(queue)
    queue.clear()
    assert any(isinstance(decode_frame(frame)[1], Abort) for frame in repeated)
    world.wire.complete_all()
    world.wire.completes_on_poll = 1
    world.poll(2)
    second = Transfer(world, [source], [destination], 8, room=5)
    second.senders.append(source.manager.open_sender(5))
    queue.extend(repeated)
    source.manager.poll()
    assert second.senders[0].state is RoomState.BOOTSTRAPPING
    second.receivers.append(
        destination.manager.open_receiver(
            5, [source.address], second.destination_pages[0].ids, end=8
        )
    )
    second.send(8, is_final=True)
    world.finish(*second.rooms)
    second.check_rows()
    world.check_idle()


def test_a28_a_reused_metadata_slot_does_not_pass_for_the_new_room() -> None:
    """sglang#27374: one slot, rooms 11 and 12."""
    world = World()
    source, destination = world.add("p0"), world.add("d0", metadata_slot_count=1)
    eleven = Transfer(world, [source], [destination], 4, room=11, metadata_bytes=16)
    eleven.run(metadata=b"eleven")
    assert eleven.receivers[0].metadata == b"eleven"
    twelve = Transfer(world, [source], [destination], 4, room=12, metadata_bytes=16)
    twelve.open()
    slot = twelve.receivers[0]._inbox._slot
    assert slot is not None
    assert slot.memory[:8].tolist() == [0] * 8
    world.wire.completes_on_poll = None
    twelve.send(4, is_final=True, metadata=b"twelve")
    world.poll(5)
    assert twelve.receivers[0].metadata is None
    world.wire.completes_on_poll = 1
    world.finish(*twelve.rooms)
    assert twelve.receivers[0].metadata == b"twelve"


def test_a28_a_slot_that_holds_another_room_fails_with_both_numbers() -> None:
    """sglang#17430: the slot holds 13."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4, room=12, metadata_bytes=16)
    transfer.open()
    world.wire.holds_notifications = True
    transfer.send(4, is_final=True, metadata=b"twelve")
    world.poll_until(lambda: len(world.wire.held) == 1)
    slot = transfer.receivers[0]._inbox._slot
    assert slot is not None
    slot.memory[0] = 0
    world.wire.deliver()
    world.poll(3)
    assert transfer.receivers[0].state is RoomState.TRANSFERRING, "not written yet: keep waiting"
    slot.memory[0] = 13
    world.poll(1)
    assert transfer.receivers[0].state is RoomState.FAILED
    assert "holds room 13, not 12" in str(transfer.receivers[0].error)


def test_a28_metadata_that_never_comes_ends_the_room_and_names_the_source() -> None:
    """sglang#27374: the slot stays empty although everything else has arrived."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4, room=12, metadata_bytes=16)
    transfer.open()
    world.wire.holds_notifications = True
    transfer.send(4, is_final=True, metadata=b"twelve")
    world.poll_until(lambda: len(world.wire.held) == 1)
    slot = transfer.receivers[0]._inbox._slot
    assert slot is not None
    slot.memory[:8] = 0
    world.wire.deliver()
    for _ in range(12):
        world.clock.advance(TransferOptions().waiting_deadline_s / 10)
        world.poll(2)
    assert "no metadata for 300 s from p0" in str(transfer.receivers[0].error)


def test_a28_room_0_is_not_a_room() -> None:
    """sglang#27374: 0 marks an empty slot."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    for open_zero in (
        lambda: source.manager.open_sender(0),
        lambda: destination.manager.open_receiver(0, [source.address], [1], end=4),
    ):
        with pytest.raises(ValueError, match=r"room is 0, expected an integer in \[1, 2\*\*64\)"):
            open_zero()


GOOD = Completion(
    room=77,
    room_generation=3,
    source_index=0,
    segment=2,
    begin=16,
    end=21,
    size_bytes=640,
    is_final=True,
    is_drained=True,
    digest="0123456789abcdef",
    source="dec_0_a",
)


@pytest.mark.parametrize("room", [77, 18446744073709551615])
def test_a30_completion_messages_survive_the_round_trip(room: int) -> None:
    """sglang#22536."""
    line = replace(GOOD, room=room).encode()
    assert Completion.decode(line) == replace(GOOD, room=room)
    assert len(line) <= 1024
    assert line.isascii()


HOSTILE = [
    b"",
    b"77_kv",
    b"x_kv_0_1_0",
    GOOD.encode().replace(b" 2 16", b" -1 16"),
    b"7" * 10_000,
    GOOD.encode().replace(b"dec", b"d\xc3\xa9c"),
    GOOD.encode() + b"\n",
    GOOD.encode().replace(b"kvxfer/1", b"kvxfer/2"),
    GOOD.encode().replace(b" 77 ", b" 18446744073709551616 "),
    GOOD.encode().replace(b" 77 ", b" 0 "),
    GOOD.encode()[:-8],
]


@pytest.mark.parametrize("line", HOSTILE)
def test_a30_hostile_messages_are_refused(line: bytes) -> None:
    """sglang#22536."""
    with pytest.raises(BadCompletionError):
        Completion.decode(line)


def test_a30_hostile_messages_are_counted_and_later_ones_work() -> None:
    """sglang#22536."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    destination.transport.inbox += [("p0", line) for line in HOSTILE]
    transfer = Transfer(world, [source], [destination], 4)
    transfer.run()
    transfer.check_rows()
    assert destination.manager.counters["completions_malformed"] == len(HOSTILE)


def test_a31_what_comes_before_the_room_is_kept_for_it() -> None:
    """vllm#43509: both the request at the source and a completion at the destination."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    receiver = destination.manager.open_receiver(3, [source.address], [9], end=4)
    world.poll(3)
    assert receiver.state is RoomState.WAITING_FOR_INPUT
    assert source.manager.counters["early_messages"] == 1
    world.clock.advance(0.01)
    sender = source.manager.open_sender(3)
    assert sender.state is RoomState.WAITING_FOR_INPUT
    sender.send([7], 4, is_final=True)
    world.finish(sender, receiver)
    assert receiver.state is RoomState.SUCCESS
    world.check_idle()


def test_a31_early_completions_wait_for_their_room() -> None:
    """vllm#43509: "room 3, segment 0, last" arrives before the receiver opens room 3."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    warm = Transfer(world, [source], [destination], 4, room=1)
    warm.run()
    receiver = destination.manager.open_receiver(2, [source.address], [9], end=4)
    world.poll(2)
    (_, request) = messages_to(world, source, Request)[-1]
    assert isinstance(request, Request)
    early = replace(
        GOOD,
        room=3,
        room_generation=request.room_generation + 1,
        segment=0,
        begin=0,
        end=4,
        size_bytes=64,
        digest=request.terms.digest(),
        source="p0",
    )
    destination.transport.inbox.append(("p0", early.encode()))
    world.poll(2)
    assert destination.manager.counters["early_messages"] == 1
    third = destination.manager.open_receiver(3, [source.address], [10], end=4)
    assert third.state is RoomState.SUCCESS
    receiver.abort()
    source.manager.open_sender(3).abort()
    source.manager.open_sender(2).abort()
    world.poll(3)
    world.check_idle()


def test_a31_the_store_of_early_messages_is_bounded_and_expires() -> None:
    """vllm#43509: room 99 never opens; a late message of a closed room is not kept."""
    world = World()
    options = {"early_message_count": 4}
    source, destination = world.add("p0", **options), world.add("d0", **options)
    done = Transfer(world, [source], [destination], 4, room=1)
    done.run()
    late = replace(GOOD, room=1, room_generation=1, source="p0").encode()
    destination.transport.inbox.append(("p0", late))
    world.poll(1)
    assert destination.manager.counters["early_messages"] == 0
    assert destination.manager.counters["completions_late"] == 1
    for room in range(99, 109):
        line = replace(GOOD, room=room, source="p0").encode()
        destination.transport.inbox.append(("p0", line))
    world.poll(1)
    assert destination.manager.counters["early_messages"] == 4
    assert destination.manager.counters["early_messages_dropped"] == 6
    world.clock.advance(TransferOptions().early_message_ttl_s + 1)
    world.poll(1)
    assert destination.manager.counters["early_messages"] == 0


def test_a32_a_peer_is_dropped_after_three_misses_and_works_after_its_return() -> None:
    """Mooncake#3072, #3944."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    interval_s = TransferOptions().heartbeat_interval_s
    pending = Transfer(world, [source], [destination], 8, room=1)
    pending.open()
    world.poll(3)
    world.stop(source)
    old_memory = source.arrays[0]
    for missed in range(4):
        assert pending.receivers[0].state is RoomState.WAITING_FOR_INPUT, f"{missed} misses"
        world.clock.advance(interval_s)
        world.poll(1)
    assert pending.receivers[0].state is RoomState.FAILED
    error = pending.receivers[0].error
    assert error is not None
    assert (error.kind, error.peer) == ("peer_lost", "p0")
    assert "3 heartbeats" in str(error)
    fast = destination.manager.open_receiver(2, [source.address], [9], end=4)
    world.clock.advance(interval_s)
    world.poll(2)
    assert fast.state is RoomState.FAILED
    assert "3 heartbeats" in str(fast.error)
    back = world.add("p0")
    world.clock.advance(interval_s)
    world.poll(4)
    again = Transfer(world, [back], [destination], 8, room=3)
    again.run()
    again.check_rows()
    sources = [post.writes[:, 0] for post in world.wire.posts]
    low = old_memory.ctypes.data
    assert not any(((s >= low) & (s < low + old_memory.nbytes)).any() for s in sources)
    world.poll(2)
    world.check_idle()


def test_a32_one_miss_does_not_drop_a_peer() -> None:
    """Mooncake#3072."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    pending = Transfer(world, [source], [destination], 8)
    pending.open()
    world.poll(3)
    interval_s = TransferOptions().heartbeat_interval_s
    for _ in range(10):
        for _ in range(2):
            world.clock.advance(interval_s)
            destination.manager.poll()
        world.poll(2)
    pending.send(8, is_final=True)
    world.finish(*pending.rooms)
    pending.check_rows()


def test_a32_rooms_in_flight_to_a_restarted_peer_fail_and_new_ones_use_its_new_memory() -> None:
    """Mooncake#3072: the destination comes back with other addresses."""
    world = World()
    world.wire.completes_on_poll = None
    source, destination = world.add("p0"), world.add("d0")
    first = Transfer(world, [source], [destination], 8, room=1)
    first.open()
    first.send(8, is_final=True)
    world.poll_until(lambda: len(world.wire.running()) == 1)
    world.stop(destination)
    back = world.add("d0")
    world.wire.completes_on_poll = 1
    second = Transfer(world, [source], [back], 8, room=2)
    second.run()
    assert second.receivers[0].state is RoomState.SUCCESS
    second.check_rows()
    assert first.senders[0].state is RoomState.FAILED
    assert first.senders[0].error is not None
    assert first.senders[0].error.peer == "d0"
    first.check_untouched()
    new_memory = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in back.arrays]
    for address in world.wire.last_post.writes[:, 1]:
        assert any(begin <= address < end for begin, end in new_memory)


def test_a32_a_peer_that_was_only_paused_is_met_again() -> None:
    """Mooncake#3944: it does not know that it was dropped, and asks for its next room at once."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    first = Transfer(world, [source], [destination], 8, room=1)
    first.open()
    world.poll(3)
    for _ in range(5):
        world.clock.advance(TransferOptions().heartbeat_interval_s)
        source.manager.poll()
    assert source.manager.peer_names == []
    assert first.senders[0].error is not None
    assert first.senders[0].error.kind == "peer_lost"
    second = Transfer(world, [source], [destination], 8, room=2)
    second.run()
    second.check_rows()
    assert second.receivers[0].state is RoomState.SUCCESS
    assert first.receivers[0].state is RoomState.FAILED
    assert not first.receivers[0].pages_held
    world.check_idle()


def test_a33_a_stalled_peer_fails_alone() -> None:
    """sglang#31144, with the peer's queue full."""
    world = World()
    source = world.add("p0")
    stalled, healthy = world.add("x"), world.add("y")
    first = Transfer(world, [source], [stalled], 8, room=1)
    first.open()
    world.poll(3)
    second = Transfer(world, [source], [healthy], 8, room=2)
    second.open()
    world.hub.stalled.add(stalled.address)
    world.clock.advance(TransferOptions().heartbeat_interval_s)
    source.manager.poll()
    assert first.senders[0].state is RoomState.FAILED
    assert first.senders[0].error is not None
    assert first.senders[0].error.peer == "x"
    assert "queue is full" in str(first.senders[0].error)
    second.send(8, is_final=True)
    world.finish(*second.rooms)
    second.check_rows()


@pytest.mark.parametrize("secret", [None, b"sixteen bytes or more"])
def test_a33_sends_to_a_peer_that_never_reads_return(secret: bytes | None) -> None:
    """sglang#31144: 10,000 messages of 1 KiB to a peer that accepts and never reads."""
    listener = socket.create_server(("127.0.0.1", 0))
    stalled = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    channel, healthy = ZmqChannel(secret=secret), ZmqChannel(secret=secret)
    try:
        taken = sum(channel.send(stalled, bytes(1024)) for _ in range(10_000))
        assert taken <= 2_000
        assert channel.counters["refused"] == 10_000 - taken
        assert channel.send(healthy.address, b"hello")
        got: list[bytes] = []
        deadline = time.monotonic() + 20
        while not got and time.monotonic() < deadline:
            channel.receive()
            got = healthy.receive()
        assert got == [b"hello"]
        other = threading.Thread(target=channel.forget, args=(stalled,))
        other.start()
        other.join(timeout=20)
        assert not other.is_alive()
    finally:
        channel.close()
        healthy.close()
        listener.close()


def test_an_abort_that_comes_before_the_room_ends_it_when_it_opens() -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    receiver = destination.manager.open_receiver(3, [source.address], [9], end=4)
    world.poll(3)
    receiver.abort("client went away")
    world.poll(3)
    assert not receiver.pages_held
    assert [type(m) for _, m in messages_to(world, source, Abort)] == [Abort]
    sender = source.manager.open_sender(3)
    assert sender.state is RoomState.FAILED
    assert "client went away" in str(sender.error)
    world.check_idle()


def test_receivers_that_ask_for_a_failed_room_are_told_at_once() -> None:
    world = World()
    source = world.add("p0", planes=LATENT)
    bad, good = world.add("d0", planes=latents(12, 8)), world.add("d1", planes=LATENT)
    sender = source.manager.open_sender(5, 2)
    bad.manager.open_receiver(5, [source.address], [1], end=4)
    world.poll(4)
    assert sender.state is RoomState.FAILED
    late = good.manager.open_receiver(5, [source.address], [1], end=4)
    world.poll(4)
    assert late.state is RoomState.FAILED
    assert "row_bytes" in str(late.error)
    fresh = Transfer(world, [source], [good], 4)
    fresh.source_pages, fresh.destination_pages = [Pages([3])], [Pages([4])]
    fresh.run()
    fresh.check_rows()
