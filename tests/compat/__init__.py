# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Tests inside real engines; they run in an environment of their own (make compat)."""
