# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

# Least versions that the build accepts. PyPI packages are pinned in pyproject.toml, and the
# Debian ones come with the release (12, bookworm).
set(KVXFER_MIN_CUDA 13.0)
set(KVXFER_MIN_PYBIND11 3.0)
set(KVXFER_MIN_GOOGLETEST 1.12)
set(KVXFER_MIN_BENCHMARK 1.7)
