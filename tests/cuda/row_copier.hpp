// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a way of copying rows must do, and the checks that hold it against the host loops byte by
// byte, guards included.

#include "scenario.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace kvxfer::test {

using Bytes = std::vector<std::byte>;

/// Copies rows between byte arrays in host memory, in whatever way is under test.
class RowCopier {
 public:
  virtual ~RowCopier() = default;
  virtual void pack(const PackBufferLayout& layout, const PackPlan& plan, const Pool& source,
                    const Bytes& source_bytes, Bytes& buffer) = 0;
  /// regions[i] is of relayouts[i].
  virtual void unpack(const std::vector<Relayout>& relayouts, const Segment& segment,
                      const std::vector<Bytes>& regions, const Pool& destination,
                      Bytes& destination_bytes) = 0;
  virtual void copy(const Relayout& relayout, const Segment& segment, const Pool& source,
                    const Bytes& source_bytes, const Pool& destination,
                    Bytes& destination_bytes) = 0;
};

inline std::vector<Bytes> fill_pools(const std::vector<Pool>& pools, std::uint64_t seed) {
  std::vector<Bytes> bytes;
  for (const Pool& pool : pools)
    bytes.push_back(random_bytes(pool.bytes, ++seed));
  return bytes;
}

/// First differing byte, or nothing; whole arrays would fill the log.
inline ::testing::AssertionResult same_bytes(const Bytes& got, const Bytes& expected) {
  if (got.size() != expected.size())
    return ::testing::AssertionFailure() << got.size() << " against " << expected.size();
  const auto [a, b] = std::mismatch(got.begin(), got.end(), expected.begin());
  if (a == got.end()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "byte " << a - got.begin() << " of " << got.size()
                                       << ": got " << int(*a) << ", expected " << int(*b);
}

inline void expect_pack_equal(RowCopier& copier, const Scenario& scenario) {
  const auto sources = fill_pools(scenario.sources(), 100);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const PackBufferLayout layout = scenario.pack_layout(s);
    const PackPlan plan = layout.plan(scenario.segment());
    Bytes expected = random_bytes(layout.bytes() + 64, 7);
    Bytes got = expected;
    pack_rows(layout, plan, scenario.sources()[s].table(sources[s].data()), expected);
    copier.pack(layout, plan, scenario.sources()[s], sources[s], got);
    EXPECT_TRUE(same_bytes(got, expected)) << "pack, source rank " << s;
  }
}

inline void expect_unpack_equal(RowCopier& copier, const Scenario& scenario) {
  const auto destinations = fill_pools(scenario.destinations(), 200);
  const Segment segment = scenario.segment();
  for (std::size_t d = 0; d < destinations.size(); ++d) {
    std::vector<Relayout> relayouts;
    std::vector<Bytes> regions;
    const Pool& pool = scenario.destinations()[d];
    Bytes expected = destinations[d];
    Bytes got = expected;
    for (std::size_t s = 0; s < scenario.sources().size(); ++s) {
      relayouts.push_back(scenario.relayout(s, d));
      regions.push_back(
          random_bytes(relayouts.back().segment_bytes(segment.begin, segment.end), 300 + s));
      unpack_rows(relayouts.back(), segment, regions.back(), pool.table(expected.data()));
    }
    copier.unpack(relayouts, segment, regions, pool, got);
    EXPECT_TRUE(same_bytes(got, expected)) << "unpack, destination rank " << d;
  }
}

inline void expect_copy_equal(RowCopier& copier, const Scenario& scenario) {
  const auto sources = fill_pools(scenario.sources(), 100);
  const auto destinations = fill_pools(scenario.destinations(), 200);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t d = 0; d < destinations.size(); ++d) {
      const Relayout relayout = scenario.relayout(s, d);
      const Pool& from = scenario.sources()[s];
      const Pool& to = scenario.destinations()[d];
      Bytes expected = destinations[d];
      Bytes got = expected;
      copy_rows(relayout, scenario.segment(), from.table(sources[s].data()),
                to.table(expected.data()));
      copier.copy(relayout, scenario.segment(), from, sources[s], to, got);
      EXPECT_TRUE(same_bytes(got, expected)) << "copy " << s << " to " << d;
    }
  }
}

inline void expect_all_equal(RowCopier& copier, const Description& description) {
  SCOPED_TRACE("seed " + std::to_string(description.seed));
  const Scenario scenario(description);
  expect_pack_equal(copier, scenario);
  expect_unpack_equal(copier, scenario);
  expect_copy_equal(copier, scenario);
}

struct NamedDescription {
  std::string name;
  Description description;
};

