# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer plan`` on requests that were worked out by hand."""

from typing import Any

import pytest

from support.plan_cli import plan_of, refusal_of, request, rows_by_pair

Rows = dict[tuple[int, int], tuple[list[int], list[int]]]


def sharded(
    source: tuple[int, int],
    destination: tuple[int, int],
    page_size: Any,
    source_pages: list[int],
    destination_pages: list[int],
    tokens: int,
    **fields: Any,
) -> dict[str, Any]:
    """A request over one plane of 576 bytes; shardings are (ranks, interleave)."""
    return {
        "page_size": page_size,
        "source": {"ranks": source[0], "interleave": source[1]},
        "destination": {"ranks": destination[0], "interleave": destination[1]},
        "planes": [{"name": "latent", "row_bytes": 576}],
        "prefix": 0,
        "tokens": tokens,
        "source_pages": source_pages,
        "destination_pages": destination_pages,
        **fields,
    }


def one_segment(plan: dict[str, Any]) -> Rows:
    assert len(plan["segments"]) == 1
    assert plan["segments"][0]["final"] is True
    return rows_by_pair(plan["segments"][0])


RELAYOUTS: dict[str, tuple[dict[str, Any], Rows]] = {
    "4 to 2": (
        sharded((4, 1), (2, 1), 2, [5, 2], [7, 3, 0, 4], 13),
        {
            (0, 0): ([10, 11, 4, 5], [14, 6, 0, 8]),
            (1, 1): ([10, 11, 4], [14, 6, 0]),
            (2, 0): ([10, 11, 4], [15, 7, 1]),
            (3, 1): ([10, 11, 4], [15, 7, 1]),
        },
    ),
    "4 to 2 after a prefix": (
        sharded((4, 1), (2, 1), 2, [5, 2], [0, 4], 13, prefix=8),
        {
            (0, 0): ([4, 5], [0, 8]),
            (1, 1): ([4], [0]),
            (2, 0): ([4], [1]),
            (3, 1): ([4], [1]),
        },
    ),
    "2 to 4": (
        sharded((2, 1), (4, 1), 2, [5, 2, 6, 0], [7, 3], 13),
        {
            (0, 0): ([10, 4, 12, 0], [14, 15, 6, 7]),
            (0, 2): ([11, 5, 13], [14, 15, 6]),
            (1, 1): ([10, 4, 12], [14, 15, 6]),
            (1, 3): ([11, 5, 13], [14, 15, 6]),
        },
    ),
    "3 to 2": (
        sharded((3, 1), (2, 1), 2, [6, 1], [9, 4, 2], 11),
        {
            (0, 0): ([12, 2], [18, 9]),
            (0, 1): ([13, 3], [19, 4]),
            (1, 0): ([13, 3], [8, 5]),
            (1, 1): ([12, 2], [18, 9]),
            (2, 0): ([12, 2], [19, 4]),
            (2, 1): ([13], [8]),
        },
    ),
    "4 to 1": (
        sharded((4, 1), (1, 1), 2, [5, 2], [3, 8, 1, 0, 5], 10),
        {
            (0, 0): ([10, 11, 4], [6, 2, 10]),
            (1, 0): ([10, 11, 4], [7, 3, 11]),
            (2, 0): ([10, 11], [16, 0]),
            (3, 0): ([10, 11], [17, 1]),
        },
    ),
    "1 to 2, interleave 2": (
        sharded((1, 1), (2, 2), 4, [5, 2, 6, 0], [7, 3], 14),
        {
            (0, 0): ([20, 21, 8, 9, 24, 25, 0, 1], [28, 29, 30, 31, 12, 13, 14, 15]),
            (0, 1): ([22, 23, 10, 11, 26, 27], [28, 29, 30, 31, 12, 13]),
        },
    ),
    "2 by 4 to 4 by 2": (
        sharded((2, 4), (4, 2), 4, [5, 2], [9], 14),
        {
            (0, 0): ([20, 21, 8, 9], [36, 37, 38, 39]),
            (0, 1): ([22, 23, 10, 11], [36, 37, 38, 39]),
            (1, 2): ([20, 21, 8, 9], [36, 37, 38, 39]),
            (1, 3): ([22, 23], [36, 37]),
        },
    ),
    "page round robin 4 to 2": (
        sharded((4, 2), (2, 2), 2, [5, 2], [7, 3, 0, 4], 13),
        {
            (0, 0): ([10, 11, 4, 5], [14, 15, 0, 1]),
            (1, 1): ([10, 11, 4, 5], [14, 15, 0, 1]),
            (2, 0): ([10, 11, 4], [6, 7, 8]),
            (3, 1): ([10, 11], [6, 7]),
        },
    ),
    "1 to 2, pages of 2 to pages of 4": (
        sharded((1, 1), (2, 1), {"source": 2, "destination": 4}, [5, 2, 6, 0, 4, 3], [7, 3], 11),
        {
            (0, 0): ([10, 4, 12, 0, 8, 6], [28, 29, 30, 31, 12, 13]),
            (0, 1): ([11, 5, 13, 1, 9], [28, 29, 30, 31, 12]),
        },
    ),
    "1 to 4, two pages each": (
        sharded((1, 1), (4, 1), 2, [5, 2, 11, 4], [7], 8),
        {
            (0, 0): ([10, 22], [14, 15]),
            (0, 1): ([11, 23], [14, 15]),
            (0, 2): ([4, 8], [14, 15]),
            (0, 3): ([5, 9], [14, 15]),
        },
    ),
    "A01: ranks that own nothing": (
        sharded((1, 1), (4, 1), 4, [5], [9], 2),
        {(0, 0): ([20], [36]), (0, 1): ([21], [36]), (0, 2): ([], []), (0, 3): ([], [])},
    ),
    "A04: page lists of different length": (
        sharded((1, 1), (4, 1), 4, [3, 0, 6, 2, 8], [1, 4], 17),
        {
            (0, 0): ([12, 0, 24, 8, 32], [4, 5, 6, 7, 16]),
            (0, 1): ([13, 1, 25, 9], [4, 5, 6, 7]),
            (0, 2): ([14, 2, 26, 10], [4, 5, 6, 7]),
            (0, 3): ([15, 3, 27, 11], [4, 5, 6, 7]),
        },
    ),
    "A04: three ranks": (
        sharded((1, 1), (3, 1), 4, [3, 0], [1], 5),
        {(0, 0): ([12, 15], [4, 5]), (0, 1): ([13, 0], [4, 5]), (0, 2): ([14], [4])},
    ),
    "A05: the rest after a prefix": (
        sharded((1, 1), (2, 1), 4, [10, 11, 12, 13, 14, 15], [3], 24, prefix=16),
        {
            (0, 0): ([56, 58, 60, 62], [12, 13, 14, 15]),
            (0, 1): ([57, 59, 61, 63], [12, 13, 14, 15]),
        },
    ),
    "A37: a row beyond 31 bits of bytes": (
        sharded((1, 1), (1, 1), 1, [3728271], [0], 1),
        {(0, 0): ([3728271], [0])},
    ),
}


