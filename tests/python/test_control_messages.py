# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Control messages: whole round trips, and nothing but an error for anything else."""

import pickle
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer import PoolLayout, Sharding
from kvxfer.transfer.completion import BadCompletionError, Completion
from kvxfer.transfer.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Abort,
    Credit,
    Drained,
    ForeignVersionError,
    Grant,
    Hello,
    Identity,
    MalformedFrameError,
    Message,
    Ping,
    Pong,
    Refused,
    Request,
    Want,
    decode_frame,
    encode_frame,
)
from kvxfer.transfer.terms import PairTerms, PoolTerms, RelayoutTerms, SideTerms, StateTerms
from support.bounded import bounded
from support.transfer_world import LATENT, Transfer, World

counts = st.integers(0, 2**63 - 1)
rooms = st.integers(1, 2**64 - 1)
names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=60)
sides = st.builds(
    SideTerms,
    page_size=counts,
    ranks=counts,
    rank=counts,
    interleave=counts,
    heads=st.none() | st.tuples(counts, counts, counts),
)
pair_terms = st.builds(PairTerms, counts, st.text(max_size=20), *[counts] * 5, st.booleans())
relayout_terms = st.builds(
    RelayoutTerms,
    version=counts,
    source=sides,
    destination=sides,
    planes=st.lists(pair_terms, max_size=4),
    prefix=counts,
    end=counts,
    owed_bytes=counts,
    mode=st.sampled_from(["in_place", "landing", "none"]),
    region_bytes=counts,
)
grants = st.lists(st.builds(Grant, counts, counts, counts), max_size=3)
state_terms = st.builds(
    StateTerms,
    kind=st.text(max_size=20),
    addresses=st.lists(counts, max_size=3),
    row_bytes=counts,
    row_count=counts,
    ranks=counts,
    rank=counts,
)
pool_terms = st.builds(
    lambda ranks: PoolTerms.of(PoolLayout(4, 8, LATENT, sharding=Sharding(ranks, 0)), (64, 4096)),
    st.integers(1, 8),
)
messages = st.one_of(
    st.builds(
        Hello,
        is_reply_wanted=st.booleans(),
        transport=names,
        description=st.binary(max_size=100),
        write_cost_us=st.floats(0, 1e6),
        pool=pool_terms,
        memory=st.lists(st.tuples(counts, counts), max_size=4),
    ),
    st.builds(Refused, st.text(max_size=100)),
    st.just(Ping()),
    st.just(Pong()),
    st.builds(
        Request,
        room=rooms,
        room_generation=counts,
        source_generation=counts,
        source_index=counts,
        terms=relayout_terms,
        first_position=counts,
        pages=st.binary(max_size=64),
        state=st.lists(state_terms, max_size=2),
        metadata=st.none() | st.tuples(counts, counts),
        grants=grants,
    ),
    st.builds(Want, rooms, counts, counts),
    st.builds(Credit, rooms, counts, grants),
    st.builds(
        Abort, rooms, counts, st.booleans(), st.text(max_size=32), st.text(max_size=99),
        st.booleans(), st.booleans(),
    ),
    st.builds(Drained, rooms, counts, st.booleans()),
)  # fmt: skip
identities = st.builds(Identity, names, names, st.integers(0, 2**64 - 1))


@bounded()
@given(identities, messages)
def test_every_message_survives_the_round_trip(identity: Identity, message: Message) -> None:
    assert decode_frame(encode_frame(identity, message)) == (identity, message)


@bounded()
@given(st.binary(max_size=300))
def test_other_bytes_are_malformed(noise: bytes) -> None:
    for frame in (noise, b"KVXC" + noise, b"KVXC\x01\x00" + noise):
        with pytest.raises(MalformedFrameError):
            decode_frame(frame)


@bounded()
@given(identities, messages, st.data())
def test_a_damaged_frame_is_malformed_or_another_message(
    identity: Identity, message: Message, data: st.DataObject
) -> None:
    frame = bytearray(encode_frame(identity, message))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    with suppress(MalformedFrameError):
        decode_frame(bytes(frame))


@bounded()
@given(identities, messages, st.data())
def test_a_truncated_frame_is_malformed(
    identity: Identity, message: Message, data: st.DataObject
) -> None:
    frame = encode_frame(identity, message)
    with pytest.raises(MalformedFrameError):
        decode_frame(frame[: data.draw(st.integers(0, len(frame) - 1))])


@pytest.mark.parametrize("room", [0, -1, 2**64])
def test_a_room_out_of_range_is_malformed(room: int) -> None:
    body = msgspec.msgpack.Encoder()
    identity = Identity("p0", "mem://p0", 1)
    head = encode_frame(identity, Ping())[: -len(body.encode(Ping()))]
    if room == 2**64:
        raw = body.encode({"type": "want", "room": 1, "room_generation": 1, "grant_count": 0})
        raw = raw.replace(b"room\x01", b"room\xcf" + b"\xff" * 8)
        assert decode_frame(head + raw)[1] == Want(2**64 - 1, 1, 0)
        return
    raw = body.encode({"type": "want", "room": room, "room_generation": 1, "grant_count": 0})
    with pytest.raises(MalformedFrameError):
        decode_frame(head + raw)


