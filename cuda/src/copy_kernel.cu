// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "copy_kernel.hpp"
#include "row_walk.cuh"

#include <algorithm>

namespace kvxfer::cuda::detail {

namespace {

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
    multiplier =
        log2_bytes == 4 ? plane.row_multiplier : (0x7fffffffU + row_units) / row_units;
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

/// Addresses of the units of a strided tile: neighbouring threads touch neighbouring bytes.
template <Direction kDirection, bool kHasCells, class Params>
struct StridedTile {
  const Params& params;
  StridedRows rows;
  PagedPlane from;
  PagedPlane to;
  std::uint64_t packed;  ///< of the tile's first row

  __device__ __forceinline__ std::uint64_t source(std::uint32_t row, std::uint32_t in_row,
                                                  std::uint32_t offset) const {
    if constexpr (kDirection == Direction::kUnpack) return packed + offset;
    const auto places = rows.template places<kHasCells>(row);
    return paged_address(params, from, place_of(from.side, places.period, places.source_index)) +
           in_row;
  }
  __device__ __forceinline__ std::uint64_t destination(std::uint32_t row, std::uint32_t in_row,
                                                       std::uint32_t offset) const {
    if constexpr (kDirection == Direction::kPack) return packed + offset;
    const auto places = rows.template places<kHasCells>(row);
    return paged_address(params, to, place_of(to.side, places.period, places.destination_index)) +
           in_row;
  }
};

/// The same of a woven tile. Lane `j` of each warp holds the packed origin of job `j`.
template <Direction kDirection, class Params>
struct WovenTile {
  const Params& params;
  WovenRows rows;
  PagedPlane paged;
  std::uint32_t bytes;
  std::uint64_t lane_origin;

