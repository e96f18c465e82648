# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of the small disaggregated server: pools, models over them, and what a rank does."""
