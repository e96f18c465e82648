# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a sharded pool checks of the arrays that it is given."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer._core import GatherShape, InvalidArgumentError, ScratchSpec, memory_view
from kvxfer.sharded._ahead import SLOTS

__all__ = ["require_fit", "row_bytes"]


def require_fit(
    stripes: Sequence[Mapping[str, Any]], shape: GatherShape, spec: ScratchSpec
) -> None:
    """Hold that a pool's stripes, shape and layout fit each other."""
    got = (spec.ranks, spec.prefix_region_pages, spec.chunk_region_pages, spec.slot_count)
    expected = (shape.ranks, shape.prefix_region_pages, shape.chunk_region_pages, SLOTS)
    if got != expected:
        raise InvalidArgumentError(
            "expected a layout whose (ranks, prefix_region_pages, chunk_region_pages, slot_count) "
            f"is the shape's {expected}, got {got}"
        )
    if not stripes:
        raise InvalidArgumentError("expected at least 1 layer, got none")
    sizes = {tensor.name: tensor.page_bytes for tensor in spec.tensors}
    least_pages = -(-shape.logical_page_count // shape.ranks)
    for layer, tensors in enumerate(stripes):
        for name, stripe in tensors.items():
            if name not in sizes:
                raise InvalidArgumentError(
                    f"expected tensors of {sorted(sizes)}, got {name!r} in layer {layer}"
                )
            fits = stripe.ndim == 2 and stripe.shape[0] >= least_pages
            is_bytes = str(stripe.dtype).endswith("uint8")  # of NumPy or another framework
            if not fits or stripe.shape[1] != sizes[name] or not is_bytes:
                raise InvalidArgumentError(
                    f"expected {name} of layer {layer} as uint8 of shape (at least {least_pages}, "
                    f"{sizes[name]}), got {stripe.dtype} of shape {tuple(stripe.shape)}"
                )
            if memory_view(stripe).is_read_only:  # refuses arrays with gaps
                raise InvalidArgumentError(
                    f"expected {name} of layer {layer} writable, got a read-only array"
                )


def row_bytes(
    rows: NDArray[Any], token_count: int, page_bytes: int, page_size: int
) -> NDArray[np.uint8]:
    """Bytes of rows, shape (token_count, row_bytes)."""
    width_bytes, rest = divmod(page_bytes, page_size)
    if rest:
        raise InvalidArgumentError(
            f"expected a tensor that keeps row after row in pages of {page_size} tokens, got "
            f"{page_bytes} bytes a page"
        )
    if rows.nbytes != token_count * width_bytes or not rows.flags.c_contiguous:
        raise InvalidArgumentError(
            f"expected {token_count} C-contiguous rows of {width_bytes} bytes, got {rows.nbytes} "
            f"bytes of shape {rows.shape}"
        )
    return rows.reshape(-1).view(np.uint8).reshape(token_count, width_bytes)
