# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Facts that every source file keeps."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LICENSED = {".py", ".pyi", ".cpp", ".hpp", ".cu", ".cuh", ".cmake", ".sh", ".toml"}


def tracked_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=50
    )
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_every_source_names_its_licence() -> None:
    named = {"CMakeLists.txt", "Makefile"}
    files = [path for path in tracked_files() if path.suffix in LICENSED or path.name in named]
    assert ROOT / "CMakeLists.txt" in files
    missing = []
    for path in files:
        head = path.read_text().splitlines()[:4]
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
            missing.append(str(path.relative_to(ROOT)))
    assert missing == []


def test_every_core_header_has_source_and_test() -> None:
    names = [path.stem for path in (ROOT / "cpp/include/kvxfer").glob("*.hpp")]
    assert "error" in names
    tests = {path.name for path in (ROOT / "tests/cpp").glob("*_test.cpp")}
    assert [name for name in names if f"{name}_test.cpp" not in tests] == []
    assert [name for name in names if not (ROOT / f"cpp/src/{name}.cpp").is_file()] == []
