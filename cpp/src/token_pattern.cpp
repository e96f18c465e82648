// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/error.hpp>
#include <kvxfer/token_pattern.hpp>

#include <algorithm>
#include <numeric>

namespace kvxfer {

namespace {

constexpr std::int64_t kMaxCells = std::int64_t{1} << 20;

/// One side's ownership over a common period: blocks of `length` tokens at `first`, `first + step`,
/// ...
struct OwnedBlocks {
  std::int64_t first;
  std::int64_t step;
  std::int64_t length;

  // One rank owns everything; its stored interleave of 1 would cut the period into single tokens
  // for nothing.
  OwnedBlocks(const Sharding& sharding, std::int64_t period_tokens)
      : first(sharding.ranks() == 1 ? 0 : sharding.rank() * sharding.interleave()),
        step(sharding.ranks() == 1 ? period_tokens : sharding.period_tokens()),
        length(sharding.ranks() == 1 ? period_tokens : sharding.interleave()) {}

  [[nodiscard]] std::int64_t begin(std::int64_t block) const { return first + block * step; }
  [[nodiscard]] std::int64_t end(std::int64_t block) const { return begin(block) + length; }
  [[nodiscard]] std::int64_t local_index(std::int64_t block, std::int64_t position) const {
    return block * length + position - begin(block);
  }
};

}  // namespace

TokenPattern::TokenPattern(const Sharding& source, const Sharding& destination) {
  const std::int64_t source_period = source.period_tokens();
  const std::int64_t destination_period = destination.period_tokens();
  const std::int64_t common = std::gcd(source_period, destination_period);
  const std::int64_t step = source_period / common;
  const std::int64_t source_blocks = source.ranks() == 1 ? 1 : destination_period / common;
  const std::int64_t destination_blocks = destination.ranks() == 1 ? 1 : step;
  if (step > kMaxTokens / destination_period || source_blocks > kMaxCells ||
      destination_blocks > kMaxCells) {
    throw UnsupportedError(detail::message("expected shardings that repeat together within ",
                                           kMaxCells, " blocks, got periods of ", source_period,
                                           " and ", destination_period, " tokens"));
  }
  period_tokens_ = step * destination_period;
  source_period_rows_ = period_tokens_ / source.ranks();
  destination_period_rows_ = period_tokens_ / destination.ranks();

  const OwnedBlocks from(source, period_tokens_);
  const OwnedBlocks to(destination, period_tokens_);
  for (std::int64_t i = 0, j = 0; from.begin(i) < period_tokens_ && to.begin(j) < period_tokens_;) {
    const std::int64_t begin = std::max(from.begin(i), to.begin(j));
    const std::int64_t end = std::min(from.end(i), to.end(j));
    if (begin < end) {
      cells_.push_back({begin, rows_per_period_, from.local_index(i, begin),
                        to.local_index(j, begin), end - begin});
      rows_per_period_ += end - begin;
    }
    if (from.end(i) < to.end(j)) {
      ++i;
    } else {
      ++j;
    }
  }
}

std::int64_t TokenPattern::rows_before(std::int64_t position) const noexcept {
  if (is_empty()) return 0;
  const std::int64_t in_period = position % period_tokens_;
  const auto next =
      std::upper_bound(cells_.begin(), cells_.end(), in_period,
                       [](std::int64_t p, const TokenCell& cell) { return p < cell.position; });
  std::int64_t rows = position / period_tokens_ * rows_per_period_;
  if (next != cells_.begin()) {
    const TokenCell& cell = *(next - 1);
    rows += cell.row + std::min(cell.length, in_period - cell.position);
  }
  return rows;
}

std::int64_t TokenPattern::max_rows(std::int64_t window_tokens) const noexcept {
  if (is_empty()) return 0;
  const std::int64_t rest = window_tokens % period_tokens_;
  // A fullest window can be moved forward to the start of its first cell without losing a token.
  std::int64_t most = 0;
  for (const TokenCell& cell : cells_) {
    most = std::max(most, rows_before(cell.position + rest) - rows_before(cell.position));
  }
  return window_tokens / period_tokens_ * rows_per_period_ + most;
}

}  // namespace kvxfer
