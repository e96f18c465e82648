# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the client is asked to do: shapes of prompts, loads, where the servers are."""

import re
from dataclasses import dataclass

from kvxfer import InvalidArgumentError

__all__ = ["Case", "ClientOptions", "Load", "Shape", "TokenIds"]


def _two_integers(text: str, separator: str, form: str) -> tuple[int, int]:
    if re.fullmatch(rf"[0-9]+{re.escape(separator)}[0-9]+", text) is None:
        raise InvalidArgumentError(f"got {text!r}, expected {form}")
    first, second = text.split(separator)
    return int(first), int(second)


def _require(what: str, value: int, at_least: int) -> None:
    if value < at_least:
        raise InvalidArgumentError(f"{what}: got {value}, expected {at_least} or more")


@dataclass(frozen=True)
class Shape:
    """A prompt: a prefix that all requests share, then tokens of its own; both in tokens."""

    prefix_tokens: int
    unique_tokens: int

    def __post_init__(self) -> None:
        _require("prefix tokens of a shape", self.prefix_tokens, at_least=0)
        _require("unique tokens of a shape", self.unique_tokens, at_least=1)

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Read ``PREFIX+UNIQUE``.

        Raises
        ------
        InvalidArgumentError
            If the text has another form, or no unique token.

        Examples
        --------
        >>> Shape.parse("83264+6720")
        Shape(prefix_tokens=83264, unique_tokens=6720)
        """
        return cls(*_two_integers(text, "+", "PREFIX+UNIQUE, such as 83264+6720"))

    @property
    def tokens(self) -> int:
        """Length of a prompt."""
        return self.prefix_tokens + self.unique_tokens

    def __str__(self) -> str:
        return f"{self.prefix_tokens}+{self.unique_tokens}"


@dataclass(frozen=True)
class Load:
    """How many requests, and how many of them at once."""

    requests: int
    concurrency: int

    def __post_init__(self) -> None:
        _require("requests of a load", self.requests, at_least=1)
        _require("concurrency of a load", self.concurrency, at_least=1)

    @classmethod
    def parse(cls, text: str) -> "Load":
        """Read ``REQUESTS@CONCURRENCY``.

        Raises
        ------
        InvalidArgumentError
            If the text has another form, or one of the two is 0.

        Examples
        --------
        >>> Load.parse("32@8")
        Load(requests=32, concurrency=8)
        """
        return cls(*_two_integers(text, "@", "REQUESTS@CONCURRENCY, such as 32@8"))

    def __str__(self) -> str:
        return f"{self.requests}@{self.concurrency}"


@dataclass(frozen=True)
class Case:
    """One row of the table: prompts of one shape under one load."""

    shape: Shape
    load: Load

    def __str__(self) -> str:
        return f"{self.shape}, {self.load}"


@dataclass(frozen=True)
class TokenIds:
    """Where prompts come from: uniform in [first_token_id, vocabulary_size), by a seed."""

    seed: int = 35762
    first_token_id: int = 1000
    vocabulary_size: int = 30000

    def __post_init__(self) -> None:
        _require("seed", self.seed, at_least=0)
        _require("first token id", self.first_token_id, at_least=0)
        _require("vocabulary size", self.vocabulary_size, at_least=self.first_token_id + 1)

    @property
    def id_count(self) -> int:
        """How many different ids there are."""
        return self.vocabulary_size - self.first_token_id


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What a run of the client does.

    Attributes
    ----------
    url : str
        The router, where requests go.
    workers : tuple of str
        Servers whose caches are flushed before every repeat.
    shapes, loads : tuple of Shape, tuple of Load
        Every shape runs under every load.
    output_tokens : int
        Tokens generated per request.
    repeats : int
        How often a case is measured, each time from flushed caches.
    page_size : int
        Rows of a page of the prefill worker's cache, which keeps whole pages.     [unit: tokens]
    token_ids : TokenIds
        Where prompts come from.
    timeout_s, flush_timeout_s, wait_s : float
        Bounds: of one request, of one flush, of the wait for the servers to be healthy.

    Raises
    ------
    InvalidArgumentError
        If a number is out of its range, or there are more requests than token ids, so that no two
        prompts could be told apart by their first unique token.
    """

    url: str = "http://127.0.0.1:30000"
    workers: tuple[str, ...] = ("http://127.0.0.1:30001", "http://127.0.0.1:30002")
    shapes: tuple[Shape, ...] = (Shape(83264, 6720),)
    loads: tuple[Load, ...] = (Load(16, 1),)
    output_tokens: int = 1
    repeats: int = 3
    page_size: int = 64
    token_ids: TokenIds = TokenIds()
    timeout_s: float = 1800.0
    flush_timeout_s: float = 30.0
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        _require("output tokens", self.output_tokens, at_least=1)
        _require("repeats", self.repeats, at_least=1)
        _require("page size", self.page_size, at_least=1)
        for name in ("timeout_s", "flush_timeout_s", "wait_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidArgumentError(
                    f"{name}: got {getattr(self, name)} s, expected a positive finite number"
                )
        most = max(load.requests for load in self.loads)
        if most > self.token_ids.id_count:
            raise InvalidArgumentError(
                f"{most} requests need as many different first tokens, but there are "
                f"{self.token_ids.id_count} token ids"
            )

    @property
    def cases(self) -> tuple[Case, ...]:
        """Every shape under every load, shape by shape."""
        return tuple(Case(shape, load) for shape in self.shapes for load in self.loads)

    def cached_tokens_of(self, shape: Shape) -> int:
        """Tokens of a prompt that a warm prefill worker finds in its cache: whole pages."""
        return shape.prefix_tokens - shape.prefix_tokens % self.page_size
