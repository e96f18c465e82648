# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What connectors of serving engines have in common: no engine's name stands here.

An engine has one scheduler side, which decides and talks in requests, and one worker side per rank,
which moves rows. ``scheduler`` and ``worker`` are those two; orders travel from the first to the
second once per engine step. A prefill engine's scheduler makes an offer of a finished request, the
router carries it to a decode engine, whose workers ask the prefill ranks for it; those write.
"""
