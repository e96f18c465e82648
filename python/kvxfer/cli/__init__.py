# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The command line. A command's module is imported when the command is called, never before.

A command is one word, or two where several belong together: ``kvxfer bench compare``.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import kvxfer

__all__ = ["main"]


@dataclass(frozen=True)
class Command:
    """Where a command lives: a module with ``add_arguments(parser)`` and ``run(args) -> int``."""

    module: str
    summary: str


COMMANDS = {
    "demo": Command("kvxfer.demo", "move a real model's KV cache between processes and check it"),
    "plan": Command("kvxfer.cli.plan", "read one request as JSON, print what would move where"),
    "bench cached-prefix": Command(
        "kvxfer.bench.client", "time to first token behind a router that speaks SGLang's HTTP"
    ),
    "bench compare": Command(
        "kvxfer.bench.client.compare", "set results of bench cached-prefix side by side"
    ),
    "bench serve": Command(
        "kvxfer.bench.server", "serve a model by a prefill and several decode processes"
    ),
    "doctor": Command("kvxfer.cli.doctor", "say what this installation can do and what is missing"),
}

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after one line on standard error."""
        line = " ".join(message.split())
        self.exit(2, f"{self.prog}: {line} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process when omitted.

    Returns
    -------
    int
        0 when it worked, 1 when it failed, 130 when it was interrupted.

    Raises
    ------
    SystemExit
        With status 0 after ``--help`` and ``--version``, with status 2 for wrong arguments.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = _named_command(words) or _exit_without_command(words)
    try:
        command = importlib.import_module(COMMANDS[name].module)
        parser = OneLineParser(prog=f"kvxfer {name}", description=COMMANDS[name].summary)
        command.add_arguments(parser)
        status: int = command.run(parser.parse_args(words[len(name.split()) :]))
        sys.stdout.flush()
    except kvxfer.Error as error:
        print(f"kvxfer {name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_OUTPUT_CLOSED
    except (OSError, MemoryError) as error:  # such as a full disk behind standard output
        print(f"kvxfer {name}: {type(error).__name__}: {error}", file=sys.stderr)
        _drop_output()
        return EXIT_FAILED
    return status


def _drop_output() -> None:
    """Keep the interpreter from failing once more when it flushes standard output at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _named_command(words: list[str]) -> str | None:
    """Return the command that the words begin with."""
    return next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)


def _exit_without_command(words: list[str]) -> NoReturn:
    """Answer ``--help`` and ``--version``, and refuse anything that is no command."""
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    group = words[0] if words and words[0] in groups else None
    listed = {name.removeprefix(f"{group} "): command for name, command in COMMANDS.items()}
    if group is not None:
        listed = {name: command for name, command in listed.items() if name not in COMMANDS}
    width = max(map(len, listed))
    parser = OneLineParser(
        prog="kvxfer" if group is None else f"kvxfer {group}",
        description=kvxfer.__doc__ if group is None else None,
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {command.summary}" for name, command in listed.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if group is None:
        parser.add_argument("--version", action="version", version=f"kvxfer {kvxfer.__version__}")
    parser.add_argument("command", choices=listed, metavar="command", help="one of those below")
    parser.parse_known_args(words if group is None else words[1:])
    parser.error("the command comes first")