@pytest.mark.parametrize("name", RELAYOUTS)
def test_rows_of_every_pair(name: str) -> None:
    given, expected = RELAYOUTS[name]
    plan = plan_of(given)
    assert one_segment(plan) == expected
    for pair in plan["segments"][0]["pairs"]:
        assert pair["bytes"] == 576 * len(pair["source_rows"])


def test_a_segment_in_the_middle() -> None:
    given = sharded((1, 1), (2, 1), 2, [1, 2, 5, 9, 3], [4, 6], 10, prefix=4)
    given["sends"] = [[4, 6, False], [6, 10, True]]
    segments = plan_of(given)["segments"]
    assert [(s["begin"], s["end"], s["final"]) for s in segments] == [(4, 6, False), (6, 10, True)]
    assert rows_by_pair(segments[1]) == {
        (0, 0): ([18, 6], [9, 12]),
        (0, 1): ([19, 7], [9, 12]),
    }


def test_a_position_far_into_the_request() -> None:
    given = sharded((1, 1), (4, 1), 64, list(range(1302)), [8], 83265, prefix=83200)
    rows = one_segment(plan_of(given))
    assert rows[(0, 0)][0][-1] == 83264
    assert rows[(0, 0)][1][-1] == 8 * 64 + 16
    assert [len(rows[(0, rank)][0]) for rank in range(4)] == [17, 16, 16, 16]


def test_a_partial_last_page() -> None:
    given = sharded((1, 1), (4, 1), 64, list(range(33)), [0], 2055, prefix=2048)
    rows = one_segment(plan_of(given))
    assert [len(rows[(0, rank)][0]) for rank in range(4)] == [2, 2, 2, 1]


# --- cuts ---------------------------------------------------------------------------------------


