// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "kvxfer/error.hpp"
#include "support/random_batch.hpp"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Pages = std::vector<std::int64_t>;

std::vector<std::int64_t> translated(const GatherPlan& plan, const Pages& locations) {
  std::vector<std::int64_t> rows(locations.size());
  plan.translate(plan.page_map(), locations, rows);
  return rows;
}

GatherShape shape_of(std::int64_t ranks, std::int64_t prefix_pages, std::int64_t chunk_pages) {
  return {ranks, 4, 64, prefix_pages, chunk_pages};
}

GatherPlan plan_of(const GatherShape& shape, const std::vector<Pages>& prefix,
                   const Pages& chunk = {}) {
  return GatherPlan(shape, prefix, chunk);
}

// Limits of the worked batch: 100 tokens of context in rounds of 2 * 16, chunks of 40 tokens.
const GatherLimits kWorkedLimits{2, 16, 128, 100, 8, 40};

TEST(GatherPlan, PlacesOneRequest) {
  const GatherPlan plan = plan_of(make_gather_shape(kWorkedLimits), {{50, 7, 40, 13, 56}}, {9, 60});
  EXPECT_EQ(plan.block_pages(), 3);
  EXPECT_THAT(plan.send_pages(0), ElementsAre(20, 25, 28));
  EXPECT_THAT(plan.send_pages(1), ElementsAre(3, 6, 0));
  EXPECT_THAT(plan.gathered_pages(),
              ElementsAre(GatheredPage{40, 0, 0}, GatheredPage{50, 0, 1}, GatheredPage{56, 0, 2},
                          GatheredPage{7, 1, 0}, GatheredPage{13, 1, 1}));
  EXPECT_THAT(translated(plan, {805, 121, 208, 911, 353, 147, 960, 529}),
              ElementsAre(21, 57, 64, 47, 1073, 1027, 1040, 1073));
  EXPECT_EQ(plan.page_map(), (PageMap{0, 3, 64, 67}));
}

TEST(GatherPlan, PlacesASharedPrefixOnce) {
  const GatherPlan plan =
      plan_of(make_gather_shape(kWorkedLimits), {{50, 7, 40, 13, 56}, {50, 7, 22}}, {9, 60});
  EXPECT_EQ(plan.block_pages(), 5);
  EXPECT_THAT(plan.send_pages(0), ElementsAre(11, 20, 25, 28, 0));
  EXPECT_THAT(plan.send_pages(1), ElementsAre(3, 6, 0, 0, 0));
  EXPECT_THAT(translated(plan, {805, 121, 208, 911, 353, 147, 960, 529}),
              ElementsAre(37, 89, 96, 63, 1, 1027, 1040, 1073));
}

TEST(GatherPlan, GathersAChainThatBeginsAtAnotherOwner) {
  const GatherPlan plan = plan_of(shape_of(2, 4, 0), {{1, 2, 3}});
  std::vector<std::int64_t> locations(10);
  std::iota(locations.begin(), locations.end(), 4);
  EXPECT_THAT(translated(plan, locations), ElementsAre(8, 9, 10, 11, 0, 1, 2, 3, 12, 13));
  EXPECT_THAT(plan.send_pages(0), ElementsAre(1, 0));
  EXPECT_THAT(plan.send_pages(1), ElementsAre(0, 1));
}

TEST(GatherPlan, SendsNothingWithoutAPrefix) {
  for (const std::vector<Pages>& prefix : {std::vector<Pages>{}, std::vector<Pages>{{}, {}}}) {
    const GatherPlan plan = plan_of(shape_of(4, 8, 2), prefix, {5, 4});
    EXPECT_EQ(plan.block_pages(), 0);
    EXPECT_THAT(plan.gathered_pages(), IsEmpty());
    EXPECT_THAT(plan.send_pages(3), IsEmpty());
    EXPECT_THAT(translated(plan, {4 * 5, 4 * 4 + 3, 0}), ElementsAre(32, 39, 40));
  }
}

