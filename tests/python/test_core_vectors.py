# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Worked examples of DCP relayouts, with the numbers that a person can follow."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kvxfer import (
    InvalidArgumentError,
    Plane,
    PlaneKind,
    PoolLayout,
    Segment,
    Sharding,
    direct_writes,
)
from support.core_pools import make_relayout, make_table
from support.oracle import PlaneSpec, Pool, Shard

LATENT = (PlaneSpec(0, "LATENT", 576),)

# --- who holds a position ------------------------------------------------------------------------

OWNER_AND_LOCAL = {
    (4, 1): "0,0 1,0 2,0 3,0 0,1 1,1 2,1 3,1 0,2 1,2 2,2 3,2 0,3 1,3 2,3 3,3",
    (4, 2): "0,0 0,1 1,0 1,1 2,0 2,1 3,0 3,1 0,2 0,3 1,2 1,3 2,2 2,3 3,2 3,3",
    (2, 2): "0,0 0,1 1,0 1,1 0,2 0,3 1,2 1,3 0,4 0,5 1,4 1,5 0,6 0,7 1,6 1,7",
    (2, 4): "0,0 0,1 0,2 0,3 1,0 1,1 1,2 1,3 0,4 0,5 0,6 0,7 1,4 1,5 1,6 1,7",
}


@pytest.mark.parametrize(("ranks", "interleave"), OWNER_AND_LOCAL)
def test_owner_and_local_index_of_the_first_sixteen_positions(ranks: int, interleave: int) -> None:
    sharding = Sharding(ranks, 0, interleave)
    found = [f"{sharding.owner(p)},{sharding.local_index(p)}" for p in range(16)]
    assert " ".join(found) == OWNER_AND_LOCAL[ranks, interleave]
    shard = Shard(ranks, 0, interleave)
    assert found == [f"{shard.owner(p)},{shard.local_index(p)}" for p in range(16)]


@pytest.mark.parametrize(
    ("rank", "positions"), [(0, [0, 1, 4, 5, 8, 9, 12, 13]), (1, [2, 3, 6, 7, 10, 11, 14, 15])]
)
def test_two_ranks_of_interleave_two_use_the_same_rows(rank: int, positions: list[int]) -> None:
    pool = Pool(4, LATENT, Shard(2, rank, 2), pages=(7, 3))
    relayout = make_relayout(pool, pool)
    assert relayout.positions(0, 16).tolist() == positions
    rows = relayout.source_rows(0, 16, make_table(pool))
    assert rows.tolist() == [28, 29, 30, 31, 12, 13, 14, 15]


def test_an_interleave_that_does_not_divide_the_page_has_no_one_owner() -> None:
    # Position 8 would be (0, 5) by position and (0, 4) by page; position 9 (1, 3) and (0, 5).
    sharding = Sharding(2, 0, 3)
    assert [(sharding.owner(p), sharding.local_index(p)) for p in (8, 9)] == [(0, 5), (1, 3)]
    with pytest.raises(InvalidArgumentError, match="divides page_size 4, got 3"):
        PoolLayout(4, 8, [Plane(0, PlaneKind.LATENT, 8)], sharding=sharding)


