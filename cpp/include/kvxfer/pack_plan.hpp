// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where packed rows lie. A pack buffer is cut into equal regions, one for each destination rank
// that a source rank serves; a segment fills the front of each region, plane after plane, without
// padding.

#include <kvxfer/relayout.hpp>
#include <kvxfer/segment.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace kvxfer {

/// The rows of one destination rank in one segment.
struct PackRegion {
  std::int64_t index;         ///< which relayout of the layout
  std::int64_t offset_bytes;  ///< of the region in the pack buffer
  std::int64_t bytes;         ///< packed bytes of the segment, at most the region's size
  std::int64_t row_count;     ///< tokens of the segment that the pair shares

  bool operator==(const PackRegion&) const = default;
};

/// One segment packed: a region for each relayout that moves a byte in it, in the layout's order.
struct PackPlan {
  Segment segment;
  std::vector<PackRegion> regions;

  bool operator==(const PackPlan&) const = default;
};

/// Regions of a pack buffer for one source rank and the destination ranks that it serves.
///
/// The capacity belongs to these destinations: a buffer that was sized for other shardings holds
/// another number of tokens, which capacity_for() tells.
class PackBufferLayout {
 public:
  /// Regions that hold any `capacity_tokens` consecutive tokens.
  /// @throws InvalidArgumentError unless there is a relayout, all have the same source layout, and
  /// the capacity is a
  ///         positive multiple of their alignment.
  /// @throws CapacityError if the buffer would be beyond 2^63 bytes.
  PackBufferLayout(std::vector<Relayout> relayouts, std::int64_t capacity_tokens);

  /// Bytes that a buffer needs to hold `capacity_tokens` at once.
  [[nodiscard]] static std::int64_t bytes_for(std::span<const Relayout> relayouts,
                                              std::int64_t capacity_tokens);

  /// Largest capacity that `buffer_bytes` hold, a multiple of the alignment.
  /// @throws CapacityError, naming both sizes, when not even one alignment fits.
  [[nodiscard]] static std::int64_t capacity_for(std::span<const Relayout> relayouts,
                                                 std::int64_t buffer_bytes);

  [[nodiscard]] const std::vector<Relayout>& relayouts() const noexcept { return relayouts_; }
  [[nodiscard]] std::int64_t capacity_tokens() const noexcept { return capacity_tokens_; }
  /// Size of every region.
  [[nodiscard]] std::int64_t region_bytes() const noexcept { return region_bytes_; }
  /// Size of the whole buffer.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// Start of relayout `index`'s region. @throws InvalidArgumentError if it has none: no such
  /// relayout, or empty.
  [[nodiscard]] std::int64_t region_offset_bytes(std::int64_t index) const;

  /// Plans one segment. @throws CapacityError if a region would overflow, so that no row can run
  /// into a neighbour's.
  [[nodiscard]] PackPlan plan(const Segment& segment) const;

 private:
  std::vector<Relayout> relayouts_;
  std::vector<std::int64_t> region_offsets_;  // -1: the relayout is empty and has no region
  std::int64_t capacity_tokens_;
  std::int64_t region_bytes_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace kvxfer
