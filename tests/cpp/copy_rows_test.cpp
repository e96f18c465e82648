// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/copy_rows.hpp"

#include "kvxfer/write_list.hpp"
#include "support/expect_error.hpp"
#include "support/pool_memory.hpp"
#include "support/random_plan.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace kvxfer {
namespace {

using support::expect_error;
using support::make_relayout;
using support::make_table;
using support::PoolMemory;
using Bytes = std::vector<std::byte>;
using Segments = std::vector<Segment>;

constexpr std::byte kPoison{0xA5};

/// A copy of the pool with poisoned memory of its own.
struct Target {
  oracle::Pool pool;
  PoolMemory memory;

  explicit Target(const oracle::Pool& like) : pool(like), memory(pool, kPoison) {}
};

/// What the region of one pair holds after packing `segment`, by the oracle.
Bytes packed_bytes(const oracle::Pool& source, const oracle::Pool& destination,
                   const Segment& segment) {
  Bytes packed;
  for (const oracle::Slice& slice : oracle::slices_of(source, destination)) {
    for (std::int64_t p = segment.begin; p < segment.end; ++p) {
      if (!oracle::moves(source, destination, slice, p)) continue;
      const auto* row = reinterpret_cast<const std::byte*>(
          oracle::address_of(source, slice.source_plane, p) + slice.source_offset_bytes);
      packed.insert(packed.end(), row, row + slice.bytes);
    }
  }
  return packed;
}

/// Moves one request between all pools of a random plan and compares whole pools.
class RandomCopyTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  /// Calls `check(plan, segments, capacity)` for thirty plans whose source pools hold random bytes.
  template <class Check>
  void for_each_plan(Check check) {
    for (std::uint64_t seed = 30 * GetParam(); seed < 30 * (GetParam() + 1); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      support::RandomPlan plan = support::random_plan(seed);
      support::Random random(seed);
      std::vector<PoolMemory> memory;
      for (oracle::Pool& pool : plan.sources) {
        memory.emplace_back(pool, std::byte{0});
        memory.back().fill_with(random);
      }
      const std::int64_t capacity = random.between(1, 2) * plan.alignment_tokens;
      check(plan,
            split_segments({plan.prefix, plan.end, plan.prefix, true}, plan.alignment_tokens,
                           capacity),
            capacity);
      if (HasFatalFailure()) return;
    }
  }
};

/// All destinations of a plan after `move(source, destination)` for every pair.
template <class Move>
std::vector<Bytes> moved(const support::RandomPlan& plan, Move move) {
  std::vector<Bytes> result;
  for (const oracle::Pool& like : plan.destinations) {
    Target target(like);
    for (const oracle::Pool& source : plan.sources)
      move(source, target.pool);
    result.push_back(target.memory.bytes());
  }
  return result;
}

std::vector<Bytes> moved_by_oracle(const support::RandomPlan& plan) {
  return moved(plan, [&](const oracle::Pool& source, const oracle::Pool& destination) {
    oracle::execute(oracle::runs_of(source, destination, {plan.prefix, plan.end, true}));
  });
}

TEST_P(RandomCopyTest, CopiesExactlyTheRowsOfTheRequest) {
  for_each_plan([](const support::RandomPlan& plan, const Segments& segments, std::int64_t) {
    const auto copied =
        moved(plan, [&](const oracle::Pool& source, const oracle::Pool& destination) {
          for (const Segment& segment : segments)
            copy_rows(make_relayout(source, destination), segment, make_table(source),
                      make_table(destination));
        });
    ASSERT_EQ(copied, moved_by_oracle(plan));
  });
}

TEST_P(RandomCopyTest, DirectWritesLandWhereTheCopyDoes) {
  for_each_plan([](const support::RandomPlan& plan, const Segments& segments, std::int64_t) {
    const auto written =
        moved(plan, [&](const oracle::Pool& source, const oracle::Pool& destination) {
          oracle::execute(direct_writes(make_relayout(source, destination), segments,
                                        make_table(source), make_table(destination))
                              .runs);
        });
    ASSERT_EQ(written, moved_by_oracle(plan));
  });
}

