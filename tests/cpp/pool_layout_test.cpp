// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/pool_layout.hpp"

#include "support/expect_error.hpp"
#include "support/oracle.hpp"
#include "support/random_plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace kvxfer {
namespace {

using support::expect_error;

static_assert(std::is_copy_constructible_v<PoolLayout> && std::is_copy_assignable_v<PoolLayout>);
static_assert(std::is_nothrow_move_constructible_v<PoolLayout>);
static_assert(!std::is_default_constructible_v<PoolLayout>);
static_assert(!std::is_convertible_v<PoolLayout::Spec, PoolLayout>);
static_assert(std::equality_comparable<PoolLayout> && std::equality_comparable<Plane>);
static_assert(std::is_aggregate_v<Plane> && std::is_aggregate_v<PoolLayout::Spec>);

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

Plane latent(std::int64_t row_bytes, std::int64_t layer = 0) {
  Plane plane;
  plane.layer = layer;
  plane.row_bytes = row_bytes;
  return plane;
}

PoolLayout::Spec spec_of(std::vector<Plane> planes, std::int64_t page_size = 4,
                         std::int64_t page_count = 10) {
  PoolLayout::Spec spec;
  spec.page_size = page_size;
  spec.page_count = page_count;
  spec.planes = std::move(planes);
  return spec;
}

/// The layout of `spec` is refused, with these parts in the message.
void expect_refused(const PoolLayout::Spec& spec, std::initializer_list<const char*> parts) {
  expect_error<InvalidArgumentError>([&] { (void)PoolLayout(spec); }, parts);
}

/// A layout of one latent plane that `change` spoiled is refused.
template <class Change>
void expect_plane_refused(Change change, std::initializer_list<const char*> parts) {
  Plane plane = latent(576, 3);
  change(plane);
  expect_refused(spec_of({plane}), parts);
}

TEST(PoolLayout, DenseStridesAreFilledIn) {
  const PoolLayout layout(spec_of({latent(576)}));
  EXPECT_EQ(layout.planes()[0].row_stride_bytes, 576);
  EXPECT_EQ(layout.planes()[0].page_stride_bytes, 4 * 576);
  EXPECT_EQ(layout.plane_bytes(0), 10 * 4 * 576);
  EXPECT_EQ(layout.plane_page_rows(0), 4);
  EXPECT_EQ(layout.widened_page_tokens(), 4);
}

TEST(PoolLayout, APageOfAReplicatedPlaneHoldsTheWidenedPage) {
  PoolLayout::Spec spec = spec_of({latent(3), latent(5, 1)});
  spec.sharding = Sharding(3, 2, 2);
  spec.planes[1].is_replicated = true;
  const PoolLayout layout(spec);
  EXPECT_EQ(layout.widened_page_tokens(), 12);
  EXPECT_EQ(layout.plane_page_rows(0), 4);
  EXPECT_EQ(layout.plane_page_rows(1), 12);
  EXPECT_EQ(layout.planes()[1].page_stride_bytes, 12 * 5);
  EXPECT_EQ(layout.plane_bytes(1), 10 * 12 * 5);
}

TEST(PoolLayout, APageStructuredArrayIsTwoPlanesOverOnePageStride) {
  Plane keys = latent(128);
  keys.kind = PlaneKind::kIndexKey;
  keys.page_stride_bytes = 8448;
  Plane scales = latent(4);
  scales.kind = PlaneKind::kIndexScale;
  scales.page_stride_bytes = 8448;
  scales.page_offset_bytes = 8192;
  const PoolLayout layout(spec_of({keys, scales}, 64, 5));
  EXPECT_EQ(layout.plane_bytes(0), 4 * 8448 + 64 * 128);
  EXPECT_EQ(layout.plane_bytes(1), 5 * 8448);
  scales.page_offset_bytes = 8193;
  expect_refused(spec_of({keys, scales}, 64, 5), {"index_scale", "8193", "got 8448"});
}

TEST(PoolLayout, RandomLayoutsSpanExactlyTheirLastRow) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    for (const oracle::Pool& pool : support::random_plan(seed).destinations) {
      const PoolLayout layout(pool.spec);
      for (std::size_t i = 0; i < pool.spec.planes.size(); ++i) {
        const Plane& plane = pool.spec.planes[i];
        const std::int64_t last_page =
            (pool.spec.page_count - 1) * oracle::page_stride(pool, plane);
        const std::int64_t last_row =
            (oracle::page_rows(pool, plane) - 1) * oracle::row_stride(plane);
        ASSERT_EQ(layout.plane_bytes(i),
                  last_page + plane.page_offset_bytes + last_row + plane.row_bytes);
      }
    }
  }
}

