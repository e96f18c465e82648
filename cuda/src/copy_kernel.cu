// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "copy_kernel.hpp"
#include "row_walk.cuh"

#include <algorithm>

namespace kvxfer::cuda::detail {

namespace {

/// From the parameters when they hold the planes: a launch that starts on a cold cache saves a
/// read.
template <class Params>
__device__ __forceinline__ PlaneEntry plane_of(const Params& params, std::uint32_t plane) {
  if constexpr (Params::kMaxPlanes > 0)
    if (params.header.planes == nullptr) return params.planes[plane];
  return params.header.planes[plane];
}

/// How a tile divides into units of one width.
struct Units {
  std::uint32_t count;
  std::uint32_t row_units;
  std::uint32_t row_multiplier;  ///< ceil(2^31 / row_units); 0: one row
  std::uint32_t log2_bytes;

  __device__ __forceinline__ std::uint32_t row(std::uint32_t index) const {
    return __umulhi(index << 1, row_multiplier);
  }
};

__device__ __forceinline__ Units units_of(const Tile& tile, const Band& band,
                                          const PlaneEntry& plane) {
  const auto packed_bits =
      band.address_bits |
      static_cast<std::uint32_t>(plane.packed_prefix_bytes) * band.rows_alignment;
  const auto log2_bytes = static_cast<std::uint32_t>(
      __ffs(static_cast<int>(plane.alignment_bits | packed_bits | 16)) - 1);
  const std::uint32_t row_units = plane.bytes >> log2_bytes;
  std::uint32_t multiplier = 0;
  if (tile.row_count > 1) {
    multiplier = log2_bytes == 4 ? plane.row_multiplier : (0x7fffffffU + row_units) / row_units;
  }
  return {tile.row_count * row_units, row_units, multiplier, log2_bytes};
}

/// Read once, not kept in L1.
__device__ __forceinline__ uint4 load(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

template <class Unit>
__device__ __forceinline__ Unit load(const Unit* address) {
  return __ldg(address);
}

/// One tile of one plane. Units are numbered over its rows, so that neighbouring threads touch
/// neighbouring bytes; on a packed side the number alone gives the address.
template <class Unit, Direction kDirection, Period kPeriod, class Params>
struct TileCopy {
  const Params& params;
  Units units;
  JobRows rows;
  PagedPlane from;
  PagedPlane to;
  std::uint64_t packed;  ///< of the tile's first row

  struct Place {
    JobRows::Indices indices;
    std::uint32_t in_row;  ///< bytes
  };

  __device__ __forceinline__ Place place(std::uint32_t index) const {
    const std::uint32_t clamped = min(index, units.count - 1);
    const std::uint32_t row = units.row(clamped);
    return {rows.template at<kPeriod>(row),
            (clamped - row * units.row_units) * static_cast<std::uint32_t>(sizeof(Unit))};
  }
  __device__ __forceinline__ std::uint64_t source(std::uint32_t index) const {
    if constexpr (kDirection == Direction::kUnpack) return packed + index * sizeof(Unit);
    const Place p = place(index);
    return paged_address(params, from, place_of(from.side, p.indices.period, p.indices.source)) +
           p.in_row;
  }
  __device__ __forceinline__ std::uint64_t destination(std::uint32_t index) const {
    if constexpr (kDirection == Direction::kPack) return packed + index * sizeof(Unit);
    const Place p = place(index);
    return paged_address(params, to, place_of(to.side, p.indices.period, p.indices.destination)) +
           p.in_row;
  }

  /// kInFlight loads before the first store. What is written is not read here (st.cs).
  template <std::uint32_t kThreads, std::uint32_t kInFlight>
  __device__ __forceinline__ void run() const {
    for (std::uint32_t first = threadIdx.x; first < units.count; first += kThreads * kInFlight) {
      Unit values[kInFlight];
      std::uint64_t sources[kInFlight];
#pragma unroll
      for (std::uint32_t v = 0; v < kInFlight; ++v)
        sources[v] = source(first + v * kThreads);
#pragma unroll
      for (std::uint32_t v = 0; v < kInFlight; ++v)
        if (first + v * kThreads < units.count)
          values[v] = load(reinterpret_cast<const Unit*>(sources[v]));
#pragma unroll
      for (std::uint32_t v = 0; v < kInFlight; ++v)
        if (first + v * kThreads < units.count)
          __stcs(reinterpret_cast<Unit*>(destination(first + v * kThreads)), values[v]);
    }
  }
};

template <class Unit, Direction kDirection, std::uint32_t kThreads, std::uint32_t kInFlight,
          class Params>
__device__ __forceinline__ void copy_tile(const Params& params, const Tile& tile,
                                          const PlaneEntry& plane, const Units& units) {
  const Job& job = params.jobs[tile.job];
  const JobRows rows = rows_of(job, tile);
  const PagedPlane from = source_plane(job, plane);
  const PagedPlane to = destination_plane(job, plane);
  const std::uint64_t packed = packed_tile(job, plane, tile);
  const auto run = [&]<Period kPeriod>() {
    const TileCopy<Unit, kDirection, kPeriod, Params> copy{params, units, rows, from, to, packed};
    copy.template run<kThreads, kInFlight>();
  };
  switch (period_of(job)) {
    case Period::kRow:
      return run.template operator()<Period::kRow>();
    case Period::kCell:
      return run.template operator()<Period::kCell>();
    case Period::kCells:
      return run.template operator()<Period::kCells>();
  }
}

template <class Unit, Direction kDirection, std::uint32_t kThreads, class Params>
__device__ __noinline__ void copy_narrow(const Params& params, const Tile tile, const Units units) {
  copy_tile<Unit, kDirection, kThreads, 2>(params, tile, plane_of(params, tile.plane), units);
}

/// Threads of a block, 16-byte vectors that each has in flight, blocks that a multiprocessor holds.
struct WholeShape {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kVectors = 4;
  static constexpr std::uint32_t kBlocks = 5;
};

struct FewShape {
  static constexpr std::uint32_t kThreads = 1024;
  static constexpr std::uint32_t kVectors = 4;
  static constexpr std::uint32_t kBlocks = 1;
};

template <class Shape>
constexpr std::int64_t kPassBytes = std::int64_t{Shape::kThreads} * Shape::kVectors * 16;

/// Blocks take tiles in turn. Threads share nothing and never wait for each other, so that some
/// have loads in flight while others look up their rows.
template <class Params, Direction kDirection, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    copy_rows_kernel(const __grid_constant__ Params params) {
  constexpr std::uint32_t kThreads = Shape::kThreads;
  for (std::uint32_t item = blockIdx.x; item < params.header.item_count; item += gridDim.x) {
    const Tile tile = tile_of(params, item);
    const PlaneEntry plane = plane_of(params, tile.plane);
    const Units units = units_of(tile, params.header.bands[tile.band], plane);
    switch (units.log2_bytes) {
      case 0:
        copy_narrow<std::uint8_t, kDirection, kThreads>(params, tile, units);
        break;
      case 1:
        copy_narrow<std::uint16_t, kDirection, kThreads>(params, tile, units);
        break;
      case 2:
        copy_narrow<std::uint32_t, kDirection, kThreads>(params, tile, units);
        break;
      case 3:
        copy_narrow<std::uint64_t, kDirection, kThreads>(params, tile, units);
        break;
      default:
        copy_tile<uint4, kDirection, kThreads, Shape::kVectors>(params, tile, plane, units);
    }
  }
}

template <class Shape, Direction kDirection, class Params>
void launch_as(const Params& params, std::uint32_t ctas, StreamRef stream) {
  void* arguments[] = {const_cast<Params*>(&params)};
  cuda_check(
      cudaLaunchKernel(reinterpret_cast<const void*>(&copy_rows_kernel<Params, kDirection, Shape>),
                       dim3(std::min(ctas, params.header.item_count)), dim3(Shape::kThreads),
                       arguments, 0, stream.get()),
      "cudaLaunchKernel of copy_rows");
}

template <class Shape, class Params>
void launch_in(const Params& params, Direction direction, std::uint32_t ctas, StreamRef stream) {
  switch (direction) {
    case Direction::kPack:
      return launch_as<Shape, Direction::kPack>(params, ctas, stream);
    case Direction::kUnpack:
      return launch_as<Shape, Direction::kUnpack>(params, ctas, stream);
    case Direction::kCopy:
      return launch_as<Shape, Direction::kCopy>(params, ctas, stream);
  }
}

template <class Params>
void launch(const Params& params, Direction direction, const LaunchShape& shape, StreamRef stream) {
  switch (shape.spread) {
    case Spread::kWhole:
      return launch_in<WholeShape>(params, direction, shape.ctas, stream);
    case Spread::kFew:
      return launch_in<FewShape>(params, direction, shape.ctas, stream);
  }
}

}  // namespace

LaunchShape launch_shape(std::uint32_t multiprocessors, std::int64_t max_ctas, std::int64_t bytes) {
  // The device hands out the blocks of a launch as others end, which balances it.
  constexpr std::uint32_t kUnbounded = 1U << 30;
  if (max_ctas == 0 || max_ctas >= multiprocessors)
    return {Spread::kWhole, kUnbounded, kPassBytes<WholeShape>};
  constexpr std::int64_t kTilesOfBlock = 8;  // so that the last ones end together
  constexpr std::int64_t kMaxPasses = 4;
  return {Spread::kFew, static_cast<std::uint32_t>(max_ctas),
          std::clamp(bytes / (max_ctas * kTilesOfBlock), kPassBytes<FewShape>,
                     kMaxPasses * kPassBytes<FewShape>)};
}

void launch_copy(const SmallParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream) {
  launch(params, direction, shape, stream);
}

void launch_copy(const MediumParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream) {
  launch(params, direction, shape, stream);
}

void launch_copy(const LargeParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream) {
  launch(params, direction, shape, stream);
}

}  // namespace kvxfer::cuda::detail
