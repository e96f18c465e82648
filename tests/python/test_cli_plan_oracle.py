# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer plan`` against a plan that is made by walking over every token."""

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvxfer import (
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    Sharding,
    direct_writes,
    packed_writes,
)
from support.plan_cli import plan_of

SEEDS_PER_TEST = 20


def walked_plan(given: dict[str, Any]) -> dict[str, Any]:
    """What ``kvxfer plan`` should print, token by token and without the library."""
    capacity = _capacity(given)
    segments = _segments(given, capacity)
    source_places = _places(given, "source", 0)
    destination_places = _places(given, "destination", given["prefix"])
    sharing = _sharing_pairs(given)
    return {
        "capacity": capacity,
        "segments": [
            {
                "begin": begin,
                "end": end,
                "final": is_final,
                "pairs": [
                    _pair(given, pair, range(begin, end), source_places, destination_places)
                    for pair in sharing
                ],
            }
            for begin, end, is_final in segments
        ],
    }


def _page_size(given: dict[str, Any], side: str) -> int:
    sizes = given["page_size"]
    return sizes if isinstance(sizes, int) else sizes[side]


def _owner(given: dict[str, Any], side: str, position: int) -> int:
    sharding = given[side]
    if sharding["ranks"] == 1:
        return 0
    return position // sharding.get("interleave", 1) % sharding["ranks"]


def _alignment(given: dict[str, Any]) -> int:
    return _page_size(given, "source") * given["source"]["ranks"]


def _capacity(given: dict[str, Any]) -> int | None:
    source, destination = given["source"], given["destination"]
    is_same = source["ranks"] == destination["ranks"] and (
        source["ranks"] == 1 or source.get("interleave", 1) == destination.get("interleave", 1)
    )
    if "max_tokens" not in given or is_same:
        return None
    capacity = 0
    while capacity + _alignment(given) <= given["max_tokens"]:
        capacity += _alignment(given)
    return capacity


def _segments(given: dict[str, Any], capacity: int | None) -> list[tuple[int, int, bool]]:
    prefix, tokens = given["prefix"], given["tokens"]
    segments = []
    for begin, offered_end, is_last in given.get("sends", [[prefix, tokens, True]]):
        end = offered_end
        while not is_last and (end - prefix) % _alignment(given) != 0:
            end -= 1
        if end <= begin and not is_last:
            continue
        cuts = [p for p in range(begin + 1, end) if capacity and (p - prefix) % capacity == 0]
        edges = [begin, *cuts, end]
        segments += [(a, b, False) for a, b in pairwise(edges)]
        if is_last:
            segments[-1] = (*segments[-1][:2], True)
    return segments


def _places(given: dict[str, Any], side: str, first: int) -> dict[int, tuple[int, int]]:
    """Position -> rank and row, dealing the tokens out one after another."""
    page_size, pages = _page_size(given, side), given[f"{side}_pages"]
    dealt: dict[int, int] = defaultdict(int)
    places = {}
    for position in range(first, given["tokens"]):
        rank = _owner(given, side, position)
        page, offset = divmod(dealt[rank], page_size)
        dealt[rank] += 1
        own_pages = pages if isinstance(pages, list) else pages[str(rank)]
        places[position] = (rank, own_pages[page] * page_size + offset)
    return places


def _sharing_pairs(given: dict[str, Any]) -> list[tuple[int, int]]:
    periods = [
        given[side]["ranks"] * given[side].get("interleave", 1)
        for side in ("source", "destination")
    ]
    return sorted(
        {
            (_owner(given, "source", p), _owner(given, "destination", p))
            for p in range(periods[0] * periods[1])
        }
    )


def _pair(
    given: dict[str, Any],
    pair: tuple[int, int],
    positions: range,
    source_places: dict[int, tuple[int, int]],
    destination_places: dict[int, tuple[int, int]],
) -> dict[str, Any]:
    rows = [
        (source_places[p][1], destination_places[p][1])
        for p in positions
        if (source_places[p][0], destination_places[p][0]) == pair
    ]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(rows)]
    packed_runs = bool(rows) + sum(step[1] != 1 for step in steps)
    direct_runs = bool(rows) + sum(step != (1, 1) for step in steps)
    planes = given["planes"]
    return {
        "source_rank": pair[0],
        "destination_rank": pair[1],
        "source_rows": [source for source, _ in rows],
        "destination_rows": [destination for _, destination in rows],
        "bytes": len(rows) * sum(plane["row_bytes"] for plane in planes),
        "packed_writes": packed_runs * len(planes),
        "direct_writes": direct_runs * len(planes),
    }


# --- random requests ----------------------------------------------------------------------------


def random_request(rng: random.Random) -> dict[str, Any]:
    """A valid request: any shardings, page sizes, prefix, page lists, capacity and sends."""
    sizes = {side: rng.choice([1, 2, 3, 4, 6, 8]) for side in ("source", "destination")}
    if rng.random() < 0.4:
        sizes["destination"] = sizes["source"]
    shardings = {side: _random_sharding(rng, size) for side, size in sizes.items()}
    if rng.random() < 0.2 and sizes["source"] == sizes["destination"]:
        shardings["destination"] = dict(shardings["source"])
    widened = sizes["destination"] * shardings["destination"]["ranks"]
    prefix = widened * rng.choice([0, 0, 1, 2, 5])
    tokens = prefix + rng.choice([0, 1, widened - 1, widened, widened + 1, rng.randrange(120)])
    given: dict[str, Any] = {
        "page_size": sizes["source"] if len(set(sizes.values())) == 1 else sizes,
        **shardings,
        "planes": [
            {"name": f"p{i}", "row_bytes": rng.randrange(1, 700)}
            for i in range(rng.choice([1, 2, 7]))
        ],
        "prefix": prefix,
        "tokens": tokens,
        "source_pages": _random_pages(rng, sizes["source"], shardings["source"], tokens),
        "destination_pages": _random_pages(
            rng, sizes["destination"], shardings["destination"], tokens - prefix
        ),
    }
    if rng.random() < 0.7:
        given["max_tokens"] = _alignment(given) * rng.choice([1, 1, 2, 3]) + rng.randrange(
            _alignment(given)
        )
    if rng.random() < 0.5:
        given["sends"] = _random_sends(rng, prefix, tokens, _alignment(given))
    return given


