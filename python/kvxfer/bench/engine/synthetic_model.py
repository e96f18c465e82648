# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""No model: rows of Kimi Linear geometry are a pattern, and computing is waiting.

For prompts that no model on a small machine could run. Every row tells its plane, position and
token, so a row in a wrong place, or of another request, is seen where it arrives.
"""

import time

import numpy as np
from numpy.typing import NDArray

from kvxfer import Plane, PlaneKind
from kvxfer.bench.engine.pool import KvPool
from kvxfer.bench.engine.sampled import Sampled
from kvxfer.bench.engine.setting import Verification
from kvxfer.demo.synthetic import KIMI_LINEAR_PLANES

__all__ = ["VOCABULARY_SIZE", "SyntheticModel", "pattern_rows", "synthetic_planes"]

VOCABULARY_SIZE = 32_768
_SAMPLED_ROWS = 64
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


def synthetic_planes() -> list[Plane]:
    """Planes of Kimi Linear 48B's full-attention layers with an FP8 cache: 7 of 576 bytes."""
    return [Plane(spec.layer, PlaneKind.LATENT, spec.row_bytes) for spec in KIMI_LINEAR_PLANES]


def pattern_rows(
    plane: Plane, positions: NDArray[np.int64], token_ids: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the rows that belong to positions of a prompt.

    Parameters
    ----------
    plane : Plane
        Rows of a multiple of 8 bytes.
    positions, token_ids : int64 arrays, shape (row_count,)

    Returns
    -------
    uint8 array, shape (row_count, row_bytes)
    """
    key = (np.uint64(plane.layer) << np.uint64(56)) + (positions.astype(np.uint64) << np.uint64(24))
    words = np.arange(1, plane.row_bytes // 8 + 1, dtype=np.uint64) * _MIX
    mixed = ((key + token_ids.astype(np.uint64))[:, None] * _MIX) ^ words[None, :]
    return mixed.view(np.uint8)


class SyntheticModel:
    """Stands where ``PagedModel`` does.

    Parameters
    ----------
    pool : KvPool
    compute_s : float
        How long a whole prompt takes from ``begin_prompt`` on, writing its rows included.
    step_s : float
        How long a decoded token takes.
    verify : {"all", "sample", "none"}
        Which received rows ``find_wrong_row`` looks at.
    """

    def __init__(self, pool: KvPool, compute_s: float, step_s: float, verify: Verification) -> None:
        self._pool = pool
        self._compute_s = compute_s
        self._step_s = step_s
        self._verify = verify
        self._prompt_until = 0.0
        self._choose = np.random.default_rng(0)

    def begin_prompt(self) -> None:
        """Start the time that a prompt takes."""
        self._prompt_until = time.monotonic() + self._compute_s

    def fill(self, token_ids: NDArray[np.int64], begin: int, pages: NDArray[np.int64]) -> None:
        """Write the rows of tokens from position ``begin`` on."""
        positions = self._pool.positions(begin, begin + len(token_ids))
        rows = self._pool.rows(pages, positions)
        for plane, array in zip(self._pool.layout.planes, self._pool.arrays, strict=True):
            array[rows] = pattern_rows(plane, positions, token_ids[positions - begin])

    def end_prompt(self, token_ids: NDArray[np.int64]) -> Sampled:
        """Wait for the rest of the prompt's time; what follows is its last token, plus one."""
        time.sleep(max(0.0, self._prompt_until - time.monotonic()))
        return _next(int(token_ids[-1]))

    def step(self, token: int) -> Sampled:
        """Wait for a step's time and return the token that follows."""
        time.sleep(self._step_s)
        return _next(token)

    def find_wrong_row(self, token_ids: NDArray[np.int64], pages: NDArray[np.int64]) -> str | None:
        """Compare this rank's rows of a prompt with the pattern; None where they hold."""
        positions = self._pool.positions(0, len(token_ids))
        if self._verify == "none" or len(positions) == 0:
            return None
        if self._verify == "sample":
            chosen = self._choose.choice(len(positions), min(_SAMPLED_ROWS, len(positions)), False)
            positions = positions[np.union1d(chosen, (0, len(positions) - 1))]
        rows = self._pool.rows(pages, positions)
        for plane, array in zip(self._pool.layout.planes, self._pool.arrays, strict=True):
            wanted = pattern_rows(plane, positions, token_ids[positions])
            is_wrong = (array[rows] != wanted).any(axis=1)
            if is_wrong.any():
                return (
                    f"{int(is_wrong.sum())} of {len(rows)} rows of layer {plane.layer} are not "
                    f"those of the pattern, the first at position {positions[is_wrong.argmax()]}"
                )
        return None


def _next(token: int) -> Sampled:
    return Sampled((token + 1) % VOCABULARY_SIZE, 0.0)
