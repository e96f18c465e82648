// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/segment.hpp"

#include "kvxfer/sharding.hpp"
#include "support/expect_error.hpp"
#include "support/oracle.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

namespace kvxfer {

void PrintTo(const Segment& segment, std::ostream* stream) {
  *stream << "[" << segment.begin << ", " << segment.end << ")" << (segment.is_final ? "F" : "");
}

namespace {

using support::expect_error;
using Segments = std::vector<Segment>;

static_assert(std::is_aggregate_v<Segment> && std::is_trivially_copyable_v<Segment>);
static_assert(std::is_aggregate_v<SendRange> && std::equality_comparable<Segment>);

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

struct Grid {
  std::int64_t alignment;
  std::optional<std::int64_t> capacity;
  std::int64_t prefix;

  /// Longest send that is tried: past the second cut.
  [[nodiscard]] std::int64_t reach() const {
    return prefix + 2 * capacity.value_or(3 * alignment) + alignment + 1;
  }
};

/// Grids of one alignment: none and up to three alignments a segment, several prefixes.
class SplitSegmentsTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  template <class Check>
  void for_each_grid(Check check) {
    for (const std::int64_t units : {0, 1, 2, 3}) {
      for (const std::int64_t prefix : {0, 1, 8, 24}) {
        SCOPED_TRACE(testing::Message() << units << " alignments, prefix " << prefix);
        check(Grid{GetParam(), units == 0 ? std::nullopt : std::optional(units * GetParam()),
                   prefix});
      }
    }
  }
};

TEST_P(SplitSegmentsTest, EqualsTheWalkOverPositions) {
  for_each_grid([](const Grid& grid) {
    for (const bool is_final : {false, true}) {
      for (std::int64_t begin = grid.prefix; begin <= grid.reach(); ++begin) {
        for (std::int64_t end = begin; end <= grid.reach(); ++end) {
          const SendRange send{begin, end, grid.prefix, is_final};
          ASSERT_EQ(split_segments(send, grid.alignment, grid.capacity),
                    oracle::split(send, grid.alignment, grid.capacity))
              << "[" << begin << ", " << end << ") final " << is_final;
        }
      }
    }
  });
}

TEST_P(SplitSegmentsTest, SendsOfARequestCoverItOnce) {
  for_each_grid([](const Grid& grid) {
    for (std::int64_t step = 1; step <= 2 * grid.alignment + 1; ++step) {
      std::int64_t covered = grid.prefix;
      std::int64_t final_count = 0;
      for (std::int64_t end = grid.prefix + step;; end += step) {
        const bool is_final = end >= grid.reach();
        const SendRange send{covered, std::min(end, grid.reach()), grid.prefix, is_final};
        for (const Segment& segment : split_segments(send, grid.alignment, grid.capacity)) {
          ASSERT_EQ(segment.begin, covered);
          ASSERT_LE(segment.end - segment.begin, grid.capacity.value_or(grid.reach()));
          ASSERT_TRUE(segment.is_final || (segment.end - grid.prefix) % grid.alignment == 0);
          covered = segment.end;
          final_count += segment.is_final ? 1 : 0;
        }
        if (is_final) break;
      }
      ASSERT_EQ(covered, grid.reach());
      ASSERT_EQ(final_count, 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Alignments, SplitSegmentsTest, ::testing::Values(1, 2, 3, 4, 8));

// --- the boundaries that every planner test covers ---------------------------------------------

constexpr std::int64_t kPage = 64;
constexpr std::int64_t kCapacity = 256;

Segments split_final(std::int64_t begin, std::int64_t end, std::int64_t prefix = 0) {
  return split_segments({begin, end, prefix, true}, kPage, kCapacity);
}

Segments split_more(std::int64_t begin, std::int64_t end, std::int64_t prefix = 0) {
  return split_segments({begin, end, prefix, false}, kPage, kCapacity);
}

TEST(SplitSegments, AnEmptyFinalSendIsOneEmptyFinalSegment) {
  EXPECT_EQ(split_final(0, 0), (Segments{{0, 0, true}}));
  EXPECT_EQ(split_final(256, 256, 256), (Segments{{256, 256, true}}));
  EXPECT_EQ(split_segments({70, 70, 0, true}, kPage, std::nullopt), (Segments{{70, 70, true}}));
}

TEST(SplitSegments, AFinalSendMayEndInsideAPage) {
  EXPECT_EQ(split_final(0, 1), (Segments{{0, 1, true}}));
  EXPECT_EQ(split_final(0, kPage - 1), (Segments{{0, kPage - 1, true}}));
  EXPECT_EQ(split_final(0, kPage), (Segments{{0, kPage, true}}));
  EXPECT_EQ(split_final(0, kPage + 1), (Segments{{0, kPage + 1, true}}));
}

TEST(SplitSegments, TheCapacityIsTheLongestSegment) {
  EXPECT_EQ(split_final(0, kCapacity), (Segments{{0, kCapacity, true}}));
  EXPECT_EQ(split_final(0, kCapacity + 1),
            (Segments{{0, kCapacity, false}, {kCapacity, kCapacity + 1, true}}));
  EXPECT_EQ(split_final(0, 2 * kCapacity).size(), 2U);
}

TEST(SplitSegments, ANonFinalSendGivesNothingBelowOneAlignment) {
  EXPECT_EQ(split_more(0, 0), Segments{});
  EXPECT_EQ(split_more(0, kPage - 1), Segments{});
  EXPECT_EQ(split_more(0, kPage), (Segments{{0, kPage, false}}));
  EXPECT_EQ(split_more(0, kPage + 1), (Segments{{0, kPage, false}}));
  EXPECT_EQ(split_more(70, 127), Segments{});
  EXPECT_EQ(split_more(70, 128), (Segments{{70, 128, false}}));
}

TEST(SplitSegments, ANonFinalSendThatEndsBeforeItsBeginGivesNothing) {
  EXPECT_EQ(split_more(512, 256, 512), Segments{});
  EXPECT_EQ(split_more(512, 0, 512), Segments{});
}

TEST(SplitSegments, TheGridStartsAtThePrefixNotAtTheBegin) {
  EXPECT_EQ(split_final(320, 900, 64),
            (Segments{{320, 576, false}, {576, 832, false}, {832, 900, true}}));
  EXPECT_EQ(split_final(384, 900, 64),
            (Segments{{384, 576, false}, {576, 832, false}, {832, 900, true}}));
  EXPECT_EQ(split_more(384, 640, 32), (Segments{{384, 544, false}, {544, 608, false}}));
}

TEST(SplitSegments, WithoutACapacityNothingIsCut) {
  EXPECT_EQ(split_segments({0, 163'840, 0, true}, kPage, std::nullopt),
            (Segments{{0, 163'840, true}}));
  EXPECT_EQ(split_segments({0, 163'841, 0, false}, kPage, std::nullopt),
            (Segments{{0, 163'840, false}}));
}

TEST(SplitSegments, RefusesRangesThatAreNotOrdered) {
  expect_error<InvalidArgumentError>([] { split_final(0, 64, -1); }, {"got prefix -1"});
  expect_error<InvalidArgumentError>([] { split_final(0, 64, 1); }, {"prefix 1", "begin 0"});
  expect_error<InvalidArgumentError>([] { split_final(64, 63); }, {"got [64, 63)"});
  expect_error<InvalidArgumentError>([] { split_final(0, -1); }, {"got [0, -1)"});
  expect_error<InvalidArgumentError>([] { split_final(0, kHuge); }, {"[0, 4611686018427387904)"});
  expect_error<InvalidArgumentError>([] { split_more(0, kHuge); }, {"[0, 4611686018427387904)"});
  expect_error<InvalidArgumentError>([] { split_final(kHuge, kHuge); }, {"4611686018427387904"});
}

TEST(SplitSegments, RefusesACapacityThatIsNotOfWholeAlignments) {
  const auto split = [](std::int64_t alignment, std::int64_t capacity) {
    return [=] { (void)split_segments({0, 64, 0, true}, alignment, capacity); };
  };
  expect_error<InvalidArgumentError>(split(0, 64), {"alignment_tokens >= 1", "got 0"});
  expect_error<InvalidArgumentError>(split(-64, 64), {"alignment_tokens >= 1", "got -64"});
  expect_error<InvalidArgumentError>(split(64, 0), {"multiple of alignment_tokens 64", "got 0"});
  expect_error<InvalidArgumentError>(split(64, -64), {"alignment_tokens 64", "got -64"});
  expect_error<InvalidArgumentError>(split(64, 8200), {"alignment_tokens 64", "got 8200"});
}

TEST(SplitSegments, HugeCapacitiesAndAlignmentsDoNotOverflow) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t capacity : {kHuge, kLast}) {
    EXPECT_EQ(split_segments({64, 900, 64, true}, 1, capacity), (Segments{{64, 900, true}}));
    EXPECT_EQ(split_segments({kMaxTokens, kMaxTokens, 0, true}, 1, capacity),
              (Segments{{kMaxTokens, kMaxTokens, true}}));
  }
  EXPECT_EQ(split_segments({64, 900, 64, false}, kLast, kLast), Segments{});
  EXPECT_EQ(split_segments({64, 900, 64, false}, kHuge, std::nullopt), Segments{});
  EXPECT_EQ(split_segments({0, kMaxTokens, 0, true}, 1, kMaxTokens - 1).size(), 2U);
}

TEST(SplitSegments, ASegmentIsItsThreeParts) {
  EXPECT_NE((Segment{0, 64, true}), (Segment{0, 64, false}));
  EXPECT_NE((Segment{0, 64, true}), (Segment{1, 64, true}));
  EXPECT_NE((Segment{0, 64, true}), (Segment{0, 65, true}));
}

}  // namespace
}  // namespace kvxfer