TEST(GatherPlan, ServesOneRank) {
  const GatherPlan plan = plan_of(shape_of(1, 3, 0), {{9, 2, 5}});
  EXPECT_THAT(plan.send_pages(0), ElementsAre(2, 5, 9));
  EXPECT_THAT(translated(plan, {36, 8, 23}), ElementsAre(8, 0, 7));
}

TEST(GatherPlan, TranslatesThroughAnotherMap) {
  const GatherPlan plan = plan_of(shape_of(2, 4, 1), {{1, 2, 3}}, {8});
  const PageMap map{100, 50, 300, 400};
  std::vector<std::int64_t> rows(4);
  plan.translate(map, Pages{4, 8, 12, 32}, rows);
  EXPECT_THAT(rows, ElementsAre(600, 400, 604, 1200));
  EXPECT_EQ(plan.scratch_pages(map)[0], 400);
  EXPECT_EQ(plan.scratch_pages(map).size(), 64U);
}

TEST(GatherPlan, FillsTheRegionsToTheirLastPage) {
  EXPECT_NO_THROW(plan_of(shape_of(2, 4, 2), {{2, 3, 4, 5}}, {6, 7}));
  EXPECT_THAT([] { plan_of(shape_of(2, 2, 2), {{2, 3, 4}}); },
              ThrowsMessage<CapacityError>(HasSubstr("expected at most 1 pages in the prefix")));
  EXPECT_THAT([] { plan_of(shape_of(2, 4, 1), {}, {6, 7}); },
              ThrowsMessage<CapacityError>(HasSubstr("in the chunk region, got 2")));
}

TEST(GatherPlan, RefusesOwnersThatOverflowABlock) {
  EXPECT_THAT([] { plan_of(shape_of(2, 8, 0), {{2, 4, 6}}); },
              ThrowsMessage<CapacityError>(HasSubstr("at most 2 prefix pages of rank 0")));
  EXPECT_NO_THROW(plan_of(shape_of(2, 8, 0), {{2, 4, 6}, {3, 5, 7}}));
}

TEST(GatherPlan, RefusesPagesThatCannotBe) {
  const GatherShape shape = shape_of(2, 8, 4);
  EXPECT_THROW(plan_of(shape, {{64}}), InvalidArgumentError);
  EXPECT_THROW(plan_of(shape, {{-1}}), InvalidArgumentError);
  EXPECT_THROW(plan_of(shape, {}, {64}), InvalidArgumentError);
  EXPECT_THROW(plan_of(shape, {}, {-1}), InvalidArgumentError);
  EXPECT_THAT([&] { plan_of(shape, {{2, 3, 2}}); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("logical page 2 twice")));
  EXPECT_THROW(plan_of(shape, {{2, 3}}, {3}), InvalidArgumentError);
  EXPECT_THROW(plan_of(shape, {}, {3, 3}), InvalidArgumentError);
  EXPECT_THROW((void)plan_of(shape, {{2}}).send_pages(2), InvalidArgumentError);
  EXPECT_THROW((void)plan_of(shape, {{2}}).send_pages(-1), InvalidArgumentError);
  EXPECT_THROW(plan_of(shape_of(2, 3, 0), {}), InvalidArgumentError);
}

TEST(GatherPlan, WritesNothingForALocationOutsideThePool) {
  const GatherPlan plan = plan_of(shape_of(2, 8, 4), {{2}});
  std::vector<std::int64_t> rows{-7, -7};
  EXPECT_THROW(plan.translate(plan.page_map(), Pages{8, 256}, rows), InvalidArgumentError);
  EXPECT_THROW(plan.translate(plan.page_map(), Pages{8, -1}, rows), InvalidArgumentError);
  EXPECT_THROW(plan.translate(plan.page_map(), Pages{8}, rows), InvalidArgumentError);
  EXPECT_THAT(rows, ElementsAre(-7, -7));
}