def test_position_of_a_long_request() -> None:
    sharding = Sharding(4, 0)
    assert (sharding.owner(83264), sharding.local_index(83264)) == (0, 20816)
    assert (83264 // 256, 83264 % 256, 20816 % 64) == (325, 64, 16)


@pytest.mark.parametrize(
    ("begin", "end", "counts"),
    [(2048, 2055, [2, 2, 2, 1]), (0, 2, [1, 1, 0, 0]), (0, 2055, [514, 514, 514, 513])],
)
def test_tokens_per_rank(begin: int, end: int, counts: list[int]) -> None:
    assert [Sharding(4, rank).local_count(begin, end) for rank in range(4)] == counts


# --- first shared unit and strides ---------------------------------------------------------------

FIRST_UNIT = {
    (2, 4): "(0,0):0 (0,2):2 (1,1):1 (1,3):3",
    (4, 2): "(0,0):0 (1,1):1 (2,0):2 (3,1):3",
    (3, 2): "(0,0):0 (0,1):3 (1,0):4 (1,1):1 (2,0):2 (2,1):5",
    (4, 3): "(0,0):0 (0,1):4 (0,2):8 (1,0):9 (1,1):1 (1,2):5 (2,0):6 (2,1):10 (2,2):2 (3,0):3 "
    "(3,1):7 (3,2):11",
    (4, 6): "(0,0):0 (0,2):8 (0,4):4 (1,1):1 (1,3):9 (1,5):5 (2,0):6 (2,2):2 (2,4):10 (3,1):7 "
    "(3,3):3 (3,5):11",
}


@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize(("source_ranks", "destination_ranks"), FIRST_UNIT)
def test_first_shared_unit(source_ranks: int, destination_ranks: int, interleave: int) -> None:
    found = []
    for r in range(source_ranks):
        for q in range(destination_ranks):
            source = Pool(interleave, LATENT, Shard(source_ranks, r, interleave))
            destination = Pool(interleave, LATENT, Shard(destination_ranks, q, interleave))
            positions = make_relayout(source, destination).positions(0, 12 * interleave)
            if len(positions):
                assert positions[0] % interleave == 0
                found.append(f"({r},{q}):{positions[0] // interleave}")
    assert " ".join(found) == FIRST_UNIT[source_ranks, destination_ranks]


STRIDES = [
    # N, M, W, source stride, destination stride, destinations per source, sources per destination
    (1, 4, 4, 4, 1, 4, 1),
    (2, 4, 4, 2, 1, 2, 1),
    (4, 4, 4, 1, 1, 1, 1),
    (4, 2, 4, 1, 2, 1, 2),
    (4, 1, 4, 1, 4, 1, 4),
    (3, 2, 6, 2, 3, 2, 3),
    (4, 3, 12, 3, 4, 3, 4),
    (4, 6, 12, 3, 2, 3, 2),
]


@pytest.mark.parametrize("case", STRIDES)
def test_strides_and_partners(case: tuple[int, ...]) -> None:
    source_ranks, destination_ranks, period, source_stride, destination_stride, *partners = case
    sharing = np.zeros((source_ranks, destination_ranks), bool)
    for r in range(source_ranks):
        for q in range(destination_ranks):
            # One page of one row each: a row number is the local index.
            pages = tuple(range(24))
            source = Pool(1, LATENT, Shard(source_ranks, r), pages=pages)
            destination = Pool(1, LATENT, Shard(destination_ranks, q), pages=pages)
            relayout = make_relayout(source, destination)
            sharing[r, q] = relayout.shares_tokens()
            assert relayout.is_empty == (not relayout.shares_tokens())
            if relayout.is_empty:
                continue
            assert set(np.diff(relayout.positions(0, 24))) == {period}
            rows = relayout.source_rows(0, 24, make_table(source))
            assert set(np.diff(rows)) == {source_stride}
            rows = relayout.destination_rows(0, 24, make_table(destination))
            assert set(np.diff(rows)) == {destination_stride}
            assert relayout.needs_unpacking == (destination_stride > 1)
            assert relayout.needs_packing == (max(source_stride, destination_stride) > 1)
    assert set(sharing.sum(1)) == {partners[0]}
    assert set(sharing.sum(0)) == {partners[1]}


@pytest.mark.parametrize("destination_ranks", range(1, 7))
@pytest.mark.parametrize("source_ranks", range(1, 7))
def test_destination_is_dense_exactly_when_its_ranks_are_a_multiple(
    source_ranks: int, destination_ranks: int
) -> None:
    relayouts = [
        make_relayout(
            Pool(1, LATENT, Shard(source_ranks, r)), Pool(1, LATENT, Shard(destination_ranks, q))
        )
        for r in range(source_ranks)
        for q in range(destination_ranks)
    ]
    is_dense = not any(relayout.needs_unpacking for relayout in relayouts)
    assert is_dense == (destination_ranks % source_ranks == 0)


# --- cells: first position, length, source rank, its local index, destination rank, its index -----

CELLS = {
    ((2, 4), (4, 2), 16): "0,2,0,0,0,0 2,2,0,2,1,0 4,2,1,0,2,0 6,2,1,2,3,0 8,2,0,4,0,2 "
    "10,2,0,6,1,2 12,2,1,4,2,2 14,2,1,6,3,2",
    ((4, 4), (2, 4), 32): "0,4,0,0,0,0 4,4,1,0,1,0 8,4,2,0,0,4 12,4,3,0,1,4 16,4,0,4,0,8 "
    "20,4,1,4,1,8 24,4,2,4,0,12 28,4,3,4,1,12",
    ((2, 2), (2, 3), 12): "0,2,0,0,0,0 2,1,1,0,0,2 3,1,1,1,1,0 4,2,0,2,1,1 6,2,1,2,0,3 "
    "8,1,0,4,0,5 9,1,0,5,1,3 10,2,1,4,1,4",
}


@pytest.mark.parametrize("case", CELLS)
def test_cells(case: tuple[tuple[int, int], tuple[int, int], int]) -> None:
    (source_ranks, interleave), (destination_ranks, other), end = case
    cells = []
    for r in range(source_ranks):
        for q in range(destination_ranks):
            # One page holds everything, so that a row number is the local index.
            source = Pool(12, LATENT, Shard(source_ranks, r, interleave), pages=(0, 1))
            destination = Pool(12, LATENT, Shard(destination_ranks, q, other), pages=(0, 1))
            relayout = make_relayout(source, destination)
            rows = zip(
                relayout.positions(0, end).tolist(),
                relayout.source_rows(0, end, make_table(source)).tolist(),
                relayout.destination_rows(0, end, make_table(destination)).tolist(),
                strict=True,
            )
            for position, source_row, destination_row in rows:
                last = cells[-1] if cells and cells[-1][2::2] == [r, q] else None
                if last and [position, source_row, destination_row] == [
                    last[0] + last[1],
                    last[3] + last[1],
                    last[5] + last[1],
                ]:
                    last[1] += 1
                else:
                    cells.append([position, 1, r, source_row, q, destination_row])
    cells.sort()
    assert " ".join(",".join(map(str, cell)) for cell in cells) == CELLS[case]


# --- rows with page tables -----------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """One request: (ranks, interleave, page size) of both sides and the rows of every pair."""

    source: tuple[int, int, int]
    destination: tuple[int, int, int]
    source_pages: tuple[int, ...]
    destination_pages: tuple[int, ...]
    tokens: int
    rows: dict[tuple[int, int], tuple[list[int], list[int], list[int]]]
    prefix: int = 0

    def pair(self, r: int, q: int) -> tuple[Pool, Pool]:
        (ranks, interleave, page), (others, other, other_page) = self.source, self.destination
        return (
            Pool(page, LATENT, Shard(ranks, r, interleave), pages=self.source_pages),
            Pool(
                other_page,
                LATENT,
                Shard(others, q, other),
                pages=self.destination_pages,
                first_position=self.prefix,
            ),
        )


EXAMPLES = {
    "X1": Example(
        (4, 1, 2), (2, 1, 2), (5, 2), (7, 3, 0, 4), 13,
        {
            (0, 0): ([0, 4, 8, 12], [10, 11, 4, 5], [14, 6, 0, 8]),
            (1, 1): ([1, 5, 9], [10, 11, 4], [14, 6, 0]),
            (2, 0): ([2, 6, 10], [10, 11, 4], [15, 7, 1]),
            (3, 1): ([3, 7, 11], [10, 11, 4], [15, 7, 1]),
        },
    ),
    "X2": Example(
        (4, 1, 2), (2, 1, 2), (5, 2), (0, 4), 13,
        {
            (0, 0): ([8, 12], [4, 5], [0, 8]),
            (1, 1): ([9], [4], [0]),
            (2, 0): ([10], [4], [1]),
            (3, 1): ([11], [4], [1]),
        },
        prefix=8,
    ),
    "X3": Example(
        (2, 1, 2), (4, 1, 2), (5, 2, 6, 0), (7, 3), 13,
        {
            (0, 0): ([0, 4, 8, 12], [10, 4, 12, 0], [14, 15, 6, 7]),
            (0, 2): ([2, 6, 10], [11, 5, 13], [14, 15, 6]),
            (1, 1): ([1, 5, 9], [10, 4, 12], [14, 15, 6]),
            (1, 3): ([3, 7, 11], [11, 5, 13], [14, 15, 6]),
        },
    ),
    "X4": Example(
        (3, 1, 2), (2, 1, 2), (6, 1), (9, 4, 2), 11,
        {
            (0, 0): ([0, 6], [12, 2], [18, 9]),
            (0, 1): ([3, 9], [13, 3], [19, 4]),
            (1, 0): ([4, 10], [13, 3], [8, 5]),
            (1, 1): ([1, 7], [12, 2], [18, 9]),
            (2, 0): ([2, 8], [12, 2], [19, 4]),
            (2, 1): ([5], [13], [8]),
        },
    ),
    "X5": Example(
        (4, 1, 2), (1, 1, 2), (5, 2), (3, 8, 1, 0, 5), 10,
        {
            (0, 0): ([0, 4, 8], [10, 11, 4], [6, 2, 10]),
            (1, 0): ([1, 5, 9], [10, 11, 4], [7, 3, 11]),
            (2, 0): ([2, 6], [10, 11], [16, 0]),
            (3, 0): ([3, 7], [10, 11], [17, 1]),
        },
    ),
    "X6": Example(
        (1, 1, 4), (2, 2, 4), (5, 2, 6, 0), (7, 3), 14,
        {
            (0, 0): (
                [0, 1, 4, 5, 8, 9, 12, 13],
                [20, 21, 8, 9, 24, 25, 0, 1],
                [28, 29, 30, 31, 12, 13, 14, 15],
            ),
            (0, 1): ([2, 3, 6, 7, 10, 11], [22, 23, 10, 11, 26, 27], [28, 29, 30, 31, 12, 13]),
        },
    ),
    "X7": Example(
        (2, 4, 4), (4, 2, 4), (5, 2), (9,), 14,
        {
            (0, 0): ([0, 1, 8, 9], [20, 21, 8, 9], [36, 37, 38, 39]),
            (0, 1): ([2, 3, 10, 11], [22, 23, 10, 11], [36, 37, 38, 39]),
            (1, 2): ([4, 5, 12, 13], [20, 21, 8, 9], [36, 37, 38, 39]),
            (1, 3): ([6, 7], [22, 23], [36, 37]),
        },
    ),
    "X8": Example(
        (4, 2, 2), (2, 2, 2), (5, 2), (7, 3, 0, 4), 13,
        {
            (0, 0): ([0, 1, 8, 9], [10, 11, 4, 5], [14, 15, 0, 1]),
            (1, 1): ([2, 3, 10, 11], [10, 11, 4, 5], [14, 15, 0, 1]),
            (2, 0): ([4, 5, 12], [10, 11, 4], [6, 7, 8]),
            (3, 1): ([6, 7], [10, 11], [6, 7]),
        },
    ),
    "X9": Example(
        (1, 1, 2), (2, 1, 4), (5, 2, 6, 0, 4, 3), (7, 3), 11,
        {
            (0, 0): ([0, 2, 4, 6, 8, 10], [10, 4, 12, 0, 8, 6], [28, 29, 30, 31, 12, 13]),
            (0, 1): ([1, 3, 5, 7, 9], [11, 5, 13, 1, 9], [28, 29, 30, 31, 12]),
        },
    ),
    "vector 1": Example(
        (1, 1, 2), (4, 1, 2), (5, 2, 11, 4), (7,), 8,
        {
            (0, 0): ([0, 4], [10, 22], [14, 15]),
            (0, 1): ([1, 5], [11, 23], [14, 15]),
            (0, 2): ([2, 6], [4, 8], [14, 15]),
            (0, 3): ([3, 7], [5, 9], [14, 15]),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_of_every_pair(name: str) -> None:
    example = EXAMPLES[name]
    for r in range(example.source[0]):
        for q in range(example.destination[0]):
            source, destination = example.pair(r, q)
            relayout = make_relayout(source, destination)
            span = (example.prefix, example.tokens)
            positions, source_rows, destination_rows = example.rows.get((r, q), ([], [], []))
            assert relayout.positions(*span).tolist() == positions
            assert relayout.source_rows(*span, make_table(source)).tolist() == source_rows
            assert (
                relayout.destination_rows(*span, make_table(destination)).tolist()
                == destination_rows
            )
            assert relayout.shares_tokens() == ((r, q) in example.rows)
            assert [source.row_of(p) for p in positions] == source_rows
            assert [destination.row_of(p) for p in positions] == destination_rows


def test_rows_of_a_segment_that_starts_behind_the_prefix() -> None:
    # Page size 2, two ranks, prefix 4, page offset 1: positions 6 to 9 of source pages 9 and 3.
    for rank, positions, source_rows in [(0, [6, 8], [18, 6]), (1, [7, 9], [19, 7])]:
        source = Pool(2, LATENT, pages=(9, 3), first_position=6)
        destination = Pool(2, LATENT, Shard(2, rank), pages=(4, 6), first_position=4)
        relayout = make_relayout(source, destination)
        assert relayout.positions(6, 10).tolist() == positions
        assert relayout.source_rows(6, 10, make_table(source)).tolist() == source_rows
        assert relayout.destination_rows(6, 10, make_table(destination)).tolist() == [9, 12]


@pytest.mark.parametrize(
    ("pools", "span", "source_rows", "destination_rows"),
    [
        (
            (Pool(2, LATENT, pages=(5, 2, 11, 4)), Pool(2, LATENT, Shard(4), pages=(7,))),
            (0, 8),
            [10, 11, 4, 5, 22, 23, 8, 9],
            [56, 57, 58, 59, 60, 61, 62, 63],
        ),
        (
            (
                Pool(2, LATENT, pages=(9, 3), first_position=6),
                Pool(2, LATENT, Shard(2), pages=(4, 6), first_position=4),
            ),
            (6, 10),
            [18, 19, 6, 7],
            [18, 19, 24, 25],
        ),
    ],
)
def test_draft_rows_go_to_every_rank_by_widened_pages(
    pools: tuple[Pool, Pool], span: tuple[int, int], source_rows: list[int],
    destination_rows: list[int],
) -> None:  # fmt: skip
    draft = PlaneSpec(1, "LATENT", 8, is_replicated=True)
    source, destination = pools
    for rank in range(destination.shard.ranks):
        there = replace(
            destination,
            planes=(*LATENT, draft),
            shard=destination.shard._replace(rank=rank),
            plane_addresses=(1 << 40, 1 << 41),
        )
        here = replace(
            source,
            planes=(*LATENT, replace(draft, is_replicated=False)),
            plane_addresses=(1 << 42, 1 << 43),
        )
        relayout = make_relayout(here, there)
        runs = direct_writes(
            relayout, [Segment(*span, True)], make_table(here), make_table(there)
        ).runs
        of_draft = runs[runs[:, 0] >= 1 << 43]
        found = [
            ((from_ - (1 << 43)) // 8 + i, (to - (1 << 41)) // 8 + i)
            for from_, to, size in of_draft.tolist()
            for i in range(size // 8)
        ]
        assert found == list(zip(source_rows, destination_rows, strict=True))
