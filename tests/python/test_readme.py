# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The README's examples run and print what the README says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"<!-- example: (?P<name>\w+) -->\n```python\n(?P<code>.*?)```\n```\n(?P<output>.*?)```\n", re.S
)


@pytest.mark.parametrize("name", ["plan", "transfer"])
def test_example_prints_what_it_says(name: str) -> None:
    example = next(match for match in EXAMPLE.finditer(README) if match["name"] == name)
    run = subprocess.run(
        [sys.executable, "-c", example["code"]], capture_output=True, text=True, timeout=50
    )
    assert run.stderr == ""
    assert run.stdout == example["output"]


def test_sharded_example_prints_what_it_says_on_two_ranks(tmp_path: Path) -> None:
    example = next(match for match in EXAMPLE.finditer(README) if match["name"] == "sharded")
    script = tmp_path / "gather.py"
    script.write_text(example["code"])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == example["output"]


def test_plan_command_prints_a_plan() -> None:
    (line,) = re.findall(r"echo '(\{.*?\})' \| kvxfer plan -", README, re.S)
    run = subprocess.run(
        [sys.executable, "-m", "kvxfer", "plan", "-"],
        input=line,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert run.returncode == 0, run.stderr
    assert '"source_rows"' in run.stdout


def test_folders_of_the_map_exist() -> None:
    folders = re.findall(r"^\| `([\w/]+)/` \|", README, re.M)
    assert len(folders) >= 6
    assert all((Path(__file__).parents[2] / folder).is_dir() for folder in folders)


def test_commands_are_targets() -> None:
    assert shutil.which("make"), "the README's commands need make"
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.M), target
