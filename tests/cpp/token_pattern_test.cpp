// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/token_pattern.hpp"

#include "support/expect_error.hpp"
#include "support/oracle.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <tuple>
#include <type_traits>
#include <vector>

namespace kvxfer {
namespace {

using support::expect_error;

static_assert(std::is_copy_constructible_v<TokenPattern> &&
              std::is_nothrow_move_constructible_v<TokenPattern>);
static_assert(!std::is_default_constructible_v<TokenPattern>);
static_assert(std::equality_comparable<TokenPattern>);

/// Positions below `end` that both ranks hold.
std::vector<std::int64_t> shared_positions(const Sharding& source, const Sharding& destination,
                                           std::int64_t end) {
  std::vector<std::int64_t> shared;
  for (std::int64_t p = 0; p < end; ++p) {
    if (oracle::holds(source, p) && oracle::holds(destination, p)) shared.push_back(p);
  }
  return shared;
}

/// Index of `position` among the tokens of `sharding`'s rank.
std::int64_t count_before(const Sharding& sharding, std::int64_t position) {
  std::int64_t count = 0;
  for (std::int64_t p = 0; p < position; ++p)
    count += oracle::holds(sharding, p) ? 1 : 0;
  return count;
}

using Case = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

/// Every pair of ranks of (N, I) -> (M, J).
class TokenPatternTest : public ::testing::TestWithParam<Case> {
 protected:
  template <class Check>
  void for_each_pair(Check check) {
    const auto [source_ranks, interleave, destination_ranks, other] = GetParam();
    for (std::int64_t r = 0; r < source_ranks; ++r) {
      for (std::int64_t q = 0; q < destination_ranks; ++q) {
        SCOPED_TRACE(testing::Message() << "ranks " << r << " -> " << q);
        check(Sharding(source_ranks, r, interleave), Sharding(destination_ranks, q, other));
      }
    }
  }
};

TEST_P(TokenPatternTest, CellsAreTheSharedTokensOfOnePeriod) {
  for_each_pair([](const Sharding& source, const Sharding& destination) {
    const TokenPattern pattern(source, destination);
    const auto shared = shared_positions(source, destination, pattern.period_tokens());
    EXPECT_EQ(pattern.period_tokens(),
              std::lcm(source.period_tokens(), destination.period_tokens()));
    EXPECT_EQ(pattern.rows_per_period(), static_cast<std::int64_t>(shared.size()));
    EXPECT_EQ(pattern.is_empty(), shared.empty());
    EXPECT_EQ(pattern.source_period_rows(), count_before(source, pattern.period_tokens()));
    EXPECT_EQ(pattern.destination_period_rows(),
              count_before(destination, pattern.period_tokens()));
    std::size_t row = 0;
    for (const TokenCell& cell : pattern.cells()) {
      ASSERT_GT(cell.length, 0);
      ASSERT_EQ(cell.row, static_cast<std::int64_t>(row));
      for (std::int64_t i = 0; i < cell.length; ++i, ++row) {
        const std::int64_t position = cell.position + i;
        ASSERT_EQ(position, shared.at(row));
        ASSERT_EQ(cell.source_index + i, count_before(source, position));
        ASSERT_EQ(cell.destination_index + i, count_before(destination, position));
      }
    }
    EXPECT_EQ(row, shared.size());
  });
}

TEST_P(TokenPatternTest, DenseMeansThatEveryHeldTokenIsShared) {
  for_each_pair([](const Sharding& source, const Sharding& destination) {
    const TokenPattern pattern(source, destination);
    bool sends_all = true;
    bool receives_all = true;
    for (std::int64_t p = 0; p < pattern.period_tokens(); ++p) {
      sends_all &= !oracle::holds(source, p) || oracle::holds(destination, p);
      receives_all &= !oracle::holds(destination, p) || oracle::holds(source, p);
    }
    EXPECT_EQ(pattern.is_source_dense(), sends_all);
    EXPECT_EQ(pattern.is_destination_dense(), receives_all);
  });
}

TEST_P(TokenPatternTest, RowsBeforeCountsSharedTokens) {
  for_each_pair([](const Sharding& source, const Sharding& destination) {
    const TokenPattern pattern(source, destination);
    std::int64_t rows = 0;
    for (std::int64_t p = 0; p <= 2 * pattern.period_tokens() + 1; ++p) {
      ASSERT_EQ(pattern.rows_before(p), rows) << p;
      rows += oracle::holds(source, p) && oracle::holds(destination, p) ? 1 : 0;
    }
  });
}

TEST_P(TokenPatternTest, MaxRowsIsTheFullestWindow) {
  for_each_pair([](const Sharding& source, const Sharding& destination) {
    const TokenPattern pattern(source, destination);
    const std::int64_t period = pattern.period_tokens();
    for (std::int64_t window = 0; window <= period + 2; ++window) {
      std::int64_t most = 0;
      for (std::int64_t begin = 0; begin < period; ++begin)
        most = std::max(most, pattern.rows_before(begin + window) - pattern.rows_before(begin));
      ASSERT_EQ(pattern.max_rows(window), most) << "window " << window;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shardings, TokenPatternTest,
                         ::testing::Values(Case{1, 1, 1, 1}, Case{1, 1, 4, 1}, Case{4, 1, 1, 1},
                                           Case{2, 1, 4, 1}, Case{4, 1, 2, 1}, Case{3, 1, 2, 1},
                                           Case{4, 1, 3, 1}, Case{4, 1, 6, 1}, Case{4, 2, 4, 2},
                                           Case{1, 1, 2, 2}, Case{2, 4, 4, 2}, Case{4, 4, 2, 4},
                                           Case{2, 2, 2, 3}, Case{3, 2, 2, 5}, Case{4, 6, 6, 4},
                                           Case{2, 3, 3, 1}, Case{1, 1, 3, 4}, Case{5, 2, 1, 1},
                                           Case{3, 1, 2, 2}));

TEST(TokenPattern, OneRankOnBothSidesIsOneCell) {
  EXPECT_EQ(TokenPattern(Sharding(1, 0, 64), Sharding(1, 0, 16)).cells(),
            (std::vector<TokenCell>{{0, 0, 0, 0, 1}}));
  EXPECT_EQ(TokenPattern(Sharding(), Sharding(2, 1, 64)).cells(),
            (std::vector<TokenCell>{{64, 0, 64, 0, 64}}));
}

TEST(TokenPattern, EqualShardingsAreOneCell) {
  const TokenPattern pattern(Sharding(2, 0, 6), Sharding(2, 0, 6));
  EXPECT_EQ(pattern.cells(), (std::vector<TokenCell>{{0, 0, 0, 0, 6}}));
}

TEST(TokenPattern, CellsThatContinueOverAGapStayApart) {
  // Rank 1 of three holds 1, 4, 7, 10; rank 0 of two holds 0, 1, 4, 5, 8, 9: both go on from 1
  // to 4.
  const TokenPattern pattern(Sharding(3, 1), Sharding(2, 0, 2));
  EXPECT_EQ(pattern.cells(), (std::vector<TokenCell>{{1, 0, 0, 1, 1}, {4, 1, 1, 2, 1}}));
}

TEST(TokenPattern, EqualPatternsCompareEqual) {
  EXPECT_EQ(TokenPattern(Sharding(), Sharding(4, 1)), TokenPattern(Sharding(), Sharding(4, 1)));
  EXPECT_NE(TokenPattern(Sharding(), Sharding(4, 1)), TokenPattern(Sharding(), Sharding(4, 2)));
}

TEST(TokenPattern, RowsOfALongRequestStayExact) {
  const TokenPattern pattern(Sharding(4, 3, 2), Sharding(6, 5, 2));
  const std::int64_t periods = kMaxTokens / pattern.period_tokens();
  EXPECT_EQ(pattern.rows_before(periods * pattern.period_tokens()),
            periods * pattern.rows_per_period());
  EXPECT_EQ(pattern.max_rows(periods * pattern.period_tokens()),
            periods * pattern.rows_per_period());
}

TEST(TokenPattern, RefusesShardingsWithoutACommonGrid) {
  expect_error<UnsupportedError>(
      [] { TokenPattern(Sharding(2, 0, (1 << 20) + 1), Sharding(2, 0, 1 << 20)); },
      {"1048576 blocks", "2097154", "2097152"});
  expect_error<UnsupportedError>(
      [] { TokenPattern(Sharding(2, 0, 1), Sharding(2, 0, std::int64_t{1} << 38)); }, {"got"});
}

TEST(TokenPattern, OneRankServesAnyInterleave) {
  // A rank that holds everything is one block, however long the other side's period is.
  const TokenPattern pattern(Sharding(), Sharding(2, 1, 1 << 22));
  EXPECT_EQ(pattern.cells(), (std::vector<TokenCell>{{1 << 22, 0, 1 << 22, 0, 1 << 22}}));
}

}  // namespace
}  // namespace kvxfer
