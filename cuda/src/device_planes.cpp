// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "device_planes.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace kvxfer::cuda::detail {

namespace {

struct Slice {
  std::int64_t base;
  std::int64_t page_stride;
  std::int64_t row_stride;

  [[nodiscard]] std::int64_t bits() const { return base | page_stride | row_stride; }
};

Slice slice_of(const PoolLayout& layout, std::span<const std::int64_t> addresses,
               std::int64_t plane_index, std::int64_t offset_bytes) {
  if (addresses.empty()) return {0, 0, 0};
  const auto i = static_cast<std::size_t>(plane_index);
  const Plane& plane = layout.planes()[i];
  return {addresses[i] + plane.page_offset_bytes + offset_bytes, plane.page_stride_bytes,
          plane.row_stride_bytes};
}

std::uint32_t row_multiplier(std::int64_t row_units) {
  return row_units == 0 ? 0 : static_cast<std::uint32_t>((0x7fffffff + row_units) / row_units);
}

/// @throws UnsupportedError for a stride that does not fit 32 bits.
std::uint32_t stride(std::int64_t bytes) {
  if (bytes > std::numeric_limits<std::uint32_t>::max()) {
    throw UnsupportedError(
        kvxfer::detail::message("expected strides below 4 GiB, got ", bytes, " bytes"));
  }
  return static_cast<std::uint32_t>(bytes);
}

struct Addresses {
  std::span<const std::int64_t> source;
  std::span<const std::int64_t> destination;
};

/// The entries of one group, smallest slices first: a launch should not end with what is mostly
/// latency.
std::vector<PlaneEntry> entries_of(const Relayout& relayout, const PlaneGroup& group,
                                   const Addresses& addresses) {
  std::vector<PlaneEntry> entries;
  std::int64_t prefix_bytes = 0;
  for (const PlanePair& pair : group.planes) {
    const Slice from =
        slice_of(relayout.source(), addresses.source, pair.source_plane, pair.source_offset_bytes);
    const Slice to = slice_of(relayout.destination(), addresses.destination, pair.destination_plane,
                              pair.destination_offset_bytes);
    entries.push_back({from.base, to.base, prefix_bytes, stride(from.page_stride),
                       stride(from.row_stride), stride(to.page_stride), stride(to.row_stride),
                       static_cast<std::uint32_t>(pair.bytes),
                       static_cast<std::uint32_t>((from.bits() | to.bits() | pair.bytes) & 0xff),
                       row_multiplier(pair.bytes / 16), 0});
    prefix_bytes += pair.bytes;
  }
  std::ranges::stable_sort(entries, std::less{}, &PlaneEntry::bytes);
  return entries;
}

/// Where `entries` lie in `planes`: pairs that read the same slices share them.
std::uint32_t shared_begin(std::vector<PlaneEntry>& planes,
                           const std::vector<PlaneEntry>& entries) {
  const auto found = std::ranges::search(planes, entries).begin();
  const auto begin = static_cast<std::uint32_t>(found - planes.begin());
  if (found == planes.end()) planes.insert(planes.end(), entries.begin(), entries.end());
  return begin;
}

/// @throws UnsupportedError for a period that 31 bits do not number.
void require_period(const TokenPattern& pattern) {
  const std::int64_t rows =
      std::max(pattern.source_period_rows(), pattern.destination_period_rows());
  if (rows > std::numeric_limits<std::int32_t>::max()) {
    throw UnsupportedError(kvxfer::detail::message(
        "expected a token pattern of at most 2^31 rows a period, got ", rows));
  }
}

void require_addresses(const PoolLayout& layout, std::span<const std::int64_t> addresses,
                       const char* side) {
  kvxfer::detail::require(addresses.empty() || addresses.size() == layout.planes().size(),
                          "expected one ", side, " address for each of ", layout.planes().size(),
                          " planes, got ", addresses.size());
  for (const std::int64_t address : addresses)
    kvxfer::detail::require(address > 0, "expected ", side, " addresses > 0, got ", address);
}

/// Runs of equal sizes in entries that are sorted by size; what exceeds kMaxSizes joins the last.
std::vector<PlaneRun> runs_of(std::span<const PlaneEntry> entries) {
  std::vector<PlaneRun> runs;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool continues = i > 0 && entries[i].bytes == entries[i - 1].bytes;
    if (!continues && runs.size() < kMaxSizes)
      runs.push_back({static_cast<std::uint32_t>(i), 0, entries[i].bytes});
    ++runs.back().plane_count;
    runs.back().slice_bytes = entries[i].bytes;
  }
  return runs;
}

