# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Environment under which the outside transfer libraries run in tests: TCP over loopback, quiet.

The libraries read it when they are loaded, so it is set before that, here or in a parent process.
"""

import os

NIXL = {
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "lo",
    # The verbs providers of some distributions end a process with a crash once they are loaded.
    "UCX_MODULES": "^ib",
    "UCX_LOG_LEVEL": "fatal",
    "NIXL_LOG_LEVEL": "FATAL",
}
MOONCAKE = {
    "MC_FORCE_TCP": "1",
    "MC_LOG_LEVEL": "ERROR",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "6",
}


def apply(environment: dict[str, str]) -> None:
    """Set what is not set."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
