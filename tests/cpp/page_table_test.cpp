// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/page_table.hpp"

#include "support/expect_error.hpp"
#include "support/random_plan.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

namespace kvxfer {
namespace {

using support::expect_error;

static_assert(std::is_copy_constructible_v<PageTable> &&
              std::is_nothrow_move_constructible_v<PageTable>);
static_assert(!std::is_default_constructible_v<PageTable>);

std::shared_ptr<const PoolLayout> make_layout(std::int64_t page_count,
                                              const Sharding& sharding = Sharding()) {
  PoolLayout::Spec spec;
  spec.page_size = 4;
  spec.page_count = page_count;
  spec.sharding = sharding;
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    Plane plane;
    plane.layer = layer;
    plane.row_bytes = 8;
    spec.planes.push_back(plane);
  }
  return std::make_shared<const PoolLayout>(spec);
}

TEST(PageTable, CoversItsPagesFromTheFirstPosition) {
  const PageTable table(make_layout(10, Sharding(3, 1, 2)), {7, 3}, 24);
  EXPECT_EQ(table.first_position(), 24);
  EXPECT_EQ(table.end_position(), 24 + 2 * 12);
  EXPECT_EQ(std::vector<std::int64_t>(table.pages().begin(), table.pages().end()),
            (std::vector<std::int64_t>{7, 3}));
  EXPECT_EQ(PageTable(make_layout(10), {}).end_position(), 0);
}

TEST(PageTable, KeepsItsLayoutAlive) {
  auto layout = make_layout(10);
  const std::weak_ptr<const PoolLayout> watch = layout;
  {
    const PageTable table(std::move(layout), {1});
    ASSERT_FALSE(watch.expired());
    EXPECT_EQ(table.layout().page_count(), 10);
  }
  EXPECT_TRUE(watch.expired());
}

TEST(PageTable, HasMemoryOnlyWithAnAddressForEveryPlane) {
  EXPECT_FALSE(PageTable(make_layout(10), {1}).has_memory());
  EXPECT_FALSE(PageTable(make_layout(10), {1}, 0, {4096, 0}).has_memory());
  const PageTable table(make_layout(10), {1}, 0, {4096, 8192});
  EXPECT_TRUE(table.has_memory());
  EXPECT_EQ(table.plane_addresses()[1], 8192);
  EXPECT_EQ(PageTable(make_layout(10), {1}).plane_addresses().size(), 2U);
}

TEST(PageTable, RefusesPagesOutsideThePool) {
  expect_error<InvalidArgumentError>([] { PageTable(make_layout(10), {1, 10}); },
                                     {"[0, 10)", "pages[1] = 10"});
  expect_error<InvalidArgumentError>([] { PageTable(make_layout(10), {-1}); },
                                     {"[0, 10)", "pages[0] = -1"});
  expect_error<InvalidArgumentError>([] { PageTable(make_layout(10), {std::int64_t{1} << 62}); },
                                     {"[0, 10)", "4611686018427387904"});
}

// Small pools are searched with a bitmap, large ones by sorting: both sides of the border.
class RepeatedPageTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(RepeatedPageTest, IsRefusedWhereverItStands) {
  const std::int64_t page_count = GetParam();
  const auto layout = make_layout(page_count);
  support::Random random(static_cast<std::uint64_t>(page_count));
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> pages;
    const std::int64_t stride = std::max<std::int64_t>(1, page_count / 40);
    for (std::int64_t page = random.between(0, stride - 1); page < page_count; page += stride)
      pages.push_back(page);
    random.shuffle(pages);
    EXPECT_NO_THROW(PageTable(layout, pages));
    const auto last = static_cast<std::int64_t>(pages.size()) - 1;
    const std::int64_t twin = pages[static_cast<std::size_t>(random.between(0, last))];
    pages.insert(pages.begin() + random.between(0, last), twin);
    if (pages.size() > static_cast<std::size_t>(page_count) + 1) continue;
    expect_error<InvalidArgumentError>([&] { PageTable(layout, pages); },
                                       {("page " + std::to_string(twin) + " twice").c_str()});
  }
}

INSTANTIATE_TEST_SUITE_P(PageCounts, RepeatedPageTest,
                         ::testing::Values(2, 40, 63, 64, 65, 128, 5000, 1 << 20, 1 << 30));

TEST(PageTable, RefusesAFirstPositionInsideAWidenedPage) {
  const auto layout = make_layout(10, Sharding(2, 0));
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, 12); },
                                     {"page_size 4 * ranks 2 = 8", "got 12"});
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, -8); }, {"got -8"});
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, std::int64_t{1} << 62); },
                                     {"got 4611686018427387904"});
  EXPECT_EQ(PageTable(layout, {1}, kMaxTokens).end_position(), kMaxTokens + 8);
}

TEST(PageTable, RefusesAddressesThatAreMissingOrWrap) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  const auto layout = make_layout(10);
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, 0, {4096}); },
                                     {"each of 2 planes", "got 1"});
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, 0, {1, 2, 3}); },
                                     {"each of 2 planes", "got 3"});
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, 0, {4096, -1}); },
                                     {"plane_addresses[1]", "got -1"});
  expect_error<InvalidArgumentError>([&] { PageTable(layout, {1}, 0, {kLast - 319, 4096}); },
                                     {"plane_addresses[0]", "9223372036854775487]"});
  EXPECT_TRUE(PageTable(layout, {1}, 0, {kLast - 320, 4096}).has_memory());
}

TEST(PageTable, RefusesAMissingLayout) {
  expect_error<InvalidArgumentError>([] { PageTable(nullptr, {1}); }, {"layout", "got none"});
}

}  // namespace
}  // namespace kvxfer
