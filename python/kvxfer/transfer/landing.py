# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Landing regions: memory that the receiver owns and grants, one segment at a time."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvxfer import InvalidArgumentError
from kvxfer.transfer.messages import Grant

__all__ = ["LandingPool", "Region", "RegionHolder"]


@dataclass(eq=False)
class Region:
    """One region. A write is valid only under the generation of its latest grant."""

    index: int
    address: int
    size_bytes: int
    memory: Any
    generation: int = 0

    def grant(self) -> Grant:
        """Return the grant of the current generation."""
        return Grant(self.index, self.generation, self.address)


@dataclass(eq=False)
class RegionHolder:
    """One room and source: what it holds, and how it hears of regions granted later."""

    on_grant: Callable[[list[Region]], None]
    held: dict[int, Region] = field(default_factory=dict)


class LandingPool:
    """Deals regions to holders and takes them back.

    Every holder gets at least one region before any that is served gets another. A holder that
    finds none free queues up, and is told when a region becomes free.
    """

    def __init__(self, regions: list[Region], depth: int) -> None:
        self.region_count = len(regions)
        self.region_bytes = regions[0].size_bytes if regions else 0
        self._depth = depth
        self._free = deque(regions)
        self._waiting: OrderedDict[RegionHolder, None] = OrderedDict()

    @property
    def held_count(self) -> int:
        """Regions that a holder has, or that are held for writes that may still run."""
        return self.region_count - len(self._free)

    @property
    def waiting_count(self) -> int:
        """Holders without any region."""
        return len(self._waiting)

    def reserve(self, holder: RegionHolder) -> list[Region]:
        """Grant up to the depth of regions, fewer where others have none; queue where none is free.

        Returns
        -------
        list[Region]
            What the holder may hand out at once.
        """
        if not self._free or self._waiting:
            self._waiting[holder] = None
            return []
        wanted = min(self._depth, len(self._free))
        return [self._grant(holder) for _ in range(wanted)]

    def renew(self, holder: RegionHolder, region: Region) -> None:
        """Grant a region that was unpacked once more, unless others have waited for their first.

        The holder keeps its last region, or it could not go on.
        """
        self._take_back(holder, region)
        if self._waiting and holder.held:
            self._free.append(region)
            self._serve_waiting()
        else:
            self._free.appendleft(region)
            holder.on_grant([self._grant(holder)])

    def release(self, holder: RegionHolder, region: Region) -> None:
        """Take back a region that nothing writes or reads any more."""
        self._take_back(holder, region)
        self._free.append(region)
        self._serve_waiting()

    def release_all(self, holder: RegionHolder) -> None:
        """Take back every region of a holder, and its place in the queue."""
        self.withdraw(holder)
        for region in list(holder.held.values()):
            self.release(holder, region)

    def withdraw(self, holder: RegionHolder) -> None:
        """Leave the queue."""
        self._waiting.pop(holder, None)

    def _take_back(self, holder: RegionHolder, region: Region) -> None:
        if holder.held.pop(region.index, None) is not region:
            raise InvalidArgumentError(f"landing region {region.index} is not held by this room")

    def _grant(self, holder: RegionHolder) -> Region:
        region = self._free.popleft()
        region.generation += 1
        holder.held[region.index] = region
        return region

    def _serve_waiting(self) -> None:
        while self._free and self._waiting:
            holder, _ = self._waiting.popitem(last=False)
            holder.on_grant([self._grant(holder)])
