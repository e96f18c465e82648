# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The exception family that the native core raises."""

import pickle

import pytest

import kvxfer

KINDS = [kvxfer.InvalidArgumentError, kvxfer.CapacityError, kvxfer.UnsupportedError]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_an_error_of_the_package(kind: type[Exception]) -> None:
    assert issubclass(kind, kvxfer.Error)
    assert issubclass(kind, RuntimeError)
    assert kind.__module__ == "kvxfer"
    assert getattr(kvxfer, kind.__qualname__) is kind


def test_only_a_broken_precondition_is_a_value_error() -> None:
    assert [issubclass(kind, ValueError) for kind in KINDS] == [True, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_to_another_process(kind: type[Exception]) -> None:
    copy = pickle.loads(pickle.dumps(kind("capacity_tokens 8200, expected a multiple of 64")))
    assert type(copy) is kind
    assert str(copy) == "capacity_tokens 8200, expected a multiple of 64"
