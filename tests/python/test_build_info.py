# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""build_info() reports without loading what it reports on."""

import importlib.metadata
import json
import subprocess
import sys

import numpy as np

import kvxfer


def test_versions_are_those_of_the_installation() -> None:
    facts = kvxfer.build_info()
    assert facts["version"] == kvxfer.__version__ == importlib.metadata.version("kvxfer")
    assert facts["found"]["numpy"] == f"numpy {np.__version__}"


def test_cuda_module_and_architectures_agree() -> None:
    facts = kvxfer.build_info()
    assert facts["cuda_module"] == (facts["cuda_architectures"] != "")


def test_nothing_reported_is_loaded() -> None:
    code = (
        "import sys, json, kvxfer; kvxfer.build_info(); print(json.dumps(sorted(sys.modules)));"
        "print(open('/proc/self/maps').read().count('libcuda'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    modules, mapped_count = done.stdout.splitlines()
    loaded = {name.split(".")[0] for name in json.loads(modules)}
    assert loaded & {"torch", "zmq", "msgspec", "nixl", "mooncake", "nvidia"} == set()
    assert mapped_count == "0"


def test_an_absent_distribution_is_none(monkeypatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert set(kvxfer.build_info()["found"].values()) == {None}