TEST_P(RandomCopyTest, PackFillsTheFrontOfEachRegionAndNothingElse) {
  for_each_plan([](const support::RandomPlan& plan, const Segments& segments,
                   std::int64_t capacity) {
    for (const oracle::Pool& source : plan.sources) {
      std::vector<Relayout> relayouts;
      for (const oracle::Pool& destination : plan.destinations)
        relayouts.push_back(make_relayout(source, destination));
      const PackBufferLayout layout(relayouts, capacity);
      for (const Segment& segment : segments) {
        Bytes expected(static_cast<std::size_t>(layout.bytes()) + 3, kPoison);
        Bytes buffer = expected;
        for (std::size_t i = 0; i < relayouts.size(); ++i) {
          if (relayouts[i].is_empty()) continue;
          const Bytes packed = packed_bytes(source, plan.destinations[i], segment);
          std::copy(packed.begin(), packed.end(),
                    expected.begin() + layout.region_offset_bytes(static_cast<std::int64_t>(i)));
        }
        pack_rows(layout, layout.plan(segment), make_table(source), buffer);
        ASSERT_EQ(buffer, expected);
      }
    }
  });
}

TEST_P(RandomCopyTest, UnpackAndPackedWritesFinishWhatPackBegan) {
  for_each_plan(
      [](const support::RandomPlan& plan, const Segments& segments, std::int64_t capacity) {
        std::vector<Bytes> results[2];
        for (const bool unpacks : {false, true}) {
          results[unpacks] =
              moved(plan, [&](const oracle::Pool& source, const oracle::Pool& destination) {
                const Relayout relayout = make_relayout(source, destination);
                const PackBufferLayout layout({relayout}, capacity);
                const PageTable to = make_table(destination);
                for (const Segment& segment : segments) {
                  Bytes buffer(static_cast<std::size_t>(layout.bytes()), kPoison);
                  pack_rows(layout, layout.plan(segment), make_table(source), buffer);
                  if (unpacks) {
                    unpack_rows(relayout, segment, buffer, to);
                  } else {
                    const auto address = reinterpret_cast<std::int64_t>(buffer.data());
                    oracle::execute(packed_writes(relayout, Segments{segment}, address, to).runs);
                  }
                }
              });
        }
        ASSERT_EQ(results[true], moved_by_oracle(plan));
        ASSERT_EQ(results[false], results[true]);
      });
}

INSTANTIATE_TEST_SUITE_P(SeedBlocks, RandomCopyTest,
                         ::testing::Range(std::uint64_t{0}, std::uint64_t{5}));

// --- the boundaries that every planner test covers ---------------------------------------------

struct Boundary {
  std::int64_t ranks;
  std::int64_t prefix;
  std::int64_t tokens;
};

void PrintTo(const Boundary& boundary, std::ostream* stream) {
  *stream << boundary.ranks << " ranks, [" << boundary.prefix << ", "
          << boundary.prefix + boundary.tokens << ")";
}

oracle::Pool make_pool(std::int64_t pages, const Sharding& sharding = Sharding(),
                       std::int64_t first_position = 0) {
  oracle::Pool pool;
  pool.spec.page_size = 4;
  pool.spec.page_count = pages + 3;
  pool.spec.sharding = sharding;
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    Plane plane;
    plane.layer = layer;
    plane.row_bytes = 3 + layer;
    pool.spec.planes.push_back(plane);
  }
  for (std::int64_t page = pages; page-- > 0;)
    pool.pages.push_back(page + 2);
  pool.first_position = first_position;
  return pool;
}

class BoundaryTest : public ::testing::TestWithParam<Boundary> {};

