# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Values of the core: immutable, compared by what they hold, printed so that people can read them.

And what each constructor and function refuses, with the expected and the given value in its
message.
"""

import enum
from collections.abc import Callable
from typing import Any

import pytest

from kvxfer import (
    CapacityError,
    Error,
    HeadSharding,
    InvalidArgumentError,
    PackBufferLayout,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    Sharding,
    UnsupportedError,
    copy_rows,
    direct_writes,
    landing_write,
    memory_view,
    packed_writes,
    split_segments,
    unpack_rows,
)

LATENT = Plane(3, PlaneKind.LATENT, 576)
PREFILL = PoolLayout(64, 200, [LATENT])
DECODE = [PoolLayout(64, 200, [LATENT], sharding=Sharding(4, rank)) for rank in range(4)]
RELAYOUTS = [Relayout(PREFILL, rank) for rank in DECODE]
BUFFER = PackBufferLayout(RELAYOUTS, 256)
SEGMENT = Segment(0, 256, True)
PLAN = BUFFER.plan(SEGMENT)
TABLE = PageTable(PREFILL, [5, 2, 11, 4], plane_addresses=[1 << 40])
TARGET = PageTable(DECODE[1], [7], plane_addresses=[1 << 41])
WRITES = packed_writes(RELAYOUTS[1], [SEGMENT], 0, TARGET)

VALUES = {
    "HeadSharding(total_heads=4, ranks=8, rank=5)": HeadSharding(4, 8, 5),
    "MemoryView(address=": memory_view(bytearray(3)),
    "PackBufferLayout(<4 relayouts>, capacity_tokens=256, bytes=147456)": BUFFER,
    "PackPlan([0, 256), 4 regions)": PLAN,
    "PackRegion(index=1, offset_bytes=36864, bytes=36864, row_count=64)": PLAN.regions[1],
    "PageTable(<4 pages>, positions [0, 256))": TABLE,
    "Plane(layer=3, kind=latent, row_bytes=576": LATENT,
    "PlanePair(source_plane=0, destination_plane=0": RELAYOUTS[0].planes[0],
    "PoolLayout(page_size=64, page_count=200, planes=<1 planes>, rank 1 of 4": DECODE[1],
    "Relayout(rank 0 of 1 -> rank 1 of 4, 1 planes)": RELAYOUTS[1],
    "Segment(begin=0, end=256, is_final=True)": SEGMENT,
    "Sharding(ranks=4, rank=1, interleave=2)": Sharding(4, 1, 2),
    "WriteList(<1 runs>, 36864 bytes)": WRITES,
}


def public_properties(value: Any) -> list[str]:
    return [
        name
        for name, member in vars(type(value)).items()
        if not name.startswith("_") and isinstance(member, property)
    ]


@pytest.mark.parametrize("text", VALUES)
def test_values_print_what_they_hold(text: str) -> None:
    assert repr(VALUES[text]).startswith(text)


@pytest.mark.parametrize("text", VALUES)
def test_values_cannot_be_changed(text: str) -> None:
    value = VALUES[text]
    names = public_properties(value)
    assert names
    for name in names:
        with pytest.raises(AttributeError):
            setattr(value, name, getattr(value, name))
    with pytest.raises(AttributeError):
        value.note = 1


def test_lists_that_a_value_gives_are_copies() -> None:
    for get in (
        lambda: PREFILL.planes,
        lambda: RELAYOUTS[0].planes,
        lambda: BUFFER.relayouts,
        lambda: PLAN.regions,
    ):
        get().clear()
        assert len(get()) > 0


@pytest.mark.parametrize(
    ("value", "same", "others"),
    [
        (
            Sharding(4, 1, 2),
            Sharding(4, rank=1, interleave=2),
            [Sharding(4, 1), Sharding(4, 2, 2), Sharding(8, 1, 2)],
        ),
        (Sharding(1, 0, 64), Sharding(), [Sharding(2)]),
        (
            HeadSharding(4, 2, 1),
            HeadSharding(4, ranks=2, rank=1),
            [HeadSharding(4, 2), HeadSharding(8, 2, 1), HeadSharding(4, 4, 1)],
        ),
        (
            SEGMENT,
            Segment(0, 256, is_final=True),
            [Segment(0, 256, False), Segment(1, 256, True), Segment(0, 257, True)],
        ),
    ],
)
def test_small_values_compare_and_hash(value: Any, same: Any, others: list[Any]) -> None:
    assert value == same
    assert hash(value) == hash(same)
    assert len({value, same, *others}) == 1 + len(others)
    assert value != "text"


PLANE = {
    "layer": 3,
    "kind": PlaneKind.LATENT,
    "row_bytes": 576,
    "dtype": "uint8",
    "row_stride_bytes": 600,
    "page_stride_bytes": 64 * 600,
    "page_offset_bytes": 8,
    "head_bytes": 0,
    "is_replicated": False,
}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("layer", 4),
        ("kind", PlaneKind.ROPE),
        ("row_bytes", 575),
        ("dtype", "float8_e4m3"),
        ("row_stride_bytes", 601),
        ("page_stride_bytes", 64 * 600 + 1),
        ("page_offset_bytes", 9),
        ("head_bytes", 576),
        ("is_replicated", True),
    ],
)
def test_planes_compare_by_every_part(name: str, other: Any) -> None:
    plane = Plane(**PLANE)
    assert {part: getattr(plane, part) for part in PLANE} == PLANE
    assert plane == Plane(**PLANE)
    changed = Plane(**{**PLANE, name: other})
    assert getattr(changed, name) == other
    assert plane != changed


def test_larger_values_compare() -> None:
    assert PoolLayout(64, 200, [LATENT]) == PREFILL
    assert PoolLayout(64, 201, [LATENT]) != PREFILL
    assert Relayout(PREFILL, DECODE[1]) == RELAYOUTS[1] != RELAYOUTS[2]
    assert BUFFER.plan(SEGMENT) == PLAN != BUFFER.plan(Segment(0, 255, True))
    assert packed_writes(RELAYOUTS[1], [SEGMENT], 0, TARGET) == WRITES
    assert packed_writes(RELAYOUTS[1], [SEGMENT], 1, TARGET) != WRITES


def test_dense_strides_are_filled_in() -> None:
    [plane] = PoolLayout(64, 200, [LATENT]).planes
    assert (plane.row_stride_bytes, plane.page_stride_bytes) == (576, 64 * 576)
    assert LATENT.row_stride_bytes == 0
    assert PREFILL.plane_bytes(0) == 200 * 64 * 576
    assert (PREFILL.plane_page_rows(0), DECODE[0].widened_page_tokens) == (64, 256)


def test_plane_kinds_are_an_enumeration() -> None:
    assert issubclass(PlaneKind, enum.Enum)
    assert [kind.name for kind in PlaneKind] == [
        "KEY",
        "VALUE",
        "LATENT",
        "ROPE",
        "INDEX_KEY",
        "INDEX_SCALE",
        "KEY_SCALE",
        "VALUE_SCALE",
    ]


def test_page_structured_arrays() -> None:
    keys = Plane(0, PlaneKind.INDEX_KEY, 128, page_stride_bytes=8448)
    scales = Plane(0, PlaneKind.INDEX_SCALE, 4, page_stride_bytes=8448, page_offset_bytes=8192)
    layout = PoolLayout(64, 3, [keys, scales])
    table = PageTable(layout, [2], plane_addresses=[1 << 40, 1 << 40])
    target = PageTable(layout, [0], plane_addresses=[1 << 41, 1 << 41])
    writes = direct_writes(Relayout(layout, layout), [Segment(0, 64, True)], table, target)
    assert writes.runs.tolist() == [
        [(1 << 40) + 2 * 8448, 1 << 41, 8192],
        [(1 << 40) + 2 * 8448 + 8192, (1 << 41) + 8192, 256],
    ]


# --- what is refused -----------------------------------------------------------------------------

HUGE = 2**62
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "ranks": (lambda: Sharding(0), "ranks >= 1, got 0"),
    "rank": (lambda: Sharding(4, 4), r"\[0, 4\), got 4"),
    "interleave": (lambda: Sharding(4, 0, 0), "interleave >= 1 tokens, got 0"),
    "huge interleave": (lambda: Sharding(4, 0, HUGE), f"got 4 \\* {HUGE}"),
    "position": (lambda: Sharding(4).owner(-1), "position >= 0, got -1"),
    "local index": (lambda: Sharding(4).position(HUGE), f"local index .* got {HUGE}"),
    "last local index": (
        lambda: Sharding(3, 2, 5).position(2**40 // 3),
        f"within {2**40} tokens, got {2**40 // 3}",
    ),
    "count": (lambda: Sharding(4).local_count(5, 4), r"got \[5, 4\)"),
    "heads": (lambda: HeadSharding(6, 4), "got 6 heads over 4 ranks"),
    "page_size": (lambda: PoolLayout(0, 1, []), "page_size .* got 0"),
    "page_count": (lambda: PoolLayout(64, -1, []), "page_count >= 1, got -1"),
    "huge pool": (lambda: PoolLayout(64, HUGE, []), f"got {HUGE} pages of 64"),
    "interleave against the page": (
        lambda: PoolLayout(64, 1, [], sharding=Sharding(2, 0, 48)),
        "divides page_size 64, got 48",
    ),
    "row_bytes": (
        lambda: PoolLayout(64, 1, [Plane(3, PlaneKind.LATENT, 0)]),
        r"layer 3, latent.* row_bytes in \[1, 2\^30\], got 0",
    ),
    "a plane twice": (lambda: PoolLayout(64, 1, [LATENT, LATENT]), "layer 3, latent.*twice"),
    "heads of a plane": (
        lambda: PoolLayout(64, 1, [Plane(0, PlaneKind.KEY, 16, head_bytes=8)]),
        "head_bytes 8 needs the pool's heads, got none",
    ),
    "huge heads": (
        lambda: PoolLayout(
            64, 1, [Plane(0, PlaneKind.KEY, 16, head_bytes=8)], heads=HeadSharding(HUGE)
        ),
        f"head_count {HUGE} \\* head_bytes 8, got 16",
    ),
    "plane index": (lambda: PREFILL.plane_bytes(1), r"\[0, 1\), got 1"),
    "negative plane index": (lambda: PREFILL.plane_page_rows(-1), r"\[0, 1\), got -1"),
    "no layout": (lambda: PageTable(None, []), "layout, got none"),  # type: ignore[arg-type]
    "first_position": (
        lambda: PageTable(DECODE[0], [1], first_position=64),
        "page_size 64 \\* ranks 4 = 256 tokens, got 64",
    ),
    "row_bytes of two sides": (
        lambda: Relayout(PREFILL, PoolLayout(64, 9, [Plane(3, PlaneKind.LATENT, 288)])),
        "source 576 and destination 288",
    ),
    "dtype of two sides": (
        lambda: Relayout(
            PREFILL, PoolLayout(64, 9, [Plane(3, PlaneKind.LATENT, 576, dtype="bfloat16")])
        ),
        "source uint8 and destination bfloat16",
    ),
    "range": (lambda: RELAYOUTS[0].positions(4, 3), r"got \[4, 3\)"),
    "huge range": (lambda: RELAYOUTS[0].row_count(0, HUGE), f"got \\[0, {HUGE}\\)"),
    "pages of a range": (
        lambda: RELAYOUTS[0].source_rows(0, 257, TABLE),
        r"source pages for positions \[0, 257\), got 4 pages for \[0, 256\)",
    ),
    "table of the other side": (
        lambda: RELAYOUTS[1].source_rows(0, 4, TARGET),
        "page table of the source's layout.*rank 1 of 4 against 0 of 1",
    ),
    "capacity": (lambda: PackBufferLayout(RELAYOUTS, 8200), "alignment_tokens 64, got 8200"),
    "no relayouts": (lambda: PackBufferLayout([], 64), "at least one relayout, got none"),
    "two sources": (
        lambda: PackBufferLayout([RELAYOUTS[0], Relayout(DECODE[0], DECODE[0])], 256),
        "one source rank",
    ),
    "region index": (lambda: BUFFER.region_offset_bytes(4), r"\[0, 4\), got 4"),
    "buffer_bytes": (lambda: PackBufferLayout.capacity_for(RELAYOUTS, -1), "got -1"),
    "prefix": (lambda: split(0, 64, prefix=1), "got prefix 1 and begin 0"),
    "final send": (lambda: split(64, 63), r"got \[64, 63\)"),
    "huge send": (lambda: split(0, HUGE), f"got \\[0, {HUGE}\\)"),
    "alignment": (lambda: split(0, 64, alignment_tokens=0), "alignment_tokens >= 1, got 0"),
    "split capacity": (lambda: split(0, 64, capacity_tokens=100), "alignment_tokens 64, got 100"),
    "region_address": (
        lambda: packed_writes(RELAYOUTS[1], [SEGMENT], -1, TARGET),
        "region_address .* got -1",
    ),
    "region_address that wraps": (
        lambda: packed_writes(RELAYOUTS[1], [SEGMENT], 2**63 - 1, TARGET),
        f"region_address .* got {2**63 - 1}",
    ),
    "landing_address": (
        lambda: landing_write(RELAYOUTS[1], SEGMENT, 0, -1),
        "landing_address -1",
    ),
    "addresses to write to": (
        lambda: packed_writes(RELAYOUTS[1], [SEGMENT], 0, PageTable(DECODE[1], [7])),
        "base address for each destination plane",
    ),
    "addresses to copy from": (
        lambda: copy_rows(RELAYOUTS[1], SEGMENT, PageTable(PREFILL, [5, 2, 11, 4]), TARGET),
        "base address for each source plane",
    ),
    "pages to write to": (
        lambda: direct_writes(RELAYOUTS[1], [Segment(0, 258, True)], TABLE, TARGET),
        r"pages for positions \[0, 258\)",
    ),
}


def split(begin: int, end: int, **changes: Any) -> list[Segment]:
    request: dict[str, Any] = {
        "is_final": True,
        "prefix": 0,
        "alignment_tokens": 64,
        "capacity_tokens": 256,
    }
    return split_segments(begin, end, **{**request, **changes})


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_both_values(name: str) -> None:
    action, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        action()
    assert isinstance(caught.value, Error)
    assert isinstance(caught.value, ValueError)


def test_what_does_not_fit_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match=r"needs 37440 bytes for relayout 0.* 36864 bytes"):
        BUFFER.plan(Segment(0, 257, True))
    with pytest.raises(CapacityError, match=r"at least 36864 bytes .* of 64 tokens, got 36863"):
        PackBufferLayout.capacity_for(RELAYOUTS, 36863)
    with pytest.raises(CapacityError, match=r"at least 36864 bytes .* got 3"):
        unpack_rows(RELAYOUTS[1], SEGMENT, b"abc", TARGET)


def test_what_no_pair_can_do_is_unsupported() -> None:
    replicated = PoolLayout(
        64, 9, [Plane(3, PlaneKind.LATENT, 576, is_replicated=True)], sharding=Sharding(2)
    )
    with pytest.raises(UnsupportedError, match=r"layer 3, latent.* 4 ranks"):
        Relayout(DECODE[0], replicated)


@pytest.mark.parametrize(
    "action",
    [
        lambda: Relayout(None, PREFILL),
        lambda: Relayout(PREFILL, LATENT),
        lambda: Segment(0, 64),
        lambda: Segment(0.5, 64, True),
        lambda: PoolLayout(64, 9, [None]),
        lambda: Plane(0, "LATENT", 576),
        lambda: split_segments(0, 64, True, 0, 64),
        lambda: BUFFER.plan((0, 64, True)),
        lambda: Sharding(2**63),
    ],
)
def test_values_of_another_type_are_type_errors(action: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        action()
