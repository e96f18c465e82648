# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of the NIXL transport; ``kvxfer.transports.nixl`` puts them together."""
