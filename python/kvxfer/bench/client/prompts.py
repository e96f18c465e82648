# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Prompts of one shape: a common prefix and suffixes that differ from their first token on."""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from kvxfer.bench.client.options import Shape, TokenIds

__all__ = ["Prompts", "make_prompts"]


@dataclass(frozen=True)
class Prompts:
    """Token ids of all prompts of a case.

    Attributes
    ----------
    prefix : int64 array, shape (prefix_tokens,), host
        What all prompts begin with.
    suffixes : int64 array, shape (requests, unique_tokens), host
        What each goes on with.
    output_tokens : int
        Tokens that a request asks for.
    """

    prefix: np.ndarray[Any, np.dtype[np.int64]]
    suffixes: np.ndarray[Any, np.dtype[np.int64]]
    output_tokens: int

    def body(self, request: int) -> bytes:
        """Return the body of a request, by its number."""
        return self._encoded([*self.prefix.tolist(), *self.suffixes[request].tolist()])

    def prefix_body(self) -> bytes:
        """Return the body of a request for the bare prefix."""
        return self._encoded(self.prefix.tolist())

    def _encoded(self, input_ids: list[int]) -> bytes:
        sampling = {
            "temperature": 0,
            "max_new_tokens": self.output_tokens,
            "ignore_eos": True,
        }
        return msgspec.json.encode(
            {"input_ids": input_ids, "sampling_params": sampling, "stream": True}
        )


def make_prompts(
    shape: Shape, request_count: int, output_tokens: int, token_ids: TokenIds
) -> Prompts:
    """Draw the prompts of a case; the same arguments give the same prompts.

    No two suffixes begin with the same token, so that a cache finds the prefix and nothing more,
    whatever its page size.

    Parameters
    ----------
    shape : Shape
        Lengths of prefix and suffix.                                              [unit: tokens]
    request_count : int
        How many prompts.
    output_tokens : int
        Tokens that each asks for.
    token_ids : TokenIds
        Seed and range; at least ``request_count`` different ids.

    Returns
    -------
    Prompts
        One row of ``suffixes`` for each request.
    """
    draw = np.random.default_rng(token_ids.seed)
    low, high = token_ids.first_token_id, token_ids.vocabulary_size
    prefix = draw.integers(low, high, shape.prefix_tokens)
    suffixes = draw.integers(low, high, (request_count, shape.unique_tokens))
    suffixes[:, 0] = low + draw.choice(token_ids.id_count, request_count, replace=False)
    return Prompts(prefix, suffixes, output_tokens)
