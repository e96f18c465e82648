# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""How a scheduler's sends are bounded: which requests, by how much, and cut where."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError, PackBufferLayout, PackPlan, PageTable, Plane, PlaneKind
from kvxfer.adapters import RequestSender
from kvxfer.transfer import RoomState
from kvxfer.transfer.copies import HostCopies
from support.adapter_world import Job, Site, Worker, wait_until

ONE_PLANE = [Plane(0, PlaneKind.LATENT, 2)]
# Pages of 64 tokens and buffers of 256, the shape of the published vectors.
PUBLISHED = {"page_size": 64, "page_count": 64, "planes": ONE_PLANE, "pack_tokens": 256}


class Recorder(HostCopies):
    """Packs as usual and keeps what it was asked for."""

    def __init__(self) -> None:
        self.packs: list[tuple[PackBufferLayout, PackPlan, int]] = []

    def pack(self, layout: PackBufferLayout, plan: PackPlan, table: PageTable, buffer: Any) -> None:
        self.packs.append((layout, plan, buffer.nbytes))
        super().pack(layout, plan, table, buffer)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as made:
        yield made
        made.check_idle()


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Every send of the test: pages, tokens, and whether state came with it."""
    made: list[tuple[int, int, bool]] = []
    real = RequestSender.send

    def send(self: RequestSender, pages: Any, token_count: int, **fields: Any) -> None:
        made.append((len(pages), token_count, fields.get("state_items") is not None))
        real(self, pages, token_count, **fields)

    monkeypatch.setattr(RequestSender, "send", send)
    return made


def tokens_of(sends: list[tuple[int, int, bool]]) -> list[int]:
    return [token_count for _, token_count, _ in sends]


def test_a09_a_peer_that_needs_relayout_gets_bounded_sends(
    site: Site, sends: list[tuple[int, int, bool]]
) -> None:
    """sglang PR #40376. Fails where the limit is not published."""
    source = site.add("p", **PUBLISHED)
    job = Job([source], site.group("d", 4, **PUBLISHED), 2055, item=2).open()
    assert job.senders[0].get_max_transfer_tokens() == 256
    job.send(2055, is_final=True)
    job.wait().check()
    assert tokens_of(sends) == [256] * 8 + [7]
    assert [has_state for _, _, has_state in sends] == [False] * 8 + [True]
    assert job.senders[0].send_count == 9
    metrics = job.senders[0].transfer_metrics
    assert metrics.writes - metrics.packed_writes == 4 * 3, "state and metadata alone go unpacked"


def test_a09_a_plain_peer_of_the_same_manager_gets_one_send(
    site: Site, sends: list[tuple[int, int, bool]]
) -> None:
    """sglang PR #40376. Fails where the limit is published for every peer of the manager."""
    source = site.add("p", **PUBLISHED)
    plain, sharded = site.add("x", **PUBLISHED), site.group("y", 4, **PUBLISHED)
    to_sharded = Job([source], sharded, 2055, room=1).open()
    to_plain = Job([source], [plain], 2055, room=2).open()
    assert to_sharded.senders[0].get_max_transfer_tokens() == 256
    assert to_plain.senders[0].get_max_transfer_tokens() is None
    to_plain.send(2055, is_final=True)
    to_plain.wait().check()
    assert tokens_of(sends) == [2055]
    assert to_plain.senders[0].transfer_metrics.segments == 1
    to_sharded.send(2055, is_final=True)
    to_sharded.wait().check()
    assert to_sharded.senders[0].send_count == 9


def test_a09_one_send_beyond_the_capacity_is_packed_inside_its_regions(site: Site) -> None:
    """sglang PR #40376, through a sender's own ``send``: no helper cuts before it.

    Fails where the capacity of the regions is not passed to the pack.
    """
    copies = Recorder()
    source = site.add("p", copies=copies, **PUBLISHED)
    job = Job([source], site.group("d", 4, **PUBLISHED), 2055).open()
    sender = job.senders[0]
    sender.send(job.source_pages[0].ids, 2055)
    job.wait().check()
    assert sender.send_count == 1
    assert [(p.segment.begin, p.segment.end) for _, p, _ in copies.packs] == [
        (begin, min(begin + 256, 2055)) for begin in range(0, 2055, 256)
    ]
    for layout, plan, buffer_bytes in copies.packs:
        assert layout.capacity_tokens == 256
        assert layout.bytes <= buffer_bytes
        for region in plan.regions:
            assert region.offset_bytes == region.index * layout.region_bytes
            assert region.bytes <= layout.region_bytes


