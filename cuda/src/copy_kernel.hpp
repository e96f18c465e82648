// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one kernel behind pack, unpack and copy.

#include "launch_params.hpp"

#include <kvxfer/cuda/stream.hpp>

namespace kvxfer::cuda::detail {

/// Which form of the kernel runs: small blocks over the whole device, or one wide block on each of
/// a few multiprocessors.
enum class Spread : std::uint8_t { kWhole, kFew };

struct LaunchShape {
  Spread spread;
  std::uint32_t ctas;       ///< at most
  std::int64_t tile_bytes;  ///< that a block moves before it takes the next tile
};

/// The shape for `bytes` on the whole device, or on at most `max_ctas` multiprocessors.
[[nodiscard]] LaunchShape launch_shape(std::uint32_t multiprocessors, std::int64_t max_ctas,
                                       std::int64_t bytes);

/// Enqueues one launch, which has items. @throws CudaError.
void launch_copy(const SmallParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream);
void launch_copy(const MediumParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream);
void launch_copy(const LargeParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream);

}  // namespace kvxfer::cuda::detail
