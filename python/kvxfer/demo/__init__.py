# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The main job, run on a real model's KV cache: one prefill process, N decode processes."""