  __device__ __forceinline__ std::uint64_t paged_unit(std::uint32_t row,
                                                      std::uint32_t in_row) const {
    return paged_address(params, paged, rows.first + row + paged.side.origin) + in_row;
  }
  __device__ __forceinline__ std::uint64_t packed_unit(std::uint32_t row,
                                                       std::uint32_t in_row) const {
    const auto thread = rows.at(row);
    return __shfl_sync(0xffffffffU, lane_origin, static_cast<int>(thread.job)) +
           std::uint64_t{thread.number} * bytes + in_row;
  }
  __device__ __forceinline__ std::uint64_t source(std::uint32_t row, std::uint32_t in_row,
                                                  std::uint32_t /*offset*/) const {
    return kDirection == Direction::kPack ? paged_unit(row, in_row) : packed_unit(row, in_row);
  }
  __device__ __forceinline__ std::uint64_t destination(std::uint32_t row, std::uint32_t in_row,
                                                       std::uint32_t /*offset*/) const {
    return kDirection == Direction::kPack ? packed_unit(row, in_row) : paged_unit(row, in_row);
  }
};

/// Moves a tile, kInFlight loads before the first store. All lanes of a warp look up addresses,
/// also those past the end, which use the last unit's. What is written is not read here (st.cs).
template <class Unit, std::uint32_t kInFlight, class TileRows>
__device__ __forceinline__ void move(const TileRows& tile, const Units& units) {
  const std::uint32_t step = blockDim.x;
  for (std::uint32_t begin = 0; begin < units.count; begin += step * kInFlight) {
    Unit values[kInFlight];
    std::uint64_t sources[kInFlight];
#pragma unroll
    for (std::uint32_t v = 0; v < kInFlight; ++v) {
      const std::uint32_t index = min(begin + threadIdx.x + v * step, units.count - 1);
      const std::uint32_t row = units.row(index);
      sources[v] = tile.source(row, (index - row * units.row_units) * sizeof(Unit),
                               index * sizeof(Unit));
    }
#pragma unroll
    for (std::uint32_t v = 0; v < kInFlight; ++v) {
      if (begin + threadIdx.x + v * step < units.count)
        values[v] = load(reinterpret_cast<const Unit*>(sources[v]));
    }
#pragma unroll
    for (std::uint32_t v = 0; v < kInFlight; ++v) {
      const std::uint32_t index = min(begin + threadIdx.x + v * step, units.count - 1);
      const std::uint32_t row = units.row(index);
      const std::uint64_t destination = tile.destination(
          row, (index - row * units.row_units) * sizeof(Unit), index * sizeof(Unit));
      if (begin + threadIdx.x + v * step < units.count)
        __stcs(reinterpret_cast<Unit*>(destination), values[v]);
    }
  }
}

template <class Unit, std::uint32_t kInFlight, Direction kDirection, class Params>
__device__ __forceinline__ void copy_tile(const Params& params, const Tile& tile,
                                          const PlaneEntry& plane, const Units& units) {
  const Band& band = params.header.bands[tile.band];
  const Job& job = params.jobs[tile.job];
  if (kDirection != Direction::kCopy && band.weave.divisor != 0) {
    const std::uint32_t lane = min(threadIdx.x % 32, band.weave.divisor / job.period_rows.divisor - 1);
    const WovenTile<kDirection, Params> rows{
        params,
        {band.weave, job.period_rows, band.woven_begin + tile.first_row},
        kDirection == Direction::kPack ? source_plane(job, plane) : destination_plane(job, plane),
        plane.bytes,
        packed_origin(params.jobs[band.job_begin + lane], plane)};
    move<Unit, kInFlight>(rows, units);
    return;
  }
  const StridedRows strided{job.period_rows, job.cells, job.cell_count,
                            job.phase + tile.first_row};
  const std::uint64_t packed =
      packed_origin(job, plane) + std::uint64_t{strided.first} * plane.bytes;
  const PagedPlane from = source_plane(job, plane);
  const PagedPlane to = destination_plane(job, plane);
  if (job.cells == nullptr) {
    move<Unit, kInFlight>(
        StridedTile<kDirection, false, Params>{params, strided, from, to, packed}, units);
  } else {
    move<Unit, kInFlight>(
        StridedTile<kDirection, true, Params>{params, strided, from, to, packed}, units);
  }
}

template <class Unit, Direction kDirection, class Params>
__device__ __noinline__ void copy_narrow(const Params& params, const Tile tile, const Units units) {
  copy_tile<Unit, 2, kDirection>(params, tile, params.header.planes[tile.plane], units);
}

/// Blocks take tiles in turn. Threads share nothing and never wait for each other, so that some
/// have loads in flight while others look up their rows.
template <class Params, Direction kDirection, std::uint32_t kVectors>
__global__ void __launch_bounds__(kMaxThreads, 1)
    copy_rows_kernel(const __grid_constant__ Params params) {
  for (std::uint32_t item = blockIdx.x; item < params.header.item_count; item += gridDim.x) {
    const Tile tile = tile_of(params, item);
    const PlaneEntry plane = params.header.planes[tile.plane];
    const Units units = units_of(tile, params.header.bands[tile.band], plane);
    switch (units.log2_bytes) {
      case 0: copy_narrow<std::uint8_t, kDirection>(params, tile, units); break;
      case 1: copy_narrow<std::uint16_t, kDirection>(params, tile, units); break;
      case 2: copy_narrow<std::uint32_t, kDirection>(params, tile, units); break;
      case 3: copy_narrow<std::uint64_t, kDirection>(params, tile, units); break;
      default: copy_tile<uint4, kVectors, kDirection>(params, tile, plane, units);
    }
  }
}

template <Direction kDirection, std::uint32_t kVectors, class Params>
void launch_as(const Params& params, const LaunchShape& shape, StreamRef stream) {
  void* arguments[] = {const_cast<Params*>(&params)};
  const std::uint32_t ctas = std::min(shape.ctas, params.header.item_count);
  cuda_check(cudaLaunchKernel(
                 reinterpret_cast<const void*>(&copy_rows_kernel<Params, kDirection, kVectors>),
                 dim3(ctas), dim3(shape.threads), arguments, 0, stream.get()),
             "cudaLaunchKernel of copy_rows");
}

template <Direction kDirection, class Params>
void launch_towards(const Params& params, const LaunchShape& shape, StreamRef stream) {
  switch (shape.vectors) {
    case 8: return launch_as<kDirection, 8>(params, shape, stream);
    case 4: return launch_as<kDirection, 4>(params, shape, stream);
    default: return launch_as<kDirection, 2>(params, shape, stream);
  }
}

template <class Params>
void launch(const Params& params, Direction direction, const LaunchShape& shape,
            StreamRef stream) {
  switch (direction) {
    case Direction::kPack: return launch_towards<Direction::kPack>(params, shape, stream);
    case Direction::kUnpack: return launch_towards<Direction::kUnpack>(params, shape, stream);
    case Direction::kCopy: return launch_towards<Direction::kCopy>(params, shape, stream);
  }
}

}  // namespace

LaunchShape launch_shape(std::uint32_t multiprocessors, std::int64_t max_ctas,
                         std::int64_t /*bytes*/) {
  constexpr std::uint32_t kUnbounded = 1U << 30;
  if (max_ctas == 0 || max_ctas >= multiprocessors) return {kUnbounded, 128, 4};
  return {static_cast<std::uint32_t>(max_ctas), kMaxThreads, 8};
}

void launch_copy(const SmallParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream) {
  launch(params, direction, shape, stream);
}

void launch_copy(const LargeParams& params, Direction direction, const LaunchShape& shape,
                 StreamRef stream) {
  launch(params, direction, shape, stream);
}

}  // namespace kvxfer::cuda::detail
