# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Figures of the repeats of a case."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvxfer.bench.client.record import Outcome, Record, count_outcomes

__all__ = ["Figures", "Repeat", "Spread", "Summary", "make_repeat", "summarise"]


@dataclass(frozen=True)
class Figures:
    """What one repeat measured.

    ``ttft_p50_ms`` and ``ttft_p99_ms`` lie between the two nearest requests, by their distance.
    """

    requests_per_s: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float


@dataclass(frozen=True)
class Repeat:
    """One measured run of a case's requests.

    Attributes
    ----------
    elapsed_s : float
        From the first request to the end of the last answer.
    outcomes : dict
        How many requests had each outcome.
    figures : Figures or None
        None unless every request was answered as expected.
    records : list of Record
        One for each request, in the order of their numbers.
    """

    elapsed_s: float
    outcomes: dict[Outcome, int]
    figures: Figures | None
    records: list[Record]


@dataclass(frozen=True)
class Spread:
    """Mean, least and greatest over the repeats."""

    mean: float
    least: float
    greatest: float


@dataclass(frozen=True)
class Summary:
    """Figures over all repeats of a case; the percentiles are those of all requests together."""

    requests_per_s: Spread
    ttft_mean_ms: Spread
    ttft_p50_ms: float
    ttft_p99_ms: float


def make_repeat(elapsed_s: float, records: list[Record]) -> Repeat:
    """Return a repeat, with figures if every request of it was answered as expected."""
    outcomes = count_outcomes(records)
    if set(outcomes) != {"ok"}:
        return Repeat(elapsed_s, outcomes, None, records)
    p50_ms, p99_ms = _percentiles(records)
    figures = Figures(len(records) / elapsed_s, _mean_ms(records), p50_ms, p99_ms)
    return Repeat(elapsed_s, outcomes, figures, records)


def summarise(repeats: Sequence[Repeat]) -> Summary | None:
    """Return the figures over all repeats, or None if one of them has none."""
    figures = [repeat.figures for repeat in repeats if repeat.figures is not None]
    if not figures or len(figures) < len(repeats):
        return None
    p50_ms, p99_ms = _percentiles([record for repeat in repeats for record in repeat.records])
    return Summary(
        _spread([figure.requests_per_s for figure in figures]),
        _spread([figure.ttft_mean_ms for figure in figures]),
        p50_ms,
        p99_ms,
    )


def _ttft_ms(records: Sequence[Record]) -> list[float]:
    return [1e3 * record.ttft_s for record in records if record.ttft_s is not None]


def _mean_ms(records: Sequence[Record]) -> float:
    return float(np.mean(_ttft_ms(records)))


def _percentiles(records: Sequence[Record]) -> tuple[float, float]:
    p50_ms, p99_ms = np.percentile(_ttft_ms(records), [50, 99])
    return float(p50_ms), float(p99_ms)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(float(np.mean(values)), min(values), max(values))
