# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What ranks are told: how they are set up, and what passes between them and their scheduler."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvxfer.transfer import RoomMetrics
from kvxfer.transfer.options import LandingMode, PackingMode

__all__ = [
    "Ended",
    "ModelKind",
    "ModelSetting",
    "PrefillJob",
    "RankSetting",
    "Ready",
    "ReceiveJob",
    "StepJob",
    "Verification",
]

ModelKind = Literal["smollm2", "gqa", "mla", "synthetic"]
Verification = Literal["all", "sample", "none"]


@dataclass(frozen=True, kw_only=True)
class ModelSetting:
    """Which model a rank loads.

    Attributes
    ----------
    kind : {"smollm2", "gqa", "mla", "synthetic"}
        SmolLM2-135M-Instruct; a small random Llama; a small random DeepSeek-V3, whose cache is
        latent; or none: rows are a pattern and computing is waiting.
    folder : Path, optional
        Expanded weights of SmolLM2.
    compute_s : float
        Synthetic: how long a prefill takes, whatever its length.
    step_s : float
        Synthetic: how long a decoded token takes.
    verify : {"all", "sample", "none"}
        Synthetic: which received rows are compared with the pattern.
    """

    kind: ModelKind
    folder: Path | None = None
    compute_s: float = 0.0
    step_s: float = 0.0
    verify: Verification = "all"


@dataclass(frozen=True, kw_only=True)
class RankSetting:
    """How a rank is set up. Sizes as in ``TransferOptions`` and ``PoolLayout``."""

    name: str
    model: ModelSetting
    transport: str
    secret: bytes
    page_size: int
    page_count: int
    ranks: int = 1
    rank: int = 0
    chunk_tokens: int = 8192
    pack_tokens: int = 8192
    packing: PackingMode = "auto"
    landing: LandingMode = "auto"
    sends_early: bool = True


@dataclass(frozen=True)
class Ready:
    """A rank is set up: where it is reached, and the model's end-of-text token if it has one."""

    name: str
    address: str
    end_token: int | None
    vocabulary_size: int


@dataclass(frozen=True)
class PrefillJob:
    """Compute a prompt of which ``cached_tokens`` rows are there, and send what is asked for."""

    request: int
    room: int
    token_ids: NDArray[np.int64]
    pages: NDArray[np.int64]
    cached_tokens: int
    destination_count: int


@dataclass(frozen=True)
class ReceiveJob:
    """Receive a prompt of which ``prefix_tokens`` rows are there; pages from position 0 on."""

    request: int
    room: int
    sources: tuple[str, ...]
    token_ids: NDArray[np.int64]
    pages: NDArray[np.int64]
    prefix_tokens: int


@dataclass(frozen=True)
class StepJob:
    """Run one token of a request at a position."""

    request: int
    token: int
    position: int
    pages: NDArray[np.int64]


@dataclass(frozen=True)
class Ended:
    """A transfer is over on one rank; ``token`` and ``logprob`` are what the metadata says."""

    request: int
    failure: str | None
    metrics: RoomMetrics
    token: int = -1
    logprob: float = 0.0
