# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A lock on a memfd that proves that another process is not in the middle of a copy.

Whoever copies on behalf of a connection holds a shared lock, looks whether the connection is alive,
copies a bounded number of bytes, and unlocks. Whoever ends the connection shuts it down first and
then takes the lock exclusively: from then on nothing is copied for it. The kernel drops the lock of
a process that dies. flock is used because it belongs to the open file, not to the process, so that
it also works between two agents of one process.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


def make_gate() -> int:
    """Return the descriptor of a gate; the caller owns it."""
    return os.memfd_create("kvxfer-gate", os.MFD_CLOEXEC)


def reopen(fd: int) -> int:
    """Return a descriptor of the same file with a lock of its own, for another process."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


@contextmanager
def passing(fd: int) -> Iterator[bool]:
    """Hold the shared lock for one bounded copy; yields False where the other side has locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def try_lock_out(fd: int) -> bool:
    """Take the lock exclusively; False while somebody is in the middle of a copy."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
