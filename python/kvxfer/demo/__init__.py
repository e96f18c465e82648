# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The main job, run on a real model's KV cache: one prefill process, N decode processes."""

from __future__ import annotations

import argparse

from kvxfer.demo.job import DemoOptions, run_demo
from kvxfer.demo.report import DemoReport

__all__ = ["DemoOptions", "DemoReport", "add_arguments", "run", "run_demo"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to a command's parser."""
    defaults = DemoOptions()
    parser.add_argument(
        "--transport",
        default=defaults.transport,
        help="how bytes move: loopback, nixl or mooncake (default: %(default)s)",
    )
    parser.add_argument(
        "--destination-ranks",
        type=int,
        default=defaults.destination_ranks,
        metavar="N",
        help="decode processes, ranks of one DCP group (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="T",
        help="length of the request (default: what suits the model)",
    )
    parser.add_argument(
        "--model",
        choices=("auto", "real", "synthetic"),
        default=defaults.model,
        help="rows of the real model or generated ones; auto generates them where a package is "
        "missing (default: %(default)s)",
    )
    parser.add_argument(
        "--landing",
        choices=("auto", "in_place", "landing"),
        default=defaults.landing,
        help="whether rows are written to their final place or to a landing region "
        "(default: %(default)s, by the cost of a write)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the demo as the parsed options say, print its report, and return the exit status.

    Returns
    -------
    int
        0 if every comparison held, else 1.
    """
    report = run_demo(
        DemoOptions(
            transport=args.transport,
            destination_ranks=args.destination_ranks,
            tokens=args.tokens,
            model=args.model,
            landing=args.landing,
        )
    )
    if args.json:
        print(report.to_json())
    else:
        report.print()
    return 0 if report.held else 1
