# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""An engine's cache arrays of one rank as pools: one per group of layers, one plane per KV head.

A plane for every head makes a head the unit that ranks exchange, wherever its rows lie: head before
token, token before head, layers apart or interleaved are strides, and any of them goes to any
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvxfer import (
    InvalidArgumentError,
    Plane,
    PlaneKind,
    PoolLayout,
    Sharding,
    UnsupportedError,
)
from kvxfer.transfer import LocalPool

__all__ = ["CacheArray", "make_pool"]


@dataclass(frozen=True)
class CacheArray:
    """One layer's cache on one rank: pages x heads x rows x bytes of a row.

    Attributes
    ----------
    layer : int
        Global id of the layer.
    address : int
    page_count, head_count, page_size, row_bytes : int
        Sizes; rows of a head hold its keys and values, or a latent.
    page_stride_bytes, head_stride_bytes, row_stride_bytes : int
    dtype : str
        Element type and order; both engines must have the same.
    """

    layer: int
    address: int
    page_count: int
    head_count: int
    page_size: int
    row_bytes: int
    page_stride_bytes: int
    head_stride_bytes: int
    row_stride_bytes: int
    dtype: str

    @classmethod
    def of_tensor(cls, layer: int, tensor: Any, order: str) -> "CacheArray":
        """Return the array of a torch tensor: pages x heads x rows x elements, of any strides.

        ``order`` names how the engine orders a page's bytes; both engines must agree.

        Raises
        ------
        UnsupportedError
            If it lies on a device, or has another shape.
        """
        if tensor.device.type != "cpu":
            raise UnsupportedError(
                f"cache of layer {layer} lies on {tensor.device}, the connector moves host memory"
            )
        if tensor.dim() != 4 or tensor.stride(3) != 1:
            raise UnsupportedError(
                f"cache of layer {layer} has shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}, expected pages x heads x rows x adjacent elements"
            )
        item_bytes = tensor.element_size()
        page_count, head_count, page_size, element_count = tensor.shape
        page_stride, head_stride, row_stride, _ = tensor.stride()
        return cls(
            layer=layer,
            address=tensor.data_ptr(),
            page_count=page_count,
            head_count=head_count,
            page_size=page_size,
            row_bytes=element_count * item_bytes,
            page_stride_bytes=page_stride * item_bytes,
            head_stride_bytes=head_stride * item_bytes,
            row_stride_bytes=row_stride * item_bytes,
            dtype=f"{tensor.dtype} {order}".rstrip(),
        )


def make_pool(
    arrays: Sequence[CacheArray], heads: range, total_heads: int, sharding: Sharding
) -> LocalPool:
    """Return the pool of a group's arrays, which share one page table.

    Parameters
    ----------
    heads : range
        KV heads of the model that this rank holds, in the arrays' order.
    total_heads : int
        KV heads of the model.

    Raises
    ------
    InvalidArgumentError
        If arrays have other sizes than each other or other heads than the rank, or a layer comes
        twice.
    """
    first = _checked(arrays, len(heads))
    planes, addresses = [], []
    for array in arrays:
        for index, head in enumerate(heads):
            planes.append(_plane(array, array.layer * total_heads + head))
            addresses.append(array.address + index * array.head_stride_bytes)
    layout = PoolLayout(first.page_size, first.page_count, planes, sharding=sharding)
    return LocalPool(layout, tuple(addresses))


def _checked(arrays: Sequence[CacheArray], head_count: int) -> CacheArray:
    if not arrays:
        raise InvalidArgumentError("a group has no cache arrays, expected at least one layer")
    first = arrays[0]
    layers = [array.layer for array in arrays]
    if len(set(layers)) != len(layers):
        raise InvalidArgumentError(f"layers are {sorted(layers)}, expected each once")
    for array in arrays:
        sizes = (array.page_count, array.page_size)
        if sizes != (first.page_count, first.page_size):
            raise InvalidArgumentError(
                f"layer {array.layer} has {sizes[0]} pages of {sizes[1]} rows, expected "
                f"{first.page_count} of {first.page_size} as layer {first.layer}"
            )
        if array.head_count != head_count:
            raise InvalidArgumentError(
                f"layer {array.layer} has {array.head_count} KV heads on this rank, "
                f"expected {head_count}"
            )
    return first


def _plane(array: CacheArray, plane_id: int) -> Plane:
    return Plane(
        plane_id,
        PlaneKind.KEY,
        array.row_bytes,
        dtype=array.dtype,
        row_stride_bytes=array.row_stride_bytes,
        page_stride_bytes=array.page_stride_bytes,
    )
