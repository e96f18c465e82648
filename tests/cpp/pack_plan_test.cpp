// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/pack_plan.hpp"

#include "support/expect_error.hpp"
#include "support/random_plan.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>
#include <vector>

namespace kvxfer {
namespace {

using support::expect_error;
using support::make_relayout;

static_assert(std::is_copy_constructible_v<PackBufferLayout> &&
              std::is_nothrow_move_constructible_v<PackBufferLayout>);
static_assert(!std::is_default_constructible_v<PackBufferLayout>);
static_assert(std::equality_comparable<PackPlan> && std::equality_comparable<PackRegion>);
static_assert(std::is_trivially_copyable_v<PackRegion>);

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

std::vector<Relayout> relayouts_of(const oracle::Pool& source,
                                   const std::vector<oracle::Pool>& destinations) {
  std::vector<Relayout> relayouts;
  for (const oracle::Pool& destination : destinations)
    relayouts.push_back(make_relayout(source, destination));
  return relayouts;
}

/// Positions of the segment that both ranks hold, and its packed bytes.
std::pair<std::int64_t, std::int64_t> counted(const oracle::Pool& source,
                                              const oracle::Pool& destination,
                                              const Segment& segment) {
  const auto slices = oracle::slices_of(source, destination);
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  for (std::int64_t p = segment.begin; p < segment.end; ++p) {
    bytes += oracle::bytes_at(source, destination, slices, p);
    rows += oracle::holds(source.spec.sharding, p) && oracle::holds(destination.spec.sharding, p)
                ? 1
                : 0;
  }
  return {rows, bytes};
}

/// Forty random transfers from each seed block; one source rank of each, with all destinations.
class RandomPackBufferTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  template <class Check>
  void for_each_source(Check check) {
    for (std::uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const support::RandomPlan plan = support::random_plan(seed);
      const oracle::Pool& source = plan.sources[seed % plan.sources.size()];
      check(plan, source, relayouts_of(source, plan.destinations));
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(RandomPackBufferTest, RegionsAreEqualDisjointAndHoldTheFullestWindow) {
  for_each_source([](const support::RandomPlan& plan, const oracle::Pool& source,
                     const std::vector<Relayout>& relayouts) {
    const std::int64_t capacity = (1 + source.spec.page_count % 3) * plan.alignment_tokens;
    const PackBufferLayout layout(relayouts, capacity);
    std::int64_t most = 0;
    std::int64_t bound = 0;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < relayouts.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      most = std::max(most, oracle::max_window_bytes(source, plan.destinations[i], capacity));
      bound = std::max(bound, relayouts[i].max_segment_bytes(capacity));
      if (relayouts[i].is_empty()) {
        expect_error<InvalidArgumentError>([&] { (void)layout.region_offset_bytes(index); },
                                           {"empty", ("index " + std::to_string(i)).c_str()});
        continue;
      }
      ASSERT_EQ(layout.region_offset_bytes(index), end);
      end += layout.region_bytes();
    }
    ASSERT_EQ(layout.bytes(), end);
    ASSERT_EQ(layout.region_bytes(), bound);
    ASSERT_GE(layout.region_bytes(), most);
    ASSERT_EQ(PackBufferLayout::bytes_for(relayouts, capacity), end);
    ASSERT_EQ(layout.capacity_tokens(), capacity);
  });
}

TEST_P(RandomPackBufferTest, CapacityIsTheLargestThatFits) {
  for_each_source([](const support::RandomPlan& plan, const oracle::Pool&,
                     const std::vector<Relayout>& relayouts) {
    const std::int64_t one = PackBufferLayout::bytes_for(relayouts, plan.alignment_tokens);
    if (one == 0) return;  // nothing moves: any buffer holds everything
    for (const std::int64_t bytes : {one, one + 1, 2 * one - 1, 2 * one, 5 * one + 3}) {
      const std::int64_t capacity = PackBufferLayout::capacity_for(relayouts, bytes);
      ASSERT_EQ(capacity % plan.alignment_tokens, 0);
      ASSERT_LE(PackBufferLayout::bytes_for(relayouts, capacity), bytes);
      ASSERT_GT(PackBufferLayout::bytes_for(relayouts, capacity + plan.alignment_tokens), bytes);
    }
    expect_error<CapacityError>(
        [&] { (void)PackBufferLayout::capacity_for(relayouts, one - 1); },
        {("at least " + std::to_string(one)).c_str(), ("got " + std::to_string(one - 1)).c_str()});
  });
}

TEST_P(RandomPackBufferTest, SegmentsWithinTheCapacityFitAndCountTheirRows) {
  for_each_source([](const support::RandomPlan& plan, const oracle::Pool& source,
                     const std::vector<Relayout>& relayouts) {
    const PackBufferLayout layout(relayouts, plan.alignment_tokens);
    const auto segments = split_segments({plan.prefix, plan.end, plan.prefix, true},
                                         plan.alignment_tokens, plan.alignment_tokens);
    for (const Segment& segment : segments) {
      const PackPlan packed = layout.plan(segment);
      ASSERT_EQ(packed.segment, segment);
      for (const PackRegion& region : packed.regions) {
        ASSERT_LE(region.bytes, layout.region_bytes());
        ASSERT_EQ(region.offset_bytes, layout.region_offset_bytes(region.index));
      }
      auto region = packed.regions.begin();
      for (std::size_t i = 0; i < relayouts.size(); ++i) {
        const auto [rows, bytes] = counted(source, plan.destinations[i], segment);
        if (bytes == 0) continue;
        ASSERT_NE(region, packed.regions.end());
        ASSERT_EQ(region->index, static_cast<std::int64_t>(i));
        ASSERT_EQ(region->bytes, bytes);
        ASSERT_EQ(region->row_count, rows);
        ++region;
      }
      ASSERT_EQ(region, packed.regions.end());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(SeedBlocks, RandomPackBufferTest,
                         ::testing::Range(std::uint64_t{0}, std::uint64_t{5}));

// --- one source rank of Kimi Linear geometry, four destinations --------------------------------

oracle::Pool make_pool(std::int64_t plane_count, std::int64_t row_bytes,
                       const Sharding& sharding = Sharding()) {
  oracle::Pool pool;
  pool.spec.page_size = 64;
  pool.spec.page_count = 200;
  pool.spec.sharding = sharding;
  for (std::int64_t layer = 0; layer < plane_count; ++layer) {
    Plane plane;
    plane.layer = layer;
    plane.row_bytes = row_bytes;
    pool.spec.planes.push_back(plane);
  }
  return pool;
}

std::vector<Relayout> kimi_relayouts(std::int64_t ranks) {
  std::vector<Relayout> relayouts;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    relayouts.push_back(make_relayout(make_pool(7, 576), make_pool(7, 576, Sharding(ranks, rank))));
  return relayouts;
}

TEST(PackBufferLayout, SizesKimiLinear) {
  const PackBufferLayout layout(kimi_relayouts(4), 8192);
  EXPECT_EQ(layout.region_bytes(), 8'257'536);
  EXPECT_EQ(layout.bytes(), 33'030'144);
  EXPECT_EQ(layout.region_offset_bytes(3), 3 * 8'257'536);
  EXPECT_EQ(PackBufferLayout::capacity_for(kimi_relayouts(4), 33'030'144), 8192);
  EXPECT_EQ(PackBufferLayout::capacity_for(kimi_relayouts(4), 33'030'143), 8192 - 64);
}

TEST(PackBufferLayout, AnotherGroupSizeHasAnotherCapacity) {
  // 8,192 tokens packed for four ranks do not fit when three or six share them: one row more.
  EXPECT_EQ(PackBufferLayout::capacity_for(kimi_relayouts(3), 33'030'144), 8192 - 64);
  EXPECT_EQ(PackBufferLayout::capacity_for(kimi_relayouts(6), 33'030'144), 8192 - 64);
  EXPECT_EQ(PackBufferLayout::capacity_for(kimi_relayouts(8), 33'030'144), 8192);
}

TEST(PackBufferLayout, ASegmentThatOverflowsItsRegionIsRefused) {
  const PackBufferLayout layout(kimi_relayouts(4), 256);
  EXPECT_EQ(layout.plan({0, 256, true}).regions.size(), 4U);
  EXPECT_EQ(layout.plan({1, 257, true}).regions[0].row_count, 64);
  expect_error<CapacityError>([&] { (void)layout.plan({0, 257, true}); },
                              {"[0, 257)", "needs 262080", "258048", "capacity 256"});
  expect_error<CapacityError>([&] { (void)layout.plan({0, kMaxTokens, true}); }, {"258048"});
}

TEST(PackBufferLayout, RanksWithoutARowHaveNoRegionInThePlan) {
  const PackBufferLayout layout(kimi_relayouts(4), 256);
  EXPECT_TRUE(layout.plan({256, 256, true}).regions.empty());
  const PackPlan plan = layout.plan({256, 258, true});
  ASSERT_EQ(plan.regions.size(), 2U);
  EXPECT_EQ(plan.regions[1], (PackRegion{1, 258'048, 4032, 1}));
}

TEST(PackBufferLayout, EmptyRelayoutsTakeNoBytes) {
  std::vector<Relayout> relayouts = kimi_relayouts(2);
  oracle::Pool other = make_pool(1, 576);
  other.spec.planes[0].layer = 99;
  relayouts.insert(relayouts.begin() + 1, make_relayout(make_pool(7, 576), other));
  const PackBufferLayout layout(relayouts, 64);
  EXPECT_EQ(layout.bytes(), 2 * 32 * 4032);
  EXPECT_EQ(layout.region_offset_bytes(2), 32 * 4032);
  EXPECT_EQ(layout.plan({0, 64, true}).regions[1].index, 2);
  const std::vector<Relayout> only_empty{relayouts[1]};
  EXPECT_EQ(PackBufferLayout(only_empty, 64).bytes(), 0);
  EXPECT_EQ(PackBufferLayout::capacity_for(only_empty, 0), kMaxTokens);
}

TEST(PackBufferLayout, RefusesWhatIsOutOfRange) {
  const auto relayouts = kimi_relayouts(2);
  expect_error<InvalidArgumentError>([] { PackBufferLayout({}, 64); }, {"at least one", "none"});
  for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{-64}, std::int64_t{100}}) {
    const std::string got = "got " + std::to_string(capacity);
    expect_error<InvalidArgumentError>([&] { PackBufferLayout(relayouts, capacity); },
                                       {"alignment_tokens 64", got.c_str()});
    expect_error<InvalidArgumentError>(
        [&] { (void)PackBufferLayout::bytes_for(relayouts, capacity); },
        {"alignment_tokens 64", got.c_str()});
  }
  expect_error<InvalidArgumentError>([&] { (void)PackBufferLayout::capacity_for(relayouts, -1); },
                                     {">= 0", "got -1"});
  std::vector<Relayout> mixed = relayouts;
  mixed.push_back(make_relayout(make_pool(7, 576, Sharding(2, 0)), make_pool(7, 576)));
  expect_error<InvalidArgumentError>([&] { PackBufferLayout(mixed, 128); }, {"one source rank"});
  const PackBufferLayout layout(relayouts, 64);
  expect_error<InvalidArgumentError>([&] { (void)layout.region_offset_bytes(2); },
                                     {"[0, 2)", "got 2"});
  expect_error<InvalidArgumentError>([&] { (void)layout.region_offset_bytes(-1); },
                                     {"[0, 2)", "got -1"});
  expect_error<InvalidArgumentError>([&] { (void)layout.plan({5, 4, true}); }, {"[5, 4)"});
  expect_error<InvalidArgumentError>([&] { (void)layout.plan({0, kHuge, true}); }, {"46116860"});
  expect_error<InvalidArgumentError>([&] { PackBufferLayout(relayouts, kHuge); }, {"46116860"});
}

TEST(PackBufferLayout, BuffersBeyondInt64AreNotCountedWrong) {
  // Eight destinations that each take the most bytes a token may have.
  const oracle::Pool pool = make_pool(1, 1 << 22);
  const std::vector<Relayout> relayouts(8, make_relayout(pool, pool));
  const std::int64_t per_page = std::int64_t{8} * 64 << 22;
  EXPECT_EQ(PackBufferLayout::capacity_for(relayouts, per_page), 64);
  EXPECT_EQ(PackBufferLayout::capacity_for(relayouts, 3 * per_page + 1), 192);
  EXPECT_EQ(PackBufferLayout::capacity_for(relayouts, std::numeric_limits<std::int64_t>::max()),
            (kMaxTokens / 4) - 64);
  expect_error<CapacityError>([&] { (void)PackBufferLayout::bytes_for(relayouts, kMaxTokens); },
                              {"1099511627776 tokens"});
  expect_error<CapacityError>([&] { PackBufferLayout(relayouts, kMaxTokens); },
                              {"1099511627776 tokens"});
}

}  // namespace
}  // namespace kvxfer
