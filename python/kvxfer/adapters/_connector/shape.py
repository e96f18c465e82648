# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""How the ranks of an engine share KV heads and tokens, and who asks whom for rows."""

from typing import Annotated

from msgspec import Meta, Struct

from kvxfer import InvalidArgumentError, Sharding

__all__ = ["EngineShape"]

Size = Annotated[int, Meta(ge=1, le=4096)]


class EngineShape(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of an engine's groups of ranks; the same for every layer.

    Tensor-parallel rank ``r`` holds its share of the KV heads, or the head that it shares with its
    neighbours where there are fewer heads than ranks. Decode context parallelism deals the tokens
    out over neighbours that hold the same heads: ``r % dcp_size`` is the rank among them.

    Attributes
    ----------
    total_heads : int
        KV heads of the model; 1 for a latent that has none.
    tp_size, pp_size, dcp_size : int
        Tensor-parallel ranks, pipeline stages, decode context parallel ranks.
    interleave : int
        Neighbouring positions that lie on one rank.                             [unit: tokens]
    """

    total_heads: Size
    tp_size: Size = 1
    pp_size: Size = 1
    dcp_size: Size = 1
    interleave: Size = 1

    def check(self) -> None:
        """Check that the sizes fit each other.

        Raises
        ------
        InvalidArgumentError
            If heads cannot be shared evenly, or ranks that share tokens hold different heads.
        """
        if self.total_heads % self.tp_size and self.tp_size % self.total_heads:
            raise InvalidArgumentError(
                f"{self.total_heads} KV heads over {self.tp_size} tensor-parallel ranks, "
                "expected one to divide the other"
            )
        if self.replica_count % self.dcp_size:
            raise InvalidArgumentError(
                f"dcp_size is {self.dcp_size}, expected a divisor of {self.replica_count}, "
                "the ranks that hold the same heads"
            )

    @property
    def replica_count(self) -> int:
        """Ranks that hold the same heads, whatever their tokens."""
        return max(1, self.tp_size // self.total_heads)

    def heads(self, tp_rank: int) -> range:
        """Return the KV heads of a rank."""
        count = max(1, self.total_heads // self.tp_size)
        first = tp_rank // self.replica_count * count
        return range(first, first + count)

    def sharding(self, tp_rank: int) -> Sharding:
        """Return which tokens a rank holds."""
        return Sharding(self.dcp_size, tp_rank % self.dcp_size, self.interleave)

    def sources_for(self, destination: "EngineShape", tp_rank: int) -> list[int]:
        """Return the ranks of this engine that a rank of another one asks, each row from one.

        Of ranks that hold the same rows one is asked, a different one by each neighbour.
        """
        wanted = set(destination.heads(tp_rank))
        copies: dict[tuple[int, int], list[int]] = {}
        for rank in range(self.tp_size):
            heads = self.heads(rank)
            if wanted.intersection(heads):
                copies.setdefault((heads.start, rank % self.dcp_size), []).append(rank)
        return [ranks[tp_rank % len(ranks)] for _, ranks in sorted(copies.items())]

    def asker_count(self, destination: "EngineShape", tp_rank: int) -> int:
        """Return how many ranks of another engine ask a rank of this one."""
        askers = [
            rank
            for rank in range(destination.tp_size)
            if tp_rank in self.sources_for(destination, rank)
        ]
        return len(askers) * destination.pp_size
