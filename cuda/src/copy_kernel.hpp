// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one kernel behind pack, unpack and copy.

#include "launch_params.hpp"

#include <kvxfer/cuda/stream.hpp>

namespace kvxfer::cuda::detail {

/// How a launch is spread over the device. A block moves one tile at a time.
struct LaunchShape {
  std::uint32_t ctas;     ///< at most
  std::uint32_t threads;  ///< of a block
  std::uint32_t vectors;  ///< of 16 bytes that a thread has in flight: 2, 4 or 8

  /// Bytes that a block has in flight, which is a tile's size.
  [[nodiscard]] std::int64_t tile_bytes() const noexcept {
    return std::int64_t{threads} * vectors * 16;
  }
};

/// The shape for `bytes` on the whole device, or on at most `max_ctas` multiprocessors.
[[nodiscard]] LaunchShape launch_shape(std::uint32_t multiprocessors, std::int64_t max_ctas,
                                       std::int64_t bytes);

/// Enqueues one launch, which has items. @throws CudaError.
void launch_copy(const SmallParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream);
void launch_copy(const LargeParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream);

}  // namespace kvxfer::cuda::detail
