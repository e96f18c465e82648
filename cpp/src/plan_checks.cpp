// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <kvxfer/error.hpp>
#include <kvxfer/plan_checks.hpp>

namespace kvxfer {

void check_pack(const PackBufferLayout& layout, const PackPlan& plan, const PageTable& source,
                std::int64_t buffer_bytes) {
  detail::require_memory(source, "source");
  for (const PackRegion& region : plan.regions) {
    const std::int64_t offset = layout.region_offset_bytes(region.index);
    const Relayout& relayout = layout.relayouts()[static_cast<std::size_t>(region.index)];
    detail::require_source_rows(relayout, source, plan.segment.begin, plan.segment.end);
    const std::int64_t bytes = relayout.segment_bytes(plan.segment.begin, plan.segment.end);
    detail::require(region.offset_bytes == offset && region.bytes == bytes,
                    "expected a plan of this layout, got region ", region.index, " of ",
                    region.bytes, " bytes at ", region.offset_bytes, " against ", bytes,
                    " bytes at ", offset);
    if (bytes > layout.region_bytes() || offset + bytes > buffer_bytes) {
      throw CapacityError(detail::message("expected a pack buffer of at least ", offset + bytes,
                                          " bytes and a region of at least ", bytes, " bytes, got ",
                                          buffer_bytes, " and ", layout.region_bytes(), " bytes"));
    }
  }
}

void check_unpack(const Relayout& relayout, const Segment& segment, std::int64_t region_bytes,
                  const PageTable& destination) {
  detail::require_memory(destination, "destination");
  detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
  const std::int64_t bytes = relayout.segment_bytes(segment.begin, segment.end);
  if (bytes > region_bytes) {
    throw CapacityError(detail::message("expected a region of at least ", bytes,
                                        " bytes for segment [", segment.begin, ", ", segment.end,
                                        "), got ", region_bytes, " bytes"));
  }
}

void check_copy(const Relayout& relayout, const Segment& segment, const PageTable& source,
                const PageTable& destination) {
  detail::require_memory(source, "source");
  detail::require_memory(destination, "destination");
  detail::require_source_rows(relayout, source, segment.begin, segment.end);
  detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
}

}  // namespace kvxfer