def test_a09_the_limit_is_that_of_the_requests_own_peers(site: Site) -> None:
    """sglang PR #40376: one buffer of 20 rows, peers of four shapes, all at once."""
    source = site.add("p", planes=ONE_PLANE, pack_buffer_bytes=40)
    jobs = {
        name: Job([source], workers, 21, room=room).open()
        for room, (name, workers) in enumerate(
            {
                "plain": [site.add("x", planes=ONE_PLANE)],
                "two": site.group("y", 2, planes=ONE_PLANE),
                "three": site.group("z", 3, planes=ONE_PLANE),
                "two in fours": site.group("w", 2, 4, planes=ONE_PLANE),
            }.items(),
            start=1,
        )
    }
    limits = {name: job.senders[0].get_max_transfer_tokens() for name, job in jobs.items()}
    # 10 rows for each of two ranks, 6 for each of three; of 20 tokens in fours one gets 12.
    assert limits == {"plain": None, "two": 20, "three": 16, "two in fours": 16}
    for job in jobs.values():
        job.send(21, is_final=True)
    for job in jobs.values():
        job.wait().check()
    assert {name: job.senders[0].send_count for name, job in jobs.items()} == {
        "plain": 1, "two": 2, "three": 2, "two in fours": 2,
    }  # fmt: skip


def test_a09_a_token_budget_is_rounded_up_to_whole_pages(site: Site) -> None:
    """sglang PR #40376: a budget of 10 tokens at page size 4 bounds sends to 12."""
    source = site.add("p", pack_tokens=10)
    job = Job([source], site.group("d", 2), 21).run()
    job.check()
    assert job.senders[0].send_count == 2


