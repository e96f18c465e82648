# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Moves the KV cache of large language models between workers that shard it differently."""

from kvxfer._core import (
    CapacityError,
    Error,
    InvalidArgumentError,
    UnsupportedError,
    compiled_facts,
)
from kvxfer.build_info import build_info

__version__: str = compiled_facts()["version"]

__all__ = [
    "CapacityError",
    "Error",
    "InvalidArgumentError",
    "UnsupportedError",
    "build_info",
]
