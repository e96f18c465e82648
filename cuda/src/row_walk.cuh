// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From an item of a launch to the addresses of its rows. Runs on either side, so that the whole
// walk is tested without a device.

#include "launch_params.hpp"

namespace kvxfer::cuda::detail {

__host__ __device__ inline std::uint32_t quotient(std::uint32_t n, const FastDivisor& d) {
  return static_cast<std::uint32_t>((std::uint64_t{n} * d.multiplier) >> d.shift);
}

/// Rows [first_row, first_row + row_count) of one plane of one job.
struct Tile {
  std::uint32_t job;
  std::uint32_t plane;  ///< of the resident entries
  std::uint32_t first_row;
  std::uint32_t row_count;  ///< 0: this job has fewer tiles than its band
};

struct RowAddresses {
  std::uint64_t source;
  std::uint64_t destination;
};

template <class Params>
__host__ __device__ __forceinline__ Tile tile_of(const Params& params, std::uint32_t item) {
  std::uint32_t b = 0;
  while (b + 1 < params.header.band_count && item >= params.header.bands[b + 1].first_item)
    ++b;
  const Band& band = params.header.bands[b];
  const std::uint32_t in_band = item - band.first_item;
  const std::uint32_t plane = quotient(in_band, band.plane_items);
  const std::uint32_t in_plane = in_band - plane * band.plane_items.divisor;
  const std::uint32_t tile = quotient(in_plane, band.jobs);
  const std::uint32_t j = band.job_begin + in_plane - tile * band.jobs.divisor;
  const Job& job = params.jobs[j];
  const std::uint32_t first_row = tile * band.tile_rows;
  const std::uint32_t left = first_row < job.row_count ? job.row_count - first_row : 0;
  return {j, job.plane_begin + plane, first_row, left < band.tile_rows ? left : band.tile_rows};
}

/// Address of the first packed row of a plane of the job's region.
__host__ __device__ inline std::uint64_t packed_start(const Job& job, const PlaneEntry& plane) {
  return static_cast<std::uint64_t>(job.packed_address +
                                    plane.packed_prefix_bytes * job.packed_rows);
}

template <class Params>
__host__ __device__ __forceinline__ RowAddresses row_addresses(const Params& params, const Job& job,
                                                               const PlaneEntry& plane,
                                                               std::uint32_t row) {
  const std::uint32_t n = job.phase + row;
  const std::uint32_t period = quotient(n, job.period_rows);
  const std::uint32_t in_period = n - period * job.period_rows.divisor;
  std::uint32_t source_index = in_period;
  std::uint32_t destination_index = in_period;
  if (job.cells != nullptr) {
    std::uint32_t low = 0;
    for (std::uint32_t high = job.cell_count; high - low > 1;) {
      const std::uint32_t middle = (low + high) / 2;
      (job.cells[middle].row <= in_period ? low : high) = middle;
    }
    const Cell cell = job.cells[low];
    source_index = cell.source_index + in_period - cell.row;
    destination_index = cell.destination_index + in_period - cell.row;
  }
  const auto paged = [&](const Side& side, std::uint32_t index, std::int64_t base,
                         std::int64_t page_stride, std::int64_t row_stride) {
    const std::uint32_t place = period * side.step + side.origin + index;
    const std::uint32_t page = quotient(place, side.page_rows);
    const std::uint32_t in_page = place - page * side.page_rows.divisor;
    return static_cast<std::uint64_t>(
        base + params.page_ids[side.first_page_id + page] * page_stride + in_page * row_stride);
  };
  const std::uint64_t packed =
      packed_start(job, plane) + std::uint64_t{job.first_row + row} * plane.bytes;
  return {job.source.page_rows.divisor == 0
              ? packed
              : paged(job.source, source_index, plane.source_base, plane.source_page_stride,
                      plane.source_row_stride),
          job.destination.page_rows.divisor == 0
              ? packed
              : paged(job.destination, destination_index, plane.destination_base,
                      plane.destination_page_stride, plane.destination_row_stride)};
}

}  // namespace kvxfer::cuda::detail
