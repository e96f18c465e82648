# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Transfers: rooms, senders, receivers and the control channel, over any transport.

One manager per worker rank. A sender's room splits what the engine hands over, packs it once for
all receivers and posts it; a receiver's room counts what arrives, unpacks what came through landing
regions, and holds its pages until no write can reach them any more.

Examples
--------
One prefill rank sends 21 tokens to decode rank 1 of 2. Both live in this process; in a deployment
each has its own, and the engine tells the receiver the sender's address.

>>> import numpy as np
>>> from kvxfer import Plane, PlaneKind, PoolLayout, Sharding, transports
>>> from kvxfer.transfer import LocalPool, RoomState, TransferManager, ZmqChannel
>>> opened = []
>>> def manager(name, sharding):
...     layout = PoolLayout(4, 16, [Plane(0, PlaneKind.LATENT, 8)], sharding=sharding)
...     rows = np.zeros((16 * 4, 8), dtype=np.uint8)
...     pool = LocalPool.from_arrays(layout, [rows])
...     opened.extend([transports.create("loopback", name), ZmqChannel()])
...     return TransferManager(pool, *opened[-2:]), rows
>>> prefill, source_rows = manager("prefill-0", Sharding())
>>> decode, destination_rows = manager("decode-1", Sharding(ranks=2, rank=1))
>>> source_rows[:] = np.arange(64, dtype=np.uint8)[:, None]
>>> sender = prefill.open_sender(room=7)
>>> receiver = decode.open_receiver(7, [prefill.address], pages=[6, 3, 8], end=21)
>>> sender.send(pages=[9, 4, 1, 7, 2, 5], end=21, is_final=True)
>>> while not (sender.state.is_over and receiver.state.is_over):
...     prefill.poll()
...     decode.poll()
>>> receiver.state, receiver.pages_held
(<RoomState.SUCCESS: 4>, False)
>>> destination_rows[24:28, 0]                # page 6 holds positions 1, 3, 5, 7
array([37, 39, 17, 19], dtype=uint8)
>>> for end in (prefill, decode, *opened):
...     end.close()
"""

from kvxfer.transfer.control import ControlChannel
from kvxfer.transfer.copies import HostCopies, Ready, RowCopies
from kvxfer.transfer.manager import TransferManager
from kvxfer.transfer.options import LandingMode, PackingMode, TransferOptions
from kvxfer.transfer.pool import LocalPool, MemorySpan
from kvxfer.transfer.receiver import ReceiverRoom
from kvxfer.transfer.room import Failure, RoomMetrics, RoomResult, RoomState
from kvxfer.transfer.sender import SenderRoom
from kvxfer.transfer.state import StateComponent
from kvxfer.transfer.zmq_channel import ZmqChannel

__all__ = [
    "ControlChannel",
    "Failure",
    "HostCopies",
    "LandingMode",
    "LocalPool",
    "MemorySpan",
    "PackingMode",
    "Ready",
    "ReceiverRoom",
    "RoomMetrics",
    "RoomResult",
    "RoomState",
    "RowCopies",
    "SenderRoom",
    "StateComponent",
    "TransferManager",
    "TransferOptions",
    "ZmqChannel",
]