void add_cells(PlaneArrays& arrays, const TokenPattern& pattern) {
  for (const TokenCell& cell : pattern.cells()) {
    arrays.cells.push_back({static_cast<std::uint32_t>(cell.row),
                            static_cast<std::uint32_t>(cell.source_index),
                            static_cast<std::uint32_t>(cell.destination_index)});
  }
}

void require_registered(const PageTable& table, std::span<const std::int64_t> addresses,
                        const char* side) {
  kvxfer::detail::require(std::ranges::equal(table.plane_addresses(), addresses), "expected a ",
                          side, " page table with the plane addresses that were registered");
}

}  // namespace

PlaneArrays make_plane_arrays(std::span<const Relayout> relayouts,
                              std::span<const std::int64_t> source_addresses,
                              std::span<const std::int64_t> destination_addresses) {
  PlaneArrays arrays;
  for (const Relayout& relayout : relayouts) {
    require_addresses(relayout.source(), source_addresses, "source");
    require_addresses(relayout.destination(), destination_addresses, "destination");
    auto& groups = arrays.groups.emplace_back();
    for (const PlaneGroup& group : relayout.groups()) {
      require_period(group.pattern);
      const bool is_one_cell = group.pattern.cells().size() == 1;
      const auto entries = entries_of(relayout, group, {source_addresses, destination_addresses});
      groups.push_back({shared_begin(arrays.planes, entries),
                        static_cast<std::uint32_t>(arrays.cells.size()),
                        is_one_cell ? 0 : static_cast<std::uint32_t>(group.pattern.cells().size()),
                        runs_of(entries)});
      if (!is_one_cell) add_cells(arrays, group.pattern);
    }
  }
  return arrays;
}

DevicePlanes::DevicePlanes(std::span<const Relayout> relayouts,
                           std::vector<std::int64_t> source_addresses,
                           std::vector<std::int64_t> destination_addresses)
    : source_addresses_(std::move(source_addresses)),
      destination_addresses_(std::move(destination_addresses)) {
  PlaneArrays arrays = make_plane_arrays(relayouts, source_addresses_, destination_addresses_);
  groups_ = std::move(arrays.groups);
  host_planes_ = arrays.planes;
  const std::size_t plane_bytes = arrays.planes.size() * sizeof(PlaneEntry);
  const std::size_t cell_bytes = arrays.cells.size() * sizeof(Cell);
  cell_offset_bytes_ = static_cast<std::int64_t>(plane_bytes);
  std::vector<std::byte> image(plane_bytes + cell_bytes);
  if (plane_bytes > 0) std::memcpy(image.data(), arrays.planes.data(), plane_bytes);
  if (cell_bytes > 0) std::memcpy(image.data() + plane_bytes, arrays.cells.data(), cell_bytes);
  int device = 0;
  int multiprocessors = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  multiprocessors_ = static_cast<std::uint32_t>(multiprocessors);
  memory_ = DeviceBuffer(static_cast<std::int64_t>(image.size()));
  if (!image.empty()) {
    cuda_check(cudaMemcpy(memory_.data(), image.data(), image.size(), cudaMemcpyHostToDevice),
               "cudaMemcpy of plane tables");
  }
}

const PlaneEntry* DevicePlanes::planes() const noexcept {
  return reinterpret_cast<const PlaneEntry*>(memory_.data());
}

const Cell* DevicePlanes::cells() const noexcept {
  return reinterpret_cast<const Cell*>(memory_.data() + cell_offset_bytes_);
}

void DevicePlanes::require_source(const PageTable& table) const {
  require_registered(table, source_addresses_, "source");
}

void DevicePlanes::require_destination(const PageTable& table) const {
  require_registered(table, destination_addresses_, "destination");
}

}  // namespace kvxfer::cuda::detail
