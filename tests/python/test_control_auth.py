# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Authentication of control connections, frame by frame and without a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer import InvalidArgumentError
from kvxfer.transfer.channel_auth import Dialer, DialerState, Listener, checked_secret
from support.bounded import bounded

SECRET = b"a secret of enough bytes"


class Connection:
    """A dialer and a listener, and every frame that the dialer sent."""

    def __init__(
        self, dialer_secret: bytes | None = SECRET, listener_secret: bytes | None = SECRET
    ) -> None:
        self.dialer = Dialer(dialer_secret)
        self.listener = Listener(listener_secret, 4)
        self.sent: list[bytes] = []
        self.got: list[bytes] = []
        self.shake()

    def shake(self) -> None:
        hello = self.dialer.begin()
        if hello is not None:
            self.pass_on(hello)

    def pass_on(self, frame: bytes, connection: bytes = b"one") -> None:
        self.sent.append(frame)
        reply, message = self.listener.take(connection, frame)
        if message is not None:
            self.got.append(message)
        if reply is not None:
            back = self.dialer.take(reply)
            if back is not None:
                self.pass_on(back, connection)

    def send(self, message: bytes) -> None:
        self.pass_on(self.dialer.seal(message))


@bounded()
@given(st.lists(st.binary(max_size=50)))
def test_messages_arrive_in_order(messages: list[bytes]) -> None:
    connection = Connection()
    for message in messages:
        connection.send(message)
    assert connection.got == messages
    assert connection.listener.refused_count == 0


def test_a_repeat_is_refused() -> None:
    connection = Connection()
    connection.send(b"pay")
    connection.pass_on(connection.sent[-1])
    assert connection.got == [b"pay"]
    assert connection.listener.refused_count == 1


def test_an_older_message_is_refused() -> None:
    connection = Connection()
    first, second = connection.dialer.seal(b"1"), connection.dialer.seal(b"2")
    connection.pass_on(second)
    connection.pass_on(first)
    assert connection.got == [b"2"]


@bounded()
@given(st.binary(min_size=1, max_size=60), st.data())
def test_an_altered_message_is_refused(message: bytes, data: st.DataObject) -> None:
    connection = Connection()
    frame = bytearray(connection.dialer.seal(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    connection.pass_on(bytes(frame))
    assert connection.got == []


def test_what_was_recorded_means_nothing_to_another_listener() -> None:
    connection = Connection()
    connection.send(b"pay")
    restarted = Listener(SECRET, 4)
    for frame in connection.sent:
        assert restarted.take(b"one", frame)[1] is None


def test_what_was_recorded_means_nothing_on_another_connection() -> None:
    connection = Connection()
    connection.send(b"pay")
    for frame in list(connection.sent):
        connection.pass_on(frame, b"two")
    assert connection.got == [b"pay"]


def test_a_forged_hello_does_not_end_a_session() -> None:
    connection = Connection()
    connection.listener.take(b"one", b"H" + bytes(32))
    connection.send(b"still here")
    assert connection.got == [b"still here"]


def test_a_dialer_begins_again_with_a_listener_that_was_restarted() -> None:
    connection = Connection()
    connection.send(b"1")
    connection.listener = Listener(SECRET, 4)
    connection.send(b"lost")
    connection.send(b"2")
    assert connection.got == [b"1", b"2"]


def test_the_connection_that_was_silent_longest_gives_way() -> None:
    listener, dialers = Listener(SECRET, 4), [Dialer(SECRET) for _ in range(5)]
    for index, dialer in enumerate(dialers):
        hello = dialer.begin()
        assert hello is not None
        reply, _ = listener.take(b"%d" % index, hello)
        assert reply is not None
        dialer.take(reply)
    assert listener.take(b"4", dialers[4].seal(b"new"))[1] == b"new"
    assert listener.take(b"0", dialers[0].seal(b"old"))[1] is None


@pytest.mark.parametrize("other", [b"another secret, also long", None])
def test_a_listener_with_another_secret_or_none_gets_nothing(other: bytes | None) -> None:
    connection = Connection(SECRET, other)
    expected = DialerState.REFUSED if other is None else DialerState.WAITING
    assert connection.dialer.state is expected
    assert connection.got == []


def test_a_listener_with_a_secret_refuses_plain_messages() -> None:
    connection = Connection(None, SECRET)
    connection.send(b"let me in")
    assert connection.got == []
    assert connection.dialer.state is DialerState.REFUSED


def test_an_impostor_cannot_answer_for_the_listener() -> None:
    dialer = Dialer(SECRET)
    dialer.begin()
    dialer.take(b"C" + bytes(64))
    assert dialer.state is DialerState.WAITING


@bounded()
@given(st.binary(max_size=120))
def test_noise_is_refused(noise: bytes) -> None:
    connection = Connection()
    for frame in (noise, b"D" + noise, b"H" + noise, b"P" + noise):
        connection.listener.take(b"one", frame)
        connection.dialer.take(frame)
    connection.dialer.take(b"C" + noise)
    assert connection.got == []


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="secret has 5 bytes, expected at least 16"):
        checked_secret(b"short")
