// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a CopyEngineGather enqueues, by the CUDA runtime and driver. Compiled and linked, not yet
// run on a device.

#include <kvxfer/cuda/copy_engine_gather.hpp>

namespace kvxfer::cuda {

/// Copies as one batch that leaves multiprocessors to compute where the driver can, singly on a
/// stream that captures a graph; words by stream memory operations. Words must lie in host memory
/// that was registered with CUDA at the address that the host uses.
/// @throws UnsupportedError when the driver has no batched stream memory operations.
[[nodiscard]] StreamCalls make_stream_calls();

}  // namespace kvxfer::cuda
