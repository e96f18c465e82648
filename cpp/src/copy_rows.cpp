// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "page_rows.hpp"
#include "stretches.hpp"

#include <kvxfer/copy_rows.hpp>
#include <kvxfer/error.hpp>

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
  detail::require_memory(source, "source");
  for (const PackRegion& region : plan.regions) {
    const std::int64_t offset = layout.region_offset_bytes(region.index);
    const Relayout& relayout = layout.relayouts()[size(region.index)];
    detail::require_source_rows(relayout, source, plan.segment.begin, plan.segment.end);
    const std::int64_t bytes = relayout.segment_bytes(plan.segment.begin, plan.segment.end);
    detail::require(region.offset_bytes == offset && region.bytes == bytes,
                    "expected a plan of this layout, got region ", region.index, " of ",
                    region.bytes, " bytes at ", region.offset_bytes, " against ", bytes,
                    " bytes at ", offset);
    if (bytes > layout.region_bytes() || size(offset + bytes) > buffer.size()) {
      throw CapacityError(detail::message("expected a pack buffer of at least ", offset + bytes,
                                          " bytes and a region of at least ", bytes, " bytes, got ",
                                          buffer.size(), " and ", layout.region_bytes(), " bytes"));
    }
  }
  for (const PackRegion& region : plan.regions) {
    pack_region(layout.relayouts()[size(region.index)], plan.segment, source,
                buffer.data() + region.offset_bytes);
  }
}

void unpack_rows(const Relayout& relayout, const Segment& segment,
                 std::span<const std::byte> region, const PageTable& destination) {
  detail::require_memory(destination, "destination");
  detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
  const std::int64_t bytes = relayout.segment_bytes(segment.begin, segment.end);
  if (size(bytes) > region.size()) {
    throw CapacityError(detail::message("expected a region of at least ", bytes,
                                        " bytes for segment [", segment.begin, ", ", segment.end,
                                        "), got ", region.size(), " bytes"));
  }
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
  detail::require_memory(source, "source");
  detail::require_memory(destination, "destination");
  detail::require_source_rows(relayout, source, segment.begin, segment.end);
  detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
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
