# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a loopback target does with writers that do not keep to the protocol: drops them alone."""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.transports import loopback
from kvxfer.transports._loopback.memfd import ReceivedArea
from kvxfer.transports._loopback.messages import (
    MAX_DATA_ENTRIES,
    MAX_PACKET_BYTES,
    VERSION,
    Ack,
    Area,
    Data,
    Hello,
    Message,
    Notify,
    PacketError,
    Refuse,
    Welcome,
    decode,
)
from kvxfer.transports._loopback.outbound import decode_payload, encode_payload
from kvxfer.transports.loopback import LoopbackTransport
from kvxfer.transports.protocol import Description, DescriptionError
from support.transport_cases import Memory, receive, settle

GOOD_HELLO = Hello(VERSION, bytes(16), "writer")


class HostileWriter:
    """A bare socket at a target, with nothing that checks what is sent."""

    def __init__(self, target: LoopbackTransport) -> None:
        self.target = target
        found = Description.decode(target.describe(), "loopback")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(0.0)
        self.socket.connect(b"\0" + decode_payload(found.payload)[0].encode())

    def send(self, message: Message | bytes, *fds: int) -> None:
        packet = message if isinstance(message, bytes) else message.encode()
        socket.send_fds(self.socket, [packet], list(fds))

    def answers(self) -> list[Message]:
        """Let the target work and return what it says; ends with None where it has hung up."""
        for _ in range(5):
            self.target.drain_notifications()
        found: list[Message] = []
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self.socket, MAX_PACKET_BYTES, 4)
            except (BlockingIOError, ConnectionResetError):
                return found
            for fd in fds:
                os.close(fd)
            if not packet:
                return found
            found.append(decode(packet))

    def area(self, slot_bytes: int = 64, *, seals: int | None = None) -> int:
        """Announce two slots of a memfd; returns its descriptor."""
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.write(fd, bytes(range(128)))
        default = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, default if seals is None else seals)
        self.send(Area(2, slot_bytes), fd)
        return fd


@pytest.fixture
def target() -> Iterator[tuple[LoopbackTransport, Memory]]:
    agent, memory = loopback.create("target"), Memory(128)
    agent.register_memory(memory.address, 128)
    yield agent, memory
    assert memory.guards_are_untouched()
    agent.close()


@pytest.fixture
def writer(target: tuple[LoopbackTransport, Memory]) -> Iterator[HostileWriter]:
    writer = HostileWriter(target[0])
    yield writer
    writer.socket.close()


def expect_rejected(writer: HostileWriter, words: str) -> None:
    """The writer is told why, then hung up on; an honest one still gets through."""
    refusal = writer.answers()[-1]
    assert isinstance(refusal, Refuse)
    assert words in refusal.reason
    assert writer.target.counters["rejected_peers"] == 1
    honest = loopback.create("honest")
    peer = honest.add_peer(writer.target.describe())
    handle = honest.post(peer, np.empty((0, 3), dtype=np.int64), b"hello")
    heard = settle(honest, [handle], [writer.target])
    heard += receive(writer.target, 1 - len(heard), [honest])
    assert heard == [("honest", b"hello")]
    honest.close()


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"Z", "packet"),
        (b"H", "packet"),
        (b"\0" * 64, "packet"),
        (b"H" + struct.pack("<H16s", VERSION, b""), "agent name"),
        (b"H" + struct.pack("<H16s", VERSION, b"") + b"\xff", "packet"),
        (Welcome().encode(), "Welcome is out of place"),
        (Ack(0, "").encode(), "Ack is out of place"),
        (Notify(b"before hello").encode(), "Notify is out of place"),
        (Data(0, 0, np.array([[4096, 1]])).encode(), "Data is out of place"),
        (b"N" * (MAX_PACKET_BYTES + 1), "longer than"),
    ],
)
def test_a_bad_first_packet_is_rejected(writer: HostileWriter, packet: bytes, words: str) -> None:
    writer.send(packet)
    expect_rejected(writer, words)


def test_another_version_is_refused_by_number(writer: HostileWriter) -> None:
    writer.send(Hello(VERSION + 1, bytes(16), "writer"))
    expect_rejected(writer, f"version {VERSION + 1}, expected {VERSION}")


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (GOOD_HELLO.encode(), "Hello is out of place"),
        (Data(0, 0, np.array([[4096, 1]])).encode(), "Data is out of place"),
        (Area(2, 64).encode(), "Area is out of place"),
        (b"N", "ASCII"),
        (b"N\xff", "ASCII"),
        (b"N" * 1026, "ASCII"),
    ],
)
def test_a_bad_later_packet_is_rejected(writer: HostileWriter, packet: bytes, words: str) -> None:
    writer.send(GOOD_HELLO)
    writer.send(packet)
    expect_rejected(writer, words)


def test_notifications_before_the_fault_are_kept(writer: HostileWriter) -> None:
    writer.send(GOOD_HELLO)
    writer.send(Notify(b"good"))
    writer.send(b"Z")
    assert receive(writer.target, 1) == [("writer", b"good")]
    expect_rejected(writer, "packet")


def test_notifications_of_a_writer_that_read_nothing_are_kept(writer: HostileWriter) -> None:
    writer.send(GOOD_HELLO)
    writer.target.drain_notifications()
    writer.send(Notify(b"last"))
    writer.socket.close()
    assert receive(writer.target, 1) == [("writer", b"last")]
    assert writer.target.counters["rejected_peers"] == 0


