# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""From a transformers cache to rows of planes, and back.

A full-attention layer caches keys and values of shape (1, KV heads, tokens, head size), float32.
As rows, each is a plane whose row is one position: KV heads * head size * 4 bytes, head by head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvxfer import InvalidArgumentError
from kvxfer.demo.geometry import PlaneSpec, Rows

_FLOAT_BYTES = 4


def cache_planes(config: Any) -> tuple[PlaneSpec, ...]:
    """Planes of a model's cache: key and value of each layer, in layer order."""
    row_bytes = config.num_key_value_heads * _head_size(config) * _FLOAT_BYTES
    return tuple(
        PlaneSpec(layer, kind, row_bytes)
        for layer in range(config.num_hidden_layers)
        for kind in ("key", "value")
    )


def make_cache(config: Any) -> Any:
    """Return an empty transformers.DynamicCache for one request of a model."""
    from transformers import DynamicCache

    return DynamicCache(config=config)


def extract_rows(cache: Any, begin: int, end: int) -> Rows:
    """Copy positions [begin, end) of a cache out as rows.

    Parameters
    ----------
    cache : transformers.DynamicCache
        One request, full-attention layers, float32, on the host.
    begin, end : int
        Positions.

    Returns
    -------
    list of uint8 arrays, shape (end - begin, row_bytes)
        Key and value of each layer, as :func:`cache_planes` orders them.

    Raises
    ------
    InvalidArgumentError
        If the cache holds fewer than ``end`` positions.
    """
    held_tokens = int(cache.get_seq_length())
    if not 0 <= begin <= end <= held_tokens:
        raise InvalidArgumentError(
            f"positions: expected a range inside [0, {held_tokens}), got [{begin}, {end})"
        )
    rows: Rows = []
    for layer in cache.layers:
        for tensor in (layer.keys, layer.values):
            by_position = tensor[0, :, begin:end].transpose(0, 1).contiguous().numpy()
            rows.append(by_position.reshape(end - begin, -1).view(np.uint8))
    return rows


def restore_cache(config: Any, rows: Rows) -> Any:
    """Build the cache of which ``rows`` are the rows.

    Parameters
    ----------
    config : transformers configuration
        Of the model that will read the cache.
    rows : list of uint8 arrays, shape (tokens, row_bytes)
        Key and value of each layer, in position order; copied.

    Returns
    -------
    transformers.DynamicCache

    Raises
    ------
    InvalidArgumentError
        If the number of planes or the bytes of a row are not the model's.
    """
    import torch

    expected = [plane.row_bytes for plane in cache_planes(config)]
    got = [plane_rows.shape[1] for plane_rows in rows]
    if got != expected:
        raise InvalidArgumentError(f"row bytes of the planes: expected {expected}, got {got}")
    shape = (-1, config.num_key_value_heads, _head_size(config))
    tensors = [
        torch.from_numpy(np.ascontiguousarray(plane_rows).view(np.float32).reshape(shape).copy())
        .transpose(0, 1)
        .unsqueeze(0)
        for plane_rows in rows
    ]
    cache = make_cache(config)
    for layer in range(config.num_hidden_layers):
        cache.update(tensors[2 * layer], tensors[2 * layer + 1], layer)
    return cache


def _head_size(config: Any) -> int:
    """Return the elements of one head of a row."""
    stated = getattr(config, "head_dim", None)
    return int(stated or config.hidden_size // config.num_attention_heads)
