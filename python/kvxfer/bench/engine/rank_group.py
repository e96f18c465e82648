# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Attention over tokens that several rank processes hold: each computes over its own, then merge.

Only sums travel, a few KB for each layer and token; no rank ever sees another's rows.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from kvxfer.errors import DeadlineError

__all__ = ["RankGroup", "merge_partials"]

Floats = NDArray[np.float32]


def merge_partials(partials: Sequence[Floats]) -> Floats:
    """Merge the ranks' attention, each weighted by its share of the softmax's denominator.

    Parameters
    ----------
    partials : sequence of float32 arrays, shape (..., head_size + 2)
        Of each rank: the sum over its tokens of exp(score - largest) * value, then the sum of
        exp(score - largest), then the largest score; that is -1e30 or less where it has no token.

    Returns
    -------
    float32 array, shape (..., head_size)

    Examples
    --------
    Scores 0 and ln 3 for the values 4 and 8, a rank each: 4 / 4 + 8 * 3 / 4.

    >>> one, other = np.array([[4, 1, 0], [8, 1, np.log(3)]], dtype=np.float32)
    >>> merge_partials([one, other]).round(3).tolist()
    [7.0]
    """
    stacked = np.stack(partials)
    sums, largest = stacked[..., :-1], stacked[..., -1:]
    weighted = (sums * np.exp(largest - largest.max(axis=0))).sum(axis=0)
    merged: Floats = weighted[..., :-1] / weighted[..., -1:]
    return merged


class RankGroup:
    """A rank's place in the group. Rank 0 merges, so that all ranks go on with the same bytes.

    Parameters
    ----------
    links : sequence of Connection
        On rank 0 one to each other rank, in order; on another rank the one to rank 0; none where
        the rank is alone.
    is_first : bool
        Whether this is rank 0.
    wait_s : float
        Longest wait for another rank.
    """

    def __init__(
        self, links: Sequence[Connection] = (), *, is_first: bool = True, wait_s: float = 120.0
    ) -> None:
        self._links = list(links)
        self._is_first = is_first
        self._wait_s = wait_s

    def merge(self, partial: Floats) -> Floats:
        """Return what all ranks' parts come to; called by all of them, in the same order.

        Raises
        ------
        DeadlineError
            If a rank does not answer; names it.
        """
        if not self._links:
            return merge_partials([partial])
        if not self._is_first:
            self._links[0].send_bytes(partial.tobytes())
            return self._receive(0, (*partial.shape[:-1], partial.shape[-1] - 2))
        others = [self._receive(i, partial.shape) for i in range(len(self._links))]
        merged = merge_partials([partial, *others])
        for link in self._links:
            link.send_bytes(merged.tobytes())
        return merged

    def _receive(self, index: int, shape: tuple[int, ...]) -> Floats:
        link = self._links[index]
        if not link.poll(self._wait_s):
            rank = index + 1 if self._is_first else 0
            raise DeadlineError(
                "deadline", f"decode rank {rank}", None, f"no attention within {self._wait_s:g} s"
            )
        return np.frombuffer(link.recv_bytes(), dtype=np.float32).reshape(shape).copy()
