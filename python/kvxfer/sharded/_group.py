# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a shard group decide together, from texts that they exchange."""

import json
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvxfer._core import GatherVerdict, RankConditions, decide_gather_path
from kvxfer.errors import TransferError

__all__ = ["Exchange", "agree", "agree_on_path", "map_shared", "named"]

Exchange = Callable[[str], list[str]]
_CONDITIONS = [name for name in dir(RankConditions) if not name.startswith("_")]


def named(ranks: Sequence[int]) -> str:
    """Name ranks in a message: "rank 1" or "ranks 1, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def agree(exchange: Exchange, words: str) -> None:
    """Hold that all ranks say the same words; collective.

    Raises
    ------
    TransferError
        On every rank, with the ranks that say something else than rank 0.
    """
    said = exchange(words)
    others = [rank for rank, text in enumerate(said) if text != said[0]]
    if others:
        message = f"expected {said[0]!r} as on rank 0, got {said[others[0]]!r}"
        raise TransferError("group", named(others), None, message)


def agree_on_path(exchange: Exchange, conditions: RankConditions) -> GatherVerdict:
    """Tell all ranks what this one found, and decide once from what all found; collective.

    Parameters
    ----------
    exchange : callable
        Takes this rank's text and returns those of all ranks, in rank order.
    conditions : RankConditions
        Of this rank.

    Returns
    -------
    GatherVerdict
        The same on every rank, whatever differs between them.
    """
    mine = json.dumps({name: getattr(conditions, name) for name in _CONDITIONS})
    of_every_rank = []
    for text in exchange(mine):
        of_every_rank.append(RankConditions())
        for name, value in json.loads(text).items():
            setattr(of_every_rank[-1], name, value)
    return decide_gather_path(of_every_rank)


def map_shared(
    exchange: Exchange,
    rank: int,
    size_bytes: int,
    words: str,
    prepare: Callable[[NDArray[np.uint8]], None],
) -> None:
    """Map one memory in all processes of a host; collective.

    Rank 0 makes a memory file; nothing stays behind in the file system.

    Parameters
    ----------
    exchange : callable
        Called twice.
    rank : int
        Of this process.
    size_bytes : int
        Of the memory.
    words : str
        What the memory is for, equal on all ranks; no space in it.
    prepare : callable
        Takes the mapped memory, uint8 of shape (size_bytes,), and writes what peers find in it once
        all ranks are through.

    Raises
    ------
    TransferError
        On every rank, when words differ or a rank cannot map the memory.
    """
    file = _made_file(size_bytes) if rank == 0 else None
    try:
        place = f"/proc/{os.getpid()}/fd/{file}" if file is not None else ""
        offers = exchange(f"{words} {place}")
        failures = exchange(_mapped(offers, rank, size_bytes, prepare))
    finally:
        if file is not None:
            os.close(file)
    failed = [r for r, text in enumerate(failures) if text]
    if failed:
        reasons = "; ".join(f"rank {r}: {failures[r]}" for r in failed)
        message = f"expected all ranks to map the memory of the group, got {reasons}"
        raise TransferError("group", named(failed), None, message)


def _mapped(
    offers: list[str], rank: int, size_bytes: int, prepare: Callable[[NDArray[np.uint8]], None]
) -> str:
    """Map what rank 0 offers; why not, or empty."""
    first, _, place = offers[0].partition(" ")
    if offers[rank].partition(" ")[0] != first:
        return "its layout differs from that of rank 0"
    try:
        file = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = np.frombuffer(mmap.mmap(file, size_bytes), np.uint8)
        finally:
            os.close(file)
    except OSError as error:
        return f"cannot map {place}: {error}"
    try:
        prepare(memory)
    except Exception as error:  # whatever it is, all ranks hear of it instead of waiting
        return f"cannot use the memory: {error}"
    return ""


def _made_file(size_bytes: int) -> int:
    file = os.memfd_create("kvxfer-scratch", os.MFD_CLOEXEC)
    os.ftruncate(file, size_bytes)
    return file
