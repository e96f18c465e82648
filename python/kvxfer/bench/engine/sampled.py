# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a model says after the tokens that it was given."""

from dataclasses import dataclass

__all__ = ["Sampled"]


@dataclass(frozen=True)
class Sampled:
    """A token, and the logarithm of its probability."""

    token: int
    logprob: float
