# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a process finds of NCCL before it starts. Reads the environment and never writes it."""

import ctypes
import importlib.util
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from kvxfer._core import RankConditions

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def environment_conditions(environ: Mapping[str, str] = os.environ) -> RankConditions:
    """Conditions with the node and NCCL's settings filled in; the caller adds the rest.

    Parameters
    ----------
    environ : mapping of str to str
        Where NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE and NCCL_CTA_POLICY are looked up.

    Returns
    -------
    RankConditions
        Switched on, with a device pool, no library and no driver yet.

    Examples
    --------
    >>> environment_conditions({"NCCL_CUMEM_ENABLE": "0"}).nccl_cumem_enable
    '0'
    """
    conditions = RankConditions()
    conditions.node = node_name()
    conditions.nccl_cumem_enable = environ.get("NCCL_CUMEM_ENABLE", "")
    conditions.nccl_win_enable = environ.get("NCCL_WIN_ENABLE", "")
    conditions.nccl_cta_policy = environ.get("NCCL_CTA_POLICY", "")
    return conditions


def driver_version() -> int:
    """CUDA version of the driver, such as 13000; 0 without a driver. Makes no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int()
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0


def node_name() -> str:
    """Name the machine as all its containers do, until it boots again."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def nccl_wheel_path() -> str | None:
    """Find the library of an installed nvidia-nccl wheel; None without one."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in found.submodule_search_locations or () if found is not None else ():
        library = Path(folder, "lib", "libnccl.so.2")
        if library.is_file():
            return str(library)
    return None
