# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The checked-in stubs say what the built modules hold."""

import ast
import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("stubs", Path(__file__).with_name("stubs.py"))
assert _spec is not None
assert _spec.loader is not None
stubs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stubs)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("module_name", stubs.native_modules())
def test_stub_is_what_the_module_holds(module_name: str) -> None:
    path = stubs.stub_path(module_name)
    assert path.read_text() == stubs.generate(module_name), f"{path.name}: run `make stubs`"


@pytest.mark.parametrize("module_name", stubs.native_modules())
def test_stub_names_every_type(module_name: str) -> None:
    """A parameter without a type reads as Any and hides mistakes from every caller."""
    tree = ast.parse(stubs.stub_path(module_name).read_text())
    bare = [
        f"{function.name}({argument.arg})"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for argument in function.args.args + function.args.kwonlyargs
        if argument.annotation is None and argument.arg not in ("self", "cls")
    ]
    assert bare == []