TEST(PoolLayout, EveryPartDistinguishes) {
  const PoolLayout layout(spec_of({latent(8)}));
  EXPECT_EQ(layout, PoolLayout(spec_of({latent(8)})));
  Plane explicit_strides = latent(8);
  explicit_strides.row_stride_bytes = 8;
  explicit_strides.page_stride_bytes = 32;
  EXPECT_EQ(layout, PoolLayout(spec_of({explicit_strides})));
  EXPECT_NE(layout, PoolLayout(spec_of({latent(9)})));
  EXPECT_NE(layout, PoolLayout(spec_of({latent(8)}, 2)));
  EXPECT_NE(layout, PoolLayout(spec_of({latent(8)}, 4, 11)));
  PoolLayout::Spec sharded = spec_of({latent(8)});
  sharded.sharding = Sharding(2, 1);
  EXPECT_NE(layout, PoolLayout(sharded));
  PoolLayout::Spec headed = spec_of({latent(8)});
  headed.heads = HeadSharding(4, 2);
  EXPECT_NE(layout, PoolLayout(headed));
}

TEST(PoolLayout, RefusesSizesBelowOne) {
  expect_refused(spec_of({latent(8)}, 0), {"page_size", "got 0"});
  expect_refused(spec_of({latent(8)}, -4), {"page_size", "got -4"});
  expect_refused(spec_of({latent(8)}, 4, 0), {"page_count >= 1", "got 0"});
  expect_refused(spec_of({latent(8)}, 4, -1), {"page_count >= 1", "got -1"});
  expect_plane_refused([](Plane& p) { p.row_bytes = 0; }, {"layer 3", "row_bytes", "got 0"});
  expect_plane_refused([](Plane& p) { p.row_bytes = -8; }, {"row_bytes", "got -8"});
  expect_plane_refused([](Plane& p) { p.layer = -1; }, {"layer >= 0", "got -1"});
  expect_plane_refused([](Plane& p) { p.row_stride_bytes = -1; }, {">= 0", "-1"});
  expect_plane_refused([](Plane& p) { p.page_stride_bytes = -2; }, {">= 0", "-2"});
  expect_plane_refused([](Plane& p) { p.page_offset_bytes = -3; }, {">= 0", "-3"});
  expect_plane_refused([](Plane& p) { p.head_bytes = -4; }, {">= 0", "-4"});
}

TEST(PoolLayout, RefusesAnInterleaveThatDoesNotDivideThePage) {
  PoolLayout::Spec spec = spec_of({latent(8)}, 4);
  spec.sharding = Sharding(2, 0, 3);
  expect_refused(spec, {"divides page_size 4", "got 3"});
  spec.sharding = Sharding(2, 0, 8);
  expect_refused(spec, {"divides page_size 4", "got 8"});
  spec.sharding = Sharding(1, 0, 3);  // one rank has no interleave
  EXPECT_EQ(PoolLayout(spec).widened_page_tokens(), 4);
}