def test_an_area_that_could_shrink_is_rejected(writer: HostileWriter) -> None:
    writer.send(GOOD_HELLO)
    os.close(writer.area(seals=fcntl.F_SEAL_GROW))
    expect_rejected(writer, "not sealed")


@pytest.mark.parametrize("slot_bytes", [0, -64, 63, 65, 1 << 40])
def test_an_area_of_another_size_is_rejected(writer: HostileWriter, slot_bytes: int) -> None:
    writer.send(GOOD_HELLO)
    os.close(writer.area(slot_bytes))
    expect_rejected(writer, "expected" if slot_bytes in (63, 65) else "is not 1 to")


def test_an_area_that_is_no_memory_is_rejected(writer: HostileWriter) -> None:
    writer.send(GOOD_HELLO)
    fd = os.open("/dev/null", os.O_RDWR)
    writer.send(Area(2, 64), fd)
    os.close(fd)
    expect_rejected(writer, "memfd")


@pytest.mark.parametrize(
    ("slot", "sizes_bytes"), [(2, [8]), (1 << 31, [8]), (0, [65]), (0, [33, 32])]
)
def test_a_chunk_outside_its_slot_is_rejected(
    writer: HostileWriter,
    target: tuple[LoopbackTransport, Memory],
    slot: int,
    sizes_bytes: list[int],
) -> None:
    writer.send(GOOD_HELLO)
    os.close(writer.area())
    entries = np.array([[target[1].address, size] for size in sizes_bytes], dtype=np.int64)
    writer.send(Data(0, slot, entries))
    expect_rejected(writer, "chunk of")
    assert target[1].is_untouched()


@pytest.mark.parametrize(
    ("offset", "size_bytes"),
    [(-1, 4), (125, 4), (128, 1), (0, 0), (0, -1), (64, -64), (0, 2**63 - 1), (64, 2**63 - 64)],
)
def test_a_chunk_outside_the_regions_is_answered_and_not_copied(
    writer: HostileWriter,
    target: tuple[LoopbackTransport, Memory],
    offset: int,
    size_bytes: int,
) -> None:
    writer.send(GOOD_HELLO)
    os.close(writer.area())
    good = [target[1].address, 8]
    bad = [target[1].address + offset, size_bytes]
    writer.send(Data(7, 0, np.array([good, bad], dtype=np.int64)))
    answer = writer.answers()[-1]
    assert isinstance(answer, Ack)
    assert answer.chunk == 7
    assert "is not inside one region" in answer.reason
    assert target[1].is_untouched()


def test_a_good_chunk_is_copied_and_answered(
    writer: HostileWriter, target: tuple[LoopbackTransport, Memory]
) -> None:
    writer.send(GOOD_HELLO)
    os.close(writer.area())
    entries = np.array([[target[1].address + 3, 5], [target[1].address, 2]], dtype=np.int64)
    writer.send(Data(7, 1, entries))
    assert writer.answers() == [Welcome(), Ack(7, "")]
    assert target[1].bytes[:8].tolist() == [69, 70, 0xA5, 64, 65, 66, 67, 68]


def test_descriptors_nobody_asked_for_are_closed(writer: HostileWriter) -> None:
    writer.send(GOOD_HELLO)
    writer.answers()
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is needed
    read_end, write_end = os.pipe()
    writer.send(Notify(b"x"), read_end, write_end)
    assert receive(writer.target, 1) == [("writer", b"x")]
    os.close(read_end)
    os.close(write_end)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# --- packets and payloads -----------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_no_bytes_make_decode_raise_anything_else(packet: bytes) -> None:
    with contextlib.suppress(PacketError):
        decode(packet)


@given(st.sampled_from(b"HWRMDAN"), st.binary(max_size=200))
def test_what_decodes_encodes_to_the_same_meaning(kind: int, body: bytes) -> None:
    try:
        message = decode(bytes([kind]) + body)
    except PacketError:
        return
    again = decode(message.encode())
    if isinstance(message, Data):
        assert isinstance(again, Data)
        assert (again.chunk, again.slot) == (message.chunk, message.slot)
        assert (again.entries == message.entries).all()
    else:
        assert again == message


def test_the_longest_data_fits_into_a_packet() -> None:
    longest = Data(2**64 - 1, 2**32 - 1, np.full((MAX_DATA_ENTRIES, 2), -1, dtype=np.int64))
    assert len(longest.encode()) <= MAX_PACKET_BYTES
    with pytest.raises(PacketError, match="entries"):
        decode(longest.encode() + bytes(16))


@pytest.mark.parametrize(
    "payload", [b"", b"1234567", bytes(8), bytes(8) + b"\n", bytes(8) + b"\xff"]
)
def test_a_bad_payload_is_no_description(payload: bytes) -> None:
    with pytest.raises(DescriptionError, match="loopback payload"):
        decode_payload(payload)


def test_a_payload_comes_back() -> None:
    assert decode_payload(encode_payload("kvxfer-1", 2**46)) == ("kvxfer-1", 2**46)


def test_a_refused_area_closes_its_descriptor() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(PacketError):
        ReceivedArea(Area(1, 1), fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
