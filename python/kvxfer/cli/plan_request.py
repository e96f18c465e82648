# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The input of ``kvxfer plan``: read strictly, so that what is planned is what was written."""

from dataclasses import dataclass

from kvxfer import Sharding
from kvxfer.cli.json_input import (
    InputError,
    JsonObject,
    expect_int,
    expect_list,
    expect_object,
    join,
    shown,
    wrong,
)

MAX_TOKENS = 1 << 40
MAX_PAGE_SIZE = 1 << 20
MAX_ROW_BYTES = 1 << 30
# A plan lists every row of every pair: what would not fit memory is refused before it is begun.
MAX_LISTED_TOKENS = 1 << 24
MAX_PAIRS = 1 << 16
MAX_ENTRIES = 1 << 20

_REQUIRED = (
    "page_size",
    "source",
    "destination",
    "planes",
    "prefix",
    "tokens",
    "source_pages",
    "destination_pages",
)
_OPTIONAL = ("max_tokens", "sends")


@dataclass(frozen=True)
class Side:
    """The source or the destination: its sharding, and every rank's pages of the request."""

    page_size: int
    ranks: int
    interleave: int
    pages: tuple[list[int], ...]

    def sharding(self, rank: int) -> Sharding:
        """Return the share of one rank."""
        return Sharding(self.ranks, rank, self.interleave)

    @property
    def page_count(self) -> int:
        """Pages of the smallest pool that has these page ids."""
        lists = {id(pages): pages for pages in self.pages}  # often one for all ranks
        return 1 + max(max(pages, default=0) for pages in lists.values())

    def needed_pages(self, rank: int, first_position: int, tokens: int) -> int:
        """Pages of one rank that hold its rows in [first_position, tokens)."""
        row_count = self.sharding(rank).local_count(first_position, tokens)
        return -(-row_count // self.page_size)

    @property
    def widened_page_tokens(self) -> int:
        """Tokens of one page id over all ranks."""
        return self.page_size * self.ranks


@dataclass(frozen=True)
class Send:
    """Positions that the engine hands over at once."""

    begin: int
    end: int
    is_final: bool


@dataclass(frozen=True)
class PlanRequest:
    """One request to plan, with every relation between its fields checked but the capacity's."""

    source: Side
    destination: Side
    row_bytes: list[int]
    prefix: int
    tokens: int
    max_tokens: int | None
    sends: list[Send]


def parse_request(value: object) -> PlanRequest:
    """Check a parsed JSON document against the contract of ``kvxfer plan``.

    Parameters
    ----------
    value : object
        What ``parse_json`` returned.

    Raises
    ------
    InputError
        Naming the first field that is wrong, what it holds and what was expected.
    """
    fields = expect_object(value, "", _REQUIRED, _OPTIONAL)
    source_page_size, destination_page_size = _page_sizes(fields["page_size"])
    source_ranks, source_interleave = _sharding(fields["source"], "source", source_page_size)
    ranks, interleave = _sharding(fields["destination"], "destination", destination_page_size)
    if source_ranks * ranks > MAX_PAIRS:
        raise InputError(
            "destination.ranks",
            f"{ranks} beside {source_ranks} source ranks",
            f"at most {MAX_PAIRS} pairs of ranks",
        )
    row_bytes = _row_bytes(fields["planes"])
    prefix, tokens = _range(fields, destination_page_size * ranks)
    source_pages = _pages(fields, "source_pages", source_ranks, source_page_size)
    destination_pages = _pages(fields, "destination_pages", ranks, destination_page_size)
    source = Side(source_page_size, source_ranks, source_interleave, source_pages)
    destination = Side(destination_page_size, ranks, interleave, destination_pages)
    _expect_cover(source, "source_pages", 0, prefix, tokens)
    _expect_cover(destination, "destination_pages", prefix, prefix, tokens)
    max_tokens = None
    if "max_tokens" in fields:
        max_tokens = expect_int(fields["max_tokens"], "max_tokens", 1, MAX_TOKENS)
    sends = [Send(prefix, tokens, is_final=True)]
    if "sends" in fields:
        sends = _sends(fields["sends"], prefix, tokens, source.widened_page_tokens)
    return PlanRequest(source, destination, row_bytes, prefix, tokens, max_tokens, sends)


def _page_sizes(value: object) -> tuple[int, int]:
    if type(value) is int:
        size = expect_int(value, "page_size", 1, MAX_PAGE_SIZE)
        return size, size
    if not isinstance(value, JsonObject):
        limits = f"an integer in [1, {MAX_PAGE_SIZE}]"
        raise wrong("page_size", value, f"{limits} or an object with source and destination")
    sides = expect_object(value, "page_size", ("source", "destination"))
    source, destination = (
        expect_int(sides[side], join("page_size", side), 1, MAX_PAGE_SIZE)
        for side in ("source", "destination")
    )
    return source, destination


def _sharding(value: object, side: str, page_size: int) -> tuple[int, int]:
    fields = expect_object(value, side, ("ranks",), ("interleave",))
    ranks = expect_int(fields["ranks"], join(side, "ranks"), 1, MAX_PAIRS)
    interleave = expect_int(fields.get("interleave", 1), join(side, "interleave"), 1, MAX_TOKENS)
    if ranks == 1:
        return 1, 1  # one rank holds every token: the interleave means nothing
    if page_size % interleave != 0:
        raise wrong(join(side, "interleave"), interleave, f"a divisor of the page size {page_size}")
    return ranks, interleave


def _row_bytes(value: object) -> list[int]:
    planes = expect_list(value, "planes", "planes")
    if not planes:
        raise wrong("planes", planes, "at least one plane")
    row_bytes = []
    first_index: dict[str, int] = {}
    for i, plane in enumerate(planes):
        path = f"planes[{i}]"
        fields = expect_object(plane, path, ("name", "row_bytes"))
        name = fields["name"]
        if type(name) is not str or not name:
            raise wrong(join(path, "name"), name, "a string that is not empty")
        if name in first_index:
            taken = f"planes[{first_index[name]}]"
            raise wrong(join(path, "name"), name, f"another name than {taken} has")
        first_index[name] = i
        row_bytes.append(expect_int(fields["row_bytes"], join(path, "row_bytes"), 1, MAX_ROW_BYTES))
    return row_bytes


def _range(fields: JsonObject, widened_page_tokens: int) -> tuple[int, int]:
    prefix = expect_int(fields["prefix"], "prefix", 0, MAX_TOKENS)
    if prefix % widened_page_tokens != 0:
        of = "destination page size times destination ranks"
        raise wrong("prefix", prefix, f"a multiple of {widened_page_tokens} ({of})")
    tokens = expect_int(fields["tokens"], "tokens", 0, MAX_TOKENS)
    if tokens < prefix:
        raise wrong("tokens", tokens, f"at least the prefix {prefix}")
    if tokens - prefix > MAX_LISTED_TOKENS:
        limit = f"at most {MAX_LISTED_TOKENS} tokens after the prefix {prefix}"
        raise wrong("tokens", tokens, limit)
    return prefix, tokens


def _pages(fields: JsonObject, field: str, ranks: int, page_size: int) -> tuple[list[int], ...]:
    value = fields[field]
    page_count = MAX_TOKENS // (page_size * ranks)  # of the largest pool
    if isinstance(value, list):
        return (_page_ids(value, field, page_count),) * ranks
    if not isinstance(value, JsonObject):
        raise wrong(field, value, "a list of page ids or an object with one list for each rank")
    by_rank = expect_object(value, field, [str(rank) for rank in range(ranks)])
    return tuple(
        _page_ids(by_rank[str(rank)], join(field, str(rank)), page_count) for rank in range(ranks)
    )


def _page_ids(value: object, path: str, page_count: int) -> list[int]:
    pages: dict[int, int] = {}  # id -> where it stands
    for i, page in enumerate(expect_list(value, path, "page ids")):
        here = f"{path}[{i}]"
        page_id = expect_int(page, here, 0, page_count - 1)
        if page_id in pages:
            raise wrong(here, page_id, f"each page once ({path}[{pages[page_id]}] has it)")
        pages[page_id] = i
    return list(pages)


def _expect_cover(side: Side, field: str, first: int, prefix: int, tokens: int) -> None:
    """Refuse a list that ends before the rank's last row of [prefix, tokens)."""
    for rank, pages in enumerate(side.pages):
        sharding = side.sharding(rank)
        if sharding.local_count(prefix, tokens) == 0:
            continue
        needed = side.needed_pages(rank, first, tokens)
        if len(pages) < needed:
            row_count = sharding.local_count(first, tokens)
            rows = f"the {row_count} rows of rank {rank} in positions [{first}, {tokens})"
            got = f"{len(pages)} pages"
            raise InputError(
                field, got, f"at least {needed} for {rows} (page size {side.page_size})"
            )


def _sends(value: object, prefix: int, tokens: int, alignment_tokens: int) -> list[Send]:
    items = expect_list(value, "sends", "[begin, end, is_last]")
    sends: list[Send] = []
    begin = prefix
    for i, item in enumerate(items):
        path = f"sends[{i}]"
        send = _send(item, path, begin, tokens)
        if send.is_final and i != len(items) - 1:
            raise wrong(f"{path}[2]", send.is_final, "false, since another send follows")
        if send.is_final and send.end != tokens:
            raise wrong(f"{path}[1]", send.end, f"{tokens}, since the last send ends at tokens")
        sends.append(send)
        begin = prefix + (send.end - prefix) // alignment_tokens * alignment_tokens
    if not sends:
        raise wrong("sends", items, "at least one send")
    return sends


def _send(value: object, path: str, begin: int, tokens: int) -> Send:
    parts = expect_list(value, path, "begin, end and is_last")
    if len(parts) != 3:
        raise InputError(path, shown(parts), "[begin, end, is_last]")
    if type(parts[0]) is not int or parts[0] != begin:
        where = "the prefix" if path == "sends[0]" else "where the send before it ends when lowered"
        raise wrong(f"{path}[0]", parts[0], f"{begin} ({where})")
    end = expect_int(parts[1], f"{path}[1]", begin, tokens)
    if type(parts[2]) is not bool:
        raise wrong(f"{path}[2]", parts[2], "true or false")
    return Send(begin, end, is_final=parts[2])