/// The cases that have gone wrong elsewhere, by name.
inline std::vector<NamedDescription> boundary_cases() {
  const PlaneShape latent{PlaneKind::kLatent, 576};
  std::vector<NamedDescription> cases{
      {"OneToFour", {.destination = {.ranks = 4}, .layers = 3, .end = 8192 / 8}},
      {"OneToEightWide",
       {.destination = {.ranks = 8},
        .planes = {{PlaneKind::kLatent, 1152}},
        .layers = 2,
        .end = 777}},
      {"QuantisedRows",
       {.destination = {.ranks = 4},
        .planes = {{PlaneKind::kLatent, 656}},
        .layers = 2,
        .end = 641}},
      {"NoRows", {.destination = {.ranks = 4}, .begin = 64, .end = 64}},
      {"OneRow", {.destination = {.ranks = 4}, .begin = 64, .end = 65}},
      {"OnePage", {.destination = {.ranks = 2}, .end = 64}},
      {"PageLessOne", {.destination = {.ranks = 2}, .end = 63}},
      {"PageAndOne", {.destination = {.ranks = 2}, .end = 65}},
      {"FewerTokensThanRanks", {.destination = {.ranks = 8}, .end = 3}},
      {"SameSharding", {.source = {.ranks = 2}, .destination = {.ranks = 2}}},
      {"OneByteRows",
       {.destination = {.ranks = 3},
        .planes = {{PlaneKind::kLatent, 1}},
        .layers = 3,
        .end = 1000}},
      {"OddRows",
       {.destination = {.ranks = 2}, .planes = {{PlaneKind::kLatent, 577}}, .layers = 2}},
      {"OddBases", {.destination = {.ranks = 2}, .layers = 2, .base_skew_bytes = 1}},
      {"HalfVectorBases", {.destination = {.ranks = 2}, .layers = 2, .base_skew_bytes = 8}},
      {"LongRows",
       {.destination = {.ranks = 2}, .planes = {{PlaneKind::kLatent, 50000}}, .end = 20}},
      {"LongOddRows",
       {.destination = {.ranks = 2}, .planes = {{PlaneKind::kLatent, 20001}}, .end = 20}},
      {"Interleaved",
       {.source = {.ranks = 2, .interleave = 4},
        .destination = {.ranks = 4, .interleave = 16},
        .layers = 2,
        .end = 700}},
      {"CoprimeInterleaves",
       {.source = {.ranks = 3, .interleave = 2, .page_size = 6},
        .destination = {.ranks = 2, .interleave = 3, .page_size = 9},
        .end = 500}},
      {"FourToTwo", {.source = {.ranks = 4}, .destination = {.ranks = 2}, .end = 515}},
      {"FourToOne", {.source = {.ranks = 4, .page_size = 16}, .end = 515}},
      {"PrefixInsidePage",
       {.destination = {.ranks = 4}, .prefix_tokens = 300, .begin = 333, .end = 901}},
      {"IndexPages",
       {.destination = {.ranks = 4},
        .planes = {{PlaneKind::kLatent, 656}},
        .layers = 2,
        .end = 1024,
        .has_index_pages = true}},
      {"IndexPagesOddRows",
       {.destination = {.ranks = 4},
        .planes = {{PlaneKind::kLatent, 656}},
        .layers = 2,
        .end = 1003,
        .has_index_pages = true}},
      {"Draft",
       {.destination = {.ranks = 4},
        .planes = {latent, {PlaneKind::kRope, 128, 0, true}},
        .layers = 2,
        .end = 600}},
      {"PageOfOneToken",
       {.source = {.page_size = 1},
        .destination = {.ranks = 2, .page_size = 1},
        .planes = {{PlaneKind::kLatent, 16}},
        .end = 14000}},
      {"HeadSlices",
       {.source = {.head_ranks = 2},
        .destination = {.head_ranks = 8},
        .planes = {{PlaneKind::kKey, 0, 128}, {PlaneKind::kValue, 0, 128}},
        .layers = 2,
        .total_heads = 8,
        .end = 300}},
      {"ReplicatedHeads",
       {.source = {.head_ranks = 8},
        .destination = {.head_ranks = 2},
        .planes = {{PlaneKind::kKey, 0, 64}},
        .total_heads = 4,
        .end = 130}},
      {"ManyRanks",
       {.destination = {.ranks = 40, .page_size = 4},
        .planes = {{PlaneKind::kLatent, 32}, {PlaneKind::kRope, 16, 0, true}},
        .end = 999}},
  };
  return cases;
}

}  // namespace kvxfer::test
