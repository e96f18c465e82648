// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a transport is asked to write. Each run is contiguous on both sides and as long as it can
// be.

#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>
#include <kvxfer/segment.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace kvxfer {

/// One one-sided write. Three int64 in a row, so that a list is an N x 3 array.
struct Run {
  std::int64_t source;       ///< address on the source
  std::int64_t destination;  ///< address on the destination
  std::int64_t bytes;

  bool operator==(const Run&) const = default;
};
static_assert(sizeof(Run) == 3 * sizeof(std::int64_t));

/// The writes of one or more segments of one pair.
struct WriteList {
  std::vector<Run> runs;
  /// runs[segment_offsets[i] .. segment_offsets[i + 1]) belong to segment i.
  std::vector<std::int64_t> segment_offsets;

  [[nodiscard]] std::int64_t bytes() const noexcept;

  bool operator==(const WriteList&) const = default;
};

/// Packed rows to final rows. Every segment's packed region starts at `region_address`; pass 0 for
/// offsets. Where destination rows are strided this is one write a row, which is why such a
/// relayout uses a landing region.
/// @throws InvalidArgumentError if `destination` is not of this relayout, has no memory, or does
/// not cover a segment.
[[nodiscard]] WriteList packed_writes(const Relayout& relayout, std::span<const Segment> segments,
                                      std::int64_t region_address, const PageTable& destination);

/// Source rows to final rows without a pack buffer: whole pages where no packing is needed, else
/// the row by row baseline that packing is measured against.
/// @throws InvalidArgumentError as packed_writes, for either side.
[[nodiscard]] WriteList direct_writes(const Relayout& relayout, std::span<const Segment> segments,
                                      const PageTable& source, const PageTable& destination);

/// One packed region into a landing region: one run, or none for a segment without bytes.
/// @throws InvalidArgumentError for a negative address.
[[nodiscard]] WriteList landing_write(const Relayout& relayout, const Segment& segment,
                                      std::int64_t region_address, std::int64_t landing_address);

}  // namespace kvxfer
