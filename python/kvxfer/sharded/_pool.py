# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A rank's stripe of a page-sharded pool, read through two scratch slots, a layer ahead."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer._core import (
    BlockLayout,
    GatherPlan,
    GatherShape,
    GatherVerdict,
    InvalidArgumentError,
    UnsupportedError,
)
from kvxfer.sharded._ahead import SLOTS, LayerAhead
from kvxfer.sharded._checks import require_fit, row_bytes
from kvxfer.sharded._lanes import GatherLane, InlineLane
from kvxfer.sharded._protocol import PrefixAllgather

__all__ = ["ShardedPool"]

Stripes = Sequence[Mapping[str, Any]]


class ShardedPool:
    """One rank's side of a pool whose pages lie on one rank each.

    Attention reads the scratch alone. A batch begins with the gather of layer 0; reading layer
    ``l`` waits for its gather, then starts that of layer ``l + 1`` into the slot that layer
    ``l - 1`` was read from. All ranks run the same batches and read the same layers in order. New
    rows go into the scratch and, on the rank that owns their page, into the stripe.

    A draft model has a pool of its own beside the main one: its own stripes, scratch and gather
    over the same shape, begun with the same plan.

    Parameters
    ----------
    stripes : sequence of mappings from str to uint8 array, shape (pages, page_bytes)
        Of each layer: this rank's local pages of each tensor, C-contiguous and writable, on
        the host or on the gather's device. A layer that lacks a tensor of the layout leaves it out.
    shape : GatherShape
        Of the pool; its ranks and regions are those of the gather's layout.
    allgather : PrefixAllgather
        Of this pool alone. Constructing the pool is collective: the ranks compare their layers.
    lane : GatherLane, optional
        Where gathers run; in the call that starts them without it.
    loaded : callable, optional
        Takes a layer and returns once its pages are in the stripe, for caches that come back from
        elsewhere. Called where the gathers run, before the layer is packed.

    Raises
    ------
    InvalidArgumentError
        If stripes, shape and layout do not fit.
    TransferError
        On every rank, when their layers differ.
    """

    def __init__(
        self,
        stripes: Stripes,
        shape: GatherShape,
        allgather: PrefixAllgather,
        *,
        lane: GatherLane | None = None,
        loaded: Callable[[int], None] | None = None,
    ) -> None:
        spec = allgather.layout.spec
        self._names = [tensor.name for tensor in spec.tensors]
        self._stripes = [dict(layer) for layer in stripes]
        require_fit(self._stripes, shape, spec)
        self._shape = shape
        self._allgather = allgather
        self._batch: tuple[GatherPlan, BlockLayout] | None = None
        numbered = [
            {self._names.index(name): stripe for name, stripe in layer.items()}
            for layer in self._stripes
        ]
        self._ahead = LayerAhead(numbered, allgather, lane or InlineLane(), loaded or _is_loaded)
        allgather.agree(f"a pool of {shape} with the tensors {[sorted(t) for t in numbered]}")

    @property
    def layer_count(self) -> int:
        """Layers of the pool."""
        return len(self._stripes)

    @property
    def shape(self) -> GatherShape:
        """Of the pool."""
        return self._shape

    @property
    def verdict(self) -> GatherVerdict:
        """Which path gathers take, and why; the same on every rank."""
        return self._allgather.verdict

    def begin(self, plan: GatherPlan) -> None:
        """Begin a batch and the gather of its first layer.

        Parameters
        ----------
        plan : GatherPlan
            Of the batch, made from the same tables on every rank.

        Raises
        ------
        InvalidArgumentError
            If the batch before has not ended, the plan is of another shape, or a gather failed.
        CapacityError
            If the plan's blocks do not fit the scratch.
        TransferError, DeadlineError
            As PrefixAllgather.gather().
        """
        if self._batch is not None:
            raise InvalidArgumentError("expected the batch before to have ended, got one under way")
        if plan.shape != self._shape:
            raise InvalidArgumentError(f"expected a plan of {self._shape}, got one of {plan.shape}")
        blocks = BlockLayout(self._allgather.layout, plan.block_pages)
        self._ahead.begin(plan, blocks)
        self._batch = (plan, blocks)

    def read(self, layer: int) -> dict[str, Any]:
        """Wait for a layer's prefix, start the next layer's gather and return the scratch.

        Parameters
        ----------
        layer : int
            The one after the layer that was read before, or that one again.

        Returns
        -------
        dict from str to uint8 array, shape (page_count, page_bytes)
            Of each tensor of the layer, no copy; find tokens in them by rows(). Valid until layer
            ``layer + 1`` is read.

        Raises
        ------
        InvalidArgumentError
            For a layer whose gather was not started or whose slot holds another one.
        TransferError, DeadlineError
            As PrefixAllgather.gather(); the pool gathers no more then.
        """
        self._open_batch()
        self._require_layer(layer)
        self._ahead.acquire(layer)
        return {
            name: self._allgather.view(layer % SLOTS, self._index(name))
            for name in self._stripes[layer]
        }

    def release(self, layer: int) -> None:
        """Say early that a layer is no longer read, which peers may wait for to gather again.

        Optional: the gather after the next says so too. Call it once the layer's attention has run,
        or on a device was enqueued on the current stream.
        """
        self._open_batch()
        self._ahead.release(layer)

    def rows(self, name: str, locations: Any) -> NDArray[np.int64]:
        """Rows of a tensor's scratch at which the batch's tokens are found.

        Parameters
        ----------
        name : str
            Of the tensor.
        locations : integer array, any shape
            Token locations of the pool: page * page_size + offset. Those of pages without a place
            in the batch lead to the trash page.

        Returns
        -------
        int64 array, in the shape of ``locations``
            ``page * page_size + offset`` in what read() returns.
        """
        plan, blocks = self._open_batch()
        return plan.translate(locations, blocks.page_map(self._index(name)))

    def write(self, layer: int, name: str, locations: Any, rows: NDArray[Any]) -> None:
        """Write new rows into the scratch and into the pages of the stripe that this rank owns.

        For pools on the host; on a device a kernel of the engine does it, at rows().

        Parameters
        ----------
        layer : int
            Whose read comes next or was the last.
        name : str
            Of a tensor that keeps row after row in a page.
        locations : integer array, shape (tokens,)
            Of the batch's new tokens. Rows of pages without a place (padding) go to the trash page.
        rows : array, shape (tokens, ...), host
            C-contiguous; page_bytes / page_size bytes for each token.

        Raises
        ------
        InvalidArgumentError
            For a location in a cached prefix, or rows of another size.
        UnsupportedError
            For a pool on a device.
        """
        plan, blocks = self._open_batch()
        self._require_layer(layer)
        index, page_size = self._index(name), self._shape.page_size
        found = np.asarray(locations, np.int64).reshape(-1)
        scratch = self._allgather.view(layer % SLOTS, index)
        if not isinstance(scratch, np.ndarray):
            raise UnsupportedError("expected a pool on the host, got one on a device")
        data = row_bytes(rows, found.size, scratch.shape[1], page_size)
        page_map = blocks.page_map(index)
        scratch_rows = plan.translate(found, page_map)
        chunk_index = scratch_rows // page_size - page_map.chunk_page
        is_new = (chunk_index >= 0) & (chunk_index < len(plan.chunk_pages))
        is_trash = scratch_rows // page_size == page_map.trash_page
        if not np.all(is_new | is_trash):
            cached = found[~(is_new | is_trash)][0]
            raise InvalidArgumentError(f"expected locations of new tokens, got a cached {cached}")
        scratch.reshape(-1, data.shape[1])[scratch_rows] = data
        owner, local_rows = self._places(found)
        own = is_new & (owner == self._allgather.rank)
        self._stripes[layer][name].reshape(-1, data.shape[1])[local_rows[own]] = data[own]

    def end(self) -> None:
        """End the batch: nothing of its scratch is read any more.

        Layers that were not read are gathered all the same, so that peers that read them do not
        wait for this rank; after a gather that failed, nothing is.
        """
        self._batch = None
        self._ahead.end()

    @contextmanager
    def batch(self, plan: GatherPlan) -> Iterator[None]:
        """Begin a batch and end it, also when its body raises."""
        self.begin(plan)
        try:
            yield
        finally:
            self.end()

    def close(self) -> None:
        """End the batch and let go of the scratch; collective, once."""
        try:
            self.end()
        finally:
            self._allgather.close()

    def _places(self, locations: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rank that owns each location, and the location's row in that rank's stripe."""
        page, offset = np.divmod(locations, self._shape.page_size)
        local, owner = np.divmod(page, self._shape.ranks)
        return owner, local * self._shape.page_size + offset

    def _open_batch(self) -> tuple[GatherPlan, BlockLayout]:
        if self._batch is None:
            raise InvalidArgumentError("expected a batch that was begun, got none")
        return self._batch

    def _require_layer(self, layer: int) -> None:
        if not 0 <= layer < self.layer_count:
            raise InvalidArgumentError(f"expected layer in [0, {self.layer_count}), got {layer}")

    def _index(self, name: str) -> int:
        if name not in self._names:
            raise InvalidArgumentError(f"expected a tensor of {self._names}, got {name!r}")
        return self._names.index(name)


def _is_loaded(layer: int) -> None:
    return
