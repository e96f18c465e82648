// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/write_list.hpp"

#include "support/expect_error.hpp"
#include "support/random_plan.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <ostream>
#include <type_traits>
#include <vector>

namespace kvxfer {

void PrintTo(const Run& run, std::ostream* stream) {
  *stream << run.source << " -> " << run.destination << " x " << run.bytes;
}

namespace {

using support::expect_error;
using support::make_relayout;
using support::make_table;
using Runs = std::vector<Run>;
using Segments = std::vector<Segment>;

static_assert(std::is_trivially_copyable_v<Run> && std::is_standard_layout_v<Run>);
static_assert(std::equality_comparable<WriteList> &&
              std::is_nothrow_move_constructible_v<WriteList>);

constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

/// Numbers in place of memory: far apart, so that planes never touch by chance.
void set_addresses(oracle::Pool& pool, std::int64_t first) {
  pool.plane_addresses.clear();
  for (std::size_t i = 0; i < pool.spec.planes.size(); ++i)
    pool.plane_addresses.push_back(first + (static_cast<std::int64_t>(i) << 32));
}

Runs runs_of_segment(const WriteList& list, std::size_t segment) {
  return {list.runs.begin() + list.segment_offsets.at(segment),
          list.runs.begin() + list.segment_offsets.at(segment + 1)};
}

/// The same writes in destination order and as few runs as possible.
Runs joined(Runs runs) {
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.destination < b.destination; });
  Runs result;
  for (const Run& run : runs)
    oracle::add_row(result, 0, run);
  return result;
}