def _random_sharding(rng: random.Random, page_size: int) -> dict[str, int]:
    ranks = rng.choice([1, 1, 2, 3, 4, 6])
    divisors = [i for i in range(1, page_size + 1) if page_size % i == 0]
    if rng.random() < 0.3:
        return {"ranks": ranks}
    return {
        "ranks": ranks,
        "interleave": rng.choice(divisors) if ranks > 1 else rng.randrange(1, 9),
    }


def _random_pages(
    rng: random.Random, page_size: int, sharding: dict[str, int], tokens: int
) -> list[int] | dict[str, list[int]]:
    count = -(-tokens // (page_size * sharding["ranks"])) + rng.choice([0, 0, 2])

    def one_list() -> list[int]:
        if rng.random() < 0.3:
            first = rng.randrange(50)
            pages = list(range(first, first + count))
            for _ in range(rng.randrange(3)):
                i, j = rng.randrange(count or 1), rng.randrange(count or 1)
                if count:
                    pages[i], pages[j] = pages[j], pages[i]
            return pages
        return rng.sample(range(count * 2 + 20), count)

    if rng.random() < 0.6:
        return one_list()
    return {
        str(rank): one_list() for rank in rng.sample(range(sharding["ranks"]), sharding["ranks"])
    }


def _random_sends(
    rng: random.Random, prefix: int, tokens: int, alignment_tokens: int
) -> list[list[int | bool]]:
    sends: list[list[int | bool]] = []
    begin = prefix
    for _ in range(rng.randrange(4)):
        end = rng.randrange(begin, tokens + 1)
        sends.append([begin, end, False])
        begin = prefix + (end - prefix) // alignment_tokens * alignment_tokens
    return [*sends, [begin, tokens, True]]


@pytest.mark.parametrize("batch", range(40))
def test_random_requests(batch: int) -> None:
    for seed in range(batch * SEEDS_PER_TEST, (batch + 1) * SEEDS_PER_TEST):
        given = random_request(random.Random(seed))
        assert plan_of(given) == walked_plan(given), f"seed {seed}: {given}"


def test_random_requests_reach_what_they_should() -> None:
    """The generator is worth its name: every branch of the contract is met often."""
    requests = [random_request(random.Random(seed)) for seed in range(800)]
    plans = [walked_plan(given) for given in requests]
    assert sum(plan["capacity"] is not None for plan in plans) > 200
    assert sum(len(plan["segments"]) > 3 for plan in plans) > 60
    assert (
        sum(
            "max_tokens" in g and p["capacity"] is None
            for g, p in zip(requests, plans, strict=True)
        )
        > 20
    )
    assert (
        sum(
            len(p["segments"]) < len(g.get("sends", []))
            for g, p in zip(requests, plans, strict=True)
        )
        > 20
    )
    assert sum(isinstance(given["source_pages"], dict) for given in requests) > 100
    assert (
        sum(
            given["source"]["ranks"] > 1 and given["destination"]["ranks"] > 1 for given in requests
        )
        > 200
    )


# --- the core with all planes ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_write_counts_are_those_of_real_planes(seed: int) -> None:
    """The command counts one plane's rows; write lists over all planes have as many runs."""
    given = random_request(random.Random(seed))
    sides = [_tables(given, side) for side in ("source", "destination")]
    for segment in plan_of(given)["segments"]:
        span = [Segment(segment["begin"], segment["end"], segment["final"])]
        for pair in segment["pairs"]:
            source = sides[0][pair["source_rank"]]
            destination = sides[1][pair["destination_rank"]]
            relayout = Relayout(source[0], destination[0])
            packed = packed_writes(relayout, span, 1 << 60, destination[1])
            direct = direct_writes(relayout, span, source[1], destination[1])
            assert (len(packed), len(direct)) == (pair["packed_writes"], pair["direct_writes"])
            assert packed.bytes == direct.bytes == pair["bytes"]


def _tables(given: dict[str, Any], side: str) -> list[tuple[PoolLayout, PageTable]]:
    sharding, pages = given[side], given[f"{side}_pages"]
    first = 0 if side == "source" else given["prefix"]
    planes = [
        Plane(layer, PlaneKind.LATENT, plane["row_bytes"])
        for layer, plane in enumerate(given["planes"])
    ]
    tables = []
    for rank in range(sharding["ranks"]):
        shard = Sharding(sharding["ranks"], rank, sharding.get("interleave", 1))
        layout = PoolLayout(_page_size(given, side), 1000, planes, sharding=shard)
        own_pages = pages if isinstance(pages, list) else pages[str(rank)]
        addresses = [(i + 1) << 40 for i in range(len(planes))]
        table = PageTable(
            layout,
            np.array(own_pages, dtype=np.int32),
            first_position=first,
            plane_addresses=addresses,
        )
        tables.append((layout, table))
    return tables
