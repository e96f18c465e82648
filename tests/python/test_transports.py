# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Choosing a transport by name."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvxfer import InvalidArgumentError, UnsupportedError, transports
from kvxfer.transports.protocol import RegionTable, check_writes


def add_transport(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Put a file ``pigeon.py`` beside the transports, as somebody who adds one would."""
    (folder / "pigeon.py").write_text(text)
    monkeypatch.setattr(transports, "__path__", [*transports.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "kvxfer.transports.pigeon", raising=False)


def test_only_transports_are_listed() -> None:
    names = transports.available()
    assert "loopback" in names
    assert "protocol" not in names
    assert not [name for name in names if name.startswith("_")]


@pytest.mark.parametrize("name", ["smoke", "protocol", "_regions", "", "Loopback"])
def test_an_unknown_name_says_what_exists(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name!r} does not exist.*loopback"):
        transports.create(name, "agent")


def test_a_transport_is_added_by_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_transport(monkeypatch, tmp_path, "def create(agent_name, **options):\n    return options\n")
    assert "pigeon" in transports.available()
    assert transports.create("pigeon", "agent", feathers=3) == {"feathers": 3}


@pytest.mark.parametrize(
    "text", ["import no_such_library\n", "def create(name):\n    import no_such_library\n"]
)
def test_a_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    add_transport(monkeypatch, tmp_path, text)
    with pytest.raises(UnsupportedError, match=r"no_such_library.*pip install 'kvxfer\[pigeon\]'"):
        transports.create("pigeon", "agent")


def test_a_module_without_create_is_no_transport() -> None:
    with pytest.raises(InvalidArgumentError, match=r"os\.path is not a transport"):
        transports.create("os.path", "agent")


def test_importing_the_package_imports_no_transport() -> None:
    code = "import sys, kvxfer.transports; print([m for m in sys.modules if 'loopback' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_sums_of_sizes_stay_int64() -> None:
    table = RegionTable("agent 'x'")
    table.add(1, 2**62)
    writes = np.array([[1, 1, 2**61]] * 2, dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match=r"expected less than 2\*\*62"):
        check_writes(writes, table, table)
    assert (check_writes(writes[:1], table, table) == writes[:1]).all()


def test_regions_in_any_order_accept_exactly_what_lies_inside_one() -> None:
    generator = np.random.default_rng(5)
    owner = np.zeros(400, dtype=np.int64)
    table = RegionTable("agent 'x'")
    places = [(start, int(generator.integers(1, 12))) for start in range(10, 390, 12)]
    for number in generator.permutation(len(places)):
        start, size_bytes = places[number]
        table.add(start, size_bytes)
        owner[start : start + size_bytes] = number + 1
    for address in range(1, 399):
        for size_bytes in range(1, 14):
            covered = owner[address : address + size_bytes]
            is_inside = bool(covered[0]) and bool((covered == covered[0]).all())
            is_inside = is_inside and address + size_bytes <= 400
            found = table.first_outside(np.array([address]), np.array([size_bytes]))
            assert (found is None) == is_inside, (address, size_bytes)
