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
    """One region. A write is valid only under the generation of its latest grant.

    ``is_idle``: granted before its holder had anything to send. ``has_landed``: the write is over.
    """

    index: int
    address: int
    size_bytes: int
    memory: Any
    generation: int = 0
    is_idle: bool = False
    has_landed: bool = False

    def grant(self) -> Grant:
        """Return the grant of the current generation."""
        return Grant(self.index, self.generation, self.address)


@dataclass(eq=False)
class RegionHolder:
    """One room and source: what it holds, and how it hears of regions granted later.

    ``wants``: the source has said that a segment waits for a region. ``grant_count``: regions that
    were ever granted to it.
    """

    on_grant: Callable[[list[Region]], None]
    held: dict[int, Region] = field(default_factory=dict)
    wants: bool = False
    grant_count: int = 0


class LandingPool:
    """Deals regions to holders and takes them back.

    At most half of the regions are granted ahead of need, so that rooms whose rows are long in
    coming cannot keep regions from rooms whose rows are there. The other half serves sources that
    have a segment ready, in order of asking. A holder keeps its last region while it has more to
    send, or it could not go on.
    """

    def __init__(self, regions: list[Region], depth: int) -> None:
        self.region_count = len(regions)
        self.region_bytes = regions[0].size_bytes if regions else 0
        self._depth = depth
        self._idle_limit = len(regions) // 2
        self._idle_count = 0
        self._free = deque(regions)
        self._wanting: OrderedDict[RegionHolder, None] = OrderedDict()
        self._waiting: OrderedDict[RegionHolder, None] = OrderedDict()

    @property
    def held_count(self) -> int:
        """Regions that a holder has, or that are held for writes that may still run."""
        return self.region_count - len(self._free)

    @property
    def waiting_count(self) -> int:
        """Holders that queue for a region."""
        return len(self._wanting) + len(self._waiting)

    def reserve(self, holder: RegionHolder) -> list[Region]:
        """Grant up to the depth of regions ahead of need; queue where none may be had.

        Returns
        -------
        list[Region]
            What the holder may hand out at once.
        """
        count = 0
        if self.waiting_count == 0:
            count = min(self._depth, len(self._free), self._idle_limit - self._idle_count)
        if count == 0:
            self._waiting[holder] = None
        return [self._grant(holder, is_idle=True) for _ in range(count)]

    def want(self, holder: RegionHolder, grant_count: int) -> None:
        """Note that a source has used the ``grant_count`` regions that it knows of and needs one.

        Nothing happens while a grant is on its way to it: the two messages have crossed.
        """
        if grant_count < holder.grant_count:
            return
        holder.wants = True
        self._waiting.pop(holder, None)
        if len(holder.held) < self._depth:
            self._wanting[holder] = None
            self._serve()

    def landed(self, region: Region) -> None:
        """Note that a region's write is over: from here on it is not idle."""
        region.has_landed = True
        if region.is_idle:
            region.is_idle = False
            self._idle_count -= 1
            self._serve()

    def renew(self, holder: RegionHolder, region: Region, *, has_more: bool) -> None:
        """Take a region back after its unpack, and grant what the holder should have next.

        ``has_more``: the source has another segment ready.
        """
        self._take_back(holder, region)
        has_more = has_more or holder.wants
        if has_more and not (self._wanting and holder.held):
            self._free.appendleft(region)
            self._wanting.pop(holder, None)
            granted = [self._grant(holder, is_idle=False)]
            # One segment is known to follow. What it may have beyond that is ahead of need.
            while self._may_grant_ahead and not self._wanting and len(holder.held) < self._depth:
                granted.append(self._grant(holder, is_idle=True))
            holder.on_grant(granted)
            return
        self._free.append(region)
        self._serve()
        if not holder.held and self._may_grant_ahead:
            holder.on_grant([self._grant(holder, is_idle=True)])

    def release(self, holder: RegionHolder, region: Region) -> None:
        """Take back a region that nothing writes or reads any more."""
        self._take_back(holder, region)
        self._free.append(region)
        self._serve()

    def release_all(self, holder: RegionHolder) -> None:
        """Take back every region of a holder, and its place in the queue."""
        self.withdraw(holder)
        for region in list(holder.held.values()):
            self.release(holder, region)

    def withdraw(self, holder: RegionHolder) -> None:
        """Leave the queue."""
        self._wanting.pop(holder, None)
        self._waiting.pop(holder, None)

    @property
    def _may_grant_ahead(self) -> bool:
        return bool(self._free) and self._idle_count < self._idle_limit

    def _take_back(self, holder: RegionHolder, region: Region) -> None:
        if holder.held.pop(region.index, None) is not region:
            raise InvalidArgumentError(f"landing region {region.index} is not held by this room")
        self._idle_count -= region.is_idle
        region.is_idle = False

    def _grant(self, holder: RegionHolder, *, is_idle: bool) -> Region:
        region = self._free.popleft()
        region.generation += 1
        region.is_idle, region.has_landed = is_idle, False
        self._idle_count += is_idle
        holder.held[region.index] = region
        holder.grant_count += 1
        holder.wants = False
        return region

    def _serve(self) -> None:
        while self._free and self._wanting:
            holder, _ = self._wanting.popitem(last=False)
            holder.on_grant([self._grant(holder, is_idle=False)])
        while self._waiting and self._may_grant_ahead:
            holder, _ = self._waiting.popitem(last=False)
            holder.on_grant([self._grant(holder, is_idle=True)])
