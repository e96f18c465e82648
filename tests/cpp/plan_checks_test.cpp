// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/plan_checks.hpp"

#include "support/expect_error.hpp"
#include "support/random_plan.hpp"

#include <gtest/gtest.h>

namespace kvxfer {
namespace {

using support::expect_error;
using support::make_relayout;
using support::make_table;

// Addresses here are numbers without memory: a check that touched a row would crash.
oracle::Pool make_pool(std::vector<std::int64_t> pages, const Sharding& sharding = Sharding()) {
  oracle::Pool pool;
  pool.spec.page_size = 4;
  pool.spec.page_count = 5;
  pool.spec.sharding = sharding;
  Plane plane;
  plane.row_bytes = 7;
  pool.spec.planes = {plane};
  pool.pages = std::move(pages);
  pool.plane_addresses = {std::int64_t{1} << 46};
  return pool;
}

/// 1 -> 4, eight tokens, two of the four destinations.
struct Case {
  oracle::Pool source = make_pool({3, 1});
  oracle::Pool destination = make_pool({2}, Sharding(4, 1));
  Relayout relayout = make_relayout(source, destination);
  PackBufferLayout layout{{make_relayout(source, make_pool({}, Sharding(4, 0))), relayout}, 8};
  Segment segment{0, 8, true};
};

TEST(PlanChecks, WhatFitsExactlyPasses) {
  const Case c;
  EXPECT_NO_THROW(check_pack(c.layout, c.layout.plan(c.segment), make_table(c.source), 28));
  EXPECT_NO_THROW(check_unpack(c.relayout, c.segment, 14, make_table(c.destination)));
  EXPECT_NO_THROW(
      check_copy(c.relayout, c.segment, make_table(c.source), make_table(c.destination)));
  EXPECT_NO_THROW(check_unpack(c.relayout, {8, 8, true}, 0, make_table(c.destination)));
}

TEST(PlanChecks, OneByteLessIsRefused) {
  const Case c;
  expect_error<CapacityError>(
      [&] { check_pack(c.layout, c.layout.plan(c.segment), make_table(c.source), 27); },
      {"at least 28 bytes", "got 27"});
  expect_error<CapacityError>(
      [&] { check_unpack(c.relayout, c.segment, 13, make_table(c.destination)); },
      {"at least 14 bytes", "got 13"});
}

TEST(PlanChecks, ABufferOnlyHasToReachTheLastRegionOfThePlan) {
  const Case c;
  const Segment one_token{4, 5, true};  // rank 0 alone
  EXPECT_NO_THROW(check_pack(c.layout, c.layout.plan(one_token), make_table(c.source), 7));
  const Segment two_tokens{4, 6, true};
  EXPECT_NO_THROW(check_pack(c.layout, c.layout.plan(two_tokens), make_table(c.source), 21));
  expect_error<CapacityError>(
      [&] { check_pack(c.layout, c.layout.plan(two_tokens), make_table(c.source), 20); },
      {"at least 21 bytes", "got 20"});
}

TEST(PlanChecks, TablesOfAnotherSideAreRefused) {
  const Case c;
  const PageTable source = make_table(c.source);
  const PageTable destination = make_table(c.destination);
  expect_error<InvalidArgumentError>(
      [&] { check_pack(c.layout, c.layout.plan(c.segment), destination, 28); },
      {"source's layout"});
  expect_error<InvalidArgumentError>([&] { check_unpack(c.relayout, c.segment, 14, source); },
                                     {"destination's layout"});
  expect_error<InvalidArgumentError>(
      [&] { check_copy(c.relayout, c.segment, destination, source); }, {"source's layout"});
}

TEST(PlanChecks, PagesThatAreMissingAreNamed) {
  Case c;
  c.source.pages.pop_back();
  c.destination.pages.clear();
  const PageTable source = make_table(c.source);
  const PageTable destination = make_table(c.destination);
  expect_error<InvalidArgumentError>(
      [&] { check_pack(c.layout, c.layout.plan(c.segment), source, 28); },
      {"source pages", "[0, 8)", "got 1 pages"});
  expect_error<InvalidArgumentError>([&] { check_unpack(c.relayout, c.segment, 14, destination); },
                                     {"destination pages", "got 0 pages"});
  expect_error<InvalidArgumentError>(
      [&] {
        check_copy(c.relayout, c.segment, source, make_table(make_pool({2}, Sharding(4, 1))));
      },
      {"source pages"});
  expect_error<InvalidArgumentError>(
      [&] { check_copy(c.relayout, c.segment, make_table(make_pool({3, 1})), destination); },
      {"destination pages"});
}

}  // namespace
}  // namespace kvxfer
