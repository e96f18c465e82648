// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pools, plans, timers and checks of the relayout benchmark. Buffers rotate through more memory
// than the L2 cache holds; every output is poisoned and compared row by row.

#include <kvxfer/cuda/buffer.hpp>
#include <kvxfer/cuda/copy_rows.hpp>
#include <kvxfer/cuda/stream.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace kvxfer::bench {

using cuda::cuda_check;

struct Workload {
  std::string name;
  std::int64_t row_bytes;
  std::int64_t plane_count;
  bool has_index_pages = false;  ///< 128-byte keys and 4-byte scales beside each plane

  [[nodiscard]] std::int64_t token_bytes() const {
    return plane_count * (row_bytes + (has_index_pages ? 132 : 0));
  }
};

inline constexpr std::int64_t kPageSize = 64;

static __global__ void fill_random(std::uint32_t* words, std::int64_t count, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761U ^ seed ^
                      static_cast<std::uint32_t>(i >> 32) * 40503U;
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    words[i] = x * 0x846ca68bU;
  }
}

/// Holds the stream so that a queue of launches is full before the first one runs.
static __global__ void hold(std::int64_t nanoseconds) {
  std::uint64_t begin;
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < static_cast<std::uint64_t>(nanoseconds));
}

/// Counts bytes that differ between rows of two arrays, addressed by row numbers.
static __global__ void count_differences(const std::uint8_t* a, const std::int64_t* a_rows,
                                         const std::uint8_t* b, const std::int64_t* b_rows,
                                         std::int64_t bytes, unsigned long long* differences) {
  const std::uint8_t* const from = a + a_rows[blockIdx.x] * bytes;
  const std::uint8_t* const to = b + b_rows[blockIdx.x] * bytes;
  unsigned long long count = 0;
  for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x)
    count += from[i] != to[i];
  if (count > 0) atomicAdd(differences, count);
}

/// The best copy that plain code gets from few multiprocessors.
static __global__ void __launch_bounds__(1024, 1)
    plain_copy(const uint4* source, uint4* destination, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      v[k] = source[i + k * step];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      destination[i + k * step] = v[k];
  }
  for (; i < count; i += step)
    destination[i] = source[i];
}

inline cuda::DeviceBuffer random_device_bytes(std::int64_t bytes, std::uint32_t seed) {
  cuda::DeviceBuffer buffer((bytes + 255) / 256 * 256);
  fill_random<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(buffer.data()), buffer.bytes() / 4,
                             seed);
  cuda_check(cudaGetLastError(), "fill_random");
  return buffer;
}

/// One rank's pool with the pages of `rotations` requests of equal length.
struct DevicePool {
  std::shared_ptr<const PoolLayout> layout;
  cuda::DeviceBuffer memory;
  std::vector<std::int64_t> addresses;
  std::vector<PageTable> tables;
};

inline std::vector<Plane> planes_of(const Workload& workload, std::int64_t page_rows) {
  std::vector<Plane> planes;
  for (std::int64_t layer = 0; layer < workload.plane_count; ++layer) {
    planes.push_back({.layer = layer, .row_bytes = workload.row_bytes});
    if (!workload.has_index_pages) continue;
    planes.push_back({.layer = layer,
                      .kind = PlaneKind::kIndexKey,
                      .row_bytes = 128,
                      .page_stride_bytes = page_rows * 132});
    planes.push_back({.layer = layer,
                      .kind = PlaneKind::kIndexScale,
                      .row_bytes = 4,
                      .page_stride_bytes = page_rows * 132,
                      .page_offset_bytes = page_rows * 128});
  }
  return planes;
}

inline std::shared_ptr<const PoolLayout> layout_of(const Workload& workload,
                                                   std::int64_t page_count, Sharding sharding) {
  return std::make_shared<const PoolLayout>(
      PoolLayout::Spec{.page_size = kPageSize,
                       .page_count = page_count,
                       .planes = planes_of(workload, kPageSize),
                       .sharding = sharding});
}

inline DevicePool make_pool(const Workload& workload, std::int64_t tokens, std::int64_t rotations,
                            bool is_shuffled, std::uint32_t seed) {
  const std::int64_t request_pages = (tokens + kPageSize - 1) / kPageSize;
  DevicePool pool;
  pool.layout = layout_of(workload, request_pages * rotations, Sharding());
  std::int64_t bytes = 0;
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < pool.layout->planes().size(); ++i) {
    if (pool.layout->planes()[i].kind == PlaneKind::kIndexScale) {
      offsets.push_back(offsets.back());
    } else {
      offsets.push_back(bytes);
      const bool is_key = pool.layout->planes()[i].kind == PlaneKind::kIndexKey;
      bytes += is_key ? pool.layout->page_count() * kPageSize * 132 : pool.layout->plane_bytes(i);
      bytes = (bytes + 511) / 512 * 512;
    }
  }
  pool.memory = random_device_bytes(bytes, seed);
  for (const std::int64_t offset : offsets)
    pool.addresses.push_back(
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(pool.memory.data())) + offset);
  std::vector<std::int64_t> pages(static_cast<std::size_t>(request_pages * rotations));
  std::iota(pages.begin(), pages.end(), 0);
  if (is_shuffled) std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  for (std::int64_t r = 0; r < rotations; ++r) {
    pool.tables.emplace_back(pool.layout,
                             std::vector<std::int64_t>(pages.begin() + r * request_pages,
                                                       pages.begin() + (r + 1) * request_pages),
                             0, pool.addresses);
  }
  return pool;
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Median microseconds of `launch(i)` on the device, events around each.
template <class Enqueue>
double kernel_us(const cuda::Stream& stream, int samples, double about_us, Enqueue launch) {
  std::vector<cuda::Event> begin;
  std::vector<cuda::Event> end;
  for (int i = 0; i < samples; ++i) {
    begin.emplace_back(cudaEventDefault);
    end.emplace_back(cudaEventDefault);
  }
  constexpr int kQueue = 100;  // launches that are enqueued while the stream is held
  for (int i = -4; i < samples; ++i) {
    if (i % kQueue == 0 && about_us < 40.0) hold<<<1, 1, 0, stream.get()>>>(kQueue * 12'000);
    if (i < 0) {
      launch(i + 4);
      continue;
    }
    begin[i].record(stream.ref());
    launch(i);
    end[i].record(stream.ref());
  }
  stream.ref().synchronize();
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin[i].get(), end[i].get()),
               "cudaEventElapsedTime");
    times.push_back(1000.0 * milliseconds);
  }
  return median(std::move(times));
}

inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace kvxfer::bench
