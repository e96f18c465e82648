// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "device_planes.hpp"

#include <algorithm>
#include <cstring>
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

void require_addresses(const PoolLayout& layout, std::span<const std::int64_t> addresses,
                       const char* side) {
  kvxfer::detail::require(addresses.empty() || addresses.size() == layout.planes().size(),
                          "expected one ", side, " address for each of ", layout.planes().size(),
                          " planes, got ", addresses.size());
  for (const std::int64_t address : addresses)
    kvxfer::detail::require(address > 0, "expected ", side, " addresses > 0, got ", address);
}

std::int64_t max_slice_bytes(const PlaneGroup& group) {
  std::int64_t bytes = 1;
  for (const PlanePair& pair : group.planes)
    bytes = std::max(bytes, pair.bytes);
  return bytes;
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
      const std::int64_t period =
          std::max(group.pattern.source_period_rows(), group.pattern.destination_period_rows());
      if (period > std::numeric_limits<std::int32_t>::max()) {
        throw UnsupportedError(kvxfer::detail::message(
            "expected a token pattern of at most 2^31 rows a period, got ", period));
      }
      const bool is_one_cell = group.pattern.cells().size() == 1;
      groups.push_back({static_cast<std::uint32_t>(arrays.planes.size()),
                        static_cast<std::uint32_t>(arrays.cells.size()),
                        is_one_cell ? 0 : static_cast<std::uint32_t>(group.pattern.cells().size()),
                        max_slice_bytes(group)});
      if (!is_one_cell) add_cells(arrays, group.pattern);
      std::int64_t prefix_bytes = 0;
      for (const PlanePair& pair : group.planes) {
        const Slice from = slice_of(relayout.source(), source_addresses, pair.source_plane,
                                    pair.source_offset_bytes);
        const Slice to = slice_of(relayout.destination(), destination_addresses,
                                  pair.destination_plane, pair.destination_offset_bytes);
        arrays.planes.push_back({from.base, from.page_stride, from.row_stride, to.base,
                                 to.page_stride, to.row_stride, prefix_bytes,
                                 static_cast<std::uint32_t>(pair.bytes),
                                 static_cast<std::uint32_t>((from.bits() | to.bits() | pair.bytes) &
                                                            0xff)});
        prefix_bytes += pair.bytes;
      }
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
  const std::size_t plane_bytes = arrays.planes.size() * sizeof(PlaneEntry);
  const std::size_t cell_bytes = arrays.cells.size() * sizeof(Cell);
  cell_offset_bytes_ = static_cast<std::int64_t>(plane_bytes);
  std::vector<std::byte> image(plane_bytes + cell_bytes);
  if (plane_bytes > 0) std::memcpy(image.data(), arrays.planes.data(), plane_bytes);
  if (cell_bytes > 0) std::memcpy(image.data() + plane_bytes, arrays.cells.data(), cell_bytes);
  int device = 0;
  int multiprocessors = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
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
