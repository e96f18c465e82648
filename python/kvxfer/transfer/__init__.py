# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Transfers: rooms, senders, receivers and the control channel, over any transport.

Two managers, one room, in one process. In a deployment each side has its own process, and the
addresses come from the engine.

>>> import numpy as np
"""

from kvxfer.transfer.control import ControlChannel
from kvxfer.transfer.manager import TransferManager
from kvxfer.transfer.options import TransferOptions
from kvxfer.transfer.pool import LocalPool
from kvxfer.transfer.receiver import ReceiverRoom
from kvxfer.transfer.room import Failure, RoomMetrics, RoomResult, RoomState
from kvxfer.transfer.sender import SenderRoom
from kvxfer.transfer.state import StateComponent

__all__ = [
    "ControlChannel",
    "Failure",
    "LocalPool",
    "ReceiverRoom",
    "RoomMetrics",
    "RoomResult",
    "RoomState",
    "SenderRoom",
    "StateComponent",
    "TransferManager",
    "TransferOptions",
]
