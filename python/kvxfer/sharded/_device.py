# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The prefix gather on devices, by NCCL: on copy engines where every rank can, else by kernels.

Tested over a fake NCCL; not yet run on a GPU.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kvxfer._collective import Communicator, CtaPolicy, NcclApi, SymmetricWindow
from kvxfer._core import (
    BlockLayout,
    BlockSpan,
    GatherPath,
    GatherPlan,
    GatherVerdict,
    InvalidArgumentError,
    RankConditions,
    ScratchLayout,
    UnsupportedError,
    WindowOutcome,
    decide_after_registration,
    memory_view,
)
from kvxfer.errors import TransferError
from kvxfer.sharded._environment import driver_version, environment_conditions
from kvxfer.sharded._group import Exchange, agree, agree_on_path
from kvxfer.sharded._nccl import find_nccl
from kvxfer.sharded._protocol import spans_of

__all__ = ["DeviceCalls", "DevicePrefixAllgather"]


@dataclass(frozen=True)
class DeviceCalls:
    """What a gather needs of the framework that owns the device; torch_device_calls() for torch.

    Attributes
    ----------
    device : str
        "cuda:<index>".
    allocate : callable
        Takes a number of bytes and returns ordinary device memory: uint8 array, shape (bytes,).
    from_dlpack : callable
        Makes an array of what has ``__dlpack__``.
    upload : callable
        Takes page numbers, int64 on the host, and returns them as ``take`` wants them.
    take : callable
        Takes (stripe, pages, block) and enqueues ``block[:] = stripe[pages]`` on the current
        stream.
    stream : callable
        Returns the handle of the current stream, which is not the default one.
    synchronize : callable
        Waits for everything on the device.
    is_capturing : callable
        Whether a stream of this thread records a graph.
    """

    device: str
    allocate: Callable[[int], Any]
    from_dlpack: Callable[[Any], Any]
    upload: Callable[[Any], Any]
    take: Callable[[Any, Any, Any], None]
    stream: Callable[[], int]
    synchronize: Callable[[], None]
    is_capturing: Callable[[], bool]


