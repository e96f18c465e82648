# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's main job: starts the workers, moves one request, gathers the bytes and judges them."""

from __future__ import annotations

import secrets
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import kvxfer
from kvxfer import InvalidArgumentError, transports
from kvxfer.demo import counting
from kvxfer.demo.geometry import PoolSnapshot, make_geometry
from kvxfer.demo.processes import Crew, Wire
from kvxfer.demo.progress import Progress
from kvxfer.demo.report import DemoReport
from kvxfer.demo.subject import Subject, choose_subject
from kvxfer.demo.verdict import Layouts, Outcome, judge
from kvxfer.demo.worker import WORKER_DEADLINE_S, Setting, WorkerResult, run_decode, run_prefill
from kvxfer.transfer.options import LandingMode

_STEP_COUNT = 6
_MAX_DESTINATION_RANKS = 64
_SEED = 20
# Early sends end inside a page on purpose: the end is lowered, the rest goes with the final send.
_EARLY_SHARE = (3, 4)
_SEGMENTS_PER_REQUEST = 5


@dataclass(frozen=True)
class DemoOptions:
    """What a run of the demo is asked to do.

    Attributes
    ----------
    transport : str
        Name that ``kvxfer.transports.create`` takes.
    destination_ranks : int
        Decode processes, which are the ranks of one DCP group.
    tokens : int or None
        Length of the request; None: what suits the model.              [unit: tokens]
    model : {"auto", "real", "synthetic"}
        Whose rows are moved.
    landing : {"auto", "in_place", "landing"}
        How rows land at the decode ranks.
    """

    transport: str = "loopback"
    destination_ranks: int = 4
    tokens: int | None = None
    model: str = "auto"
    landing: LandingMode = "auto"

    def __post_init__(self) -> None:
        parts = self.transport.split(".")
        is_module_path = len(parts) > 1 and all(map(str.isidentifier, parts))
        if not is_module_path and self.transport not in transports.available():
            raise InvalidArgumentError(
                f"transport: expected one of {', '.join(transports.available())}, or the dotted "
                f"path of a module, got {self.transport!r}"
            )
        if not 1 <= self.destination_ranks <= _MAX_DESTINATION_RANKS:
            raise InvalidArgumentError(
                f"destination_ranks: expected 1 to {_MAX_DESTINATION_RANKS}, "
                f"got {self.destination_ranks}"
            )


def run_demo(options: DemoOptions, progress_stream: TextIO | None = None) -> DemoReport:
    """Move one request from a prefill process to decode processes, and check every byte.

    Parameters
    ----------
    options : DemoOptions
    progress_stream : text stream, optional
        Where steps are shown; standard error when omitted.

    Returns
    -------
    DemoReport
        ``held`` says whether every comparison held.

    Raises
    ------
    InvalidArgumentError
        For options that cannot be met.
    TransferError
        If a worker fails, ends or does not answer; names it.
    """
    stream = sys.stderr if progress_stream is None else progress_stream
    with (
        tempfile.TemporaryDirectory(prefix="kvxfer-demo-") as folder,
        Progress(_STEP_COUNT, stream) as progress,
    ):
        progress.step("load the model, or generate rows")
        subject = choose_subject(options.model, options.tokens, Path(folder))
        layouts = _lay_out(subject, options.destination_ranks)
        outcome = _move(subject, layouts, options, progress)
        progress.step("compare bytes, tokens and logits")
        return judge(subject, layouts, options.transport, outcome)


def _lay_out(subject: Subject, destination_ranks: int) -> Layouts:
    """Choose pages for every rank, and a pack buffer that the early part does not fit."""
    planes, page_size, tokens = subject.planes, subject.page_size, subject.tokens
    source = make_geometry(planes, page_size, tokens, rank_of=(0, 1), seed=_SEED)
    destinations = [
        make_geometry(planes, page_size, tokens, rank_of=(rank, destination_ranks), seed=_SEED + 1)
        for rank in range(destination_ranks)
    ]
    wanted_tokens = tokens // _SEGMENTS_PER_REQUEST
    capacity_tokens = max(1, wanted_tokens // page_size) * page_size
    source_layout = counting.make_layout(source)
    relayouts = [kvxfer.Relayout(source_layout, counting.make_layout(d)) for d in destinations]
    share, whole = _EARLY_SHARE
    return Layouts(
        source,
        destinations,
        early_tokens=tokens * share // whole,
        pack_buffer_bytes=kvxfer.PackBufferLayout.bytes_for(relayouts, capacity_tokens),
    )


def _move(subject: Subject, layouts: Layouts, options: DemoOptions, progress: Progress) -> Outcome:
    """Run the workers until the request has moved, and gather their pools."""
    setting = Setting(
        transport=options.transport,
        secret=secrets.token_bytes(32),
        tokens=subject.tokens,
        early_tokens=layouts.early_tokens,
        destination_ranks=options.destination_ranks,
        pack_buffer_bytes=layouts.pack_buffer_bytes,
        landing=options.landing,
    )
    with Crew() as crew:
        progress.step(f"start 1 prefill and {options.destination_ranks} decode processes")
        prefill = crew.start("prefill", run_prefill)
        decodes = [
            crew.start(f"decode rank {geometry.rank}", run_decode)
            for geometry in layouts.destinations
        ]
        prefill.send("setup", (setting, layouts.source, subject.source()))
        address = prefill.receive("address", WORKER_DEADLINE_S)
        for wire, geometry in zip(decodes, layouts.destinations, strict=True):
            wire.send("setup", (setting, geometry, address))
        progress.step("prefill, and the reference beside it")
        subject.make_reference()
        progress.step("move the early part, then the rest")
        results = _await_results(crew, layouts, subject.tokens, progress)
        progress.step("gather the pools")
        return _gather(layouts, [prefill, *decodes], results)


def _await_results(
    crew: Crew, layouts: Layouts, tokens: int, progress: Progress
) -> list[WorkerResult]:
    """Wait for every worker, and show the bytes that have arrived."""
    whole_bytes = tokens * sum(plane.row_bytes for plane in layouts.source.planes)
    arrived_bytes: dict[str, int] = {}

    def show(peer: str, rank_bytes: int) -> None:
        arrived_bytes[peer] = rank_bytes
        progress.part(sum(arrived_bytes.values()) / whole_bytes)

    return crew.receive_all("result", WORKER_DEADLINE_S, on_note=show)


def _gather(layouts: Layouts, wires: list[Wire], results: list[WorkerResult]) -> Outcome:
    """Fetch the bytes of every pool."""
    for wire in wires:
        wire.send("collect")
    snapshots = [
        PoolSnapshot(geometry, wire.receive_memory(geometry.pool_bytes, WORKER_DEADLINE_S))
        for wire, geometry in zip(wires, [layouts.source, *layouts.destinations], strict=True)
    ]
    return Outcome(results[0], results[1:], snapshots[0], snapshots[1:])
