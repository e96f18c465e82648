# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel lets one process write another's memory, found out by doing it."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 20
_MESSAGE = b"written by a peer"

# Runs in a child: a parent may always write its child, so the direction matters.
_CHILD = """
import ctypes, errno, os, sys
pid, address, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
libc = ctypes.CDLL(None, use_errno=True)
writev = libc.process_vm_writev
writev.restype = ctypes.c_ssize_t
source = ctypes.create_string_buffer(text)
local = (ctypes.c_size_t * 2)(ctypes.addressof(source), len(text))
remote = (ctypes.c_size_t * 2)(address, len(text))
count = writev(
    pid, local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0)
)
if count != len(text):
    number = ctypes.get_errno()
    print(errno.errorcode.get(number, number), os.strerror(number))
"""


def peer_write_report() -> dict[str, Any]:
    """Have a child process write this one's memory with process_vm_writev.

    Returns
    -------
    dict[str, Any]
        ``is_permitted`` : bool
        ``detail`` : str
            The kernel's answer, and the setting that decides where one is known.

    Notes
    -----
    Loopback asks again for every pair of processes and takes a shared landing region where it is
    refused, so this tells only what to expect.
    """
    target = ctypes.create_string_buffer(len(_MESSAGE))
    words = [str(os.getpid()), str(ctypes.addressof(target)), _MESSAGE.decode()]
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD, *words],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"is_permitted": False, "detail": f"no answer from a child process: {error}"}
    is_permitted = target.raw == _MESSAGE
    answer = child.stdout.strip() or f"child ended with status {child.returncode}"
    detail = "process_vm_writev" if is_permitted else f"process_vm_writev: {answer}"
    return {"is_permitted": is_permitted, "detail": f"{detail}{_yama()}"}


def _yama() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return ""
    return f", Yama ptrace_scope {scope}"
