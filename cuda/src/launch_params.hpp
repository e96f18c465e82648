// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one launch carries as kernel parameters, and the resident tables that it points to. Row
// numbers are relative to the launch and fit 31 bits, which the builder checks; bytes are 64-bit
// everywhere.

#include <cstddef>
#include <cstdint>

namespace kvxfer::cuda::detail {

/// Plane sizes that a group of planes is divided by, so that each gets tiles of its own length.
inline constexpr std::size_t kMaxSizes = 4;
inline constexpr std::uint32_t kMaxBands = 12;

/// Which sides of a launch are paged: the source, the destination, both.
enum class Direction : std::uint8_t { kPack, kUnpack, kCopy };

/// Divides n < 2^31 by a constant: ((2n * multiplier) >> 32) >> shift.
struct FastDivisor {
  std::uint32_t divisor;
  std::uint32_t multiplier;
  std::uint32_t shift;
};

/// One plane of one pair, resident on the device since registration.
struct PlaneEntry {
  std::int64_t source_base;  ///< of row 0 of page 0, slice included
  std::int64_t destination_base;
  std::int64_t packed_prefix_bytes;  ///< of one row over the group's earlier planes
  std::uint32_t source_page_stride;
  std::uint32_t source_row_stride;
  std::uint32_t destination_page_stride;
  std::uint32_t destination_row_stride;
  std::uint32_t bytes;           ///< of the slice
  std::uint32_t alignment_bits;  ///< of every address and stride of the paged sides, or-ed
  std::uint32_t row_multiplier;  ///< ceil(2^31 / vectors of a row)
  std::uint32_t padding;

  bool operator==(const PlaneEntry&) const = default;
};

/// A stretch of a period in which both local indices rise by one.
struct Cell {
  std::uint32_t row;
  std::uint32_t source_index;
  std::uint32_t destination_index;
};

/// Local indices of one side, from the launch's first page on: period * step + origin + index in
/// the period. The origin may be below 0: sums wrap to the right value.
struct Side {
  FastDivisor page_rows;  ///< divisor 0: packed, rows lie dense
  std::uint32_t step;
  std::uint32_t origin;
  std::uint32_t first_page_id;  ///< of the launch's page ids
};

/// The rows of one group of planes of one pair.
struct Job {
  std::int64_t packed_address;  ///< of the group's rows in the region, when a side is packed
  const Cell* cells;            ///< null: one cell a period
  std::uint32_t cell_count;
  std::uint32_t plane_begin;  ///< of the resident entries
  std::uint32_t row_count;    ///< of this launch
  std::uint32_t first_row;    ///< packed rows before this launch's
  std::uint32_t packed_rows;  ///< of the whole region
  std::uint32_t phase;        ///< rows of the first period before this launch's
  FastDivisor period_rows;
  Side source;
  Side destination;
};

/// Planes of one size of jobs that have equally many. Items run plane by plane, then tile by tile,
/// jobs innermost, so that the ranks that share a page are near in time.
struct Band {
  std::uint32_t first_item;
  std::uint32_t job_begin;
  std::uint32_t plane_offset;  ///< from the job's first plane
  std::uint32_t tile_rows;
  FastDivisor plane_items;  ///< tiles * jobs
  FastDivisor jobs;
  std::uint32_t address_bits;    ///< of the jobs' packed addresses, or-ed
  std::uint32_t rows_alignment;  ///< largest power of two that divides the jobs' packed rows
};

struct LaunchHeader {
  const PlaneEntry* planes;  ///< null: in the parameters
  std::uint32_t item_count;
  std::uint32_t band_count;
  Band bands[kMaxBands];
};

template <std::uint32_t kJobs, std::uint32_t kPages, std::uint32_t kPlanes>
struct LaunchParams {
  static constexpr std::uint32_t kMaxJobs = kJobs;
  static constexpr std::uint32_t kMaxPages = kPages;
  static constexpr std::uint32_t kMaxPlanes = kPlanes;

  LaunchHeader header;
  PlaneEntry planes[kPlanes];
  Job jobs[kJobs];
  std::int32_t page_ids[kPages];
};

template <std::uint32_t kJobs, std::uint32_t kPages>
struct LaunchParams<kJobs, kPages, 0> {
  static constexpr std::uint32_t kMaxJobs = kJobs;
  static constexpr std::uint32_t kMaxPages = kPages;
  static constexpr std::uint32_t kMaxPlanes = 0;

  LaunchHeader header;
  Job jobs[kJobs];
  std::int32_t page_ids[kPages];
};

/// Parameters cost time to enqueue, so that most launches take the small form. CUDA allows 32,764
/// bytes.
using SmallParams = LaunchParams<8, 320, 16>;
using MediumParams = LaunchParams<16, 2600, 0>;
using LargeParams = LaunchParams<48, 6000, 0>;
static_assert(sizeof(SmallParams) <= 4096);
static_assert(sizeof(MediumParams) <= 13000);
static_assert(sizeof(LargeParams) <= 32764);

}  // namespace kvxfer::cuda::detail
