# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Says what is in this build and what was found beside it, without loading any of it."""

import ctypes.util
import importlib.metadata
import importlib.util
import platform
from typing import Any

from kvxfer._core import compiled_facts

# What each optional part is called here, and the distributions that can bring it.
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "pyzmq": ("pyzmq",),
    "msgspec": ("msgspec",),
    "torch": ("torch",),
    "nixl": ("nixl-cu13", "nixl-cu12", "nixl"),
    "mooncake": (
        "mooncake-transfer-engine-cuda13",
        "mooncake-transfer-engine",
        "mooncake-transfer-engine-non-cuda",
    ),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}


def build_info() -> dict[str, Any]:
    """Return what was compiled and what is installed.

    Nothing optional is imported, no library is loaded and no CUDA context is made.

    Returns
    -------
    dict[str, Any]
        ``version``, ``compiler``, ``build_type``, ``sanitize`` and ``cuda_architectures`` : str
            As the build settled them; ``cuda_architectures`` is empty without CUDA.
        ``cuda_module`` : bool
            Whether the CUDA module is in this installation.
        ``python`` : str
            Version of the interpreter.
        ``libcuda`` : str or None
            Name under which the driver library was found, without loading it.
        ``found`` : dict[str, str or None]
            Distribution and version of numpy, pyzmq, msgspec, torch, nixl, mooncake and nccl,
            None where it is not installed.

    Examples
    --------
    >>> facts = build_info()
    >>> facts["cuda_module"] == bool(facts["cuda_architectures"])
    True
    >>> facts["found"]["numpy"].startswith("numpy ")
    True
    """
    return {
        **compiled_facts(),
        "cuda_module": importlib.util.find_spec("kvxfer._cuda") is not None,
        "python": platform.python_version(),
        "libcuda": ctypes.util.find_library("cuda"),
        "found": {part: _installed(names) for part, names in _DISTRIBUTIONS.items()},
    }


def _installed(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