// Positions are tried one by one, with no sorting and no table shared with the plan.
std::map<std::int64_t, std::int64_t> brute_force_places(const support::RandomBatch& batch,
                                                        std::int64_t block_pages) {
  std::set<std::int64_t> wanted;
  for (const auto& request : batch.prefix_pages)
    wanted.insert(request.begin(), request.end());
  std::map<std::int64_t, std::int64_t> places;
  const std::int64_t ranks = batch.shape.ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t next = rank * block_pages;
    for (std::int64_t local = 0; local * ranks + rank < batch.shape.logical_page_count; ++local) {
      if (wanted.count(local * ranks + rank) != 0) places[local * ranks + rank] = next++;
    }
  }
  std::int64_t next = batch.shape.prefix_region_pages;
  for (const std::int64_t page : batch.chunk_pages)
    places[page] = next++;
  return places;
}

TEST(GatherPlan, EqualsBruteForceOnRandomBatches) {
  std::int64_t shared_count = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const support::RandomBatch batch = support::BatchMaker(seed).make();
    const GatherPlan plan(batch.shape, batch.prefix_pages, batch.chunk_pages);
    std::int64_t block_pages = 0;
    std::int64_t listed_count = 0;
    for (const auto& request : batch.prefix_pages) {
      std::int64_t rest = static_cast<std::int64_t>(request.size());
      listed_count += rest;
      for (; rest > 0; rest -= batch.shape.ranks)
        ++block_pages;
    }
    ASSERT_EQ(plan.block_pages(), block_pages);
    shared_count += listed_count - static_cast<std::int64_t>(plan.gathered_pages().size());

    const auto places = brute_force_places(batch, block_pages);
    const std::int64_t trash = batch.shape.prefix_region_pages + batch.shape.chunk_region_pages;
    for (std::int64_t page = 0; page < batch.shape.logical_page_count; ++page) {
      const auto found = places.find(page);
      const std::int64_t expected = found == places.end() ? trash : found->second;
      const std::int64_t last = (page + 1) * batch.shape.page_size - 1;
      ASSERT_EQ(plan.scratch_pages(plan.page_map())[static_cast<std::size_t>(page)], expected);
      ASSERT_THAT(translated(plan, {last}),
                  ElementsAre((expected + 1) * batch.shape.page_size - 1));
    }
  }
  EXPECT_GT(shared_count, 100);
}

TEST(GatherPlan, SendsEveryPageToItsPlace) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const support::RandomBatch batch = support::BatchMaker(seed).make();
    const GatherPlan plan(batch.shape, batch.prefix_pages, batch.chunk_pages);
    // The regular gather of every rank's padded block, by logical page.
    std::vector<std::int64_t> received;
    for (std::int64_t rank = 0; rank < batch.shape.ranks; ++rank) {
      const std::vector<std::int64_t> sent = plan.send_pages(rank);
      ASSERT_EQ(static_cast<std::int64_t>(sent.size()), plan.block_pages());
      for (const std::int64_t local : sent)
        received.push_back(local * batch.shape.ranks + rank);
    }
    const std::vector<std::int64_t> places = plan.scratch_pages(plan.page_map());
    for (const auto& request : batch.prefix_pages) {
      for (const std::int64_t page : request) {
        const std::int64_t place = places[static_cast<std::size_t>(page)];
        ASSERT_EQ(received[static_cast<std::size_t>(place)], page);
      }
    }
  }
}

TEST(GatherPlan, IsTheSameForEqualTables) {
  const support::RandomBatch batch = support::BatchMaker(7).make();
  const GatherPlan plan(batch.shape, batch.prefix_pages, batch.chunk_pages);
  EXPECT_EQ(plan, GatherPlan(batch.shape, batch.prefix_pages, batch.chunk_pages));
  EXPECT_FALSE(plan == plan_of(shape_of(2, 8, 4), {{2}}));
}

}  // namespace
}  // namespace kvxfer
