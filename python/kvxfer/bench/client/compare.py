# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer bench compare``: results side by side, with ratios to the first."""

import argparse
import sys
from pathlib import Path

from kvxfer import InvalidArgumentError
from kvxfer.bench.client import plot
from kvxfer.bench.client.result import Result, read_result
from kvxfer.bench.client.table import comparison_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``kvxfer bench compare``."""
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULT",
        help="files that bench cached-prefix wrote; ratios are to the first",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="also draw them, such as to out.png"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table and return the exit status.

    Returns
    -------
    int
        0 if every case of every result was measured, 1 if one was not, 2 for files that are no
        results that can be compared.
    """
    if args.plot is not None:
        plot.require_matplotlib()
    try:
        results = [read_result(path) for path in args.results]
        _require_comparable(results)
        print("\n".join(comparison_lines(results)))
        if args.plot is not None:
            plot.draw(results, args.plot)
    except InvalidArgumentError as error:
        print(f"kvxfer bench compare: {error}", file=sys.stderr)
        return 2
    return 0 if all(result.is_clean for result in results) else 1


def _require_comparable(results: list[Result]) -> None:
    labels = [result.label for result in results]
    if len(set(labels)) < len(labels):
        raise InvalidArgumentError(f"labels: got {labels}, expected different ones")
    for what in ("output_tokens", "token_ids"):
        found = {result.label: getattr(result.options, what) for result in results}
        if len(set(found.values())) > 1:
            raise InvalidArgumentError(f"{what}: got {found}, expected the same in all results")
