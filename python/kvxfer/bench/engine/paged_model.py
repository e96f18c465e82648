# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A transformers model whose cache is a paged pool, of which this rank may hold a shard.

The model runs as it is; two of its joints are ours. What it calls its cache puts new rows into the
pool, where this rank holds them, and returns the rows that this rank has. Its attention is then
over those alone and is merged with the other ranks'.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvxfer import Plane, PlaneKind
from kvxfer.bench.engine.pool import KvPool
from kvxfer.bench.engine.rank_group import RankGroup
from kvxfer.bench.engine.sampled import Sampled
from kvxfer.demo import model as demo_model

__all__ = ["PagedModel", "planes_of"]

ATTENTION = "kvxfer_paged"
_FLOAT_BYTES = 4
# Stands for "no score": exp of it is 0, and differences of two of it are numbers.
_NO_SCORE = -1e30


def planes_of(config: Any) -> list[Plane]:
    """Planes of a model's cache: key and value, or latent and rotary part, of each layer."""
    lora_rank = getattr(config, "kv_lora_rank", None)
    if lora_rank:
        widths = {PlaneKind.LATENT: lora_rank, PlaneKind.ROPE: config.qk_rope_head_dim}
    else:
        stated = getattr(config, "head_dim", None)
        head_size = stated or config.hidden_size // config.num_attention_heads
        width = config.num_key_value_heads * head_size
        widths = {PlaneKind.KEY: width, PlaneKind.VALUE: width}
    return [
        Plane(layer, kind, width * _FLOAT_BYTES)
        for layer in range(config.num_hidden_layers)
        for kind, width in widths.items()
    ]


class PagedModel:
    """Runs tokens of one request at a time over this rank's pool.

    Parameters
    ----------
    loaded : transformers causal language model
        In float32; its attention is replaced.
    pool : KvPool
        Planes as ``planes_of`` lists them.
    group : RankGroup
        The ranks that hold the rest of each request.
    """

    def __init__(self, loaded: Any, pool: KvPool, group: RankGroup) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, _attend)
        loaded.set_attn_implementation(ATTENTION)
        self._model = loaded
        self._pool = pool
        self._group = group
        self._planes = [torch.from_numpy(array.view(np.float32)) for array in pool.arrays]

    def run(self, token_ids: NDArray[np.integer], begin: int, pages: NDArray[np.int64]) -> Sampled:
        """Run tokens that follow ``begin`` held positions; return what the model says after them.

        Parameters
        ----------
        token_ids : int array, shape (token_count,)
        begin : int
            Position of the first of them.
        pages : int64 array, shape (page_count,)
            Pages of the request from position 0 on.
        """
        end = begin + len(token_ids)
        step = _Step(self._pool, self._planes, self._group, pages, begin, end)
        with torch.inference_mode():
            output = self._model(
                torch.from_numpy(np.asarray(token_ids, dtype=np.int64))[None],
                position_ids=torch.arange(begin, end)[None],
                logits_to_keep=1,
                use_cache=True,
                paged_step=step,
                **{demo_model.cache_argument(self._model): step},
            )
            logprobs = torch.log_softmax(output.logits[0, -1].float(), dim=-1)
        token = int(logprobs.argmax())
        return Sampled(token, float(logprobs[token]))


class _Step:
    """What a transformers model takes for its cache, during one pass over one request."""

    def __init__(
        self,
        pool: KvPool,
        planes: list[torch.Tensor],
        group: RankGroup,
        pages: NDArray[np.int64],
        begin: int,
        end: int,
    ) -> None:
        held, new = pool.positions(0, end), pool.positions(begin, end)
        self.group = group
        self.query_positions = torch.arange(begin, end)
        # A rank without a row reads one that no query looks at: modules refuse empty tensors.
        self.key_positions = torch.from_numpy(held) if len(held) else torch.tensor([end])
        rows = pool.rows(pages, held) if len(held) else np.zeros(1, dtype=np.int64)
        self._is_empty = len(held) == 0
        self._planes = planes
        self._held_rows = torch.from_numpy(rows)
        self._new_rows = torch.from_numpy(pool.rows(pages, new))
        self._new_indices = torch.from_numpy(new - begin)
        self._begin = begin

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many positions were held before."""
        return self._begin

    def update(
        self, first: torch.Tensor, second: torch.Tensor, layer_idx: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the new rows of a layer into the pool and return all of this rank's.

        Parameters
        ----------
        first, second : tensors, shape (1, heads, token_count, head size)
            Keys and values, or latents and rotary parts.

        Returns
        -------
        tuple of tensors, shape (1, heads, row_count, head size)
        """
        return self._exchange(2 * layer_idx, first), self._exchange(2 * layer_idx + 1, second)

    def _exchange(self, index: int, new: torch.Tensor) -> torch.Tensor:
        plane = self._planes[index]
        by_position = new[0].transpose(0, 1)
        own = by_position[self._new_indices].flatten(1)
        plane[self._new_rows] = own
        held = plane[self._held_rows]
        if self._is_empty:
            held = torch.zeros_like(held)
        return held.view(len(held), new.shape[1], -1).transpose(0, 1)[None]


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    scaling: float,
    paged_step: _Step,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend to this rank's rows and merge with the other ranks; transformers' signature."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    is_later = paged_step.key_positions[None, :] > paged_step.query_positions[:, None]
    scores = scores.masked_fill(is_later, -torch.inf)
    largest = scores.amax(dim=-1, keepdim=True).clamp(min=_NO_SCORE)
    weights = torch.exp(scores - largest)
    sums = torch.matmul(weights, value)
    partial = torch.cat([sums, weights.sum(dim=-1, keepdim=True), largest], dim=-1)
    merged = torch.from_numpy(paged_step.group.merge(partial.numpy()))
    return merged.transpose(1, 2).contiguous(), None
