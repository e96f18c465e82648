# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What two Mooncake agents tell each other beside Mooncake itself: frames and payloads."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from kvxfer.transports._mooncake.frames import (
    FrameError,
    FrameSocket,
    Hello,
    Notify,
    Ping,
    Pong,
    decode,
)
from kvxfer.transports._mooncake.mailbox import Mailbox
from kvxfer.transports._mooncake.payload import MooncakePayload
from kvxfer.transports.protocol import (
    MAX_NOTIFICATION_BYTES,
    Description,
    DescriptionError,
    RegionTable,
)

GENERATION = b"g" * 16


def frame(body: bytes) -> bytes:
    return struct.pack("<H", len(body)) + body


HELLO = Hello(GENERATION, "writer")
GREETED = frame(HELLO.encode())
UNHEARD = frame(Notify(b"never").encode())
STRANGE_BYTES = {
    "nothing": b"",
    "empty frame": GREETED + frame(b""),
    "unknown letter": GREETED + frame(b"Z"),
    "frame too long": GREETED + frame(b"N" * (MAX_NOTIFICATION_BYTES + 2)),
    "notification before hello": frame(Notify(b"x").encode()),
    "ping before hello": frame(Ping(1).encode()),
    "hello for another generation": frame(Hello(b"x" * 16, "writer").encode()),
    "hello of another version": frame(b"H\x63\x00" + GENERATION + b"writer"),
    "hello without a name": frame(b"H\x01\x00" + GENERATION),
    "hello with a bad name": frame(b"H\x01\x00" + GENERATION + b"a\nb"),
    "hello with a foreign name": frame(b"H\x01\x00" + GENERATION + b"\xff"),
    "hello cut": frame(b"H\x01"),
    "hello twice": 2 * GREETED,
    "empty notification": GREETED + frame(b"N"),
    "foreign notification": GREETED + frame(b"N\xff"),
    "ping cut": GREETED + frame(b"P\x01"),
}


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox("127.0.0.1", GENERATION)
    yield mailbox
    mailbox.close()


def read_end(connected: socket.socket, mailbox: Mailbox) -> bytes:
    """What a mailbox sends until it ends the connection."""
    connected.settimeout(0.01)
    received = b""
    for _ in range(1000):
        assert mailbox.receive() == []
        try:
            chunk = connected.recv(4096)
        except TimeoutError:
            continue
        except ConnectionResetError:
            return received
        if not chunk:
            return received
        received += chunk
    raise TimeoutError("the mailbox has not ended the connection")


@pytest.mark.parametrize("sent", STRANGE_BYTES.values(), ids=STRANGE_BYTES.keys())
def test_a_stranger_is_cut_off_and_others_are_heard(mailbox: Mailbox, sent: bytes) -> None:
    address = ("127.0.0.1", mailbox.port)
    heard_here: list[tuple[str, bytes]] = []
    pongs: list[object] = []
    with (
        socket.create_connection(address) as stranger,
        closing(FrameSocket(socket.create_connection(address))) as good,
    ):
        stranger.sendall(sent + UNHEARD if sent else sent)
        stranger.shutdown(socket.SHUT_WR)
        assert read_end(stranger, mailbox) == b""
        for sent_frame in (HELLO, Notify(b"good"), Ping(7)):
            good.send(sent_frame)
        good.flush()
        for _ in range(1000):
            heard_here += mailbox.receive()
            pongs += good.receive()
            if pongs:
                break
            time.sleep(0.001)
    assert heard_here == [("writer", b"good")]
    assert pongs == [Pong(7)]


def test_frames_may_come_in_single_bytes(mailbox: Mailbox) -> None:
    sent = frame(HELLO.encode()) + frame(Notify(b"a").encode()) + frame(Notify(b"b" * 99).encode())
    heard_here: list[tuple[str, bytes]] = []
    with socket.create_connection(("127.0.0.1", mailbox.port)) as writer:
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(sent)):
            writer.sendall(sent[number : number + 1])
            heard_here += mailbox.receive()
        for _ in range(1000):
            if len(heard_here) == 2:
                break
            heard_here += mailbox.receive()
            time.sleep(0.001)
    assert heard_here == [("writer", b"a"), ("writer", b"b" * 99)]


@pytest.mark.parametrize("sent", [HELLO, Notify(b"text"), Ping(0), Pong(2**64 - 1)])
def test_a_frame_is_what_was_encoded(sent: Hello | Notify | Ping | Pong) -> None:
    assert decode(sent.encode()) == sent
    with pytest.raises(FrameError):
        decode(b"")


def described(payload: bytes) -> Description:
    return Description("mooncake", "x", GENERATION, payload, RegionTable("x"))


def test_a_payload_names_a_host_and_two_ports() -> None:
    good = MooncakePayload("10.0.0.1", 15001, 40000)
    assert MooncakePayload.decode(described(good.encode())) == good
    for bad in (
        b"",
        b"\1\0\1",
        b"\1\0\1\0",
        b"\0\0\1\0host",
        b"\1\0\0\0host",
        b"\1\0\1\0" + b"h" * 256,
        b"\1\0\1\0host:1",
        b"\1\0\1\0a\nb",
        b"\1\0\1\0\xff",
    ):
        with pytest.raises(DescriptionError, match="description of 'x'"):
            MooncakePayload.decode(described(bad))