@pytest.mark.parametrize(
    ("prefix", "ends", "expected"),
    [
        (0, [2055], [256] * 8 + [7]),
        (256, [2055], [256] * 7 + [7]),
        (0, [1000, 1031], [256, 256, 256, 192, 64, 7]),
        (256, [256], [0]),
        (0, [63], [63]),
        (0, [256, 257], [256, 1]),
        (0, [100, 120, 513], [64, 192, 256, 1]),
    ],
)
def test_sends_are_cut_on_the_grid_of_the_prefix(
    site: Site, sends: list[tuple[int, int, bool]], prefix: int, ends: list[int],
    expected: list[int],
) -> None:  # fmt: skip
    source = site.add("p", **PUBLISHED)
    job = Job([source], site.group("d", 4, **PUBLISHED), ends[-1], prefix=prefix, item=1)
    job.run(*ends[:-1]).check()
    assert tokens_of(sends) == expected
    assert [has_state for _, _, has_state in sends] == [False] * (len(expected) - 1) + [True]
    page_counts = [page_count for page_count, _, _ in sends]
    assert page_counts == [-(-token_count // 64) for token_count in expected]


@pytest.mark.parametrize(
    ("cached", "unique", "counts"), [(83_264, 6_720, (11, 1)), (163_840, 6_720, (20, 1))]
)
def test_the_published_requests_take_the_published_number_of_sends(
    site: Site, cached: int, unique: int, counts: tuple[int, int]
) -> None:
    """sglang PR #40376: a cached prefix early, the rest when it is computed; 8,192 tokens a send.

    83,264 is a whole number of pages, but not of sends: its last one is short.
    """
    shape: dict[str, Any] = {"page_size": 64, "page_count": 2700, "planes": ONE_PLANE}
    source = site.add("p", pack_tokens=8192, **shape)
    destinations = site.group("d", 4, pack_tokens=8192, **shape)
    job = Job([source], destinations, cached + unique).open()
    job.send(cached, is_final=False)
    assert job.senders[0].send_count == counts[0]
    job.send(cached + unique, is_final=True)
    job.wait()
    assert job.states == [RoomState.SUCCESS] * 5
    assert job.senders[0].send_count == sum(counts)
    assert job.senders[0].transfer_metrics.bytes == 2 * (cached + unique)


def test_a_send_that_fills_no_page_waits_for_the_next(
    site: Site, sends: list[tuple[int, int, bool]]
) -> None:
    source, destinations = site.add("p"), site.group("d", 2)
    job = Job([source], destinations, 9).open()
    pages = job.source_pages[0].ids
    assert job.senders[0].send_bounded(pages[:1], 3, is_final=False) == 0
    assert sends == []
    assert job.senders[0].send_bounded(pages[:2], 5, is_final=False) == 4
    assert job.senders[0].send_bounded(pages[1:], 9, is_final=True) == 9
    job.wait().check()
    assert tokens_of(sends) == [4, 4, 1]


def test_a_sharded_source_is_cut_at_its_whole_pages(
    site: Site, sends: list[tuple[int, int, bool]]
) -> None:
    """Two source ranks: a page of each holds 8 tokens between them."""
    sources, destination = site.group("p", 2), site.add("d")
    Job(sources, [destination], 21).run(13).check()
    assert sorted(sends) == sorted([(1, 8, False), (1, 8, False), (1, 5, False)] * 2)


def test_a_send_waits_for_its_event(site: Site) -> None:
    class Event:
        is_set, asked_count = False, 0

        def query(self) -> bool:
            self.asked_count += 1
            return self.is_set

    source, destinations, event = site.add("p"), site.group("d", 2), Event()
    job = Job([source], destinations, 21).open()
    rows = [array.copy() for array in source.arrays]
    for array in source.arrays:
        array[:] = 0
    job.send(21, is_final=True, ready=event)
    wait_until(lambda: event.asked_count > 3)
    assert job.senders[0].pages_held
    for array, content in zip(source.arrays, rows, strict=True):
        array[:] = content
    event.is_set = True
    job.wait().check()


class Misuse:
    """A request that waits for input, and what a scheduler may get wrong."""

    def __init__(self, site: Site) -> None:
        self.source: Worker = site.add("p")
        self.job = Job([self.source], site.group("d", 2), 21).open()
        self.sender = self.job.senders[0]
        self.pages = np.array(self.job.source_pages[0].ids)


@pytest.fixture
def misuse(site: Site) -> Iterator[Misuse]:
    made = Misuse(site)
    yield made
    # Nothing that was refused has changed anything.
    made.sender.send(made.pages[made.sender.next_position // 4 :], 21 - made.sender.next_position)
    made.job.wait().check()


@pytest.mark.parametrize(
    ("page_count", "token_count", "words"),
    [
        (2, 9, "2 pages for 9 tokens, expected 3"),
        (3, 8, "3 pages for 8 tokens, expected 2"),
        (2, 7, "7 tokens in a send that is not final, expected a multiple of 4"),
        (1, -1, "1 pages for -1 tokens, expected 0"),
    ],
)
def test_pages_and_tokens_must_fit(
    misuse: Misuse, page_count: int, token_count: int, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        misuse.sender.send(misuse.pages[:page_count], token_count)


def test_more_pages_than_were_told_are_refused(misuse: Misuse) -> None:
    misuse.sender.send(misuse.pages[:2], 8)
    with pytest.raises(InvalidArgumentError, match="7 pages sent, expected 6 as told to init"):
        misuse.sender.send(misuse.pages[:5], 20)


def test_a_page_that_the_pool_does_not_have_is_refused(misuse: Misuse) -> None:
    with pytest.raises(InvalidArgumentError, match="64"):
        misuse.sender.send([64], 4)


@pytest.mark.parametrize(("end", "is_final"), [(21, False), (20, True), (8, True)])
def test_the_last_page_and_the_end_go_together(misuse: Misuse, end: int, is_final: bool) -> None:
    if (end, is_final) == (21, False):
        assert misuse.sender.send_bounded(misuse.pages, end, is_final=is_final) == 20
        return
    with pytest.raises(InvalidArgumentError, match=r"of 6 pages sent with a send that is final"):
        misuse.sender.send_bounded(misuse.pages, end, is_final=is_final)


def test_init_comes_before_the_first_send(misuse: Misuse) -> None:
    misuse.sender.send(misuse.pages[:1], 4)
    with pytest.raises(InvalidArgumentError, match="init comes before the first send"):
        misuse.sender.init(6)


def test_a_send_before_the_receivers_asked_is_refused(site: Site) -> None:
    sender = RequestSender(site.add("p").manager, 3)
    sender.init(1)
    assert sender.get_max_transfer_tokens() is None
    with pytest.raises(InvalidArgumentError, match="state BOOTSTRAPPING"):
        sender.send([1], 4)
    sender.clear()
    assert sender.poll() is RoomState.FAILED
    sender.send([1], 4)
    assert sender.send_count == 0
