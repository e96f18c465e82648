# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The prefix gather on devices by copies of our own, under one handshake for all tensors.

Tested over a fake NCCL and fake streams; not yet run on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvxfer._collective import CopyEngineGather, NcclApi, StreamCalls
from kvxfer._core import (
    BlockSpan,
    GatherPath,
    HandshakeBoards,
    RankConditions,
    ScratchLayout,
    UnsupportedError,
)
from kvxfer.sharded._device import DeviceCalls, DevicePrefixAllgather
from kvxfer.sharded._group import Exchange, map_shared

__all__ = ["CopyEngineAllgather", "OwnCopies"]


class Recorded(Protocol):
    """A point of a stream, such as a CUDA event."""

    def query(self) -> bool:
        """Return whether the stream has come to it, without waiting."""
        ...


@dataclass(frozen=True)
class OwnCopies:
    """What copies of our own need beside DeviceCalls; torch_own_copies() for torch.

    Attributes
    ----------
    stream_calls : StreamCalls
        kvxfer.cuda.stream_calls().
    register : callable
        Takes host memory, uint8 array, and lets devices reach it at its own address.
    unregister : callable
        Takes that memory back.
    record : callable
        Marks where the current stream is.
    bound_seconds : float
        Of wait().
    is_replayable : bool
        For gathers that are captured in a graph.
    """

    stream_calls: StreamCalls
    register: Callable[[NDArray[np.uint8]], None]
    unregister: Callable[[NDArray[np.uint8]], None]
    record: Callable[[], Recorded]
    bound_seconds: float = 30.0
    is_replayable: bool = False


class CopyEngineAllgather(DevicePrefixAllgather):
    """As DevicePrefixAllgather, by our own copies into NCCL's windows where every rank can.

    A gather is one handshake and one batch of copies whatever the number of tensors, a slot is free
    as soon as release() says so, and wait() bounds what a stream waits for. Where the verdict is
    not for copy engines, or a rank does not reach a peer's window, NCCL gathers.

    Parameters
    ----------
    layout, rank, exchange, calls, conditions, nccl
        As DevicePrefixAllgather.
    copies : OwnCopies
        Of the framework.
    """

    def __init__(
        self,
        layout: ScratchLayout,
        rank: int,
        exchange: Exchange,
        calls: DeviceCalls,
        copies: OwnCopies,
        *,
        conditions: RankConditions | None = None,
        nccl: NcclApi | None = None,
    ) -> None:
        super().__init__(layout, rank, exchange, calls, conditions=conditions, nccl=nccl)
        self._copies = copies
        self._recorded: dict[int, Recorded] = {}
        self._words: NDArray[np.uint8] | None = None
        self._side: CopyEngineGather | None = None
        if self._verdict.path is GatherPath.COPY_ENGINE:
            self._connect_windows()

    def _connect_windows(self) -> None:
        windows = self._reachable_windows()
        if not all(text == "reaches" for text in self._exchange("reaches" if windows else "")):
            return
        boards = HandshakeBoards(self._layout.spec.ranks, self._layout.spec.slot_count)

        def prepare(memory: NDArray[np.uint8]) -> None:
            self._copies.register(memory)
            self._words = memory
            self._side = CopyEngineGather(
                boards,
                self._rank,
                memory,
                windows,
                self._layout.bytes,
                self._copies.stream_calls,
                is_replayable=self._copies.is_replayable,
            )

        words = f"{self._layout.fingerprint}.{self._copies.is_replayable}"
        map_shared(self._exchange, self._rank, boards.bytes, words, prepare)

    def _reachable_windows(self) -> list[int]:
        """Addresses of all ranks' windows; none unless all are reached."""
        assert self._window is not None
        try:
            windows = [
                self._window.peer_address(rank, 0) for rank in range(self._layout.spec.ranks)
            ]
        except UnsupportedError:
            return []
        return windows if all(windows) else []

    @property
    def is_own(self) -> bool:
        """Whether gathers are our own copies and not NCCL's; the same on every rank."""
        return self._side is not None

    def release(self, slot: int) -> None:
        """Enqueue that peers may write the slot's next gather, after what the stream reads now."""
        if self._side is not None:
            self._side.release(slot, stream=self._calls.stream())

    def wait(self, slot: int) -> None:
        """Wait on the host until the slot's last gather has run; before the host waits otherwise.

        Raises
        ------
        DeadlineError
            With the ranks that did not come within the bound. The streams of this rank are let go
            and run on, what they gathered is of no use, and the group gathers no more.
        TransferError
            With ranks that are at another gather; the same then.
        UnsupportedError
            Where NCCL gathers, whose wait has no bound.
        """
        if self._side is None:
            raise UnsupportedError("expected gathers of our own, got NCCL's, which wait unbounded")
        if slot in self._recorded:
            is_ready = self._recorded[slot].query
            self._side.wait(slot, is_ready, self._copies.bound_seconds)

    def close(self) -> None:
        """Drain the device and the ranks and let go of scratch and words; collective, once."""
        try:
            super().close()
        finally:
            words, self._words, self._side = self._words, None, None
            if words is not None:
                self._copies.unregister(words)

    def _enqueue(self, slot: int, spans: list[BlockSpan]) -> None:
        if self._side is None:
            super()._enqueue(slot, spans)
            return
        tag = self._side.next_tag(slot)
        self._side.gather(slot, tag, spans, stream=self._calls.stream())
        self._recorded[slot] = self._copies.record()
