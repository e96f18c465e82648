# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The library's own declarations of NCCL, held against an installed wheel; needs no GPU.

Runs where an nvidia-nccl wheel is installed or KVXFER_NCCL_LIBRARY names its libnccl.so.2.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kvxfer.sharded import nccl_version, nccl_wheel_path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("KVXFER_NCCL_LIBRARY") or nccl_wheel_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no nvidia-nccl wheel is installed")

# What nccl.h asks of the CUDA headers, none of which matters for the layouts compared here.
CUDA_STUB = """
#pragma once
#include <cstddef>
#define CUDART_VERSION 13000
typedef struct CUstream_st* cudaStream_t;
"""
COMPARISON = """
#include <nccl.h>
#include <cstddef>
#include "kvxfer/cuda/nccl_api.hpp"
using kvxfer::cuda::NcclConfig;
using kvxfer::cuda::NcclCollConfig;
#define SAME(ours, our_field, theirs, their_field) \\
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #their_field)
SAME(NcclConfig, size, ncclConfig_t, size);
SAME(NcclConfig, magic, ncclConfig_t, magic);
SAME(NcclConfig, version, ncclConfig_t, version);
SAME(NcclConfig, blocking, ncclConfig_t, blocking);
SAME(NcclConfig, cga_cluster_size, ncclConfig_t, cgaClusterSize);
SAME(NcclConfig, min_ctas, ncclConfig_t, minCTAs);
SAME(NcclConfig, max_ctas, ncclConfig_t, maxCTAs);
SAME(NcclConfig, net_name, ncclConfig_t, netName);
SAME(NcclConfig, split_share, ncclConfig_t, splitShare);
SAME(NcclConfig, traffic_class, ncclConfig_t, trafficClass);
SAME(NcclConfig, comm_name, ncclConfig_t, commName);
SAME(NcclConfig, collnet_enable, ncclConfig_t, collnetEnable);
SAME(NcclConfig, cta_policy, ncclConfig_t, CTAPolicy);
SAME(NcclConfig, shrink_share, ncclConfig_t, shrinkShare);
SAME(NcclConfig, nvls_ctas, ncclConfig_t, nvlsCTAs);
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t), "ncclConfig_t shrank");
static_assert(sizeof(kvxfer::cuda::NcclUniqueId) == sizeof(ncclUniqueId), "ncclUniqueId");
static_assert(kvxfer::cuda::kNcclSuccess == ncclSuccess, "ncclSuccess");
static_assert(kvxfer::cuda::kNcclInProgress == ncclInProgress, "ncclInProgress");
static_assert(kvxfer::cuda::kNcclUint8 == ncclUint8, "ncclUint8");
static_assert(kvxfer::cuda::kNcclWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC, "flag");
#ifdef NCCL_WIN_REQUIRED_ALIGNMENT
static_assert(kvxfer::cuda::kNcclWindowAlignment == NCCL_WIN_REQUIRED_ALIGNMENT, "alignment");
#endif
#if NCCL_VERSION_CODE >= 23102
static_assert(sizeof(NcclCollConfig) == sizeof(ncclCollConfig_t), "ncclCollConfig_t");
SAME(NcclCollConfig, extension, ncclCollConfig_t, ext);
SAME(NcclCollConfig, min_ctas, ncclCollConfig_t, minCTAs);
SAME(NcclCollConfig, max_ctas, ncclCollConfig_t, maxCTAs);
SAME(NcclCollConfig, nvls_ctas, ncclCollConfig_t, nvlsCTAs);
SAME(NcclCollConfig, cga_cluster_size, ncclCollConfig_t, cgaClusterSize);
SAME(NcclCollConfig, algorithm, ncclCollConfig_t, algSelection);
SAME(NcclCollConfig, force_algorithm, ncclCollConfig_t, forceAlgSelection);
SAME(NcclCollConfig, cta_policy, ncclCollConfig_t, CTAPolicy);
SAME(NcclCollConfig, profiler_tag, ncclCollConfig_t, userProfilerTag);
#endif
"""


def symbols_of_the_table() -> set[str]:
    source = (ROOT / "cuda/src/nccl_api.cpp").read_text()
    return {word for word in source.split('"') if word.startswith("nccl") and word.isalnum()}


def test_the_wheel_exports_every_function_of_the_table() -> None:
    assert LIBRARY is not None
    library = ctypes.CDLL(LIBRARY)
    code = ctypes.c_int()
    assert library.ncclGetVersion(ctypes.byref(code)) == 0
    symbols = symbols_of_the_table()
    assert {"ncclAllGather", "ncclCommWindowRegister"} <= symbols
    missing = {name for name in symbols if not hasattr(library, name)}
    allowed = {"ncclAllGatherConfig", "ncclGetPeerDevicePointer"}
    assert missing <= (set() if nccl_version(code.value) >= (2, 31, 2) else allowed)


def test_structures_are_laid_out_as_in_the_header(tmp_path: Path) -> None:
    assert LIBRARY is not None
    include = Path(LIBRARY).resolve().parents[1] / "include"
    compiler = shutil.which("g++")
    if compiler is None or not (include / "nccl.h").is_file():
        pytest.skip("no g++ or no nccl.h beside the library")
    for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (tmp_path / name).write_text(CUDA_STUB)
    source = tmp_path / "comparison.cpp"
    source.write_text(COMPARISON)
    folders = [tmp_path, include, ROOT / "cuda/include", ROOT / "cpp/include"]
    command = [compiler, "-std=c++20", "-fsyntax-only", *(f"-I{folder}" for folder in folders)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
