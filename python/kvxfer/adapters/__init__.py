# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a serving engine's scheduler holds, for any transport: a manager, senders and receivers.

Verbs and states are those that schedulers of prefill and decode workers use already; nothing here
knows an engine. A request whose peers shard its rows differently is cut to what the pack buffers
hold, any other is sent as it is, and no option changes that.

Examples
--------
A prefill worker sends 21 tokens to decode rank 1 of 2; both live in this process.

>>> import contextlib
>>> import numpy as np
>>> from kvxfer import Plane, PlaneKind, PoolLayout, Sharding, transports
>>> from kvxfer.adapters import RankManager, RequestReceiver, RequestSender
>>> from kvxfer.transfer import LocalPool, TransferOptions, ZmqChannel
>>> closing = contextlib.ExitStack()
>>> def make_manager(name, sharding):
...     layout = PoolLayout(4, 16, [Plane(0, PlaneKind.LATENT, 8)], sharding=sharding)
...     rows = np.zeros((16 * 4, 8), dtype=np.uint8)
...     agent, channel = transports.create("loopback", name), ZmqChannel()
...     pool, options = LocalPool.from_arrays(layout, [rows]), TransferOptions(pack_tokens=8)
...     manager = RankManager(pool, agent, channel, options)
...     for part in (channel, agent, manager):                           # closed in reverse
...         _ = closing.callback(part.close)
...     return manager, rows
>>> prefill, source_rows = make_manager("prefill-0", Sharding())
>>> decode, destination_rows = make_manager("decode-1", Sharding(ranks=2, rank=1))
>>> source_rows[:] = np.arange(64, dtype=np.uint8)[:, None]
>>> sender, receiver = RequestSender(prefill, room=7), RequestReceiver(decode, room=7)
>>> receiver.init([prefill.address])
>>> receiver.send_metadata(pages=[6, 3, 8], end=21)
>>> while sender.poll().name == "BOOTSTRAPPING": pass
>>> sender.get_max_transfer_tokens()
8
>>> sender.init(page_count=6)
>>> sender.send_bounded(pages=[9, 4], end=7, is_final=False)         # 3 tokens wait for their page
4
>>> sender.send_bounded(pages=[4, 1, 7, 2, 5], end=21, is_final=True)
21
>>> while not receiver.poll().is_over: pass
>>> receiver.poll(), sender.send_count, destination_rows[24:28, 0]   # positions 1, 3, 5, 7
(<RoomState.SUCCESS: 4>, 4, array([37, 39, 17, 19], dtype=uint8))
>>> closing.close()
"""

from kvxfer.adapters.devices import DeviceAgents
from kvxfer.adapters.manager import RankManager
from kvxfer.adapters.memory import EngineMemory, MetadataArray, StateArray, StateItems
from kvxfer.adapters.metrics import MetricsExporter, TransferTotals
from kvxfer.adapters.receiver import RequestReceiver
from kvxfer.adapters.request import Request
from kvxfer.adapters.sender import RequestSender

__all__ = [
    "DeviceAgents",
    "EngineMemory",
    "MetadataArray",
    "MetricsExporter",
    "RankManager",
    "Request",
    "RequestReceiver",
    "RequestSender",
    "StateArray",
    "StateItems",
    "TransferTotals",
]
