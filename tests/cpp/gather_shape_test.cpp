// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "kvxfer/error.hpp"
#include "kvxfer/sharding.hpp"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;

// Limits of the worked batch: 100 tokens of context in rounds of 2 * 16, chunks of 40 tokens.
const GatherLimits kWorkedLimits{2, 16, 128, 100, 8, 40};

TEST(PagePlacement, IsAShardingInterleavedByOnePage) {
  struct Row {
    std::int64_t location, owner, local_row;
  };
  for (const Row& row : {Row{112, 1, 48}, Row{208, 1, 96}, Row{805, 0, 405}, Row{911, 0, 463}}) {
    const Sharding sharding(2, 0, 16);
    EXPECT_EQ(sharding.owner(row.location), row.owner);
    EXPECT_EQ(sharding.local_index(row.location), row.local_row);
    EXPECT_EQ(row.location / 16 % 2, row.owner);
    EXPECT_EQ(row.location / 16 / 2, row.local_row / 16);
  }
}

TEST(PagePlacement, GivesEveryLocationItsOwnPlace) {
  std::set<std::pair<std::int64_t, std::int64_t>> places;
  std::vector<std::pair<std::int64_t, std::int64_t>> first;
  for (std::int64_t location = 0; location < 12; ++location) {
    const Sharding sharding(2, 0, 4);
    first.emplace_back(sharding.owner(location), sharding.local_index(location));
    places.insert(first.back());
  }
  EXPECT_EQ(places.size(), 12U);
  using P = std::pair<std::int64_t, std::int64_t>;
  EXPECT_THAT(first, ElementsAre(P{0, 0}, P{0, 1}, P{0, 2}, P{0, 3}, P{1, 0}, P{1, 1}, P{1, 2},
                                 P{1, 3}, P{0, 4}, P{0, 5}, P{0, 6}, P{0, 7}));
}

TEST(MakeGatherShape, RoundsEachContextBeforeMultiplying) {
  const GatherShape shape = make_gather_shape(kWorkedLimits);
  EXPECT_EQ(shape.prefix_region_pages * 16, 1024);
  EXPECT_EQ(shape.chunk_region_pages * 16, 48);
}

TEST(MakeGatherShape, HoldsEightLongContexts) {
  const GatherShape shape = make_gather_shape({2, 16, 1 << 20, 65536, 8, 4096});
  EXPECT_EQ((shape.prefix_region_pages + shape.chunk_region_pages) * 16, 528384);
}

TEST(MakeGatherShape, IsAMultipleOfTheRanks) {
  for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
    const GatherShape shape = make_gather_shape({ranks, 16, 128, 100, 3, 0});
    EXPECT_EQ(shape.prefix_region_pages % ranks, 0);
    EXPECT_GE(shape.prefix_region_pages * 16, 300);
    EXPECT_EQ(shape.chunk_region_pages, 0);
  }
}

TEST(MakeGatherShape, RefusesSizesOutOfRange) {
  EXPECT_THROW((void)make_gather_shape({0, 16, 128, 100, 8, 40}), InvalidArgumentError);
  EXPECT_THROW((void)make_gather_shape({2, 0, 128, 100, 8, 40}), InvalidArgumentError);
  EXPECT_THROW((void)make_gather_shape({2, 16, 128, -1, 8, 40}), InvalidArgumentError);
  EXPECT_THROW((void)make_gather_shape({2, 16, 128, 100, 0, 40}), InvalidArgumentError);
  EXPECT_THROW((void)make_gather_shape({2, 16, 128, 100, 8, -40}), InvalidArgumentError);
  EXPECT_THROW((void)make_gather_shape({2, 1, 128, 1LL << 31, 8, 40}), InvalidArgumentError);
}

TEST(ScratchDemand, CountsAPrefixInWholeRounds) {
  const GatherShape shape = make_gather_shape(kWorkedLimits);
  EXPECT_EQ(scratch_demand(shape, 80, 33), (ScratchDemand{6, 3}));
  EXPECT_EQ(scratch_demand(shape, 0, 0), (ScratchDemand{0, 0}));
  EXPECT_EQ(scratch_demand(shape, 1024, 48), (ScratchDemand{64, 3}));
  EXPECT_THROW((void)scratch_demand(shape, 1040, 0), CapacityError);
  EXPECT_THROW((void)scratch_demand(shape, 0, 49), CapacityError);
  EXPECT_THROW((void)scratch_demand(shape, 81, 0), InvalidArgumentError);
  EXPECT_THROW((void)scratch_demand(shape, -16, 0), InvalidArgumentError);
  EXPECT_THROW((void)scratch_demand(shape, 0, -1), InvalidArgumentError);
}

}  // namespace
}  // namespace kvxfer
