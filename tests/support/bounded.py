# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Property tests that a busy machine cannot fail: bounded in examples, not in time."""

from hypothesis import HealthCheck, settings


def bounded(max_examples: int = 100) -> settings:
    """Settings of a property test."""
    return settings(
        max_examples=max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
