// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The resident side of a launch: plane entries and cell tables of some relayouts.

#include "launch_params.hpp"

#include <kvxfer/cuda/buffer.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace kvxfer::cuda::detail {

/// Planes of a group that lie side by side in the tables and have about one size.
struct PlaneRun {
  std::uint32_t plane_offset;  ///< from the group's first entry
  std::uint32_t plane_count;
  std::int64_t slice_bytes;  ///< of the largest

  bool operator==(const PlaneRun&) const = default;
};

/// Plane entries and cells of relayouts as host arrays. Cell pointers of jobs are offsets into
/// `cells`.
struct PlaneArrays {
  /// Where one group of planes of one relayout lies.
  struct Group {
    std::uint32_t plane_begin;
    std::uint32_t cell_begin;
    std::uint32_t cell_count;    ///< 0: one cell, which the job's origins hold
    std::vector<PlaneRun> runs;  ///< smallest slices first
  };

  std::vector<PlaneEntry> planes;
  std::vector<Cell> cells;
  std::vector<std::vector<Group>> groups;  ///< [relayout][group]
};

/// An empty span of addresses means that this side is packed.
/// @throws InvalidArgumentError unless a side has no address or one for each plane.
[[nodiscard]] PlaneArrays make_plane_arrays(std::span<const Relayout> relayouts,
                                            std::span<const std::int64_t> source_addresses,
                                            std::span<const std::int64_t> destination_addresses);

/// The arrays on the device that was current at construction.
class DevicePlanes {
 public:
  DevicePlanes(std::span<const Relayout> relayouts, std::vector<std::int64_t> source_addresses,
               std::vector<std::int64_t> destination_addresses);

  [[nodiscard]] const std::vector<std::vector<PlaneArrays::Group>>& groups() const noexcept {
    return groups_;
  }
  [[nodiscard]] std::span<const PlaneEntry> host_planes() const noexcept { return host_planes_; }
  [[nodiscard]] const PlaneEntry* planes() const noexcept;
  [[nodiscard]] const Cell* cells() const noexcept;
  [[nodiscard]] std::uint32_t multiprocessors() const noexcept { return multiprocessors_; }

  /// @throws InvalidArgumentError unless `table` has the addresses that were registered.
  void require_source(const PageTable& table) const;
  void require_destination(const PageTable& table) const;

 private:
  std::vector<std::vector<PlaneArrays::Group>> groups_;
  std::vector<PlaneEntry> host_planes_;
  std::vector<std::int64_t> source_addresses_;
  std::vector<std::int64_t> destination_addresses_;
  std::int64_t cell_offset_bytes_ = 0;
  std::uint32_t multiprocessors_ = 0;
  DeviceBuffer memory_;
};

}  // namespace kvxfer::cuda::detail
