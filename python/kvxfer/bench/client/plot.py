# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A picture of results: how TTFT is distributed, and requests per second by mode."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvxfer import InvalidArgumentError, UnsupportedError
from kvxfer.bench.client.options import Case
from kvxfer.bench.client.result import CaseResult, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "require_matplotlib"]

_PANEL_INCHES = (4.0, 3.2)


def require_matplotlib() -> None:
    """Raise before anything is measured, if there could be no picture of it.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UnsupportedError(
            "a plot needs matplotlib, which is not installed; install it with "
            "pip install 'kvxfer[bench]'"
        )


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the measured cases of results, one column of two panels for each case.

    Above: the share of requests whose first token had come, by time. Below: requests per second of
    each result, with the range over its repeats.

    Raises
    ------
    InvalidArgumentError
        If no case was measured, or the file name's ending is not one of a picture.
    UnsupportedError
        If matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    measured = [(result, case) for result in results for case in result.cases if case.summary]
    cases = list(dict.fromkeys(case.case for _, case in measured))
    if not cases:
        raise InvalidArgumentError(f"{path}: no case was measured, so there is nothing to draw")
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(cases), 2 * height), layout="constrained")
    panels = figure.subplots(2, len(cases), squeeze=False)
    for column, case in enumerate(cases):
        of_case = [(result.label, found) for result, found in measured if found.case == case]
        _draw_distribution(panels[0, column], case, of_case)
        _draw_throughput(panels[1, column], of_case)
    models = dict.fromkeys(result.model for result in results)
    figure.suptitle("; ".join(models))
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error


def _draw_distribution(axes: "Axes", case: Case, of_case: list[tuple[str, CaseResult]]) -> None:
    for label, found in of_case:
        ttft_ms = np.sort(
            [
                1e3 * record.ttft_s
                for repeat in found.repeats
                for record in repeat.records
                if record.ttft_s is not None
            ]
        )
        axes.step(ttft_ms, np.arange(1, len(ttft_ms) + 1) / len(ttft_ms), where="post", label=label)
    axes.set(title=str(case), xlabel="TTFT, ms", ylabel="share of requests", xscale="log")
    axes.legend()


def _draw_throughput(axes: "Axes", of_case: list[tuple[str, CaseResult]]) -> None:
    for place, (label, found) in enumerate(of_case):
        assert found.summary is not None
        spread = found.summary.requests_per_s
        axes.bar(place, spread.mean)
        axes.vlines(place, spread.least, spread.greatest, color="black")
        place_above = (place, spread.greatest)
        words = f"{label}\n{spread.mean:.3g}"
        axes.annotate(words, place_above, ha="center", va="bottom")
    axes.set(ylabel="requests/s", xticks=[])
    axes.margins(y=0.25)
