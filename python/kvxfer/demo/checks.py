# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""What the demo compares: pure functions over bytes, tokens and logits.

Full attention does not see the order of rows, so tokens alone prove nothing about it: order and
placement are proved by bytes. Tokens and logits prove that the bytes are a working cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvxfer.demo.geometry import PoolSnapshot, Rows
from kvxfer.demo.model import Generation

LOGIT_TOLERANCE = 1e-3
"""Largest difference of logits that counts as rounding: a cache that was filled in two steps and
one that was filled in one differ by about 1e-5, the smallest damage worth seeing by more than 3e-3.
"""


@dataclass(frozen=True)
class Comparison:
    """One comparison that was made: what was compared, how many of it, and how it ended."""

    name: str
    expected: str
    got: str
    count: int
    held: bool


def compare_rows(source_rows: Rows, shards: Sequence[PoolSnapshot]) -> list[Comparison]:
    """Compare every row of every destination rank with the source's row of its position.

    Parameters
    ----------
    source_rows : list of uint8 arrays, shape (tokens, row_bytes)
        The source's rows in position order, one array for each plane.
    shards : sequence of PoolSnapshot
        The pools of the destination ranks.

    Returns
    -------
    list of Comparison
        One for each rank, and one that the ranks together hold each row once.
    """
    tokens = len(source_rows[0])
    comparisons = []
    for shard in shards:
        positions = shard.geometry.positions(0, tokens)
        row_count = len(positions) * len(source_rows)
        different = _find_different_rows(source_rows, shard, positions)
        comparisons.append(
            Comparison(
                name=f"destination rank {shard.geometry.rank}: rows in position order, by byte",
                expected=f"{row_count} rows equal",
                got=different or f"{row_count} rows equal",
                count=row_count,
                held=not different,
            )
        )
    return [*comparisons, _compare_coverage(source_rows, shards)]


def compare_untouched(shards: Sequence[PoolSnapshot], tokens: int, poison: int) -> list[Comparison]:
    """Hold that every byte outside the rows that a rank is owed is still poison.

    Parameters
    ----------
    shards : sequence of PoolSnapshot
        The pools of the ranks.
    tokens : int
        Length of the request.                                          [unit: tokens]
    poison : int
        The byte that the pools were filled with.

    Returns
    -------
    list of Comparison
        One for each rank.
    """
    comparisons = []
    for shard in shards:
        touched_bytes = 0
        outside_bytes = 0
        for index, plane in enumerate(shard.geometry.planes):
            outside = np.ones(shard.geometry.page_count * shard.geometry.page_size, dtype=bool)
            outside[shard.geometry.row_indices(0, tokens)] = False
            others = shard.geometry.plane_view(shard.memory, index)[outside]
            touched_bytes += int(np.count_nonzero(others != poison))
            outside_bytes += int(outside.sum()) * plane.row_bytes
        comparisons.append(
            Comparison(
                name=f"destination rank {shard.geometry.rank}: bytes outside its rows untouched",
                expected="0 bytes changed",
                got=f"{touched_bytes} bytes changed",
                count=outside_bytes,
                held=touched_bytes == 0,
            )
        )
    return comparisons


def compare_equal_rows(name: str, expected_rows: Rows, got_rows: Rows) -> Comparison:
    """Compare two sets of rows by byte, position for position."""
    row_count = sum(len(plane_rows) for plane_rows in expected_rows)
    equal_count = sum(
        int((expected == got).all(axis=1).sum())
        for expected, got in zip(expected_rows, got_rows, strict=True)
    )
    return Comparison(
        name=name,
        expected=f"{row_count} rows equal",
        got=f"{equal_count} rows equal",
        count=row_count,
        held=equal_count == row_count,
    )