def test_pickle_is_not_understood() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, ("raise SystemExit('unpickled')",)

    frame = encode_frame(Identity("p0", "mem://p0", 1), Ping())
    for bomb in (pickle.dumps(Bomb()), frame[:-1] + pickle.dumps(Bomb())):
        with pytest.raises(MalformedFrameError):
            decode_frame(bomb)


def test_an_oversized_frame_is_malformed() -> None:
    with pytest.raises(MalformedFrameError, match=f"expected 15 to {MAX_FRAME_BYTES}"):
        decode_frame(b"KVXC" + bytes(MAX_FRAME_BYTES))


def test_another_protocol_version_names_the_peer() -> None:
    frame = encode_frame(Identity("p0", "mem://p0", 1), Ping(), version=PROTOCOL_VERSION + 1)
    with pytest.raises(ForeignVersionError, match=r"p0 at mem://p0 speaks protocol version 2"):
        decode_frame(frame)


@pytest.mark.parametrize("asked", [True, False])
def test_a_peer_of_another_version_is_refused_by_name_once(asked: bool) -> None:
    world = World()
    rank = world.add("d0")
    stranger = world.hub.create("mem://p9")
    receiver = rank.manager.open_receiver(4, [stranger.address], [1], end=4) if asked else None
    frame = encode_frame(Identity("p9", stranger.address, 1), Ping(), version=9)
    for _ in range(3):
        stranger.send(rank.address, frame)
        world.poll(1)
    answers = [decode_frame(frame)[1] for frame in stranger.receive()]
    refusals = [message for message in answers if isinstance(message, Refused)]
    assert len(refusals) == 1
    assert "version 9, expected 1" in refusals[0].message
    if receiver is not None:
        assert "p9 at mem://p9 speaks protocol version 9" in str(receiver.error)
    good = Transfer(world, [world.add("p0")], [rank], 4)
    good.run()
    good.check_rows()


completions = st.builds(
    Completion,
    room=rooms,
    room_generation=counts,
    source_index=counts,
    segment=counts,
    begin=counts,
    end=counts,
    size_bytes=counts,
    region=st.just(-1) | counts,
    region_generation=counts,
    is_final=st.booleans(),
    is_drained=st.booleans(),
    has_more=st.booleans(),
    state_count=counts,
    state_bytes=counts,
    metadata_bytes=counts,
    state_mark=counts,
    digest=st.text("0123456789abcdef", min_size=16, max_size=16),
    source=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255),
)


@bounded()
@given(completions)
def test_every_completion_survives_the_round_trip(completion: Completion) -> None:
    line = completion.encode()
    assert Completion.decode(line) == completion
    assert len(line) <= 1024
    assert line.isascii()


@bounded()
@given(st.binary(max_size=200))
def test_other_notifications_are_refused(line: bytes) -> None:
    with pytest.raises(BadCompletionError):
        Completion.decode(line)


@bounded(50)
@given(st.lists(st.binary(max_size=60), max_size=5), st.lists(st.binary(max_size=60), max_size=5))
def test_noise_never_stops_a_manager(frames: list[bytes], lines: list[bytes]) -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    for rank in (source, destination):
        world.hub.queues[rank.address].extend(frames)
        rank.transport.inbox.extend(("p0", line) for line in lines)
    transfer = Transfer(world, [source], [destination], 4)
    transfer.run()
    transfer.check_rows()
    assert destination.manager.counters.get("frames_malformed", 0) == len(frames)
    assert destination.manager.counters.get("completions_malformed", 0) == len(lines)


@bounded(100)
@given(messages)
def test_any_valid_message_of_a_stranger_or_a_peer_leaves_other_rooms_alone(
    message: Message,
) -> None:
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4)
    transfer.open()
    world.poll(3)
    identities = [
        Identity("stranger", "mem://stranger", 7),
        Identity("d9", "mem://d9", destination.manager._mailer.identity.generation),
    ]
    for identity in identities:
        for rank in (source, destination):
            world.hub.queues[rank.address].append(encode_frame(identity, message))
    world.poll(2)
    transfer.send(4, is_final=True)
    world.finish(*transfer.rooms)
    transfer.check_rows()


def test_answers_to_strangers_keep_a_bounded_number_of_connections() -> None:
    """Those to peers, and to addresses that the engine named, are kept."""
    world = World()
    source, destination = world.add("p0"), world.add("d0")
    transfer = Transfer(world, [source], [destination], 4)
    destination.manager.connect("mem://named")
    transfer.open()
    world.poll(3)
    strangers = [Identity(f"s{index}", f"mem://s{index}", 7) for index in range(300)]
    for identity in strangers:
        world.hub.queues[destination.address].append(encode_frame(identity, Ping()))
    world.poll()
    asked = [address for address, _ in world.hub.log if address.startswith("mem://s")]
    assert len(asked) == 300
    assert destination.channel.forgotten == asked[: 300 - 256]
    transfer.send(4, is_final=True)
    world.finish(*transfer.rooms)
    transfer.check_rows()