class DevicePrefixAllgather:
    """One rank's scratch slots in device memory and the gathers that fill them.

    Collective: every rank constructs it, gathers the same slots in the same order and closes it.
    The path is decided from what all ranks found, before memory is allocated and again after it is
    registered, so that all take the same one; ``verdict`` says which and why. A gather is enqueued
    on the current stream. The first one may block the host while NCCL sets its side up, so do one
    before a graph is captured, and destroy graphs before close(). NCCL does not bound its wait for
    a peer: check() tells a failed link.

    Parameters
    ----------
    layout : ScratchLayout
        Of the slots; equal on all ranks.
    rank : int
        Of this process.
    exchange : callable
        Takes this rank's text and returns those of all ranks, in rank order. It has its own bound.
    calls : DeviceCalls
        Of the framework.
    conditions : RankConditions, optional
        What this rank found; without it, of the environment, the driver and find_nccl().
    nccl : NcclApi, optional
        The library; find_nccl() without it.

    Raises
    ------
    UnsupportedError
        On every rank, when one has no NCCL.
    TransferError, DeadlineError
        On every rank, when layouts differ or ranks cannot be connected.
    """

    def __init__(
        self,
        layout: ScratchLayout,
        rank: int,
        exchange: Exchange,
        calls: DeviceCalls,
        *,
        conditions: RankConditions | None = None,
        nccl: NcclApi | None = None,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._exchange = exchange
        self._calls = calls
        self._communicator: Communicator | None = None
        self._next_tags = [1] * layout.spec.slot_count
        self.agree(f"a scratch of {layout.bytes} bytes, layout {layout.fingerprint}")
        api = nccl if nccl is not None else _found()
        self._verdict = agree_on_path(exchange, conditions or _conditions(api))
        if self._verdict.path is GatherPath.HOST_COPY:
            raise InvalidArgumentError("expected a pool on a device, got one on the host")
        if self._verdict.path is not GatherPath.NONE:
            self._connect(api)
        self._window = self._registered() if self._verdict.path is GatherPath.COPY_ENGINE else None
        if self._window is None:
            self._memory = calls.allocate(layout.bytes)
        else:
            self._memory = calls.from_dlpack(self._window.view(0, layout.bytes))

    def _connect(self, api: NcclApi | None) -> None:
        lacking = [r for r, text in enumerate(self._exchange("" if api else "lacks")) if text]
        if api is None or lacking:
            raise UnsupportedError(
                f"expected NCCL on every rank, got none on ranks {lacking}: install "
                "nvidia-nccl-cu13>=2.31.2 or give a path"
            )
        is_zero_sm = self._verdict.path is GatherPath.COPY_ENGINE
        policy = CtaPolicy.ZERO if is_zero_sm else CtaPolicy.DEFAULT
        ranks = self._layout.spec.ranks
        self._communicator = Communicator(api, self._rank, ranks, self._exchange, policy=policy)

    def _registered(self) -> SymmetricWindow | None:
        """Register the scratch, or learn on every rank why it is ordinary memory."""
        communicator = self._open_communicator()
        window: SymmetricWindow | None = None
        try:
            window = SymmetricWindow(
                communicator,
                self._layout.bytes,
                self._layout.fingerprint,
                synchronize=self._calls.synchronize,
                is_capturing=self._calls.is_capturing,
                device=self._calls.device,
            )
            outcomes = window.outcomes
        except TransferError as error:
            if error.kind != "group" or communicator.is_aborted:
                raise
            failed = set(map(int, re.findall(r"\d+", error.peer)))
            outcomes = [
                WindowOutcome.FAILED if rank in failed else WindowOutcome.REGISTERED
                for rank in range(communicator.ranks)
            ]
        self._verdict = decide_after_registration(self._verdict, outcomes)
        return window

    @property
    def layout(self) -> ScratchLayout:
        """Of the slots."""
        return self._layout

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._rank

    @property
    def verdict(self) -> GatherVerdict:
        """Which path gathers take, and why; the same on every rank."""
        return self._verdict

    def agree(self, words: str) -> None:
        """Hold that all ranks say the same words; collective. As HostPrefixAllgather.agree()."""
        agree(self._exchange, words)

    def view(self, slot: int, tensor: int) -> Any:
        """Pages of a tensor in a slot: uint8, shape (page_count, page_bytes), device, no copy."""
        view = self._layout.view(slot, tensor)
        return self._pages(view.offset_bytes, view.page_count, view.page_bytes)

    def send_pages(self, plan: GatherPlan) -> Any:
        """Local pages that this rank packs, on the device."""
        return self._calls.upload(plan.send_pages(self._rank))

    def pack(self, slot: int, blocks: BlockLayout, stripes: Mapping[int, Any], pages: Any) -> None:
        """Enqueue the copies of this rank's pages into its blocks of a slot."""
        for tensor, stripe in stripes.items():
            page_bytes = self._layout.view(slot, tensor).page_bytes
            begin = blocks.block_offset_bytes(slot, tensor, self._rank)
            self._calls.take(stripe, pages, self._pages(begin, blocks.block_pages, page_bytes))

    def gather(
        self, slot: int, tag: int, blocks: BlockLayout, *, tensors: Collection[int] | None = None
    ) -> GatherPath:
        """Enqueue the gather of a slot: one of NCCL's for joined blocks, else one for each tensor.

        Parameters
        ----------
        slot, tag, blocks, tensors
            As HostPrefixAllgather.gather(); the tag is compared on this rank alone.

        Returns
        -------
        GatherPath
            That of the verdict.

        Raises
        ------
        InvalidArgumentError
            For a gather out of turn.
        NcclError
            If NCCL refuses it.
        """
        if tag != self._next_tags[slot]:
            raise InvalidArgumentError(
                f"expected gather {self._next_tags[slot]} of slot {slot}, got {tag}: one was left "
                "out or done twice"
            )
        if self._verdict.path is not GatherPath.NONE:
            self._enqueue(slot, spans_of(self._layout, blocks, slot, tensors))
        self._next_tags[slot] = tag + 1
        return self._verdict.path

    def _enqueue(self, slot: int, spans: list[BlockSpan]) -> None:
        """Enqueue NCCL's gathers, which need not know the slot."""
        communicator, stream = self._open_communicator(), self._calls.stream()
        base = 0 if self._window else memory_view(self._memory).address
        for span in spans:
            begin, stride = span.offset_bytes, span.stride_bytes
            if self._window is not None:
                self._window.all_gather(begin, stride, stream=stream)
            else:
                communicator.all_gather(base + begin, stride, stream=stream)

    def release(self, slot: int) -> None:
        """Do nothing: NCCL's gather waits until every rank has come to it."""

    def check(self) -> None:
        """Raise NcclError if a peer or a link failed since."""
        if self._communicator is not None:
            self._communicator.check()

    def close(self) -> None:
        """Drain the device and the ranks and let go of the scratch; collective, once.

        Arrays that view() returned keep its memory, and the communicator with it.
        """
        self._memory = None
        window, self._window = self._window, None
        communicator, self._communicator = self._communicator, None
        if window is not None:
            window.close()
        elif communicator is not None:
            self._calls.synchronize()
            self._exchange("close a gather")

    def _pages(self, begin: int, page_count: int, page_bytes: int) -> Any:
        if self._memory is None:
            raise InvalidArgumentError("expected an open gather, got a closed one")
        return self._memory[begin : begin + page_count * page_bytes].reshape(page_count, page_bytes)

    def _open_communicator(self) -> Communicator:
        if self._communicator is None:
            raise InvalidArgumentError("expected an open gather, got a closed one")
        return self._communicator


def _found() -> NcclApi | None:
    try:
        return find_nccl()
    except UnsupportedError:
        return None


def _conditions(api: NcclApi | None) -> RankConditions:
    conditions = environment_conditions()
    conditions.driver_version = driver_version()
    conditions.nccl_code = 0 if api is None else api.version_code
    return conditions
