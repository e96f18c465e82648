// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "copy_kernel.hpp"
#include "row_walk.cuh"

namespace kvxfer::cuda::detail {

namespace {

/// Addresses of a tile's rows, and how the tile divides into units of one width.
struct alignas(16) TileStage {
  RowAddresses rows[kMaxTileRows];
  std::uint32_t unit_count;
  std::uint32_t row_units;
  std::uint32_t row_multiplier;  ///< ceil(2^31 / row_units); 0: one row
  std::uint32_t unit_log2;       ///< bytes of a unit
};

__device__ __forceinline__ uint4 load_once(std::uint64_t address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

__device__ __forceinline__ void store(std::uint64_t address, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

/// Threads of a group wait for each other; groups run apart.
__device__ __forceinline__ void group_barrier(std::uint32_t group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}

template <class Params>
__device__ __forceinline__ void stage_tile(const Params& params, std::uint32_t item,
                                           std::uint32_t lane, TileStage& stage) {
  const Tile tile = tile_of(params, item);
  const Job& job = params.jobs[tile.job];
  const PlaneEntry plane = params.header.planes[tile.plane];
  if (lane < tile.row_count)
    stage.rows[lane] = row_addresses(params, job, plane, tile.first_row + lane);
  if (lane == 0) {
    const auto packed_bits = job.packed_address == 0 ? 0U
                                                     : static_cast<std::uint32_t>(
                                                           packed_start(job, plane));
    const auto unit_log2 =
        static_cast<std::uint32_t>(__ffs(static_cast<int>(plane.alignment_bits | packed_bits | 16)) - 1);
    const std::uint32_t row_units = plane.bytes >> unit_log2;
    stage.unit_log2 = unit_log2;
    stage.row_units = row_units;
    stage.row_multiplier = tile.row_count > 1 ? (0x7fffffffU + row_units) / row_units : 0;
    stage.unit_count = tile.row_count * row_units;
  }
}

struct UnitPlace {
  std::uint32_t row;
  std::uint32_t unit;
};

__device__ __forceinline__ UnitPlace unit_place(const TileStage& stage, std::uint32_t index) {
  const std::uint32_t row = __umulhi(index << 1, stage.row_multiplier);
  return {row, index - row * stage.row_units};
}

template <class Unit>
__device__ __noinline__ void copy_narrow(const TileStage& stage, std::uint32_t lane) {
#pragma unroll 4
  for (std::uint32_t i = lane; i < stage.unit_count; i += kGroupThreads) {
    const UnitPlace place = unit_place(stage, i);
    const RowAddresses row = stage.rows[place.row];
    reinterpret_cast<Unit*>(row.destination)[place.unit] =
        __ldg(reinterpret_cast<const Unit*>(row.source) + place.unit);
  }
}

__device__ __forceinline__ void copy_units(const TileStage& stage, std::uint32_t lane) {
  switch (stage.unit_log2) {
    case 0: return copy_narrow<std::uint8_t>(stage, lane);
    case 1: return copy_narrow<std::uint16_t>(stage, lane);
    case 2: return copy_narrow<std::uint32_t>(stage, lane);
    case 3: return copy_narrow<std::uint64_t>(stage, lane);
    case 4: return copy_narrow<uint4>(stage, lane);
  }
}

/// Moves a tile of 16-byte vectors. `between` runs while the loads are in flight.
template <class Between>
__device__ __forceinline__ void copy_vectors(const TileStage& stage, std::uint32_t lane,
                                             Between between) {
  uint4 vectors[kVectorsInFlight];
#pragma unroll
  for (std::uint32_t v = 0; v < kVectorsInFlight; ++v) {
    const std::uint32_t i = lane + v * kGroupThreads;
    if (i < stage.unit_count) {
      const UnitPlace place = unit_place(stage, i);
      vectors[v] = load_once(stage.rows[place.row].source + place.unit * 16);
    }
  }
  between();
#pragma unroll
  for (std::uint32_t v = 0; v < kVectorsInFlight; ++v) {
    const std::uint32_t i = lane + v * kGroupThreads;
    if (i < stage.unit_count) {
      const UnitPlace place = unit_place(stage, i);
      store(stage.rows[place.row].destination + place.unit * 16, vectors[v]);
    }
  }
}

/// Groups take tiles in turn. Addresses of the next tile are looked up while the loads of this one
/// are in flight, so that page table and rows are not waited for one after the other.
template <class Params>
__global__ void __launch_bounds__(kMaxThreads, 1)
    copy_rows_kernel(const __grid_constant__ Params params) {
  extern __shared__ TileStage stages[];
  const std::uint32_t group = threadIdx.x / kGroupThreads;
  const std::uint32_t lane = threadIdx.x % kGroupThreads;
  const std::uint32_t groups = blockDim.x / kGroupThreads;
  const std::uint32_t item_step = gridDim.x * groups;
  TileStage* const pair = stages + 2 * group;

  std::uint32_t item = blockIdx.x * groups + group;
  if (item >= params.header.item_count) return;
  stage_tile(params, item, lane, pair[0]);
  group_barrier(group);
  for (std::uint32_t turn = 0;; turn ^= 1) {
    const TileStage& stage = pair[turn];
    const std::uint32_t next = item + item_step;
    const bool has_next = next < params.header.item_count;
    const auto stage_next = [&] {
      if (has_next) stage_tile(params, next, lane, pair[turn ^ 1]);
    };
    if (stage.unit_log2 == 4 && stage.unit_count <= kGroupThreads * kVectorsInFlight) {
      copy_vectors(stage, lane, stage_next);
    } else {
      stage_next();
      copy_units(stage, lane);
    }
    if (!has_next) return;
    group_barrier(group);
    item = next;
  }
}

template <class Params>
void launch(const Params& params, const LaunchShape& shape, StreamRef stream) {
  const std::size_t shared_bytes = shape.threads / kGroupThreads * 2 * sizeof(TileStage);
  void* arguments[] = {const_cast<Params*>(&params)};
  cuda_check(cudaLaunchKernel(reinterpret_cast<const void*>(&copy_rows_kernel<Params>),
                              dim3(shape.ctas), dim3(shape.threads), arguments, shared_bytes,
                              stream.get()),
             "cudaLaunchKernel of copy_rows");
}

}  // namespace

LaunchShape launch_shape(std::uint32_t multiprocessors, std::int64_t max_ctas) {
  const bool is_whole = max_ctas == 0 || max_ctas >= multiprocessors;
  return {is_whole ? multiprocessors : static_cast<std::uint32_t>(max_ctas), kMaxThreads};
}

void launch_copy(const SmallParams& params, const LaunchShape& shape, StreamRef stream) {
  launch(params, shape, stream);
}

void launch_copy(const LargeParams& params, const LaunchShape& shape, StreamRef stream) {
  launch(params, shape, stream);
}

}  // namespace kvxfer::cuda::detail
