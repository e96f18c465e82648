// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one kernel behind pack, unpack and copy.

#include "launch_params.hpp"

#include <kvxfer/cuda/stream.hpp>

namespace kvxfer::cuda::detail {

/// How a launch is spread over the device.
struct LaunchShape {
  std::uint32_t ctas;
  std::uint32_t threads;  ///< a multiple of kGroupThreads

  [[nodiscard]] std::uint32_t groups() const noexcept { return ctas * (threads / kGroupThreads); }
};

/// The whole device, or one wide block on each of `max_ctas` multiprocessors.
[[nodiscard]] LaunchShape launch_shape(std::uint32_t multiprocessors, std::int64_t max_ctas);

/// Enqueues one launch, which has items. @throws CudaError.
void launch_copy(const SmallParams& params, const LaunchShape& shape, StreamRef stream);
void launch_copy(const LargeParams& params, const LaunchShape& shape, StreamRef stream);

}  // namespace kvxfer::cuda::detail
