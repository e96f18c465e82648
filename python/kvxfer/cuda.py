# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""Row copies on device memory: the verbs of kvxfer for torch, CuPy, DLPack or raw pointers.

The native module loads on first use, so that importing this one needs neither CUDA nor a GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvxfer._core import UnsupportedError

if TYPE_CHECKING:
    from kvxfer._cuda import (
        CompletionWords,
        CopyTables,
        CudaError,
        PackTables,
        UnpackTables,
        copy_rows,
        pack_rows,
        stream_calls,
        unpack_rows,
    )

__all__ = [
    "CompletionWords",
    "CopyTables",
    "CudaError",
    "PackTables",
    "UnpackTables",
    "copy_rows",
    "pack_rows",
    "stream_calls",
    "unpack_rows",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kvxfer.cuda' has no attribute {name!r}")
    try:
        module = importlib.import_module("kvxfer._cuda")
    except ImportError as error:
        raise UnsupportedError(
            f"expected a build with CUDA for kvxfer.cuda.{name}, got one without: install nvcc "
            f">= 13.0 and build kvxfer from source with KVXFER_CUDA=ON ({error})"
        ) from error
    globals().update({known: getattr(module, known) for known in __all__})
    return globals()[name]
