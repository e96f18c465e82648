# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The straight way: write into the target's memory with process_vm_writev.

The kernel asks for the same permission as a debugger needs: the same user, and what Yama, seccomp
or a container allow beyond that. So each peer is probed once.
"""

import ctypes
import errno
import os

import numpy as np
from numpy.typing import NDArray

from kvxfer.transports._loopback.connection import Connection, ConnectionEnded
from kvxfer.transports._loopback.gate import passing
from kvxfer.transports._loopback.handle import LoopbackHandle, WriteFault

# IOV_MAX of Linux: the most pieces that one call takes on either side.
_MAX_PIECES = 1024

_libc = ctypes.CDLL(None, use_errno=True)
_SIGNATURE = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


class ProcessVmPath:
    """Writes of one peer whose memory the kernel lets this process write.

    Takes over the gate's descriptor.
    """

    name = "process_vm"

    def __init__(self, connection: Connection, gate_fd: int) -> None:
        self._connection = connection
        self._gate_fd = gate_fd

    def probe(self, address: int, nonce: bytes) -> None:
        """Read the nonce that only this peer holds, and write the same bytes over it.

        The read shows that the process id means the peer and not a stranger that got its number.

        Raises
        ------
        OSError
            If the kernel does not allow it, or another process answers to the id.
        ConnectionEnded
            If the peer is gone.
        """
        if not self._connection.has_pid_fd:
            raise OSError(errno.ESRCH, "the peer's process id cannot be pinned")
        mirror = ctypes.create_string_buffer(len(nonce))
        run = np.array([[ctypes.addressof(mirror), address, len(nonce)]], dtype=np.int64)
        with passing(self._gate_fd) as is_open:
            self._expect_open(is_open)
            _transfer("process_vm_readv", self._connection.pid, run)
            if mirror.raw != nonce:
                raise OSError(errno.ESRCH, "another process answers to the peer's process id")
            self._expect_open(is_open)
            _transfer("process_vm_writev", self._connection.pid, run)

    def move(self, handle: LoopbackHandle, limit_bytes: int) -> int:
        """Write the next bytes of a post and return how many.

        Raises
        ------
        WriteFault
            If the kernel refuses them.
        ConnectionEnded
            If the peer is gone; nothing was written then.
        """
        runs = handle.next_runs(limit_bytes, _MAX_PIECES)
        with passing(self._gate_fd) as is_open:
            self._expect_open(is_open)
            try:
                written_bytes = _transfer("process_vm_writev", self._connection.pid, runs)
            except ProcessLookupError as error:
                raise ConnectionEnded(str(error)) from error
            except OSError as error:
                source, destination, size_bytes = runs[0].tolist()
                raise WriteFault(
                    f"writing {size_bytes} bytes from {source:#x} to {destination:#x}: {error}"
                ) from error
        handle.moved_bytes += written_bytes
        handle.settled_bytes += written_bytes
        return written_bytes

    def lock_out(self) -> bool:
        """Say whether nothing is being written: always, outside a call of ``move``."""
        return True

    def close(self) -> None:
        """Close the gate's descriptor."""
        os.close(self._gate_fd)

    def _expect_open(self, is_open: bool) -> None:
        # The order matters: the peer ends the connection before it waits for the gate.
        if not (is_open and self._connection.is_alive()):
            raise ConnectionEnded("the connection was closed")


def _transfer(function_name: str, pid: int, runs: NDArray[np.int64]) -> int:
    """Move runs between the own and another process; returns the bytes moved, at least 1."""
    function = getattr(_libc, function_name)
    function.argtypes = _SIGNATURE
    function.restype = ctypes.c_ssize_t
    local = np.ascontiguousarray(runs[:, (0, 2)])
    remote = np.ascontiguousarray(runs[:, (1, 2)])
    moved_bytes: int = function(pid, local.ctypes.data, len(runs), remote.ctypes.data, len(runs), 0)
    if moved_bytes < 1:
        number = ctypes.get_errno() if moved_bytes < 0 else errno.EIO
        raise OSError(number, f"{function_name}: {os.strerror(number)}")
    return moved_bytes
