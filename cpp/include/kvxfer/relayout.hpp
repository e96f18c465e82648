// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one source rank sends to one destination rank: which planes, which bytes of each row, which
// tokens. Both sides compute it from the two layouts and get the same value.

#include <kvxfer/page_table.hpp>
#include <kvxfer/pool_layout.hpp>
#include <kvxfer/token_pattern.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace kvxfer {

/// One plane of the source and the same plane of the destination, with the bytes of a row that
/// move.
struct PlanePair {
  std::int64_t source_plane;              ///< index into the source layout's planes
  std::int64_t destination_plane;         ///< index into the destination layout's planes
  std::int64_t source_offset_bytes;       ///< of the slice in the source row
  std::int64_t destination_offset_bytes;  ///< of the slice in the destination row
  std::int64_t bytes;                     ///< of the slice
  bool is_replicated;                     ///< the destination stores all tokens of this plane

  bool operator==(const PlanePair&) const = default;
};

/// Planes of a relayout that share one token pattern. In a packed region their rows lie plane after
/// plane.
struct PlaneGroup {
  TokenPattern pattern;
  std::vector<PlanePair> planes;
  std::int64_t row_bytes;  ///< sum of the slices: packed bytes of one row over the group's planes
  std::int64_t source_page_rows;       ///< rows of a source page in these planes
  std::int64_t destination_page_rows;  ///< rows of a destination page in these planes

  bool operator==(const PlaneGroup&) const = default;
};

/// One source rank to one destination rank, any sharding to any sharding.
///
/// Planes are matched by layer and kind. A layer that only one side holds is left out (pipeline
/// stages, a draft that one side lacks) and listed as unmatched; a layer that both hold must have
/// the same kinds, element types and row bytes. Rows divided by head move only the heads that
/// `shared_heads` gives this pair; beside them, rows that are not divided are written by the lowest
/// source rank that shares a head with the destination. A plane that is replicated on the source is
/// written by the lowest source rank that shares tokens with it. The others send completion only.
class Relayout {
 public:
  /// @throws InvalidArgumentError when matched planes disagree, naming the plane and both values.
  /// @throws UnsupportedError for a plane that is sharded on several source ranks and replicated on
  /// the destination,
  ///         or for more than 4 MiB a token.
  Relayout(std::shared_ptr<const PoolLayout> source, std::shared_ptr<const PoolLayout> destination);

  [[nodiscard]] const PoolLayout& source() const noexcept { return *source_; }
  [[nodiscard]] const PoolLayout& destination() const noexcept { return *destination_; }
  /// The layouts for an owner that outlives the relayout.
  [[nodiscard]] const std::shared_ptr<const PoolLayout>& shared_source() const noexcept {
    return source_;
  }
  [[nodiscard]] const std::shared_ptr<const PoolLayout>& shared_destination() const noexcept {
    return destination_;
  }

  /// Groups that move bytes, sharded planes first.
  [[nodiscard]] const std::vector<PlaneGroup>& groups() const noexcept { return groups_; }
  /// Tokens that the two ranks share under their shardings, whatever planes they hold.
  [[nodiscard]] const TokenPattern& pattern() const noexcept { return pattern_; }

  /// No byte ever moves between the two: completion only.
  [[nodiscard]] bool is_empty() const noexcept { return groups_.empty(); }
  /// Contiguous source rows are not contiguous at the destination, or a row is sliced.
  [[nodiscard]] bool needs_packing() const noexcept { return needs_packing_; }
  /// Destination rows are strided, so packed rows need a landing region and an unpack.
  [[nodiscard]] bool needs_unpacking() const noexcept { return needs_unpacking_; }
  /// Non-final sends and the capacity are multiples of this: source page size * source ranks.
  [[nodiscard]] std::int64_t alignment_tokens() const noexcept {
    return source_->widened_page_tokens();
  }

  /// Indices of planes whose layer the other side does not hold.
  [[nodiscard]] const std::vector<std::int64_t>& unmatched_source_planes() const noexcept {
    return unmatched_source_planes_;
  }
  [[nodiscard]] const std::vector<std::int64_t>& unmatched_destination_planes() const noexcept {
    return unmatched_destination_planes_;
  }

  /// Packed bytes of the positions [begin, end) over all planes. @throws InvalidArgumentError
  /// unless 0 <= begin <= end.
  [[nodiscard]] std::int64_t segment_bytes(std::int64_t begin, std::int64_t end) const;
  /// Most packed bytes that any `window_tokens` consecutive positions need.
  [[nodiscard]] std::int64_t max_segment_bytes(std::int64_t window_tokens) const;

  /// Shared tokens in [begin, end). @throws InvalidArgumentError unless 0 <= begin <= end.
  [[nodiscard]] std::int64_t row_count(std::int64_t begin, std::int64_t end) const;
  /// Shared positions in [begin, end), rising.
  [[nodiscard]] std::vector<std::int64_t> positions(std::int64_t begin, std::int64_t end) const;
  /// Row numbers (page * page_size + row in page) of those positions in the sharded planes of the
  /// source.
  /// @throws InvalidArgumentError if `table` is not of this side or does not cover the rows.
  [[nodiscard]] std::vector<std::int64_t> source_rows(std::int64_t begin, std::int64_t end,
                                                      const PageTable& table) const;
  /// The same for the destination.
  [[nodiscard]] std::vector<std::int64_t> destination_rows(std::int64_t begin, std::int64_t end,
                                                           const PageTable& table) const;

  bool operator==(const Relayout& other) const;

 private:
  void match_planes();
  void add_plane(const PlanePair& pair);

  std::shared_ptr<const PoolLayout> source_;
  std::shared_ptr<const PoolLayout> destination_;
  TokenPattern pattern_;
  std::vector<PlaneGroup> groups_;
  std::vector<std::int64_t> unmatched_source_planes_;
  std::vector<std::int64_t> unmatched_destination_planes_;
  bool needs_packing_ = false;
  bool needs_unpacking_ = false;
};

}  // namespace kvxfer