def cut(tokens: int, max_tokens: int | None, prefix: int = 0, **fields: Any) -> dict[str, Any]:
    """Segments of a request from one rank to four with pages of 64."""
    given = sharded(
        (1, 1), (4, 1), 64, list(range(tokens // 64 + 1)), list(range(tokens // 256 + 1)), tokens
    )
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    return plan_of({**given, "prefix": prefix, **fields})


def bounds(plan: dict[str, Any]) -> list[tuple[int, int]]:
    """Begin and end of every segment; only the last is final."""
    segments = plan["segments"]
    assert [s["final"] for s in segments] == [False] * (len(segments) - 1) + [True]
    return [(s["begin"], s["end"]) for s in segments]


def test_a_send_is_cut_at_the_capacity() -> None:
    expected = [(256 * k, 256 * k + 256) for k in range(8)] + [(2048, 2055)]
    assert bounds(cut(2055, 256)) == expected
    assert bounds(cut(2055, 256, prefix=256)) == expected[1:]


def test_the_capacity_is_lowered_to_the_alignment() -> None:
    plan = cut(2055, 319)
    assert plan["capacity"] == 256
    assert bounds(plan) == bounds(cut(2055, 256))


def test_the_grid_starts_at_the_prefix() -> None:
    sends = [[0, 1000, False], [960, 1031, True]]
    assert bounds(cut(1031, 256, sends=sends)) == [
        (0, 256),
        (256, 512),
        (512, 768),
        (768, 960),
        (960, 1024),
        (1024, 1031),
    ]


def test_a_full_hit_sends_one_empty_final_segment() -> None:
    plan = cut(256, 256, prefix=256)
    assert bounds(plan) == [(256, 256)]
    assert [pair["bytes"] for pair in plan["segments"][0]["pairs"]] == [0, 0, 0, 0]
    assert [pair["packed_writes"] for pair in plan["segments"][0]["pairs"]] == [0, 0, 0, 0]


def test_without_max_tokens_nothing_is_cut() -> None:
    plan = cut(2055, None)
    assert plan["capacity"] is None
    assert bounds(plan) == [(0, 2055)]


@pytest.mark.parametrize(
    ("cached", "unique", "at_once", "early"), [(83264, 6720, 11, 11), (163840, 6720, 21, 20)]
)
def test_long_requests(cached: int, unique: int, at_once: int, early: int) -> None:
    tokens = cached + unique
    assert len(bounds(cut(tokens, 8192))) == at_once
    segments = bounds(cut(tokens, 8192, sends=[[0, cached, False], [cached, tokens, True]]))
    assert sum(end <= cached for _, end in segments) == early
    assert len(segments) == early + 1


@pytest.mark.parametrize(
    ("tokens", "rows", "segments"),
    [
        (63, [16, 16, 16, 15], [63]),
        (64, [16, 16, 16, 16], [64]),
        (65, [17, 16, 16, 16], [65]),
        (255, [64, 64, 64, 63], [255]),
        (256, [64, 64, 64, 64], [256]),
        (257, [65, 64, 64, 64], [257]),
        (8191, [2048, 2048, 2048, 2047], [8191]),
        (8192, [2048, 2048, 2048, 2048], [8192]),
        (8193, [2049, 2048, 2048, 2048], [8192, 1]),
    ],
)
def test_page_and_capacity_edges(tokens: int, rows: list[int], segments: list[int]) -> None:
    plan = cut(tokens, 8192)
    assert [end - begin for begin, end in bounds(plan)] == segments
    totals = [0, 0, 0, 0]
    for segment in plan["segments"]:
        for pair in segment["pairs"]:
            totals[pair["destination_rank"]] += len(pair["destination_rows"])
    assert totals == rows


def test_a02_a_partial_page_waits_for_the_next_send() -> None:
    given = sharded((1, 1), (1, 1), 4, [7, 2, 5], [0, 1, 2], 10)
    plan = plan_of({**given, "sends": [[0, 6, False], [4, 10, True]]})
    assert bounds(plan) == [(0, 4), (4, 10)]
    assert rows_by_pair(plan["segments"][1])[(0, 0)][0] == [8, 9, 10, 11, 20, 21]


def test_a05_a_prefix_that_is_no_multiple_of_the_virtual_page() -> None:
    given = sharded((1, 1), (2, 1), 4, [10, 11, 12, 13, 14, 15], [3], 24, prefix=12)
    line = refusal_of(given)
    assert line.startswith("prefix: got 12, expected a multiple of 8 ")


def test_a05_an_empty_send_that_is_not_final_makes_no_segment() -> None:
    given = sharded((1, 1), (2, 1), 4, [10, 11, 12, 13, 14, 15], [3], 24, prefix=16)
    plan = plan_of({**given, "sends": [[16, 19, False], [16, 16, False], [16, 24, True]]})
    assert bounds(plan) == [(16, 24)]


def test_sends_may_stop_before_the_final_one() -> None:
    """1,031 tokens of which 1,000 are ready: the end is lowered to 960, and nothing is final."""
    given = sharded((1, 1), (4, 1), 64, list(range(17)), list(range(5)), 1031, max_tokens=256)
    plan = plan_of({**given, "sends": [[0, 1000, False]]})
    found = [(s["begin"], s["end"], s["final"]) for s in plan["segments"]]
    assert found == [(0, 256, False), (256, 512, False), (512, 768, False), (768, 960, False)]


def test_a07_the_grid_of_an_early_sent_prefix() -> None:
    given = sharded((1, 1), (2, 1), 4, list(range(8)), list(range(3)), 30, prefix=8, max_tokens=8)
    plan = plan_of({**given, "sends": [[8, 20, False], [20, 30, True]]})
    assert bounds(plan) == [(8, 16), (16, 20), (20, 24), (24, 30)]


A09_PAGES = ([9, 4, 1, 7, 2, 5], [6, 3, 8])


def test_a09_a_long_send_is_cut_for_the_peer_that_needs_packing() -> None:
    plan = plan_of(sharded((1, 1), (2, 1), 4, *A09_PAGES, 21, max_tokens=10))
    assert plan["capacity"] == 8
    assert bounds(plan) == [(0, 8), (8, 16), (16, 21)]
    assert [rows_by_pair(segment) for segment in plan["segments"]] == [
        {
            (0, 0): ([36, 38, 16, 18], [24, 25, 26, 27]),
            (0, 1): ([37, 39, 17, 19], [24, 25, 26, 27]),
        },
        {(0, 0): ([4, 6, 28, 30], [12, 13, 14, 15]), (0, 1): ([5, 7, 29, 31], [12, 13, 14, 15])},
        {(0, 0): ([8, 10, 20], [32, 33, 34]), (0, 1): ([9, 11], [32, 33])},
    ]
    first = plan["segments"][0]["pairs"][0]
    assert (first["packed_writes"], first["direct_writes"]) == (1, 4)


def test_a09_a_plain_peer_gets_one_send() -> None:
    given = sharded((1, 1), (1, 1), 4, A09_PAGES[0], [6, 3, 8, 0, 1, 2], 21, max_tokens=10)
    plan = plan_of(given)
    assert plan["capacity"] is None
    assert bounds(plan) == [(0, 21)]
    assert plan["segments"][0]["pairs"][0]["direct_writes"] == 6


def test_a04_the_plain_path_with_too_few_pages() -> None:
    line = refusal_of(sharded((1, 1), (1, 1), 4, [3, 0, 6, 2, 8], [1, 4], 20))
    assert line.startswith("destination_pages: got 2 pages, expected at least 5 for the 20 rows")


# --- write counts and the rest of the contract --------------------------------------------------


def test_every_plane_counts() -> None:
    plan = plan_of(request())
    pairs = plan["segments"][0]["pairs"]
    # Rows 14, 15, 6, 7, 2 and 14, 15, 6, 7 of the destination: runs 3 and 2, on two planes.
    assert [pair["packed_writes"] for pair in pairs] == [6, 4]
    assert [pair["direct_writes"] for pair in pairs] == [10, 8]
    assert [pair["bytes"] for pair in pairs] == [50, 40]


def test_runs_join_over_neighbouring_pages() -> None:
    given = sharded((1, 1), (1, 1), 4, [3, 4, 5], [7, 8, 1], 12)
    pair = plan_of(given)["segments"][0]["pairs"][0]
    assert (pair["packed_writes"], pair["direct_writes"]) == (2, 2)
    given = sharded((1, 1), (1, 1), 4, [3, 4, 9], [7, 8, 9], 12)
    pair = plan_of(given)["segments"][0]["pairs"][0]
    assert (pair["packed_writes"], pair["direct_writes"]) == (1, 2)


def test_pages_by_rank() -> None:
    given = request(destination_pages={"0": [7, 3, 1], "1": [4, 0]})
    assert one_segment(plan_of(given)) == {
        (0, 0): ([12, 0, 18, 16, 14], [14, 15, 6, 7, 2]),
        (0, 1): ([13, 1, 19, 17], [8, 9, 0, 1]),
    }


def test_the_interleave_of_one_rank_means_nothing() -> None:
    plain = plan_of(request())
    assert plan_of(request(source={"ranks": 1, "interleave": 3})) == plain


def test_equal_shardings_are_not_cut() -> None:
    given = sharded((2, 2), (2, 2), 2, [5, 2, 6], [1, 8, 3], 12, max_tokens=4)
    plan = plan_of(given)
    assert plan["capacity"] is None
    assert one_segment(plan) == {
        (0, 0): ([10, 11, 4, 5, 12, 13], [2, 3, 16, 17, 6, 7]),
        (1, 1): ([10, 11, 4, 5, 12, 13], [2, 3, 16, 17, 6, 7]),
    }


def test_equal_ranks_with_another_interleave_are_cut() -> None:
    given = sharded((2, 1), (2, 2), 2, [5, 2, 6], [1, 8, 3], 12, max_tokens=7)
    plan = plan_of(given)
    assert plan["capacity"] == 4
    assert bounds(plan) == [(0, 4), (4, 8), (8, 12)]


def test_a_buffer_that_nobody_needs_may_be_small() -> None:
    given = sharded((1, 1), (1, 1), 4, [3], [1], 4, max_tokens=1)
    assert plan_of(given)["capacity"] is None
