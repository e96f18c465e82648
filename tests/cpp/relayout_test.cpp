// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/relayout.hpp"

#include "support/expect_error.hpp"
#include "support/random_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

namespace kvxfer {

void PrintTo(const PlanePair& pair, std::ostream* stream) {
  *stream << pair.source_plane << "+" << pair.source_offset_bytes << " -> "
          << pair.destination_plane << "+" << pair.destination_offset_bytes << " x " << pair.bytes;
}

namespace {

using support::expect_error;
using support::make_relayout;
using support::make_table;

static_assert(std::is_copy_constructible_v<Relayout> &&
              std::is_nothrow_move_constructible_v<Relayout>);
static_assert(!std::is_default_constructible_v<Relayout>);
static_assert(std::equality_comparable<Relayout> && std::equality_comparable<PlaneGroup>);
static_assert(std::is_trivially_copyable_v<PlanePair>);

std::vector<PlanePair> pairs_of(const Relayout& relayout) {
  std::vector<PlanePair> pairs;
  for (const PlaneGroup& group : relayout.groups())
    pairs.insert(pairs.end(), group.planes.begin(), group.planes.end());
  return pairs;
}

std::vector<std::int64_t> shared_positions(const oracle::Pool& source,
                                           const oracle::Pool& destination, std::int64_t begin,
                                           std::int64_t end) {
  std::vector<std::int64_t> positions;
  for (std::int64_t p = begin; p < end; ++p) {
    if (oracle::holds(source.spec.sharding, p) && oracle::holds(destination.spec.sharding, p))
      positions.push_back(p);
  }
  return positions;
}

/// Whether every token that `held` keeps in the slice's plane moves between the two.
bool is_dense(const oracle::Pool& source, const oracle::Pool& destination,
              const oracle::Slice& slice, const oracle::Pool& held, std::int64_t plane_index) {
  const std::int64_t period =
      source.spec.sharding.period_tokens() * destination.spec.sharding.period_tokens();
  for (std::int64_t p = 0; p < period; ++p) {
    if (oracle::holds(held, held.plane(plane_index), p) &&
        !oracle::moves(source, destination, slice, p))
      return false;
  }
  return oracle::row_stride(held.plane(plane_index)) == slice.bytes;
}

/// Forty random transfers from each seed block.
class RandomRelayoutTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  template <class Check>
  void for_each_plan(Check check) {
    for (std::uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      support::RandomPlan plan = support::random_plan(seed);
      check(plan);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(RandomRelayoutTest, MatchesPlanesByLayerAndKind) {
  for_each_plan([](support::RandomPlan& plan) {
    support::for_each_pair(plan, [](const oracle::Pool& source, const oracle::Pool& destination) {
      std::vector<PlanePair> expected;
      for (const oracle::Slice& s : oracle::slices_of(source, destination)) {
        expected.push_back({s.source_plane, s.destination_plane, s.source_offset_bytes,
                            s.destination_offset_bytes, s.bytes,
                            destination.plane(s.destination_plane).is_replicated});
      }
      const Relayout relayout = make_relayout(source, destination);
      ASSERT_EQ(pairs_of(relayout), expected);
      EXPECT_EQ(relayout.is_empty(), expected.empty());
      EXPECT_EQ(relayout, make_relayout(source, destination));
      EXPECT_EQ(relayout.alignment_tokens(), source.widened_page_tokens());
    });
  });
}

TEST_P(RandomRelayoutTest, RowsAreThoseOfThePositions) {
  for_each_plan([](support::RandomPlan& plan) {
    support::for_each_pair(plan, [&](const oracle::Pool& source, const oracle::Pool& destination) {
      const Relayout relayout = make_relayout(source, destination);
      const std::int64_t middle = (plan.prefix + plan.end) / 2;
      for (const auto& [begin, end] : {std::pair{plan.prefix, plan.end}, {middle, plan.end}}) {
        const auto positions = shared_positions(source, destination, begin, end);
        std::vector<std::int64_t> source_rows;
        std::vector<std::int64_t> destination_rows;
        for (const std::int64_t p : positions) {
          source_rows.push_back(oracle::row_of(source, p));
          destination_rows.push_back(oracle::row_of(destination, p));
        }
        ASSERT_EQ(relayout.positions(begin, end), positions);
        ASSERT_EQ(relayout.row_count(begin, end), static_cast<std::int64_t>(positions.size()));
        ASSERT_EQ(relayout.source_rows(begin, end, make_table(source)), source_rows);
        ASSERT_EQ(relayout.destination_rows(begin, end, make_table(destination)), destination_rows);
      }
    });
  });
}

TEST_P(RandomRelayoutTest, EveryHeldByteHasExactlyOneWriter) {
  for_each_plan([](support::RandomPlan& plan) {
    for (const oracle::Pool& destination : plan.destinations) {
      std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, int> writes;
      std::set<std::int64_t> served_layers;
      for (const oracle::Pool& source : plan.sources) {
        for (const Plane& plane : source.spec.planes)
          served_layers.insert(plane.layer);
        const Relayout relayout = make_relayout(source, destination);
        for (const PlaneGroup& group : relayout.groups()) {
          for (const PlanePair& pair : group.planes) {
            for (std::int64_t p = plan.prefix; p < plan.end; ++p) {
              if (group.pattern.rows_before(p + 1) == group.pattern.rows_before(p)) continue;
              for (std::int64_t byte = 0; byte < pair.bytes; ++byte)
                ++writes[{pair.destination_plane, p, pair.destination_offset_bytes + byte}];
            }
          }
        }
      }
      std::size_t held = 0;
      for (std::size_t i = 0; i < destination.spec.planes.size(); ++i) {
        const Plane& plane = destination.spec.planes[i];
        for (std::int64_t p = plan.prefix; p < plan.end; ++p) {
          if (!served_layers.contains(plane.layer) || !oracle::holds(destination, plane, p))
            continue;
          for (std::int64_t byte = 0; byte < plane.row_bytes; ++byte, ++held)
            ASSERT_EQ((writes[{static_cast<std::int64_t>(i), p, byte}]), 1)
                << "plane " << i << " position " << p << " byte " << byte;
        }
      }
      ASSERT_EQ(writes.size(), held);  // nothing else is written
    }
  });
}

TEST_P(RandomRelayoutTest, BytesAreThoseOfThePositions) {
  for_each_plan([](support::RandomPlan& plan) {
    support::for_each_pair(plan, [&](const oracle::Pool& source, const oracle::Pool& destination) {
      const Relayout relayout = make_relayout(source, destination);
      const auto slices = oracle::slices_of(source, destination);
      std::int64_t bytes = 0;
      for (std::int64_t end = plan.prefix; end <= plan.end; ++end) {
        ASSERT_EQ(relayout.segment_bytes(plan.prefix, end), bytes) << end;
        bytes += oracle::bytes_at(source, destination, slices, end);
      }
    });
  });
}

TEST_P(RandomRelayoutTest, FullestWindowIsFoundExactlyWherePlanesShareTheirTokens) {
  for_each_plan([](support::RandomPlan& plan) {
    const oracle::Pool& source = plan.sources.front();
    const oracle::Pool& destination = plan.destinations.back();
    const Relayout relayout = make_relayout(source, destination);
    std::int64_t sharded_groups = 0;
    for (const PlaneGroup& group : relayout.groups())
      sharded_groups += group.pattern.rows_per_period() < group.pattern.period_tokens() ? 1 : 0;
    for (const std::int64_t pages : {1, 2, 3}) {
      const std::int64_t window = pages * plan.alignment_tokens;
      const std::int64_t most = oracle::max_window_bytes(source, destination, window);
      if (sharded_groups <= 1) {
        ASSERT_EQ(relayout.max_segment_bytes(window), most) << window;
      } else {  // a bound: each group's own fullest window
        ASSERT_GE(relayout.max_segment_bytes(window), most) << window;
      }
    }
  });
}

TEST_P(RandomRelayoutTest, PackingAndUnpackingAreNeededWhereASideIsStrided) {
  for_each_plan([](support::RandomPlan& plan) {
    support::for_each_pair(plan, [](const oracle::Pool& source, const oracle::Pool& destination) {
      bool strided_source = false;
      bool strided_destination = false;
      for (const oracle::Slice& slice : oracle::slices_of(source, destination)) {
        strided_source |= !is_dense(source, destination, slice, source, slice.source_plane);
        strided_destination |=
            !is_dense(source, destination, slice, destination, slice.destination_plane);
      }
      const Relayout relayout = make_relayout(source, destination);
      ASSERT_EQ(relayout.needs_unpacking(), strided_destination);
      ASSERT_EQ(relayout.needs_packing(), strided_source || strided_destination);
    });
  });
}

INSTANTIATE_TEST_SUITE_P(SeedBlocks, RandomRelayoutTest,
                         ::testing::Range(std::uint64_t{0}, std::uint64_t{6}));

// --- what is refused, by name ------------------------------------------------------------------

Plane make_plane(std::int64_t layer, PlaneKind kind, std::int64_t row_bytes) {
  Plane plane;
  plane.layer = layer;
  plane.kind = kind;
  plane.row_bytes = row_bytes;
  return plane;
}

oracle::Pool make_pool(std::vector<Plane> planes, const Sharding& sharding = Sharding()) {
  oracle::Pool pool;
  pool.spec.page_size = 4;
  pool.spec.page_count = 8;
  pool.spec.planes = std::move(planes);
  pool.spec.sharding = sharding;
  return pool;
}

const Plane kLatentPlane = make_plane(2, PlaneKind::kLatent, 576);

template <class Change>
void expect_pair_refused(Change change, std::initializer_list<const char*> parts) {
  const oracle::Pool source = make_pool({kLatentPlane});
  oracle::Pool destination = source;
  change(destination.spec);
  expect_error<InvalidArgumentError>([&] { (void)make_relayout(source, destination); }, parts);
}

TEST(Relayout, RefusesPlanesThatDisagree) {
  expect_pair_refused([](PoolLayout::Spec& spec) { spec.planes[0].row_bytes = 288; },
                      {"layer 2, latent", "source 576", "destination 288"});
  expect_pair_refused([](PoolLayout::Spec& spec) { spec.planes[0].dtype = "float16"; },
                      {"layer 2, latent", "source uint8", "destination float16"});
  expect_pair_refused(
      [](PoolLayout::Spec& spec) {
        spec.planes[0].head_bytes = 576;
        spec.heads = HeadSharding(1);
      },
      {"layer 2, latent", "source 0", "destination 576"});
}

TEST(Relayout, RefusesHeadsOfDifferentModels) {
  oracle::Pool source = make_pool({kLatentPlane});
  source.spec.planes[0].head_bytes = 144;
  source.spec.heads = HeadSharding(4);
  oracle::Pool destination = source;
  destination.spec.heads = HeadSharding(8, 2);
  expect_error<InvalidArgumentError>([&] { (void)make_relayout(source, destination); },
                                     {"total_heads", "source 4", "destination 8"});
}

TEST(Relayout, RefusesAKindThatOneSideLacks) {
  const oracle::Pool one = make_pool({kLatentPlane});
  const oracle::Pool two = make_pool({kLatentPlane, make_plane(2, PlaneKind::kRope, 64)});
  expect_error<InvalidArgumentError>([&] { (void)make_relayout(one, two); },
                                     {"layer 2, rope", "destination only"});
  expect_error<InvalidArgumentError>([&] { (void)make_relayout(two, one); },
                                     {"layer 2, rope", "source only"});
}

TEST(Relayout, ListsLayersThatOneSideLacks) {
  const oracle::Pool one = make_pool({make_plane(0, PlaneKind::kKey, 8), kLatentPlane});
  const oracle::Pool two = make_pool({kLatentPlane, make_plane(5, PlaneKind::kKey, 8)});
  const Relayout relayout = make_relayout(one, two);
  EXPECT_THAT(relayout.unmatched_source_planes(), testing::ElementsAre(0));
  EXPECT_THAT(relayout.unmatched_destination_planes(), testing::ElementsAre(1));
  EXPECT_EQ(pairs_of(relayout), (std::vector<PlanePair>{{1, 0, 0, 0, 576, false}}));
}

TEST(Relayout, RefusesShardedRowsForAReplicatedPlane) {
  Plane replicated = kLatentPlane;
  replicated.is_replicated = true;
  const oracle::Pool source = make_pool({kLatentPlane}, Sharding(2, 0));
  const oracle::Pool destination = make_pool({replicated}, Sharding(4, 0));
  expect_error<UnsupportedError>([&] { (void)make_relayout(source, destination); },
                                 {"layer 2, latent", "2 ranks"});
  EXPECT_FALSE(make_relayout(make_pool({kLatentPlane}), destination).is_empty());
}

TEST(Relayout, RefusesMoreThanFourMebibytesAToken) {
  const oracle::Pool most = make_pool({make_plane(0, PlaneKind::kLatent, 1 << 22)});
  EXPECT_EQ(make_relayout(most, most).max_segment_bytes(kMaxTokens), std::int64_t{1} << 62);
  const oracle::Pool more =
      make_pool({make_plane(0, PlaneKind::kLatent, 1 << 22), make_plane(1, PlaneKind::kLatent, 1)});
  expect_error<UnsupportedError>([&] { (void)make_relayout(more, more); },
                                 {"at most 4194304", "got 4194305"});
}

TEST(Relayout, RefusesRangesThatAreNotOrdered) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const oracle::Pool pool = make_pool({kLatentPlane});
  const Relayout relayout = make_relayout(pool, pool);
  const auto check = [&](std::int64_t begin, std::int64_t end, const char* got) {
    const PageTable table = make_table(pool);
    expect_error<InvalidArgumentError>([&] { (void)relayout.row_count(begin, end); }, {got});
    expect_error<InvalidArgumentError>([&] { (void)relayout.positions(begin, end); }, {got});
    expect_error<InvalidArgumentError>([&] { (void)relayout.segment_bytes(begin, end); }, {got});
    expect_error<InvalidArgumentError>([&] { (void)relayout.source_rows(begin, end, table); },
                                       {got});
    expect_error<InvalidArgumentError>([&] { (void)relayout.destination_rows(begin, end, table); },
                                       {got});
  };
  check(5, 4, "got [5, 4)");
  check(-1, 4, "got [-1, 4)");
  check(0, kHuge, "got [0, 4611686018427387904)");
  expect_error<InvalidArgumentError>([&] { (void)relayout.max_segment_bytes(-1); }, {"[0, -1)"});
  expect_error<InvalidArgumentError>([&] { (void)relayout.max_segment_bytes(kHuge); },
                                     {"4611686018427387904"});
}

TEST(Relayout, RefusesAPageTableOfAnotherLayout) {
  const oracle::Pool source = make_pool({kLatentPlane});
  const oracle::Pool destination = make_pool({kLatentPlane}, Sharding(4, 1));
  const Relayout relayout = make_relayout(source, destination);
  expect_error<InvalidArgumentError>(
      [&] { (void)relayout.source_rows(0, 0, make_table(destination)); },
      {"source's layout", "rank 1 of 4 against 0 of 1"});
  expect_error<InvalidArgumentError>(
      [&] { (void)relayout.destination_rows(0, 0, make_table(source)); },
      {"destination's layout", "rank 0 of 1 against 1 of 4"});
}

/// Rows of [begin, end) of a 1 -> 2 pair whose tables hold positions [8, 24).
struct CoverageCase {
  std::int64_t begin;
  std::int64_t end;
  bool is_covered;
};

class CoverageTest : public ::testing::TestWithParam<CoverageCase> {};

TEST_P(CoverageTest, RowsOutsideTheirPagesAreRefused) {
  const auto [begin, end, is_covered] = GetParam();
  oracle::Pool source = make_pool({kLatentPlane});
  source.pages = {7, 1, 4, 2};
  source.first_position = 8;
  oracle::Pool destination = make_pool({kLatentPlane}, Sharding(2, 1));
  destination.pages = {3, 6};
  destination.first_position = 8;
  // The same pools without a common layer share positions and must not read past their pages
  // either.
  oracle::Pool other = destination;
  other.spec.planes[0].layer = 9;
  for (const oracle::Pool& target : {destination, other}) {
    const Relayout relayout = make_relayout(source, target);
    const auto source_rows = [&] {
      return relayout.source_rows(begin, end, make_table(source)).size();
    };
    const auto destination_rows = [&] {
      return relayout.destination_rows(begin, end, make_table(target)).size();
    };
    if (is_covered) {
      EXPECT_EQ(source_rows(), static_cast<std::size_t>(relayout.row_count(begin, end)));
      EXPECT_EQ(destination_rows(), static_cast<std::size_t>(relayout.row_count(begin, end)));
    } else {
      expect_error<InvalidArgumentError>(source_rows, {"source pages", "got 4 pages for [8, 24)"});
      expect_error<InvalidArgumentError>(destination_rows,
                                         {"destination pages", "got 2 pages for [8, 24)"});
    }
  }
}

// Rank 1 of 2 holds odd positions: 24 is not its row, 25 would be.
INSTANTIATE_TEST_SUITE_P(Ranges, CoverageTest,
                         ::testing::Values(CoverageCase{8, 24, true}, CoverageCase{8, 25, true},
                                           CoverageCase{8, 26, false}, CoverageCase{8, 8, true},
                                           CoverageCase{7, 24, false}, CoverageCase{0, 0, true},
                                           CoverageCase{6, 8, false},
                                           CoverageCase{400, 402, false}));

}  // namespace
}  // namespace kvxfer