TEST(PoolLayout, RefusesRowsThatLeaveTheirPage) {
  expect_plane_refused([](Plane& p) { p.row_stride_bytes = 575; }, {"row_bytes 576", "got 575"});
  expect_plane_refused([](Plane& p) { p.page_stride_bytes = 4 * 576 - 1; }, {"2304", "got 2303"});
  expect_plane_refused(
      [](Plane& p) {
        p.page_stride_bytes = 4 * 576;
        p.page_offset_bytes = 1;
      },
      {"page_offset_bytes 1", "got 2304"});
  Plane padded = latent(3);  // the gap behind a page's last row may be cut off
  padded.row_stride_bytes = 8;
  padded.page_stride_bytes = 3 * 8 + 3;
  EXPECT_EQ(PoolLayout(spec_of({padded})).plane_bytes(0), 9 * 27 + 27);
}

TEST(PoolLayout, RefusesAPlaneListedTwice) {
  expect_refused(spec_of({latent(8, 2), latent(9, 2)}), {"layer 2", "latent", "twice"});
  Plane rope = latent(8, 2);
  rope.kind = PlaneKind::kRope;
  EXPECT_EQ(PoolLayout(spec_of({latent(8, 2), rope})).planes().size(), 2U);
}

TEST(PoolLayout, RefusesRowsThatAreNotTheRanksHeads) {
  Plane key = latent(16);
  key.head_bytes = 8;
  PoolLayout::Spec spec = spec_of({key});
  expect_refused(spec, {"head_bytes 8", "got none"});
  spec.heads = HeadSharding(6, 2, 1);
  expect_refused(spec, {"head_count 3 * head_bytes 8", "got 16"});
  spec.heads = HeadSharding(4, 2, 1);
  EXPECT_EQ(PoolLayout(spec).heads(), HeadSharding(4, 2, 1));
}

TEST(PoolLayout, RefusesWhatWouldOverflow) {
  expect_refused(spec_of({latent(8)}, kHuge), {"page_size", "got 4611686018427387904"});
  expect_refused(spec_of({latent(8)}, 4, kHuge), {"page_count", "4611686018427387904 pages"});
  expect_refused(spec_of({latent(1 << 30)}, 1 << 20, 1 << 20), {"exceed 2^62 bytes"});
  expect_plane_refused([](Plane& p) { p.row_bytes = kHuge; }, {"2^30", "got 4611686018427387904"});
  expect_plane_refused([](Plane& p) { p.row_stride_bytes = kHuge; }, {"2^30"});
  expect_plane_refused([](Plane& p) { p.page_stride_bytes = kHuge; }, {"10 pages", "2^62"});
  expect_plane_refused([](Plane& p) { p.page_offset_bytes = kHuge; }, {"got 2304"});
  PoolLayout::Spec sharded = spec_of({latent(8)}, 4);
  sharded.sharding = Sharding(kMaxTokens, 0);
  expect_refused(sharded, {"page_size", "got 4"});
  Plane key = latent(8);
  key.head_bytes = 8;
  PoolLayout::Spec headed = spec_of({key});
  headed.heads = HeadSharding(kHuge);
  expect_refused(headed, {"head_count 4611686018427387904 * head_bytes 8", "got 8"});
}

TEST(PoolLayout, HoldsTheLargestAllowedPool) {
  const PoolLayout layout(spec_of({latent(1 << 22)}, 1, kMaxTokens));
  EXPECT_EQ(layout.plane_bytes(0), kHuge);
}

TEST(PlaneKind, NamesAreDistinctAndLowerCase) {
  std::set<std::string> names;
  for (int kind = 0; kind < 8; ++kind) {
    const std::string name(to_string(static_cast<PlaneKind>(kind)));
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string::npos) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(to_string(PlaneKind::kIndexKey), "index_key");
  expect_error<InvalidArgumentError>([] { (void)to_string(static_cast<PlaneKind>(99)); },
                                     {"PlaneKind", "got 99"});
}

}  // namespace
}  // namespace kvxfer
