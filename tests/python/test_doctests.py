# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Every public name is explained, and its examples do what they say.

The compiled names are in no source file that doctest would find, so their docstrings are read from
the objects.
"""

import doctest
import inspect
from typing import Any

import pytest

import kvxfer

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented(name: str) -> dict[str, str]:
    """Docstrings of a public name and of what a class defines, by qualified name."""
    value = getattr(kvxfer, name)
    found = {name: inspect.getdoc(value) or ""}
    if inspect.isclass(value):
        for member, definition in vars(value).items():
            if not member.startswith("_"):
                found[f"{name}.{member}"] = getattr(definition, "__doc__", None) or ""
    return found


def run_examples(name: str, text: str, names: dict[str, Any]) -> doctest.TestResults:
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    assert results.failed == 0, "".join(report)
    return results


def test_the_public_names_are_those_of_the_package() -> None:
    assert kvxfer.__all__ == sorted(kvxfer.__all__, key=lambda name: (name.islower(), name))
    assert len(set(kvxfer.__all__)) == len(kvxfer.__all__)
    public = {
        name
        for name, value in vars(kvxfer).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public - set(kvxfer.__all__) <= {"compiled_facts"}


@pytest.mark.parametrize("name", kvxfer.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(getattr(kvxfer, name)) or ""
    # A compiled function's text begins with its signature.
    words = [line for line in text.splitlines() if line and not line.startswith(f"{name}(")]
    assert words, f"kvxfer.{name} has no docstring"


@pytest.mark.parametrize("name", kvxfer.__all__)
def test_examples_of_a_public_name(name: str) -> None:
    for qualified, text in documented(name).items():
        run_examples(qualified, text, {"kvxfer": kvxfer, name: getattr(kvxfer, name)})


def test_the_examples_are_found() -> None:
    attempted = {
        name: sum(
            run_examples(qualified, text, {name: getattr(kvxfer, name)}).attempted
            for qualified, text in documented(name).items()
        )
        for name in kvxfer.__all__
    }
    compiled = {"Sharding", "HeadSharding", "PoolLayout", "PageTable", "Relayout"}
    compiled |= {"PackBufferLayout", "memory_view", "split_segments", "build_info"}
    assert {name for name in compiled if not attempted[name]} == set()


def test_a_wrong_example_is_seen() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_examples("sum", "Add.\n\n>>> sum([1, 2])\n4\n", {})