/// Forty random transfers from each seed block: every pair, cut into segments of one alignment.
class RandomWriteListTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  template <class Check>
  void for_each_pair(Check check) {
    for (std::uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      support::RandomPlan plan = support::random_plan(seed);
      const Segments segments = split_segments({plan.prefix, plan.end, plan.prefix, true},
                                               plan.alignment_tokens, plan.alignment_tokens);
      support::for_each_pair(plan, [&](oracle::Pool& source, oracle::Pool& destination) {
        set_addresses(source, std::int64_t{1} << 40);
        set_addresses(destination, std::int64_t{3} << 60);  // a peer's address: a number, no memory
        check(source, destination, segments);
      });
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(RandomWriteListTest, PackedRunsAreTheJoinedRowsOfTheRegion) {
  static constexpr std::int64_t kRegion = 1'000'000;
  for_each_pair(
      [](const oracle::Pool& source, const oracle::Pool& destination, const Segments& segments) {
        const Relayout relayout = make_relayout(source, destination);
        const WriteList list = packed_writes(relayout, segments, kRegion, make_table(destination));
        ASSERT_EQ(list.segment_offsets.size(), segments.size() + 1);
        std::int64_t bytes = 0;
        for (std::size_t i = 0; i < segments.size(); ++i) {
          ASSERT_EQ(runs_of_segment(list, i),
                    oracle::runs_of(source, destination, segments[i], kRegion));
          bytes += relayout.segment_bytes(segments[i].begin, segments[i].end);
        }
        ASSERT_EQ(list.segment_offsets.back(), static_cast<std::int64_t>(list.runs.size()));
        ASSERT_EQ(list.bytes(), bytes);
      });
}

TEST_P(RandomWriteListTest, DirectRunsAreTheJoinedRowsOfBothSides) {
  for_each_pair(
      [](const oracle::Pool& source, const oracle::Pool& destination, const Segments& segments) {
        const WriteList list = direct_writes(make_relayout(source, destination), segments,
                                             make_table(source), make_table(destination));
        ASSERT_EQ(list.segment_offsets.size(), segments.size() + 1);
        for (std::size_t i = 0; i < segments.size(); ++i)
          ASSERT_EQ(runs_of_segment(list, i), oracle::runs_of(source, destination, segments[i]));
      });
}

TEST_P(RandomWriteListTest, JoinedSegmentsAreTheUncutSend) {
  for_each_pair(
      [](const oracle::Pool& source, const oracle::Pool& destination, const Segments& segments) {
        const Relayout relayout = make_relayout(source, destination);
        const PageTable from = make_table(source);
        const PageTable to = make_table(destination);
        const Segments whole{{segments.front().begin, segments.back().end, true}};
        ASSERT_EQ(joined(direct_writes(relayout, segments, from, to).runs),
                  joined(direct_writes(relayout, whole, from, to).runs));
      });
}

TEST_P(RandomWriteListTest, LandingIsOneRunOfAllBytes) {
  for_each_pair(
      [](const oracle::Pool& source, const oracle::Pool& destination, const Segments& segments) {
        const Relayout relayout = make_relayout(source, destination);
        for (const Segment& segment : segments) {
          const std::int64_t bytes = relayout.segment_bytes(segment.begin, segment.end);
          const WriteList list = landing_write(relayout, segment, 512, std::int64_t{1} << 46);
          ASSERT_EQ(list.runs, bytes == 0 ? Runs{} : (Runs{{512, std::int64_t{1} << 46, bytes}}));
          ASSERT_EQ(list.segment_offsets, (std::vector<std::int64_t>{0, bytes == 0 ? 0 : 1}));
          ASSERT_EQ(list.bytes(), bytes);
        }
      });
}

INSTANTIATE_TEST_SUITE_P(SeedBlocks, RandomWriteListTest,
                         ::testing::Range(std::uint64_t{0}, std::uint64_t{5}));

// --- small examples ----------------------------------------------------------------------------

oracle::Pool make_pool(std::vector<std::int64_t> pages, const Sharding& sharding = Sharding(),
                       std::int64_t first_position = 0) {
  oracle::Pool pool;
  pool.spec.page_size = 2;
  pool.spec.page_count = 16;
  pool.spec.sharding = sharding;
  Plane plane;
  plane.row_bytes = 10;
  pool.spec.planes = {plane};
  pool.pages = std::move(pages);
  pool.first_position = first_position;
  pool.plane_addresses = {sharding.ranks() == 1 ? 1000 : 5000};
  return pool;
}

TEST(WriteList, ConsecutivePagesAreOneRun) {
  const oracle::Pool source = make_pool({3, 4, 5, 9});
  const oracle::Pool destination = make_pool({6, 7, 1, 2});
  const WriteList list = direct_writes(make_relayout(source, destination), Segments{{0, 8, true}},
                                       make_table(source), make_table(destination));
  EXPECT_EQ(list.runs, (Runs{{1060, 1120, 40}, {1100, 1020, 20}, {1180, 1040, 20}}));
}

TEST(WriteList, RunsNeverCrossPlanesOrSegments) {
  oracle::Pool pool = make_pool({0, 1});
  Plane next = pool.spec.planes[0];
  next.layer = 1;
  pool.spec.planes.push_back(next);
  pool.spec.page_count = 2;
  pool.plane_addresses = {1000, 1040};  // the second plane lies right behind the first
  const Relayout relayout = make_relayout(pool, pool);
  const PageTable table = make_table(pool);
  EXPECT_EQ(direct_writes(relayout, Segments{{0, 4, true}}, table, table).runs,
            (Runs{{1000, 1000, 40}, {1040, 1040, 40}}));
  const WriteList cut =
      direct_writes(relayout, Segments{{0, 2, false}, {2, 4, true}}, table, table);
  EXPECT_EQ(cut.runs,
            (Runs{{1000, 1000, 20}, {1040, 1040, 20}, {1020, 1020, 20}, {1060, 1060, 20}}));
  EXPECT_EQ(cut.segment_offsets, (std::vector<std::int64_t>{0, 2, 4}));
}

TEST(WriteList, PackedRunsBreakOnlyWhereDestinationPagesDo) {
  const oracle::Pool source = make_pool({5, 2, 6, 0});
  const oracle::Pool destination = make_pool({7, 3}, Sharding(2, 1));
  const WriteList list = packed_writes(make_relayout(source, destination), Segments{{0, 8, true}},
                                       0, make_table(destination));
  EXPECT_EQ(list.runs, (Runs{{0, 5140, 20}, {20, 5060, 20}}));
}

TEST(WriteList, SegmentsWithoutARowHaveNoRun) {
  const oracle::Pool source = make_pool({5, 2});
  const oracle::Pool destination = make_pool({7}, Sharding(4, 3));
  const Relayout relayout = make_relayout(source, destination);
  const Segments segments{{0, 0, false}, {0, 3, false}, {3, 3, false}, {3, 4, true}};
  const WriteList packed = packed_writes(relayout, segments, 0, make_table(destination));
  EXPECT_EQ(packed.segment_offsets, (std::vector<std::int64_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(packed.runs, (Runs{{0, 5140, 10}}));
  EXPECT_EQ(direct_writes(relayout, segments, make_table(source), make_table(destination)).runs,
            (Runs{{1000 + 50, 5140, 10}}));
  EXPECT_EQ(packed_writes(relayout, Segments{}, 0, make_table(destination)).segment_offsets,
            (std::vector<std::int64_t>{0}));
}

TEST(WriteList, EveryPartDistinguishes) {
  const kvxfer::Run run{1, 2, 3};
  for (const kvxfer::Run other : Runs{{1, 2, 4}, {1, 9, 3}, {0, 2, 3}})
    EXPECT_NE(run, other);
  EXPECT_NE((WriteList{{}, {0}}), (WriteList{{}, {0, 0}}));
}

// --- what is refused ---------------------------------------------------------------------------

/// Both list builders with one pair, whose tables cover positions [8, 24).
struct Builders {
  oracle::Pool source = make_pool({7, 1, 4, 2, 3, 5, 6, 0}, Sharding(), 8);
  oracle::Pool destination = make_pool({3, 6}, Sharding(4, 1), 8);
  Relayout relayout = make_relayout(source, destination);

  template <class Expected>
  void expect_both(const Segment& segment, std::initializer_list<const char*> parts) const {
    const Segments segments{{8, 16, false}, segment};
    const PageTable from = make_table(source);
    const PageTable to = make_table(destination);
    expect_error<Expected>([&] { (void)packed_writes(relayout, segments, 0, to); }, parts);
    expect_error<Expected>([&] { (void)direct_writes(relayout, segments, from, to); }, parts);
  }
};

TEST(WriteList, RefusesSegmentsThatThePagesDoNotCover) {
  const Builders builders;
  builders.expect_both<InvalidArgumentError>({8, 26, true}, {"pages", "[8, 26)", "[8, 24)"});
  builders.expect_both<InvalidArgumentError>({4, 16, true}, {"pages", "[4, 16)", "[8, 24)"});
  builders.expect_both<InvalidArgumentError>({16, 8, true}, {"got [16, 8)"});
  builders.expect_both<InvalidArgumentError>({-8, 8, true}, {"got [-8, 8)"});
  builders.expect_both<InvalidArgumentError>({8, std::int64_t{1} << 62, true}, {"461168601842738"});
}

TEST(WriteList, RefusesTablesWithoutAddressesOrOfAnotherLayout) {
  Builders builders;
  builders.destination.plane_addresses = {0};
  builders.expect_both<InvalidArgumentError>({16, 24, true}, {"base address", "destination"});
  builders.destination.plane_addresses = {5000};
  builders.destination.spec.page_count = 17;
  builders.expect_both<InvalidArgumentError>({16, 24, true}, {"destination's layout"});

  Builders other;
  other.source.plane_addresses = {0};
  const Segments segments{{8, 16, true}};
  const PageTable to = make_table(other.destination);
  expect_error<InvalidArgumentError>(
      [&] { (void)direct_writes(other.relayout, segments, make_table(other.source), to); },
      {"base address", "source"});
  other.source = make_pool({7, 1}, Sharding(2, 0), 8);
  expect_error<InvalidArgumentError>(
      [&] { (void)direct_writes(other.relayout, segments, make_table(other.source), to); },
      {"source's layout"});
}

TEST(WriteList, RefusesAddressesThatWrap) {
  const Builders builders;
  const PageTable to = make_table(builders.destination);
  const Segment segment{8, 24, true};  // 4 rows of 10 bytes
  const auto packed = [&](std::int64_t address) {
    return packed_writes(builders.relayout, Segments{segment}, address, to);
  };
  expect_error<InvalidArgumentError>([&] { (void)packed(-1); }, {"region_address", "got -1"});
  EXPECT_EQ(packed(kLast - 40).runs.front().source, kLast - 40);
  expect_error<InvalidArgumentError>([&] { (void)packed(kLast - 39); },
                                     {"region_address", "9223372036854775768"});
  const auto landing = [&](std::int64_t from, std::int64_t to_address) {
    return landing_write(builders.relayout, segment, from, to_address);
  };
  EXPECT_EQ(landing(kLast - 40, kLast - 40).bytes(), 40);
  expect_error<InvalidArgumentError>([&] { (void)landing(kLast - 39, 0); }, {"region_address"});
  expect_error<InvalidArgumentError>([&] { (void)landing(0, kLast - 39); }, {"landing_address"});
  expect_error<InvalidArgumentError>([&] { (void)landing(-1, 0); }, {"region_address -1"});
  expect_error<InvalidArgumentError>([&] { (void)landing(0, -1); }, {"landing_address -1"});
  expect_error<InvalidArgumentError>(
      [&] { (void)landing_write(builders.relayout, {24, 8, true}, 0, 0); }, {"[24, 8)"});
}

TEST(WriteList, AddressesAtTheEndOfTheAddressSpaceStayExact) {
  oracle::Pool source = make_pool({15});
  oracle::Pool destination = make_pool({15});
  const std::int64_t span = 16 * 2 * 10;
  source.plane_addresses = {kLast - span};
  destination.plane_addresses = {kLast - span};
  const WriteList list = direct_writes(make_relayout(source, destination), Segments{{0, 2, true}},
                                       make_table(source), make_table(destination));
  EXPECT_EQ(list.runs, (Runs{{kLast - 20, kLast - 20, 20}}));
}

}  // namespace
}  // namespace kvxfer
