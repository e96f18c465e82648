# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed as the ranks of a shard group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvxfer.sharded._host import Exchange

__all__ = ["torch_exchange"]


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
