# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The control channel over real sockets of this machine."""

import errno
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from kvxfer import InvalidArgumentError
from kvxfer.transfer import ControlChannel, TransferManager, ZmqChannel
from kvxfer.transfer.messages import MAX_FRAME_BYTES
from support.transfer_world import World

SECRET = b"a secret of enough bytes"


@pytest.fixture
def channel() -> Iterator[Callable[..., ZmqChannel]]:
    """Makes channels and closes them."""
    made: list[ZmqChannel] = []

    def make(*args: str, **options: object) -> ZmqChannel:
        made.append(ZmqChannel(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def exchange(
    sender: ZmqChannel, receiver: ZmqChannel, count: int, until_s: float = 20.0
) -> list[bytes]:
    """Receive a number of messages, driving both ends."""
    got: list[bytes] = []
    deadline = time.monotonic() + until_s
    while len(got) < count and time.monotonic() < deadline:
        sender.receive()
        got += receiver.receive()
        time.sleep(0.001)
    return got


@pytest.mark.parametrize("secret", [None, SECRET])
def test_messages_arrive_in_order(channel: Callable[..., ZmqChannel], secret: bytes | None) -> None:
    one, two = channel(secret=secret), channel(secret=secret)
    assert isinstance(one, ControlChannel)
    messages = [b"%d" % number for number in range(200)]
    assert all(one.send(two.address, message) for message in messages)
    assert exchange(one, two, 200) == messages
    assert two.send(one.address, b"back")
    assert exchange(two, one, 1) == [b"back"]


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_restarted_listener_is_found_again(
    channel: Callable[..., ZmqChannel], secret: bytes | None
) -> None:
    one, two = channel(secret=secret), channel(secret=secret)
    one.send(two.address, b"first")
    assert exchange(one, two, 1) == [b"first"]
    address = two.address
    two.close()
    back = channel(address, secret=secret)
    got: list[bytes] = []
    deadline = time.monotonic() + 20
    while not got and time.monotonic() < deadline:
        one.send(address, b"again")
        got = exchange(one, back, 1, until_s=0.05)
    assert got[0] == b"again"


def test_sockets_of_the_file_system(channel: Callable[..., ZmqChannel], tmp_path: Path) -> None:
    one, two = (channel(f"ipc://{tmp_path}/{name}", secret=SECRET) for name in ("one", "two"))
    assert one.send(two.address, b"hello")
    assert exchange(one, two, 1) == [b"hello"]


def test_it_listens_on_this_machine_alone_unless_told_otherwise(
    channel: Callable[..., ZmqChannel],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert channel().address.startswith("tcp://127.0.0.1:")
        channel("tcp://0.0.0.0:0", advertise="tcp://127.0.0.1", secret=SECRET)
    with pytest.warns(RuntimeWarning, match="without a secret") as caught:
        channel("tcp://0.0.0.0:0", advertise="tcp://127.0.0.1")
    assert len(caught) == 1


def test_a_wildcard_address_is_not_told_to_peers(channel: Callable[..., ZmqChannel]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected advertise to name an address"):
        channel("tcp://0.0.0.0:0", secret=SECRET)
    wide = channel("tcp://0.0.0.0:0", advertise="tcp://127.0.0.1", secret=SECRET)
    peer = channel(secret=SECRET)
    assert peer.send(wide.address, b"hello")
    assert exchange(peer, wide, 1) == [b"hello"]


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:5", "inproc://x", "tcp://nowhere.invalid:0", "tcp://127.0.0.1:x"]
)
def test_bad_addresses_are_refused(channel: Callable[..., ZmqChannel], listen: str) -> None:
    with pytest.raises(InvalidArgumentError, match="listen"):
        channel(listen)


@pytest.mark.parametrize(
    "address", ["", "ipc:///tmp/x", "inproc://x", "tcp://", "tcp://\n", "tcp://" + "h" * 2000]
)
def test_addresses_that_a_peer_may_not_name_take_nothing(
    channel: Callable[..., ZmqChannel], address: str
) -> None:
    assert not channel().send(address, b"x")


def test_a_channel_without_descriptors_takes_nothing(
    channel: Callable[..., ZmqChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    one, other = channel(), channel()
    monkeypatch.setattr(one._context, "socket", refuse)
    assert not one.send(other.address, b"hello")
    monkeypatch.undo()
    assert one.send(other.address, b"hello")


def test_an_oversized_message_is_not_taken(channel: Callable[..., ZmqChannel]) -> None:
    one, two = channel(), channel()
    assert not one.send(two.address, bytes(MAX_FRAME_BYTES + 1))
    assert one.send(two.address, bytes(MAX_FRAME_BYTES))
    assert [len(message) for message in exchange(one, two, 1)] == [MAX_FRAME_BYTES]


@pytest.mark.parametrize("secret", [None, SECRET])
def test_foreign_frames_are_counted_and_later_messages_arrive(
    channel: Callable[..., ZmqChannel], secret: bytes | None
) -> None:
    one, two = channel(secret=secret), channel(secret=secret)
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 1000)
        raw.connect(two.address)
        for frames in ([b"x"], [b"a", b"b", b"c"], [b""], [b"P", b"P"]):
            raw.send_multipart(frames)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert two.receive() == []
            counters = two.counters
            if counters["malformed"] + counters["not_authentic"] == 4:
                break
    assert (counters["malformed"], counters["not_authentic"]) == (2, 2)
    assert one.send(two.address, b"good")
    assert exchange(one, two, 1) == [b"good"]


def test_messages_without_the_secret_are_never_delivered(
    channel: Callable[..., ZmqChannel],
) -> None:
    guarded, open_one = channel(secret=SECRET), channel()
    wrong = channel(secret=b"another secret, also long")
    open_one.send(guarded.address, b"plain")
    wrong.send(guarded.address, b"wrong")
    deadline = time.monotonic() + 20
    while guarded.counters["not_authentic"] == 0 and time.monotonic() < deadline:
        open_one.receive()
        wrong.receive()
        assert guarded.receive() == []
    assert exchange(wrong, guarded, 1, until_s=0.2) == []
    while open_one.send(guarded.address, b"plain") and time.monotonic() < deadline:
        guarded.receive()
    assert not open_one.send(guarded.address, b"plain"), "refused for good"
    assert "do not have the same secret" in open_one.why_refused(guarded.address)


def test_what_is_not_taken_is_explained(channel: Callable[..., ZmqChannel]) -> None:
    one, two = channel(queue_count=1, secret=SECRET), channel(secret=SECRET)
    assert [one.send(two.address, b"x") for _ in range(2)] == [True, False]
    assert "has not proven to have the same secret" in one.why_refused(two.address)
    assert not one.send("ipc:///tmp/x", b"x")
    assert one.why_refused("ipc:///tmp/x") == "it cannot be dialled"


def test_a_manager_says_what_its_channel_says() -> None:
    class Guarded:
        address = "mem://guarded"

        def send(self, address: str, message: bytes) -> bool:
            return False

        def why_refused(self, address: str) -> str:
            return f"no secret for {address}"

        def receive(self) -> list[bytes]:
            return []

        def forget(self, address: str) -> None:
            pass

        def close(self) -> None:
            pass

    world = World()
    rank = world.add("d0")
    pool, transport = rank.manager.pool, world.wire.create("d1")
    manager = TransferManager(pool, transport, Guarded(), rank.manager._options)
    receiver = manager.open_receiver(5, ["mem://p0"], [1, 2], end=8)
    manager.poll()
    manager.poll()
    assert "takes no control messages: no secret for mem://p0" in str(receiver.error)


def test_a_closed_channel_closes_again(channel: Callable[..., ZmqChannel]) -> None:
    one = channel()
    one.close()
    one.close()


def test_forget_drops_what_is_queued(channel: Callable[..., ZmqChannel]) -> None:
    one, two = channel(queue_count=3, secret=SECRET), channel(secret=SECRET)
    taken = [one.send(two.address, b"%d" % number) for number in range(5)]
    assert taken == [True, True, True, False, False]
    one.forget(two.address)
    one.forget("tcp://127.0.0.1:1")
    assert one.send(two.address, b"new")
    assert exchange(one, two, 1) == [b"new"]
