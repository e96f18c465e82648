# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The command line itself, and ``kvxfer doctor``."""

import argparse
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvxfer
from kvxfer import cli
from kvxfer.cli import doctor, memory_access
from support.plan_cli import plan_of, request

TIMEOUT_SECONDS = 50


def run_module(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvxfer", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_plan_as_a_process() -> None:
    done = run_module("plan", "-", stdin=json.dumps(request()))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == plan_of(request())
    refused = run_module("plan", "-", stdin=json.dumps(request(tokens=-1)))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("kvxfer plan: tokens: got -1, expected ")
    assert refused.stderr.count("\n") == 1


def test_the_installed_script() -> None:
    script = Path(sys.executable).with_name("kvxfer")
    done = subprocess.run(
        [script, "--version"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.stdout == f"kvxfer {kvxfer.__version__}\n"


def test_a_reader_that_goes_away() -> None:
    given = request(
        tokens=100_000, source_pages=list(range(50_000)), destination_pages=list(range(25_000))
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "kvxfer", "plan", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stdin as stdin:
        stdin.write(json.dumps(given).encode())
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait(TIMEOUT_SECONDS) == 141


def test_a_closed_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["plan", "-"]) == 2
    line = "kvxfer plan: standard input: got a closed one, expected JSON\n"
    assert capsys.readouterr() == ("", line)


def test_an_output_that_is_full_is_named_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvxfer", "plan", "-"],
            input=json.dumps(request()),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    assert done.returncode == 1
    assert done.stderr == "kvxfer plan: OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "kvxfer: the following arguments are required: command"),
        (["fly"], "kvxfer: argument command: invalid choice: 'fly'"),
        (["--json", "plan"], "kvxfer: the command comes first"),
        (["plan"], "kvxfer plan: the following arguments are required: FILE"),
        (["plan", "a", "b"], "kvxfer plan: unrecognized arguments: b"),
        (["plan", "a", "b\nc"], "kvxfer plan: unrecognized arguments: b c"),
    ],
)
def test_wrong_arguments(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith(says)
    assert err.count("\n") == 1


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: kvxfer {name} ")


def test_plan_loads_nothing_heavy() -> None:
    code = (
        "import sys, json; from kvxfer.cli import main; main(['plan', '-']);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(request()),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "kvxfer.cli.plan" in loaded
    heavy = ("torch", "transformers", "zmq", "msgspec", "nixl", "mooncake", "rich", "kvxfer.demo")
    heavy += ("kvxfer.transfer", "kvxfer.transports", "kvxfer.cli.doctor")
    assert [name for name in loaded if name.startswith(heavy)] == []


def add_fake_command(
    monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[argparse.Namespace], int]
) -> None:
    module = types.ModuleType("fake_command")
    module.__dict__.update(add_arguments=lambda parser: parser.add_argument("number"), run=run)
    monkeypatch.setitem(sys.modules, "fake_command", module)
    monkeypatch.setitem(cli.COMMANDS, name, cli.Command("fake_command", "is no real one"))


def fake_command(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    def run(_: argparse.Namespace) -> int:
        raise raised

    add_fake_command(monkeypatch, "fake", run)


def test_a_command_of_two_words(monkeypatch: pytest.MonkeyPatch) -> None:
    add_fake_command(monkeypatch, "fake kind", lambda args: int(args.number))
    assert cli.main(["fake", "kind", "7"]) == 7


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fake"], "kvxfer fake: the following arguments are required: command"),
        (["fake", "fly"], "kvxfer fake: argument command: invalid choice: 'fly'"),
        (["fake", "--json", "kind"], "kvxfer fake: the command comes first"),
        (["fake", "kind"], "kvxfer fake kind: the following arguments are required: number"),
        (["kind"], "kvxfer: argument command: invalid choice: 'kind'"),
    ],
)
def test_wrong_words_of_a_group(
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_fake_command(monkeypatch, "fake kind", lambda args: 0)
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith(says)


def test_help_of_a_group_lists_its_commands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_fake_command(monkeypatch, "fake kind", lambda args: 0)
    with pytest.raises(SystemExit) as ended:
        cli.main(["fake", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.endswith("commands:\n  kind  is no real one\n")


def test_an_error_of_the_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, kvxfer.CapacityError("expected 8 bytes, got 4"))
    assert cli.main(["fake", "7"]) == 1
    assert capsys.readouterr() == ("", "kvxfer fake: expected 8 bytes, got 4\n")


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, KeyboardInterrupt())
    assert cli.main(["fake", "7"]) == 130


def test_a_fault_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, ZeroDivisionError("fault"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake", "7"])


# --- doctor ---------------------------------------------------------------------------------------


def report_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["doctor", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_doctor_reports_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys)
    assert report["build"] == kvxfer.build_info()
    assert report["packages"]["numpy"]["version"] == report["build"]["found"]["numpy"]
    assert report["transports"]["loopback"] == {"is_available": True}
    assert type(report["peer_writes"]["is_permitted"]) is bool
    assert report["gpus"]["libcuda"] == report["build"]["libcuda"]


def test_doctor_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"kvxfer {kvxfer.__version__}, Python ")
    assert "\n  loopback     available\n" in out
    assert kvxfer.build_info()["found"]["numpy"] in out


def test_doctor_names_what_installs_the_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = kvxfer.build_info()
    bare["found"] = dict.fromkeys(bare["found"])
    monkeypatch.setattr(doctor, "build_info", lambda: bare)
    monkeypatch.setattr(doctor.transports, "available", lambda: ["loopback", "nixl"])
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "\n  torch        missing: pip install 'kvxfer[torch]'\n" in out
    assert "\n  loopback     available\n" in out
    assert "\n  nixl         needs nixl: pip install 'kvxfer[nixl]'\n" in out


def test_every_optional_part_has_a_remedy() -> None:
    parts = set(kvxfer.build_info()["found"])
    assert parts - set(doctor.examine()["packages"]) == set()


def test_a_peer_write_is_tried() -> None:
    report = memory_access.peer_write_report()
    assert report["detail"].startswith("process_vm_writev")
    assert report["is_permitted"] == (": E" not in report["detail"])


def test_a_refused_peer_write_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(TIMEOUT_SECONDS)
    monkeypatch.setattr(memory_access.os, "getpid", lambda: ended.pid)
    report = memory_access.peer_write_report()
    monkeypatch.undo()
    assert report["is_permitted"] is False
    assert report["detail"].startswith(("process_vm_writev: ESRCH ", "process_vm_writev: E"))
    assert os.getpid() != ended.pid


def test_a_peer_write_that_hangs_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_access, "_CHILD", "import time; time.sleep(30)")
    monkeypatch.setattr(memory_access, "_TIMEOUT_SECONDS", 0.2)
    report = memory_access.peer_write_report()
    assert report["is_permitted"] is False
    assert report["detail"].startswith("no answer from a child process: ")