def compare_close_rows(reference_rows: Rows, source_rows: Rows, tolerance: float) -> Comparison:
    """Compare float32 rows within ``tolerance`` of the plane's largest value.

    The reference's cache was filled in one step and the source's in two, so that their last bits
    differ; a row in another position's place differs by far more.
    """
    differences = []
    for expected, got in zip(reference_rows, source_rows, strict=True):
        expected_values = expected.view(np.float32)
        difference = np.abs(expected_values - got.view(np.float32)).max()
        differences.append(difference / np.abs(expected_values).max())
    worst = float(np.max(differences))
    count = sum(len(plane_rows) for plane_rows in reference_rows)
    return Comparison(
        name="source rows against the cache of one process, in position order",
        expected=f"difference <= {tolerance:g} of a plane's largest value",
        got=f"{worst:.1e}",
        count=count,
        held=worst <= tolerance,
    )


def compare_generation(reference: Generation, got: Generation) -> list[Comparison]:
    """Compare greedy tokens exactly and the first step's logits within the tolerance."""
    change = logit_change(reference, got)
    return [
        Comparison(
            name="greedy tokens from the reassembled cache",
            expected=_show_tokens(reference.tokens),
            got=_show_tokens(got.tokens),
            count=len(reference.tokens),
            held=reference.tokens == got.tokens,
        ),
        Comparison(
            name="first-step logits from the reassembled cache",
            expected=f"difference <= {LOGIT_TOLERANCE:g}",
            got=f"{change:.1e}",
            count=len(reference.first_logits),
            held=change <= LOGIT_TOLERANCE,
        ),
    ]


def compare_damaged(name: str, reference: Generation, damaged: Generation) -> Comparison:
    """Hold that a damaged cache is noticed: other tokens, or logits changed beyond rounding.

    A comparison that a damaged cache would pass as well proves nothing about the undamaged one.
    """
    change = logit_change(reference, damaged)
    same_tokens = reference.tokens == damaged.tokens
    return Comparison(
        name=f"control, {name}",
        expected=f"other tokens, or logits changed by > {LOGIT_TOLERANCE:g}",
        got=f"{'same' if same_tokens else 'other'} tokens, logits changed by {change:.1e}",
        count=len(reference.tokens),
        held=not same_tokens or change > LOGIT_TOLERANCE,
    )


def compare_noticed(name: str, comparisons: Sequence[Comparison]) -> Comparison:
    """Hold that comparisons made over damaged pools did not all hold."""
    failed_count = sum(not comparison.held for comparison in comparisons)
    return Comparison(
        name=f"control, {name}",
        expected="noticed by the comparison of bytes",
        got="noticed" if failed_count else "not noticed",
        count=len(comparisons),
        held=failed_count > 0,
    )


def logit_change(reference: Generation, got: Generation) -> float:
    """Largest difference of the first step's logits."""
    difference = np.abs(reference.first_logits - got.first_logits)
    return float(difference.max())


def _compare_coverage(source_rows: Rows, shards: Sequence[PoolSnapshot]) -> Comparison:
    """Hold that each position lies on exactly one rank."""
    tokens = len(source_rows[0])
    held = np.zeros(tokens, dtype=np.int64)
    for shard in shards:
        held[shard.geometry.positions(0, tokens)] += 1
    once_count = int(np.count_nonzero(held == 1))
    return Comparison(
        name="destination ranks together: each position on one rank",
        expected=f"{tokens} positions",
        got=f"{once_count} positions",
        count=tokens,
        held=once_count == tokens,
    )


def _find_different_rows(
    source_rows: Rows, shard: PoolSnapshot, positions: NDArray[np.int64]
) -> str:
    """Describe the first row that differs, or return an empty string."""
    different_count = 0
    first = ""
    for plane, expected, got in zip(
        shard.geometry.planes, source_rows, shard.rows(len(source_rows[0])), strict=True
    ):
        different = np.flatnonzero((expected[positions] != got).any(axis=1))
        different_count += len(different)
        if len(different) and not first:
            first = f"{plane}, position {positions[different[0]]}"
    return f"{different_count} rows differ, first: {first}" if different_count else ""


def _show_tokens(tokens: tuple[int, ...]) -> str:
    """Return the first few token ids."""
    shown = " ".join(str(token) for token in tokens[:8])
    return f"{shown} ..." if len(tokens) > 8 else shown
