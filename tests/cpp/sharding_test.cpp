// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/sharding.hpp"

#include "support/expect_error.hpp"
#include "support/oracle.hpp"

#include <gtest/gtest.h>

#include <map>
#include <type_traits>
#include <vector>

namespace kvxfer {
namespace {

using support::expect_error;

static_assert(std::is_trivially_copyable_v<Sharding> && std::is_trivially_copyable_v<HeadSharding>);
static_assert(!std::is_convertible_v<std::int64_t, Sharding>);
static_assert(!std::is_convertible_v<std::int64_t, HeadSharding>);
static_assert(std::equality_comparable<Sharding> && std::equality_comparable<HeadSharding>);
static_assert(std::equality_comparable<HeadSlice>);

// --- tokens ------------------------------------------------------------------------------------

/// Groups of so many ranks.
class ShardingTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static constexpr std::int64_t kInterleaves[] = {1, 2, 3, 7};
};

TEST_P(ShardingTest, OwnerAndLocalIndexDealTokensRoundRobin) {
  for (const std::int64_t interleave : kInterleaves) {
    std::vector<std::int64_t> dealt(static_cast<std::size_t>(GetParam()), 0);
    std::int64_t position = 0;
    for (int round = 0; round < 4; ++round) {
      for (std::int64_t rank = 0; rank < GetParam(); ++rank) {
        for (std::int64_t i = 0; i < interleave; ++i, ++position) {
          const Sharding sharding(GetParam(), rank, interleave);
          std::int64_t& index = dealt[static_cast<std::size_t>(rank)];
          ASSERT_EQ(sharding.owner(position), rank) << position;
          ASSERT_EQ(sharding.local_index(position), index) << position;
          ASSERT_EQ(sharding.position(index), position);
          ++index;
        }
      }
    }
  }
}

TEST_P(ShardingTest, LocalCountCountsOwnedPositions) {
  for (const std::int64_t interleave : kInterleaves) {
    const std::int64_t last = 2 * GetParam() * interleave + 1;
    for (std::int64_t rank = 0; rank < GetParam(); ++rank) {
      const Sharding sharding(GetParam(), rank, interleave);
      for (std::int64_t begin = 0; begin <= last; ++begin) {
        std::int64_t count = 0;
        for (std::int64_t end = begin; end <= last; ++end) {
          ASSERT_EQ(sharding.local_count(begin, end), count)
              << "rank " << rank << " [" << begin << ", " << end << ")";
          count += oracle::holds(sharding, end) ? 1 : 0;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardingTest, ::testing::Values(1, 2, 3, 4, 8));

TEST(Sharding, OneRankReadsInterleaveOne) {
  EXPECT_EQ(Sharding(1, 0, 64).interleave(), 1);
  EXPECT_EQ(Sharding(1, 0, 64), Sharding());
  EXPECT_EQ(Sharding(4, 0, 64).period_tokens(), 256);
}

TEST(Sharding, EveryPartDistinguishes) {
  EXPECT_NE(Sharding(4, 1, 2), Sharding(4, 1, 1));
  EXPECT_NE(Sharding(4, 1, 2), Sharding(4, 2, 2));
  EXPECT_NE(Sharding(4, 1, 2), Sharding(5, 1, 2));
}

TEST(Sharding, RefusesWhatIsOutOfRange) {
  expect_error<InvalidArgumentError>([] { Sharding(0); }, {"ranks >= 1", "got 0"});
  expect_error<InvalidArgumentError>([] { Sharding(4, 4); }, {"[0, 4)", "got 4"});
  expect_error<InvalidArgumentError>([] { Sharding(4, -1); }, {"[0, 4)", "got -1"});
  expect_error<InvalidArgumentError>([] { Sharding(4, 0, 0); }, {"interleave >= 1", "got 0"});
  expect_error<InvalidArgumentError>([] { Sharding(1, 0, -5); }, {"interleave >= 1", "got -5"});
  const Sharding sharding(4, 1);
  expect_error<InvalidArgumentError>([&] { (void)sharding.owner(-1); }, {">= 0", "got -1"});
  expect_error<InvalidArgumentError>([&] { (void)sharding.local_index(-7); }, {">= 0", "got -7"});
  expect_error<InvalidArgumentError>([&] { (void)sharding.position(-1); }, {">= 0", "got -1"});
  expect_error<InvalidArgumentError>([&] { (void)sharding.local_count(5, 4); }, {"[5, 4)"});
  expect_error<InvalidArgumentError>([&] { (void)sharding.local_count(-1, 4); }, {"[-1, 4)"});
}

TEST(Sharding, HugeValuesDoNotOverflow) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  expect_error<InvalidArgumentError>([] { Sharding(kHuge, 0, kHuge); }, {"got 46116860184273879"});
  expect_error<InvalidArgumentError>([] { Sharding(2, 0, kHuge); }, {"ranks * interleave"});
  const Sharding sharding(4, 1, 2);
  EXPECT_EQ(sharding.owner(kHuge), 0);
  EXPECT_EQ(sharding.local_index(kHuge), kHuge / 4);
  EXPECT_EQ(sharding.local_count(0, kHuge), kHuge / 4);
  expect_error<InvalidArgumentError>([&] { (void)sharding.position(kHuge); },
                                     {"local index", "got 4611686018427387904"});
}

TEST(Sharding, PositionCoversEveryTokenUpToTheLimit) {
  const Sharding sharding(3, 2, 5);
  const std::int64_t count = sharding.local_count(0, kMaxTokens);
  const std::int64_t last = sharding.position(count - 1);
  EXPECT_LT(last, kMaxTokens);
  EXPECT_EQ(sharding.owner(last), 2);
  EXPECT_EQ(sharding.local_index(last), count - 1);
}

// --- heads -------------------------------------------------------------------------------------

class HeadShardingTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  /// Group sizes of which one divides the number of heads or the other way round.
  static std::vector<std::int64_t> group_sizes() {
    std::vector<std::int64_t> sizes;
    for (std::int64_t ranks = 1; ranks <= 2 * GetParam(); ++ranks) {
      if (GetParam() % ranks == 0 || ranks % GetParam() == 0) sizes.push_back(ranks);
    }
    return sizes;
  }
};

TEST_P(HeadShardingTest, HoldsConsecutiveHeadsAndCountsItsReplicas) {
  for (const std::int64_t ranks : group_sizes()) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const HeadSharding heads(GetParam(), ranks, rank);
      const auto held = oracle::heads_of(heads);
      ASSERT_EQ(heads.head_count(), static_cast<std::int64_t>(held.size()));
      EXPECT_EQ(heads.first_head(), held.front());
      const auto holders = oracle::holders_of(heads, held.front());
      EXPECT_EQ(heads.replica_count(), static_cast<std::int64_t>(holders.size()));
      EXPECT_EQ(holders.at(static_cast<std::size_t>(heads.replica())), rank);
    }
  }
}

TEST_P(HeadShardingTest, EveryDestinationHeadHasExactlyOneWriter) {
  for (const std::int64_t source_ranks : group_sizes()) {
    for (const std::int64_t destination_ranks : group_sizes()) {
      for (std::int64_t rank = 0; rank < destination_ranks; ++rank) {
        const HeadSharding destination(GetParam(), destination_ranks, rank);
        std::map<std::int64_t, std::int64_t> writer_of;
        for (std::int64_t from = 0; from < source_ranks; ++from) {
          const HeadSharding source(GetParam(), source_ranks, from);
          const auto slice = shared_heads(source, destination);
          if (!slice) continue;
          ASSERT_GT(slice->head_count, 0);
          for (std::int64_t i = 0; i < slice->head_count; ++i) {
            const std::int64_t head = source.first_head() + slice->source_first + i;
            ASSERT_EQ(head, destination.first_head() + slice->destination_first + i);
            ASSERT_TRUE(writer_of.emplace(head, from).second) << "head " << head << " twice";
          }
        }
        for (const std::int64_t head : oracle::heads_of(destination)) {
          ASSERT_EQ(writer_of.at(head),
                    oracle::head_writer(HeadSharding(GetParam(), source_ranks), destination, head))
              << source_ranks << " -> " << destination_ranks << ", rank " << rank;
        }
        ASSERT_EQ(writer_of.size(), oracle::heads_of(destination).size());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TotalHeads, HeadShardingTest, ::testing::Values(1, 2, 3, 4, 6, 8));

TEST(HeadSharding, EqualGroupsPairEqualRanks) {
  for (std::int64_t from = 0; from < 8; ++from) {
    for (std::int64_t to = 0; to < 8; ++to)
      EXPECT_EQ(shared_heads(HeadSharding(4, 8, from), HeadSharding(4, 8, to)).has_value(),
                from == to);
  }
}

TEST(HeadSharding, ReplicasOnBothSidesShareTheWork) {
  // 2 heads: source ranks 0..3 hold 0, 0, 1, 1; destination ranks 0..7 hold 0 x 4, 1 x 4.
  std::vector<std::int64_t> writers;
  for (std::int64_t to = 0; to < 8; ++to) {
    for (std::int64_t from = 0; from < 4; ++from) {
      if (shared_heads(HeadSharding(2, 4, from), HeadSharding(2, 8, to))) writers.push_back(from);
    }
  }
  EXPECT_EQ(writers, (std::vector<std::int64_t>{0, 1, 0, 1, 2, 3, 2, 3}));
}

TEST(HeadSharding, RefusesWhatIsOutOfRange) {
  expect_error<InvalidArgumentError>([] { HeadSharding(0); }, {"total_heads >= 1", "got 0"});
  expect_error<InvalidArgumentError>([] { HeadSharding(4, 0); }, {"ranks >= 1", "got 0"});
  expect_error<InvalidArgumentError>([] { HeadSharding(4, 2, 2); }, {"[0, 2)", "got 2"});
  expect_error<InvalidArgumentError>([] { HeadSharding(4, 2, -1); }, {"[0, 2)", "got -1"});
  expect_error<InvalidArgumentError>([] { HeadSharding(6, 4); }, {"6 heads", "4 ranks"});
  expect_error<InvalidArgumentError>([] { (void)shared_heads(HeadSharding(4), HeadSharding(8)); },
                                     {"source 4", "destination 8"});
}

TEST(HeadSharding, HugeGroupsDoNotOverflow) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  EXPECT_EQ(HeadSharding(kHuge, 2, 1).first_head(), kHuge / 2);
  EXPECT_EQ(HeadSharding(2, kHuge, kHuge - 1).first_head(), 1);
  EXPECT_EQ(HeadSharding(kHuge, kHuge, kHuge - 1).first_head(), kHuge - 1);
  const auto slice = shared_heads(HeadSharding(kHuge, 2, 1), HeadSharding(kHuge));
  ASSERT_TRUE(slice.has_value());
  EXPECT_EQ(*slice, (HeadSlice{0, kHuge / 2, kHuge / 2}));
}

}  // namespace
}  // namespace kvxfer
