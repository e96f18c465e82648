// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which tokens one source rank and one destination rank share. Ownership on both sides is periodic,
// so the shared tokens repeat every W = lcm(source period, destination period) positions; one
// period is cut into cells in which both local indices rise by one.

#include <kvxfer/sharding.hpp>

#include <cstdint>
#include <vector>

namespace kvxfer {

/// A stretch of shared tokens of one period, contiguous on both sides. All offsets count from the
/// period's start.
struct TokenCell {
  std::int64_t position;           ///< first position
  std::int64_t row;                ///< shared tokens before it
  std::int64_t source_index;       ///< local index on the source rank
  std::int64_t destination_index;  ///< local index on the destination rank
  std::int64_t length;             ///< tokens

  bool operator==(const TokenCell&) const = default;
};

/// The tokens that a pair of ranks shares, numbered 0, 1, ... in position order from position 0:
/// the pair's rows.
///
/// Row `k` lies in period `k / rows_per_period()`; one period later the source-local index has
/// grown by source_period_rows() and the destination-local one by destination_period_rows().
class TokenPattern {
 public:
  /// @throws UnsupportedError when one period needs more than 2^20 cells (interleaves that have no
  /// common grid).
  TokenPattern(const Sharding& source, const Sharding& destination);

  [[nodiscard]] bool is_empty() const noexcept { return rows_per_period_ == 0; }
  [[nodiscard]] std::int64_t period_tokens() const noexcept { return period_tokens_; }
  [[nodiscard]] std::int64_t rows_per_period() const noexcept { return rows_per_period_; }
  [[nodiscard]] std::int64_t source_period_rows() const noexcept { return source_period_rows_; }
  [[nodiscard]] std::int64_t destination_period_rows() const noexcept {
    return destination_period_rows_;
  }
  [[nodiscard]] const std::vector<TokenCell>& cells() const noexcept { return cells_; }

  /// The source rank sends every token that it holds to this destination: local index == row.
  [[nodiscard]] bool is_source_dense() const noexcept {
    return rows_per_period_ == source_period_rows_;
  }
  /// The destination rank receives every token that it holds from this source: local index == row.
  [[nodiscard]] bool is_destination_dense() const noexcept {
    return rows_per_period_ == destination_period_rows_;
  }

  /// Shared tokens in [0, position).
  [[nodiscard]] std::int64_t rows_before(std::int64_t position) const noexcept;

  /// Most shared tokens that any `window_tokens` consecutive positions hold.
  [[nodiscard]] std::int64_t max_rows(std::int64_t window_tokens) const noexcept;

  bool operator==(const TokenPattern&) const = default;

 private:
  std::int64_t period_tokens_ = 0;
  std::int64_t rows_per_period_ = 0;
  std::int64_t source_period_rows_ = 0;
  std::int64_t destination_period_rows_ = 0;
  std::vector<TokenCell> cells_;
};

}  // namespace kvxfer
