# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``kvxfer bench cached-prefix``: time to first token where prompts share a long, cached prefix.

The procedure is that of the benchmark published with SGLang's bounded DCP packing
(sgl-project/sglang #40376), and any router that speaks SGLang's HTTP interface can be measured.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvxfer import InvalidArgumentError
from kvxfer.bench.client import plot
from kvxfer.bench.client.options import ClientOptions, Load, Shape, TokenIds
from kvxfer.bench.client.result import Result, client_facts, write_result
from kvxfer.bench.client.table import result_lines
from kvxfer.demo.progress import Progress

__all__ = ["add_arguments", "run"]

_Parsed = TypeVar("_Parsed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``kvxfer bench cached-prefix``."""
    _add_servers(parser.add_argument_group("servers"))
    _add_work(parser.add_argument_group("what is measured"))
    _add_output(parser.add_argument_group("what is kept"))


def run(args: argparse.Namespace) -> int:
    """Measure, write the result file, print the table, and return the exit status.

    Returns
    -------
    int
        0 if every answer was as expected, 1 if one was not, 2 for arguments that contradict.

    Raises
    ------
    UnsupportedError
        If a package that the client needs is not installed.
    ServerError
        If a server is not there.
    """
    try:
        _require_folder(args.result, args.plot)
        options = _options(args)
    except InvalidArgumentError as error:
        print(f"kvxfer bench cached-prefix: {error}", file=sys.stderr)
        return 2
    if args.plot is not None:
        plot.require_matplotlib()
    result = Result(
        label=args.label or args.result.stem,
        note=args.note,
        options=options,
        client=client_facts(),
    )
    _measure(options, result, args.result)
    print("\n".join(result_lines(result)))
    if args.plot is not None and any(case.summary for case in result.cases):
        plot.draw([result], args.plot)
    return 0 if result.is_clean else 1


def _require_folder(*paths: Path | None) -> None:
    """Refuse a file that could not be written, before anything is measured for it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise InvalidArgumentError(f"{path}: expected a folder {path.parent}, got none")


def _measure(options: ClientOptions, result: Result, path: Path) -> None:
    # Named here, so that --help and the tables need no HTTP library.
    from kvxfer.bench.client.procedure import count_steps, measure

    with Progress(count_steps(options), sys.stderr) as progress:
        asyncio.run(measure(options, result, progress, lambda kept: write_result(path, kept)))


def _options(args: argparse.Namespace) -> ClientOptions:
    return ClientOptions(
        url=args.url.rstrip("/"),
        workers=tuple(worker.rstrip("/") for worker in args.workers),
        shapes=tuple(args.shapes),
        loads=tuple(args.loads),
        output_tokens=args.output,
        repeats=args.repeats,
        page_size=args.page_size,
        token_ids=TokenIds(args.seed, args.first_token_id, args.vocabulary_size),
        timeout_s=args.timeout,
        flush_timeout_s=args.flush_timeout,
        wait_s=args.wait,
    )


def _add_servers(group: argparse._ArgumentGroup) -> None:
    defaults = ClientOptions()
    group.add_argument(
        "--url", default=defaults.url, help="the router, where requests go (default: %(default)s)"
    )
    group.add_argument(
        "--workers",
        nargs="+",
        default=list(defaults.workers),
        metavar="URL",
        help="servers whose caches are flushed (default: ports 30001 and 30002)",
    )
    group.add_argument(
        "--wait",
        type=float,
        default=defaults.wait_s,
        metavar="S",
        help="how long to wait until all are healthy, in seconds (default: %(default)s)",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=defaults.timeout_s,
        metavar="S",
        help="bound of one request, in seconds (default: %(default)s)",
    )
    group.add_argument(
        "--flush-timeout",
        type=float,
        default=defaults.flush_timeout_s,
        metavar="S",
        help="bound of one flush, in seconds (default: %(default)s)",
    )


def _add_work(group: argparse._ArgumentGroup) -> None:
    defaults = ClientOptions()
    group.add_argument(
        "--shapes",
        nargs="+",
        type=_argument(Shape.parse),
        default=list(defaults.shapes),
        metavar="PREFIX+UNIQUE",
        help="tokens that all prompts of a case share, and tokens of their own (default: "
        "83264+6720)",
    )
    group.add_argument(
        "--loads",
        nargs="+",
        type=_argument(Load.parse),
        default=list(defaults.loads),
        metavar="N@C",
        help="N requests, C of them at once; every shape runs under every load (default: 16@1)",
    )
    integers = {
        "--repeats": (defaults.repeats, "how often a case is measured"),
        "--output": (defaults.output_tokens, "tokens generated per request"),
        "--page-size": (defaults.page_size, "tokens of a page of the prefill worker's cache"),
        "--seed": (defaults.token_ids.seed, "seed of the prompts"),
        "--first-token-id": (defaults.token_ids.first_token_id, "least token id of a prompt"),
        "--vocabulary-size": (defaults.token_ids.vocabulary_size, "token ids are below this"),
    }
    for name, (default, summary) in integers.items():
        group.add_argument(
            name, type=int, default=default, metavar="N", help=f"{summary} (default: %(default)s)"
        )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--result", type=Path, required=True, metavar="FILE", help="JSON file with every answer"
    )
    group.add_argument(
        "--label", default="", help="name of what is measured (default: the result file's)"
    )
    group.add_argument("--note", default="", help="words about the machine, kept with the result")
    group.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="also draw the result, such as to out.png"
    )


def _argument(parse: Callable[[str], _Parsed]) -> Callable[[str], _Parsed]:
    """Return a parser of an argument whose refusal keeps its words."""

    def parse_argument(text: str) -> _Parsed:
        try:
            return parse(text)
        except InvalidArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument
