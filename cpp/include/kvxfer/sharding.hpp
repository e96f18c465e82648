// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Who holds what. Tokens go round robin over the ranks of a decode-context-parallel group,
// `interleave` tokens at a time; KV heads are divided over the ranks of a tensor-parallel group.
// Pure arithmetic on positions and heads.

#include <cstdint>
#include <optional>

namespace kvxfer {

/// Upper bound of every position and token count, so that products with row bytes stay inside
/// int64.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

/// How the tokens of a request are divided over `ranks` ranks, and which of them this one is.
///
/// Position `p` belongs to rank `(p / interleave) % ranks`. One rank holds every token; its
/// interleave means nothing and is stored as 1. SGLang uses interleave 1; vLLM's
/// `cp_kv_cache_interleave_size` is this interleave.
class Sharding {
 public:
  /// @throws InvalidArgumentError unless ranks >= 1, 0 <= rank < ranks and interleave >= 1.
  explicit Sharding(std::int64_t ranks = 1, std::int64_t rank = 0, std::int64_t interleave = 1);

  [[nodiscard]] std::int64_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::int64_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t interleave() const noexcept { return interleave_; }  ///< tokens

  /// Rank that holds `position`. @throws InvalidArgumentError if `position` is negative.
  [[nodiscard]] std::int64_t owner(std::int64_t position) const;

  /// Index of `position` among the tokens of its owner, in position order. @throws as owner().
  [[nodiscard]] std::int64_t local_index(std::int64_t position) const;

  /// Position of this rank's `local_index`-th token: the inverse of local_index(). @throws
  /// InvalidArgumentError if negative or beyond kMaxTokens.
  [[nodiscard]] std::int64_t position(std::int64_t local_index) const;

  /// Number of this rank's tokens in [begin, end). @throws InvalidArgumentError unless 0 <= begin
  /// <= end.
  [[nodiscard]] std::int64_t local_count(std::int64_t begin, std::int64_t end) const;

  /// Tokens after which ownership repeats: ranks * interleave.
  [[nodiscard]] std::int64_t period_tokens() const noexcept { return ranks_ * interleave_; }

  bool operator==(const Sharding&) const = default;

 private:
  std::int64_t ranks_;
  std::int64_t rank_;
  std::int64_t interleave_;
};

/// Which KV heads one rank of a tensor-parallel group holds. With more ranks than heads every head
/// is held by `replica_count` consecutive ranks (GQA replication); the same rule divides the
/// channels of recurrent state.
class HeadSharding {
 public:
  /// @throws InvalidArgumentError unless total_heads >= 1, 0 <= rank < ranks, and one of
  /// total_heads and ranks
  ///         divides the other.
  explicit HeadSharding(std::int64_t total_heads, std::int64_t ranks = 1, std::int64_t rank = 0);

  [[nodiscard]] std::int64_t total_heads() const noexcept { return total_heads_; }
  [[nodiscard]] std::int64_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::int64_t rank() const noexcept { return rank_; }

  [[nodiscard]] std::int64_t first_head() const noexcept;
  [[nodiscard]] std::int64_t head_count() const noexcept;     ///< heads on this rank
  [[nodiscard]] std::int64_t replica_count() const noexcept;  ///< ranks that hold the same heads
  [[nodiscard]] std::int64_t replica() const noexcept;        ///< which of them this rank is

  bool operator==(const HeadSharding&) const = default;

 private:
  std::int64_t total_heads_;
  std::int64_t ranks_;
  std::int64_t rank_;
};

/// The heads that one source rank writes into one destination rank.
struct HeadSlice {
  std::int64_t source_first;       ///< counted from the source rank's first head
  std::int64_t destination_first;  ///< counted from the destination rank's first head
  std::int64_t head_count;         ///< 0 < head_count

  bool operator==(const HeadSlice&) const = default;
};

/// Heads that `source` writes into `destination`, or nothing.
///
/// Every head of a destination rank has exactly one writer: of the source ranks that hold it, the
/// one whose replica number is the destination's modulo their count. A destination that holds all
/// heads is thus served by the lowest holder of each, and equal group sizes pair equal ranks.
/// @throws InvalidArgumentError if the two sides disagree on total_heads.
[[nodiscard]] std::optional<HeadSlice> shared_heads(const HeadSharding& source,
                                                    const HeadSharding& destination);

}  // namespace kvxfer
