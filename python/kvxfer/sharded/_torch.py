# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed as the ranks of a shard group, and torch's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvxfer.sharded._copies import OwnCopies
from kvxfer.sharded._device import DeviceCalls

if TYPE_CHECKING:
    from kvxfer.sharded._group import Exchange

__all__ = ["torch_device_calls", "torch_exchange", "torch_own_copies"]


def torch_exchange(group: Any = None) -> Exchange:
    """Make the ``exchange`` of a gather from a process group on host memory, such as gloo's.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The shard group; the default group without it. Its timeout is the bound of each exchange.

    Returns
    -------
    callable
        Takes this rank's text and returns those of all ranks, in rank order.
    """
    import torch.distributed

    def exchange(text: str) -> list[str]:
        texts: list[Any] = [""] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(texts, text, group=group)
        return [str(found) for found in texts]

    return exchange


def torch_device_calls(device: str) -> DeviceCalls:
    """Make what a gather on a device needs, from torch.

    Parameters
    ----------
    device : str
        "cuda:<index>", the current device of the process.
    """
    import torch.utils.dlpack

    def take(stripe: Any, pages: Any, block: Any) -> None:
        torch.index_select(stripe, 0, pages, out=block)

    return DeviceCalls(
        device=device,
        allocate=lambda size_bytes: torch.empty(size_bytes, dtype=torch.uint8, device=device),
        from_dlpack=torch.utils.dlpack.from_dlpack,
        upload=lambda pages: torch.from_numpy(pages).to(device),
        take=take,
        stream=lambda: int(torch.cuda.current_stream().cuda_stream),
        synchronize=torch.cuda.synchronize,
        is_capturing=torch.cuda.is_current_stream_capturing,
    )


def torch_own_copies(*, bound_seconds: float = 30.0, is_replayable: bool = False) -> OwnCopies:
    """Make what gathers by copies of our own need, from torch and kvxfer.cuda.

    Parameters
    ----------
    bound_seconds, is_replayable
        As OwnCopies.

    Raises
    ------
    UnsupportedError
        In a build without CUDA, or with a driver without batched stream memory operations.
    """
    import torch

    from kvxfer import cuda

    untyped: Any = torch.cuda
    runtime = untyped.cudart()

    def register(memory: NDArray[np.uint8]) -> None:
        status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        torch.cuda.check_error(int(status))

    def unregister(memory: NDArray[np.uint8]) -> None:
        torch.cuda.check_error(int(runtime.cudaHostUnregister(memory.ctypes.data)))

    return OwnCopies(
        stream_calls=cuda.stream_calls(),
        register=register,
        unregister=unregister,
        record=lambda: torch.cuda.current_stream().record_event(),
        bound_seconds=bound_seconds,
        is_replayable=is_replayable,
    )
