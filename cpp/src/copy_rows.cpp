// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "page_rows.hpp"
#include "stretches.hpp"

#include <kvxfer/copy_rows.hpp>
#include <kvxfer/plan_checks.hpp>

#include <cstring>

namespace kvxfer {

namespace {

/// Rows of one plane on one rank: the address of a local index's slice.
class PlaneRows {
 public:
  PlaneRows(const PageTable& table, std::int64_t plane_index, std::int64_t page_rows,
            std::int64_t slice_offset_bytes)
      : pages_(table, page_rows),
        plane_(table.layout().planes()[static_cast<std::size_t>(plane_index)]),
        base_(table.plane_addresses()[static_cast<std::size_t>(plane_index)] +
              plane_.page_offset_bytes + slice_offset_bytes) {}

  [[nodiscard]] std::byte* at(std::int64_t local_index) const {
    const PageRun place = pages_.at(local_index);
    return reinterpret_cast<std::byte*>(base_ + place.page * plane_.page_stride_bytes +
                                        place.row * plane_.row_stride_bytes);
  }

 private:
  PageRows pages_;
  const Plane& plane_;
  std::int64_t base_;
};

std::size_t size(std::int64_t bytes) {
  return static_cast<std::size_t>(bytes);
}

void pack_region(const Relayout& relayout, const Segment& segment, const PageTable& source,
                 std::byte* packed) {
  for (const PlaneGroup& group : relayout.groups()) {
    const std::int64_t first = group.pattern.rows_before(segment.begin);
    const std::int64_t last = group.pattern.rows_before(segment.end);
    for (const PlanePair& pair : group.planes) {
      const PlaneRows rows(source, pair.source_plane, group.source_page_rows,
                           pair.source_offset_bytes);
      for_each_source_stretch(group.pattern, first, last, [&](const Stretch& stretch) {
        for (std::int64_t i = 0; i < stretch.length; ++i) {
          std::memcpy(packed, rows.at(stretch.source_index + i), size(pair.bytes));
          packed += pair.bytes;
        }
      });
    }
  }
}

}  // namespace

void pack_rows(const PackBufferLayout& layout, const PackPlan& plan, const PageTable& source,
               std::span<std::byte> buffer) {
  check_pack(layout, plan, source, static_cast<std::int64_t>(buffer.size()));
  for (const PackRegion& region : plan.regions) {
    pack_region(layout.relayouts()[size(region.index)], plan.segment, source,
                buffer.data() + region.offset_bytes);
  }
}

void unpack_rows(const Relayout& relayout, const Segment& segment,
                 std::span<const std::byte> region, const PageTable& destination) {
  check_unpack(relayout, segment, static_cast<std::int64_t>(region.size()), destination);
  const std::byte* packed = region.data();
  for (const PlaneGroup& group : relayout.groups()) {
    const std::int64_t first = group.pattern.rows_before(segment.begin);
    const std::int64_t last = group.pattern.rows_before(segment.end);
    for (const PlanePair& pair : group.planes) {
      const PlaneRows rows(destination, pair.destination_plane, group.destination_page_rows,
                           pair.destination_offset_bytes);
      for_each_destination_stretch(group.pattern, first, last, [&](const Stretch& stretch) {
        for (std::int64_t i = 0; i < stretch.length; ++i) {
          std::memcpy(rows.at(stretch.destination_index + i), packed, size(pair.bytes));
          packed += pair.bytes;
        }
      });
    }
  }
}

void copy_rows(const Relayout& relayout, const Segment& segment, const PageTable& source,
               const PageTable& destination) {
  check_copy(relayout, segment, source, destination);
  for (const PlaneGroup& group : relayout.groups()) {
    const std::int64_t first = group.pattern.rows_before(segment.begin);
    const std::int64_t last = group.pattern.rows_before(segment.end);
    for (const PlanePair& pair : group.planes) {
      const PlaneRows from(source, pair.source_plane, group.source_page_rows,
                           pair.source_offset_bytes);
      const PlaneRows to(destination, pair.destination_plane, group.destination_page_rows,
                         pair.destination_offset_bytes);
      for_each_stretch(group.pattern, first, last, [&](const Stretch& stretch) {
        for (std::int64_t i = 0; i < stretch.length; ++i) {
          std::memcpy(to.at(stretch.destination_index + i), from.at(stretch.source_index + i),
                      size(pair.bytes));
        }
      });
    }
  }
}

}  // namespace kvxfer
