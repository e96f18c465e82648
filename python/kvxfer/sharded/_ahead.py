# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The order of a pool's gathers: which layer a slot holds, and a layer of look-ahead."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvxfer._core import BlockLayout, GatherPlan, InvalidArgumentError
from kvxfer.sharded._lanes import GatherLane
from kvxfer.sharded._protocol import PrefixAllgather

__all__ = ["SLOTS", "LayerAhead"]

SLOTS = 2
_EMPTY = (-1, 0)


def _ready() -> None:
    return


@dataclass
class _Slot:
    """A scratch slot: the layer and batch that it holds, and the wait until it holds them."""

    resident: tuple[int, int] = _EMPTY
    ready: Callable[[], None] = _ready
    is_held: bool = False  # gathered and not released since


@dataclass
class _Batch:
    """What the gathers of a batch need."""

    blocks: BlockLayout
    send_pages: Any
    started_layers: int = 0


class LayerAhead:
    """Gathers the layers of a batch, each when the layer before it is read.

    Parameters
    ----------
    stripes : sequence of mappings from int to uint8 array, shape (pages, page_bytes)
        Of each layer, by the tensor's number in the gather's layout.
    allgather : PrefixAllgather
        Of this pool.
    lane : GatherLane
        Where the gathers run.
    loaded : callable
        Takes a layer and returns once its pages are in the stripe.
    """

    def __init__(
        self,
        stripes: Sequence[Mapping[int, Any]],
        allgather: PrefixAllgather,
        lane: GatherLane,
        loaded: Callable[[int], None],
    ) -> None:
        self._stripes = stripes
        self._allgather = allgather
        self._lane = lane
        self._loaded = loaded
        self._slots = [_Slot() for _ in range(SLOTS)]
        self._batch: _Batch | None = None
        self._epoch = 0  # of batches that gather
        self._is_broken = False

    def begin(self, plan: GatherPlan, blocks: BlockLayout) -> None:
        """Begin a batch and the gather of its first layer, if it has a prefix."""
        self._require_whole()
        if plan.block_pages == 0:
            return
        self._epoch += 1
        self._batch = _Batch(blocks, self._allgather.send_pages(plan))
        self._start(self._batch, 0)

    def acquire(self, layer: int) -> None:
        """Wait until a layer is in its slot, and start the gather of the next one."""
        self._require_whole()
        if self._batch is None:  # no prefix: no wait and no look-ahead
            return
        slot = self._slots[layer % SLOTS]
        if slot.resident != (layer, self._epoch):
            held, epoch = slot.resident
            raise InvalidArgumentError(
                f"expected layer {layer} of gathered batch {self._epoch} in slot {layer % SLOTS}, "
                f"got layer {held} of batch {epoch}: layers are read in order"
            )
        self._wait(slot)
        if layer + 1 < len(self._stripes):
            self._start(self._batch, layer + 1)

    def release(self, layer: int) -> None:
        """Let peers write the layer's slot before its next gather begins."""
        slot = self._slots[layer % SLOTS]
        if slot.resident == (layer, self._epoch) and slot.is_held:
            self._release(layer % SLOTS)
            slot.resident = _EMPTY

    def end(self) -> None:
        """Gather what was not read, so that peers that read it do not wait for this rank."""
        batch, self._batch = self._batch, None
        if batch is None or self._is_broken:
            return
        for layer in range(batch.started_layers, len(self._stripes)):
            self._wait(self._slots[layer % SLOTS])
            self._start(batch, layer)
        for slot in self._slots:
            self._wait(slot)

    def _start(self, batch: _Batch, layer: int) -> None:
        """Submit the layer's gather unless its slot has it."""
        slot = self._slots[layer % SLOTS]
        if slot.resident == (layer, self._epoch):
            return
        slot.resident = (layer, self._epoch)
        batch.started_layers = layer + 1
        tag = self._tag(layer)

        def fill() -> None:
            self._loaded(layer)
            self._fill(batch, layer, tag)

        with self._breaking():
            slot.ready = self._lane.submit(fill)

    def _fill(self, batch: _Batch, layer: int, tag: int) -> None:
        """Pack the own pages of all tensors and gather them: on the lane."""
        number = layer % SLOTS
        slot = self._slots[number]
        if slot.is_held:
            self._release(number)
        stripes = self._stripes[layer]
        self._allgather.pack(number, batch.blocks, stripes, batch.send_pages)
        self._allgather.gather(number, tag, batch.blocks, tensors=stripes)
        slot.is_held = True

    def _release(self, number: int) -> None:
        self._allgather.release(number)
        self._slots[number].is_held = False

    def _tag(self, layer: int) -> int:
        """Count of the slot's gathers, from batches and layers, so that one left out is seen."""
        of_batch = len(range(layer % SLOTS, len(self._stripes), SLOTS))
        return (self._epoch - 1) * of_batch + layer // SLOTS + 1

    def _wait(self, slot: _Slot) -> None:
        with self._breaking():
            slot.ready()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Gather no more after what is raised: this rank is out of step with its peers."""
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    def _require_whole(self) -> None:
        if self._is_broken:
            raise InvalidArgumentError(
                "expected a pool whose gathers all went well, got one after a gather that failed"
            )
