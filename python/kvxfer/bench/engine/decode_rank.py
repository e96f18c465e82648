# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A decode process: receives its share of prompts and decodes on it with the other ranks."""

from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from kvxfer.adapters import RequestReceiver
from kvxfer.bench.engine.rank import Commands, Rank, open_rank
from kvxfer.bench.engine.rank_group import RankGroup
from kvxfer.bench.engine.sampled import Sampled
from kvxfer.bench.engine.setting import Ended, RankSetting, ReceiveJob, StepJob
from kvxfer.demo.processes import Wire
from kvxfer.transfer import RoomState

__all__ = ["run_decode"]

_BUSY_WAIT_S = 0.0005


def run_decode(wire: Wire, setting: RankSetting, links: Sequence[Connection]) -> None:
    """Serve until the scheduler hangs up.

    Commands are ``receive`` (a ``ReceiveJob``), ``step`` (a ``StepJob``), ``abort`` (a request),
    ``peers_dead`` (names) and ``report``; answers ``ended``, ``settled``, from rank 0 ``stepped``,
    and ``report``. All ranks are sent the same steps in the same order.
    """
    group = RankGroup(links, is_first=setting.rank == 0)
    with open_rank(setting, "receiver", group) as rank:
        wire.send("ready", rank.ready)
        _DecodeLoop(wire, rank).run()


class _Incoming:
    """One prompt that is received."""

    def __init__(self, rank: Rank, job: ReceiveJob) -> None:
        self.job = job
        self.is_reported = False
        self.receiver = RequestReceiver(rank.manager, job.room)
        self.receiver.init(job.sources)
        first = job.prefix_tokens // rank.pool.page_tokens
        self.receiver.send_metadata(
            job.pages[first : -(-len(job.token_ids) // rank.pool.page_tokens)],
            len(job.token_ids),
            prefix_tokens=job.prefix_tokens,
            metadata_item=0,
        )


class _DecodeLoop:
    def __init__(self, wire: Wire, rank: Rank) -> None:
        self._wire = wire
        self._rank = rank
        self._commands = Commands(wire)
        self._open: list[_Incoming] = []

    def run(self) -> None:
        while not self._commands.is_over:
            for name, value in self._commands.take(_BUSY_WAIT_S if self._open else None):
                self._obey(name, value)
            for incoming in list(self._open):
                self._advance(incoming)

    def _obey(self, name: str, value: object) -> None:
        if isinstance(value, StepJob):
            sampled = self._step(value)
            if self._rank.setting.rank == 0:
                self._wire.send("stepped", (value.request, sampled.token, sampled.logprob))
        elif isinstance(value, ReceiveJob):
            self._open.append(_Incoming(self._rank, value))
        elif name == "abort":
            for incoming in self._open:
                if incoming.job.request == value:
                    incoming.receiver.abort()
        elif name == "peers_dead" and isinstance(value, tuple):
            for peer in value:
                self._rank.manager.declare_dead(peer)
        elif name == "report":
            self._wire.send("report", self._rank.report())

    def _step(self, job: StepJob) -> Sampled:
        if self._rank.synthetic is not None:
            return self._rank.synthetic.step(job.token)
        sampled: Sampled = self._rank.model.run(np.array([job.token]), job.position, job.pages)
        return sampled

    def _advance(self, incoming: _Incoming) -> None:
        receiver = incoming.receiver
        state = receiver.poll()
        if not state.is_over:
            return
        if not incoming.is_reported:
            incoming.is_reported = True
            self._report(incoming, state)
        if not receiver.pages_held:
            self._open.remove(incoming)
            self._wire.send("settled", incoming.job.request)

    def _report(self, incoming: _Incoming, state: RoomState) -> None:
        job, receiver = incoming.job, incoming.receiver
        failure = receiver.failure_reason
        token, logprob = -1, 0.0
        if state is RoomState.SUCCESS:
            token, logprob = int(self._rank.tokens[0]), float(self._rank.logprobs[0])
            if self._rank.synthetic is not None:
                failure = self._rank.synthetic.find_wrong_row(job.token_ids, job.pages)
        ended = Ended(job.request, failure, receiver.transfer_metrics, token, logprob)
        self._wire.send("ended", ended)
