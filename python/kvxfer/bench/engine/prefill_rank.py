# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The prefill process: computes prompts chunk by chunk and sends rows as they are there."""

import time

from kvxfer.adapters import RequestSender
from kvxfer.bench.engine.rank import Commands, Rank, open_rank
from kvxfer.bench.engine.rank_group import RankGroup
from kvxfer.bench.engine.sampled import Sampled
from kvxfer.bench.engine.setting import Ended, PrefillJob, RankSetting
from kvxfer.demo.processes import Wire
from kvxfer.transfer import RoomState

__all__ = ["run_prefill"]

_BUSY_WAIT_S = 0.0005
_EARLY_WAIT_S = 0.02


def run_prefill(wire: Wire, setting: RankSetting) -> None:
    """Serve until the scheduler hangs up.

    Commands are ``prefill`` (a ``PrefillJob``), ``abort`` (a request), ``peers_dead`` (names) and
    ``report``; answers ``computed``, ``ended``, ``settled`` and ``report``.
    """
    with open_rank(setting, "sender", RankGroup()) as rank:
        wire.send("ready", rank.ready)
        _PrefillLoop(wire, rank).run()


class _Outgoing:
    """One prompt: how far it is computed, and its sender."""

    def __init__(self, rank: Rank, job: PrefillJob) -> None:
        self.job = job
        self.sender = RequestSender(rank.manager, job.room, job.destination_count)
        self.computed_tokens = job.cached_tokens
        self.sampled: Sampled | None = None
        self.is_reported = False
        self._rank = rank
        self._is_open = False
        self._is_final_sent = False

    @property
    def is_computing(self) -> bool:
        return self.sampled is None and not self.sender.poll().is_over

    def await_destinations(self) -> None:
        """Give destinations that are asking right now a moment, so that cached rows leave early."""
        is_early = self._rank.setting.sends_early and self.job.cached_tokens > 0
        if not is_early or self.computed_tokens > self.job.cached_tokens:
            return
        until = time.monotonic() + _EARLY_WAIT_S
        while self.sender.poll() is RoomState.BOOTSTRAPPING and time.monotonic() < until:
            time.sleep(_BUSY_WAIT_S)

    def compute(self) -> None:
        """Run the next chunk."""
        tokens, pages, begin = self.job.token_ids, self.job.pages, self.computed_tokens
        end = min(len(tokens), begin + self._rank.setting.chunk_tokens)
        synthetic, sampled = self._rank.synthetic, None
        if synthetic is None:
            sampled = self._rank.model.run(tokens[begin:end], begin, pages)
        else:
            if begin == self.job.cached_tokens:
                synthetic.begin_prompt()
            synthetic.fill(tokens[begin:end], begin, pages)
            if end == len(tokens):
                sampled = synthetic.end_prompt(tokens)
        self.computed_tokens = end
        if end == len(tokens):
            self.sampled = sampled

    def send(self) -> None:
        """Hand over what is computed and was not sent, once the destinations have asked."""
        state = self.sender.poll()
        if state.is_over or state is RoomState.BOOTSTRAPPING:
            return
        page_tokens = self._rank.pool.page_tokens
        if not self._is_open:
            self._is_open = True
            first = self.sender.prefix_tokens // page_tokens
            self.sender.init(len(self.job.pages) - first, metadata_item=0)
        is_final = self.sampled is not None
        end, begin = self.computed_tokens, self.sender.next_position
        may_send = is_final or (self._rank.setting.sends_early and end - begin >= page_tokens)
        if not may_send or self._is_final_sent:
            return
        if self.sampled is not None:
            self._rank.tokens[0] = self.sampled.token
            self._rank.logprobs[0] = self.sampled.logprob
        pages = self.job.pages[begin // page_tokens : -(-end // page_tokens)]
        self.sender.send_bounded(pages, end, is_final=is_final)
        self._is_final_sent = is_final


class _PrefillLoop:
    def __init__(self, wire: Wire, rank: Rank) -> None:
        self._wire = wire
        self._rank = rank
        self._commands = Commands(wire)
        self._open: list[_Outgoing] = []

    def run(self) -> None:
        while not self._commands.is_over:
            computing = next((outgoing for outgoing in self._open if outgoing.is_computing), None)
            wait_s = None if not self._open else 0.0 if computing else _BUSY_WAIT_S
            for name, value in self._commands.take(wait_s):
                self._obey(name, value)
            if computing is not None:
                computing.await_destinations()
                computing.send()
                computing.compute()
                if computing.sampled is not None:
                    computing.send()
                    self._wire.send("computed", computing.job.request)
            for outgoing in list(self._open):
                self._advance(outgoing)

    def _obey(self, name: str, value: object) -> None:
        if isinstance(value, PrefillJob):
            self._open.append(_Outgoing(self._rank, value))
        elif name == "abort":
            for outgoing in self._open:
                if outgoing.job.request == value:
                    outgoing.sender.abort()
        elif name == "peers_dead" and isinstance(value, tuple):
            for peer in value:
                self._rank.manager.declare_dead(peer)
        elif name == "report":
            self._wire.send("report", self._rank.report())

    def _advance(self, outgoing: _Outgoing) -> None:
        outgoing.send()
        sender = outgoing.sender
        if not sender.poll().is_over:
            return
        if not outgoing.is_reported:
            outgoing.is_reported = True
            self._wire.send(
                "ended",
                Ended(outgoing.job.request, sender.failure_reason, sender.transfer_metrics),
            )
        if not sender.pages_held:
            self._open.remove(outgoing)
            self._wire.send("settled", outgoing.job.request)