TEST_P(BoundaryTest, EveryTokenArrivesOnItsOwner) {
  const auto [ranks, prefix, tokens] = GetParam();
  oracle::Pool source = make_pool((prefix + tokens) / 4 + 1);
  PoolMemory memory(source, std::byte{0});
  support::Random random(7);
  memory.fill_with(random);
  constexpr std::int64_t kCapacity = 16;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const oracle::Pool like = make_pool(tokens / (4 * ranks) + 1, Sharding(ranks, rank), prefix);
    Target actual(like);
    Target expected(like);
    const Relayout relayout = make_relayout(source, like);
    const PackBufferLayout layout({relayout}, kCapacity);
    Bytes buffer(static_cast<std::size_t>(layout.bytes()));
    for (const Segment& segment :
         split_segments({prefix, prefix + tokens, prefix, true}, 4, kCapacity)) {
      pack_rows(layout, layout.plan(segment), make_table(source), buffer);
      unpack_rows(relayout, segment, buffer, make_table(actual.pool));
    }
    oracle::execute(oracle::runs_of(source, expected.pool, {prefix, prefix + tokens, true}));
    ASSERT_EQ(actual.memory.bytes(), expected.memory.bytes()) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokens, BoundaryTest,
    ::testing::Values(Boundary{4, 0, 0}, Boundary{4, 0, 1}, Boundary{4, 0, 2}, Boundary{8, 0, 3},
                      Boundary{4, 0, 3}, Boundary{4, 0, 4}, Boundary{4, 0, 5}, Boundary{4, 0, 15},
                      Boundary{4, 0, 16}, Boundary{4, 0, 17}, Boundary{4, 0, 63},
                      Boundary{1, 0, 17}, Boundary{1, 8, 5}, Boundary{2, 8, 0}, Boundary{2, 8, 1},
                      Boundary{2, 16, 33}, Boundary{3, 24, 37}, Boundary{4, 48, 16}));

// --- what is refused, and before a byte moves --------------------------------------------------

/// 1 -> 4, eight tokens; the source is filled, the target poisoned.
struct Pair {
  oracle::Pool source = make_pool(2);
  PoolMemory memory{source, std::byte{7}};
  Target target{make_pool(1, Sharding(4, 1))};
  Relayout relayout = make_relayout(source, target.pool);
  PackBufferLayout layout{{make_relayout(source, make_pool(1, Sharding(4, 0))), relayout}, 8};
  Segment segment{0, 8, true};
  Bytes buffer = Bytes(static_cast<std::size_t>(layout.bytes()), kPoison);

  [[nodiscard]] bool is_untouched() const {
    const auto is_poison = [](std::byte byte) { return byte == kPoison; };
    return std::all_of(buffer.begin(), buffer.end(), is_poison) &&
           std::all_of(target.memory.bytes().begin(), target.memory.bytes().end(), is_poison);
  }
};

TEST(PackRows, RefusesABufferThatEndsInsideTheLastRegion) {
  Pair pair;
  const PackPlan plan = pair.layout.plan(pair.segment);
  const std::span<std::byte> cut(pair.buffer.data(), pair.buffer.size() - 1);
  expect_error<CapacityError>([&] { pack_rows(pair.layout, plan, make_table(pair.source), cut); },
                              {"at least 28 bytes", "got 27"});
  EXPECT_TRUE(pair.is_untouched());
}

TEST(PackRows, RefusesAPlanOfAnotherLayout) {
  Pair pair;
  const PageTable table = make_table(pair.source);
  const auto pack = [&](const PackPlan& plan) {
    return [&] { pack_rows(pair.layout, plan, table, pair.buffer); };
  };
  PackPlan moved_region = pair.layout.plan(pair.segment);
  moved_region.regions[1].offset_bytes -= 1;
  expect_error<InvalidArgumentError>(pack(moved_region), {"region 1", "at 13", "at 14"});
  PackPlan longer = pair.layout.plan(pair.segment);
  longer.segment.end = 4;
  expect_error<InvalidArgumentError>(pack(longer), {"14 bytes", "7 bytes"});
  PackPlan unknown = pair.layout.plan(pair.segment);
  unknown.regions[1].index = 2;
  expect_error<InvalidArgumentError>(pack(unknown), {"[0, 2)", "got 2"});
  EXPECT_TRUE(pair.is_untouched());
}

