# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a link makes of writes that Mooncake refuses, on an engine that fails on command."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from kvxfer.transports._library.ledger import Ledger
from kvxfer.transports._mooncake import engine as library
from kvxfer.transports._mooncake import link as link_module
from kvxfer.transports._mooncake.link import MooncakeLink, Route, Window
from kvxfer.transports.protocol import Description, RegionTable, WriteHandle, WriteState

SETTLE_S = 1.0
RUNS = np.array([[100, 900, 8], [200, 800, 8], [300, 700, 8]], dtype=np.int64)


class Engine:
    """Every write runs until the test says how it ended."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, int, int, int]] = []
        self.ended: dict[int, int] = {}

    def submit(self, session: str, source: int, destination: int, size_bytes: int) -> int:
        self.submitted.append((session, source, destination, size_bytes))
        return len(self.submitted)

    def status(self, write_id: int) -> int:
        return self.ended.get(write_id, library.RUNNING)


class Channel:
    """A peer that answers when the test says so."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.is_peer_gone = False
        self.pending_bytes = 0
        self.last_ping = self.last_pong = 0
        self.notified: deque[bytes] = deque()

    def pump(self) -> None:
        pass

    def notify(self, text: bytes) -> None:
        self.notified.append(text)

    def ping(self) -> int:
        self.last_ping += 1
        return self.last_ping


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s


class Rig:
    """A link between the two, and one post of three writes."""

    def __init__(self, clock: Clock) -> None:
        self.engine, self.channel, self.clock = Engine(), Channel(), clock
        engine: Any = self.engine
        channel: Any = self.channel
        target = Description("mooncake", "target", bytes(16), b"", RegionTable("target"))
        route = Route(engine, "host:1", Window(64), SETTLE_S)
        self.link = MooncakeLink(Ledger("sender"), target, route, channel)
        post = self.link.start(RUNS, b"there")
        self.link.ledger.admit(post)
        self.post: WriteHandle = post

    def end(self, **statuses: int) -> WriteState:
        """End writes, named w1, w2, ... in the order of their submission, and poll."""
        self.engine.ended |= {int(name[1:]): status for name, status in statuses.items()}
        self.link.advance()
        return self.state

    @property
    def state(self) -> WriteState:
        state: Any = self.post
        return state.state  # type: ignore[no-any-return]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    clock = Clock()
    monkeypatch.setattr(link_module, "time", clock)
    return Rig(clock)


def test_a29_the_notification_follows_the_last_write_whichever_that_is(rig: Rig) -> None:
    """nixl#252, nixl#688: neither before all writes have ended, nor twice, nor never."""
    assert not rig.channel.notified
    assert rig.end(w3=library.DONE, w2=library.DONE) is WriteState.RUNNING
    assert not rig.channel.notified
    assert rig.end(w1=library.DONE) is WriteState.DONE
    assert rig.end() is WriteState.DONE
    assert list(rig.channel.notified) == [b"there"]


def test_a_refused_write_is_submitted_again_and_the_post_ends_once_the_peer_is_quiet(
    rig: Rig,
) -> None:
    assert rig.end(w1=library.DONE, w2=library.FAILED, w3=library.DONE) is WriteState.RUNNING
    assert rig.engine.submitted[3:] == [("host:1", 200, 800, 8)]
    assert rig.end(w4=library.DONE) is WriteState.RUNNING
    assert not rig.channel.notified, "bytes of the first try may still land"
    rig.channel.last_pong = rig.channel.last_ping
    assert rig.end() is WriteState.RUNNING
    rig.clock.now_s += SETTLE_S
    assert rig.end() is WriteState.DONE
    assert list(rig.channel.notified) == [b"there"]
    assert rig.post.error is None
    assert not rig.link.running_count


def test_a_write_that_is_refused_again_and_again_fails_its_post(rig: Rig) -> None:
    rig.end(w1=library.DONE, w2=library.FAILED, w3=library.DONE)
    assert rig.end(w4=library.FAILED) is WriteState.RUNNING
    assert rig.end(w5=library.FAILED) is WriteState.LOST
    assert len(rig.engine.submitted) == 5
    rig.channel.last_pong = rig.channel.last_ping
    rig.end()
    rig.clock.now_s += SETTLE_S
    assert rig.end() is WriteState.DRAINED
    assert "'target' failed a write: Mooncake's code -1" in str(rig.post.error)
    assert not rig.channel.notified


def test_a_write_that_fails_late_is_not_submitted_again(rig: Rig) -> None:
    """Its connection got stuck: another try would take as long again."""
    rig.clock.now_s += 30.0
    assert rig.end(w1=library.DONE, w2=library.FAILED) is WriteState.LOST
    assert len(rig.engine.submitted) == 3
    assert rig.end(w3=library.DONE) is WriteState.LOST


@pytest.mark.parametrize("how", ["the peer is gone", "the peer was removed"])
def test_nothing_is_submitted_again_to_a_peer_that_cannot_be_reached(rig: Rig, how: str) -> None:
    rig.engine.ended = {1: library.DONE, 2: library.FAILED, 3: library.DONE}
    if how == "the peer is gone":
        rig.channel.error, rig.channel.is_peer_gone = "closed", True
        rig.link.advance()
        assert rig.state is WriteState.FAILED
    else:
        rig.link.retire()
        assert rig.state is WriteState.LOST
    assert len(rig.engine.submitted) == 3
    assert not rig.channel.notified


def test_a_post_that_was_made_up_for_is_lost_with_the_connection(rig: Rig) -> None:
    """Nobody can say any more whether bytes of the first try still land."""
    rig.end(w1=library.DONE, w2=library.FAILED, w3=library.DONE)
    assert rig.end(w4=library.DONE) is WriteState.RUNNING
    rig.channel.error = "reset"
    assert rig.end() is WriteState.LOST
    assert "the connection has ended: reset" in str(rig.post.error)
    rig.channel.is_peer_gone = True
    assert rig.end() is WriteState.DRAINED
    assert not rig.channel.notified


def test_a_post_without_a_failure_ends_without_a_question(rig: Rig) -> None:
    assert rig.end(w1=library.DONE, w2=library.DONE, w3=library.DONE) is WriteState.DONE
    assert list(rig.channel.notified) == [b"there"]
    assert rig.channel.last_ping == 0
