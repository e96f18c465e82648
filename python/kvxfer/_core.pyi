# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
# Written by `make stubs`; a test compares it with the module.
from __future__ import annotations

__all__: list[str] = [
    "CapacityError",
    "Error",
    "InvalidArgumentError",
    "UnsupportedError",
    "compiled_facts",
]

class Error(RuntimeError): ...
class InvalidArgumentError(Error, ValueError): ...
class CapacityError(Error): ...
class UnsupportedError(Error): ...

def compiled_facts() -> dict[str, str]: ...
