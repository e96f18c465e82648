# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The NCCL that this process would gather with, and what it would do on this machine."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kvxfer._collective import NcclApi, load_nccl
from kvxfer._core import GatherPath, UnsupportedError, decide_gather_path
from kvxfer.sharded._environment import driver_version, environment_conditions, nccl_wheel_path

__all__ = ["find_nccl", "nccl_report"]


def find_nccl(path: str = "") -> NcclApi:
    """Load NCCL: from a path, else the copy in the process, else the wheel's, else the loader's.

    Parameters
    ----------
    path : str
        Of a libnccl.so.2; the only place that is tried when given.

    Raises
    ------
    UnsupportedError
        If there is none that can be used; the message lists what was tried.
    """
    return load_nccl(explicit_path=path, wheel_path=nccl_wheel_path() or "")


def nccl_report(path: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Say which NCCL is found and whether ranks of this machine would gather by copy engines.

    Loads the library; makes no communicator and no CUDA context.

    Parameters
    ----------
    path : str
        As find_nccl().
    environ : mapping of str to str
        Where NCCL's settings are looked up.

    Returns
    -------
    dict[str, Any]
        ``path`` and ``version`` : str or None
            Of the library, such as "2.31.2"; None without one.
        ``is_zero_sm`` : bool
            Whether nothing that can be known before a window is registered speaks against it.
        ``reason`` : str
            Name of the FallbackReason; "NONE" for copy engines.
        ``explanation`` : str
            What was found, and what would change it.
    """
    conditions = environment_conditions(environ)
    conditions.driver_version = driver_version()
    api: NcclApi | None = None
    with suppress(UnsupportedError):
        api = find_nccl(path)
    if api is not None:
        conditions.nccl_code = api.version_code
    verdict = decide_gather_path([conditions, conditions])
    return {
        "path": None if api is None else api.path,
        "version": None if api is None else ".".join(map(str, api.version)),
        "is_zero_sm": verdict.path is GatherPath.COPY_ENGINE,
        "reason": verdict.reason.name,
        "explanation": verdict.explanation.removeprefix("ranks 0, 1: "),
    }
