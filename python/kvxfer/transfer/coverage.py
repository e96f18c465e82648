# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a set of sources has every row that a destination needs, each byte once."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvxfer import InvalidArgumentError, PoolLayout, Relayout
from kvxfer.transfer.terms import plane_list

__all__ = ["check_coverage"]


def check_coverage(relayouts: Sequence[Relayout], destination: PoolLayout) -> None:
    """Refuse sources that leave a byte of a destination row unwritten, or write one twice.

    A plane that the destination replicates (a draft) may have no writer at all: then it is not
    transferred. A source that holds such a plane must be among those that write it.

    Parameters
    ----------
    relayouts : sequence of Relayout
        From every source of a room to the destination.

    Raises
    ------
    InvalidArgumentError
        Names the plane, and the planes of both sides.
    """
    _check_one_sharding(relayouts)
    for index, plane in enumerate(destination.planes):
        name = f"plane (layer {plane.layer}, {plane.kind.name})"
        slices = _slices_of(relayouts, index)
        is_held = any(index not in r.unmatched_destination_planes for r in relayouts)
        if plane.is_replicated and not is_held:
            continue
        gap = _gap_in(slices, plane.row_bytes)
        if gap:
            sources = "; ".join(plane_list(relayout.source) for relayout in relayouts)
            raise InvalidArgumentError(
                f"{name} of the destination: {gap}. Destination planes: "
                f"{plane_list(destination)}; source planes: {sources}"
            )


@dataclass(frozen=True)
class _Writer:
    """A source that writes a slice of a plane's rows."""

    relayout: Relayout
    holds_all_tokens: bool


def _slices_of(relayouts: Sequence[Relayout], plane: int) -> dict[tuple[int, int], list[_Writer]]:
    """Return who writes each slice (first byte, end) of a destination row."""
    slices: dict[tuple[int, int], list[_Writer]] = {}
    for relayout in relayouts:
        for pair in relayout.planes:
            if pair.destination_plane == plane:
                begin = pair.destination_offset_bytes
                is_replicated = relayout.source.planes[pair.source_plane].is_replicated
                holds_all = is_replicated or relayout.source.sharding.ranks == 1
                writers = slices.setdefault((begin, begin + pair.bytes), [])
                writers.append(_Writer(relayout, holds_all))
    return slices


def _gap_in(slices: dict[tuple[int, int], list[_Writer]], row_bytes: int) -> str:
    """Return words for the first byte range that is not written exactly once, or nothing."""
    reached = 0
    for (begin, end), writers in sorted(slices.items(), key=lambda item: item[0]):
        if begin != reached:
            what = "no source writes" if begin > reached else "two sources write"
            return f"{what} bytes [{min(begin, reached)}, {max(begin, reached)}) of its rows"
        if problem := _token_gap(writers):
            return f"bytes [{begin}, {end}) of its rows: {problem}"
        reached = end
    if reached != row_bytes:
        return f"no source writes bytes [{reached}, {row_bytes}) of its rows"
    return ""


def _token_gap(writers: list[_Writer]) -> str:
    """Return words where the writers of one slice do not hold every token of the destination once.

    Over one joint period of the two shardings, the tokens that they share with the destination must
    add up to the destination's own. Distinct ranks of one sharding never hold the same token.
    """
    if any(writer.holds_all_tokens for writer in writers):
        return "" if len(writers) == 1 else f"{len(writers)} sources write all of its tokens"
    first = writers[0].relayout
    ranks = [writer.relayout.source.sharding.rank for writer in writers]
    if len(set(ranks)) != len(ranks):
        return f"source ranks {ranks} write it, expected each rank once"
    period_tokens = first.source.sharding.period_tokens * first.destination.sharding.period_tokens
    shared = sum(writer.relayout.row_count(0, period_tokens) for writer in writers)
    owned = first.destination.sharding.local_count(0, period_tokens)
    if shared != owned:
        return f"source ranks {ranks} hold {shared} of every {owned} tokens"
    return ""


def _check_one_sharding(relayouts: Sequence[Relayout]) -> None:
    shardings = {(r.source.sharding.ranks, r.source.sharding.interleave) for r in relayouts}
    if len(shardings) > 1:
        raise InvalidArgumentError(
            f"sources of one room shard tokens differently: (ranks, interleave) {sorted(shardings)}"
        )
