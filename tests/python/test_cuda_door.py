# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""kvxfer.cuda imports anywhere and says what is missing."""

import importlib.util
import subprocess
import sys

import pytest

import kvxfer
import kvxfer.cuda


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gather'"):
        _ = kvxfer.cuda.gather


@pytest.mark.timeout(60)
def test_missing_module_is_unsupported_and_names_the_build_option() -> None:
    # A name that maps to None in sys.modules cannot be imported, as in a build without CUDA.
    code = (
        "import sys; sys.modules['kvxfer._cuda'] = None\n"
        "import kvxfer, kvxfer.cuda\n"
        "try:\n    kvxfer.cuda.pack_rows\n"
        "except kvxfer.UnsupportedError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert "kvxfer.cuda.pack_rows" in done.stdout
    assert "KVXFER_CUDA=ON" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("kvxfer._cuda") is None, reason="built without CUDA")
def test_built_module_has_every_name_and_its_errors() -> None:
    for name in kvxfer.cuda.__all__:
        assert getattr(kvxfer.cuda, name) is not None
    assert issubclass(kvxfer.cuda.CudaError, kvxfer.Error)
    with pytest.raises(kvxfer.InvalidArgumentError, match="count of words > 0, got 0"):
        kvxfer.cuda.CompletionWords(0)