TEST(PackRows, RefusesARegionThatRunsIntoItsNeighbour) {
  oracle::Pool source = make_pool(4);
  const PoolMemory memory(source, std::byte{7});
  const PackBufferLayout layout({make_relayout(source, make_pool(1, Sharding(4, 0))),
                                 make_relayout(source, make_pool(1, Sharding(4, 1)))},
                                8);
  Bytes buffer(1000, kPoison);
  const PackPlan plan{{0, 16, true}, {{0, 0, 28, 4}}};  // the whole buffer would take it
  expect_error<CapacityError>([&] { pack_rows(layout, plan, make_table(source), buffer); },
                              {"region of at least 28 bytes", "14 bytes"});
  EXPECT_EQ(buffer, Bytes(1000, kPoison));
}

TEST(PackRows, RefusesASourceThatIsNotTheLayouts) {
  Pair pair;
  const PackPlan plan = pair.layout.plan(pair.segment);
  const auto pack = [&](const oracle::Pool& source) {
    return [&, table = make_table(source)] { pack_rows(pair.layout, plan, table, pair.buffer); };
  };
  oracle::Pool planned = pair.source;
  planned.plane_addresses = {};
  expect_error<InvalidArgumentError>(pack(planned), {"base address", "source"});
  oracle::Pool shorter = pair.source;
  shorter.pages.pop_back();
  expect_error<InvalidArgumentError>(pack(shorter), {"source pages", "[0, 8)", "[0, 4)"});
  expect_error<InvalidArgumentError>(pack(pair.target.pool), {"source's layout"});
  EXPECT_TRUE(pair.is_untouched());
}

TEST(UnpackRows, RefusesWhatDoesNotFit) {
  Pair pair;
  const Bytes region(14, std::byte{7});
  const auto unpack = [&](const oracle::Pool& pool, const Segment& segment, std::size_t bytes) {
    return [&, segment, bytes, table = make_table(pool)] {
      unpack_rows(pair.relayout, segment, std::span(region).first(bytes), table);
    };
  };
  expect_error<CapacityError>(unpack(pair.target.pool, pair.segment, 13),
                              {"at least 14 bytes", "[0, 8)", "got 13"});
  oracle::Pool planned = pair.target.pool;
  planned.plane_addresses = {};
  expect_error<InvalidArgumentError>(unpack(planned, pair.segment, 14),
                                     {"base address", "destination"});
  oracle::Pool shorter = pair.target.pool;
  shorter.pages.clear();
  expect_error<InvalidArgumentError>(unpack(shorter, pair.segment, 14), {"destination pages"});
  expect_error<InvalidArgumentError>(unpack(pair.source, pair.segment, 14),
                                     {"destination's layout"});
  expect_error<InvalidArgumentError>(unpack(pair.target.pool, {8, 0, true}, 14), {"[8, 0)"});
  EXPECT_TRUE(pair.is_untouched());
}

TEST(CopyRows, RefusesEitherSide) {
  Pair pair;
  const auto copy = [&](const oracle::Pool& source, const oracle::Pool& destination,
                        const Segment& segment) {
    return [&, segment, from = make_table(source), to = make_table(destination)] {
      copy_rows(pair.relayout, segment, from, to);
    };
  };
  const oracle::Pool& source = pair.source;
  const oracle::Pool& destination = pair.target.pool;
  oracle::Pool planned = source;
  planned.plane_addresses = {};
  expect_error<InvalidArgumentError>(copy(planned, destination, pair.segment), {"source plane"});
  planned = destination;
  planned.plane_addresses = {};
  expect_error<InvalidArgumentError>(copy(source, planned, pair.segment), {"destination plane"});
  oracle::Pool shorter = source;
  shorter.pages.pop_back();
  expect_error<InvalidArgumentError>(copy(shorter, destination, pair.segment), {"source pages"});
  shorter = destination;
  shorter.pages.clear();
  expect_error<InvalidArgumentError>(copy(source, shorter, pair.segment), {"destination pages"});
  expect_error<InvalidArgumentError>(copy(destination, destination, pair.segment),
                                     {"source's layout"});
  expect_error<InvalidArgumentError>(copy(source, source, pair.segment), {"destination's layout"});
  expect_error<InvalidArgumentError>(copy(source, destination, {-4, 4, true}), {"[-4, 4)"});
  EXPECT_TRUE(pair.is_untouched());
}

}  // namespace
}  // namespace kvxfer
