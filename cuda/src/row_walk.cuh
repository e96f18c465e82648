// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From an item of a launch to the addresses of its rows. Runs on either side, so that the whole
// walk is tested without a device.

#include "launch_params.hpp"

namespace kvxfer::cuda::detail {

__host__ __device__ inline std::uint32_t quotient(std::uint32_t n, const FastDivisor& d) {
  return static_cast<std::uint32_t>((std::uint64_t{n << 1} * d.multiplier) >> 32) >> d.shift;
}

/// Rows [first_row, first_row + row_count) of one plane of one job.
struct Tile {
  std::uint32_t band;
  std::uint32_t job;
  std::uint32_t plane;  ///< of the resident entries
  std::uint32_t first_row;
  std::uint32_t row_count;  ///< 0: this job has fewer tiles than its band
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
  return {b, j, job.plane_begin + band.plane_offset + plane, first_row,
          left < band.tile_rows ? left : band.tile_rows};
}

/// One plane on a paged side.
struct PagedPlane {
  Side side;
  std::uint64_t base;
  std::uint32_t page_stride;
  std::uint32_t row_stride;
};

__host__ __device__ inline PagedPlane source_plane(const Job& job, const PlaneEntry& plane) {
  return {job.source, static_cast<std::uint64_t>(plane.source_base), plane.source_page_stride,
          plane.source_row_stride};
}

__host__ __device__ inline PagedPlane destination_plane(const Job& job, const PlaneEntry& plane) {
  return {job.destination, static_cast<std::uint64_t>(plane.destination_base),
          plane.destination_page_stride, plane.destination_row_stride};
}

/// Address of the row at `place`, which counts from the launch's first page.
template <class Params>
__host__ __device__ __forceinline__ std::uint64_t paged_address(const Params& params,
                                                                const PagedPlane& plane,
                                                                std::uint32_t place) {
  const std::uint32_t page = quotient(place, plane.side.page_rows);
  const std::uint32_t in_page = place - page * plane.side.page_rows.divisor;
  const auto id = static_cast<std::uint32_t>(params.page_ids[plane.side.first_page_id + page]);
  return plane.base + std::uint64_t{id} * plane.page_stride +
         std::uint64_t{in_page} * plane.row_stride;
}

/// Packed address of the tile's first row.
__host__ __device__ inline std::uint64_t packed_tile(const Job& job, const PlaneEntry& plane,
                                                     const Tile& tile) {
  return static_cast<std::uint64_t>(job.packed_address +
                                    plane.packed_prefix_bytes * job.packed_rows) +
         std::uint64_t{job.first_row + tile.first_row} * plane.bytes;
}

/// How a job's rows repeat: one row a period, one cell, several cells.
enum class Period : std::uint8_t { kRow, kCell, kCells };

__host__ __device__ inline Period period_of(const Job& job) {
  if (job.cells != nullptr) return Period::kCells;
  return job.period_rows.divisor == 1 ? Period::kRow : Period::kCell;
}

/// Rows of one job, from row number `first` (phase included) on.
struct JobRows {
  FastDivisor period_rows;
  const Cell* cells;
  std::uint32_t cell_count;
  std::uint32_t first;

  struct Indices {
    std::uint32_t period;
    std::uint32_t source;  ///< in the period
    std::uint32_t destination;
  };

  template <Period kPeriod>
  __host__ __device__ __forceinline__ Indices at(std::uint32_t row) const {
    const std::uint32_t n = first + row;
    if constexpr (kPeriod == Period::kRow) return {n, 0, 0};
    const std::uint32_t period = quotient(n, period_rows);
    const std::uint32_t in_period = n - period * period_rows.divisor;
    if constexpr (kPeriod == Period::kCell) return {period, in_period, in_period};
    std::uint32_t low = 0;
    for (std::uint32_t high = cell_count; high - low > 1;) {
      const std::uint32_t middle = (low + high) / 2;
      (cells[middle].row <= in_period ? low : high) = middle;
    }
    const Cell cell = cells[low];
    return {period, cell.source_index + in_period - cell.row,
            cell.destination_index + in_period - cell.row};
  }
};

__host__ __device__ inline JobRows rows_of(const Job& job, const Tile& tile) {
  return {job.period_rows, job.cells, job.cell_count, job.phase + tile.first_row};
}

__host__ __device__ inline std::uint32_t place_of(const Side& side, std::uint32_t period,
                                                  std::uint32_t index) {
  return period * side.step + side.origin + index;
}

}  // namespace kvxfer::cuda::detail
