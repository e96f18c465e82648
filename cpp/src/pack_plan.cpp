// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <kvxfer/error.hpp>
#include <kvxfer/pack_plan.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace kvxfer {

namespace {

std::int64_t alignment_of(std::span<const Relayout> relayouts) {
  detail::require(!relayouts.empty(), "expected at least one relayout, got none");
  const Relayout& first = relayouts.front();
  for (const Relayout& relayout : relayouts) {
    detail::require(&relayout.source() == &first.source() || relayout.source() == first.source(),
                    "expected relayouts of one source rank, got different source layouts");
  }
  return first.alignment_tokens();
}

std::int64_t region_bytes_for(std::span<const Relayout> relayouts, std::int64_t capacity_tokens) {
  std::int64_t bytes = 0;
  for (const Relayout& relayout : relayouts)
    bytes = std::max(bytes, relayout.max_segment_bytes(capacity_tokens));
  return bytes;
}

std::int64_t region_count(std::span<const Relayout> relayouts) {
  return std::count_if(relayouts.begin(), relayouts.end(),
                       [](const Relayout& r) { return !r.is_empty(); });
}

std::int64_t buffer_bytes_for(std::span<const Relayout> relayouts, std::int64_t capacity_tokens) {
  const std::int64_t region_bytes = region_bytes_for(relayouts, capacity_tokens);
  const std::int64_t regions = region_count(relayouts);
  if (regions > 0 && region_bytes > std::numeric_limits<std::int64_t>::max() / regions) {
    throw CapacityError(detail::message("expected a buffer within 2^63 bytes, got ", regions,
                                        " regions of ", region_bytes, " bytes for ",
                                        capacity_tokens, " tokens"));
  }
  return regions * region_bytes;
}

}  // namespace

PackBufferLayout::PackBufferLayout(std::vector<Relayout> relayouts, std::int64_t capacity_tokens)
    : relayouts_(std::move(relayouts)), capacity_tokens_(capacity_tokens) {
  const std::int64_t alignment = alignment_of(relayouts_);
  detail::require(capacity_tokens >= alignment && capacity_tokens % alignment == 0,
                  "expected capacity_tokens to be a positive multiple of alignment_tokens ",
                  alignment, ", got ", capacity_tokens);
  region_bytes_ = region_bytes_for(relayouts_, capacity_tokens);
  bytes_ = buffer_bytes_for(relayouts_, capacity_tokens);
  std::int64_t offset = 0;
  for (const Relayout& relayout : relayouts_) {
    region_offsets_.push_back(relayout.is_empty() ? -1 : offset);
    if (!relayout.is_empty()) offset += region_bytes_;
  }
}

std::int64_t PackBufferLayout::bytes_for(std::span<const Relayout> relayouts,
                                         std::int64_t capacity_tokens) {
  const std::int64_t alignment = alignment_of(relayouts);
  detail::require(capacity_tokens >= alignment && capacity_tokens % alignment == 0,
                  "expected capacity_tokens to be a positive multiple of alignment_tokens ",
                  alignment, ", got ", capacity_tokens);
  return buffer_bytes_for(relayouts, capacity_tokens);
}

std::int64_t PackBufferLayout::capacity_for(std::span<const Relayout> relayouts,
                                            std::int64_t buffer_bytes) {
  const std::int64_t alignment = alignment_of(relayouts);
  detail::require(buffer_bytes >= 0, "expected buffer_bytes >= 0, got ", buffer_bytes);
  const std::int64_t regions = std::max<std::int64_t>(1, region_count(relayouts));
  const auto fits = [&](std::int64_t units) {
    return region_bytes_for(relayouts, units * alignment) <= buffer_bytes / regions;
  };
  if (!fits(1)) {
    throw CapacityError(detail::message(
        "expected a pack buffer of at least ", bytes_for(relayouts, alignment),
        " bytes for one alignment of ", alignment, " tokens, got ", buffer_bytes, " bytes"));
  }
  std::int64_t low = 1;  // fits
  std::int64_t high = kMaxTokens / alignment + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * alignment;
}

std::int64_t PackBufferLayout::region_offset_bytes(std::int64_t index) const {
  detail::require(index >= 0 && index < static_cast<std::int64_t>(relayouts_.size()),
                  "expected a relayout index in [0, ", relayouts_.size(), "), got ", index);
  const std::int64_t offset = region_offsets_[static_cast<std::size_t>(index)];
  detail::require(offset >= 0, "expected a relayout that moves bytes, got index ", index,
                  ", which is empty");
  return offset;
}

PackPlan PackBufferLayout::plan(const Segment& segment) const {
  detail::require_range(segment.begin, segment.end);
  PackPlan plan{segment, {}};
  plan.regions.reserve(relayouts_.size());
  for (std::size_t i = 0; i < relayouts_.size(); ++i) {
    const std::int64_t bytes = relayouts_[i].segment_bytes(segment.begin, segment.end);
    if (bytes == 0) continue;
    if (bytes > region_bytes_) {
      throw CapacityError(detail::message("segment [", segment.begin, ", ", segment.end, ") needs ",
                                          bytes, " bytes for relayout ", i,
                                          ", expected at most the region's ", region_bytes_,
                                          " bytes (capacity ", capacity_tokens_, " tokens)"));
    }
    plan.regions.push_back({static_cast<std::int64_t>(i), region_offsets_[i], bytes,
                            relayouts_[i].row_count(segment.begin, segment.end)});
  }
  return plan;
}

}  // namespace kvxfer
