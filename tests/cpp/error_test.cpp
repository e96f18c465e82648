// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>

namespace kvxfer {
namespace {

static_assert(std::is_base_of_v<std::runtime_error, Error>);
static_assert(std::is_base_of_v<Error, InvalidArgumentError>);
static_assert(std::is_base_of_v<Error, CapacityError>);
static_assert(std::is_base_of_v<Error, UnsupportedError>);

struct CountsItsPrints {
  std::int64_t* print_count;
};

std::ostream& operator<<(std::ostream& stream, const CountsItsPrints& value) {
  ++*value.print_count;
  return stream << "printed";
}

TEST(Message, JoinsItsPartsInOrder) {
  const std::int64_t capacity_tokens = 8200;
  EXPECT_EQ(detail::message("capacity_tokens ", capacity_tokens, ", expected ", std::string("64")),
            "capacity_tokens 8200, expected 64");
}

TEST(Require, ThrowsInvalidArgumentWithTheJoinedParts) {
  try {
    detail::require(false, "rank ", std::int64_t{4}, " is not below ranks ", std::int64_t{4});
    FAIL() << "require(false) returned";
  } catch (const InvalidArgumentError& error) {
    EXPECT_STREQ(error.what(), "rank 4 is not below ranks 4");
  }
}

TEST(Require, FormatsNothingWhenItHolds) {
  std::int64_t print_count = 0;
  detail::require(true, CountsItsPrints{&print_count});
  EXPECT_EQ(print_count, 0);
  EXPECT_THROW(detail::require(false, CountsItsPrints{&print_count}), InvalidArgumentError);
  EXPECT_EQ(print_count, 1);
}

TEST(Error, EveryKindIsCaughtAsTheBase) {
  EXPECT_THROW(throw InvalidArgumentError("a"), Error);
  EXPECT_THROW(throw CapacityError("b"), Error);
  EXPECT_THROW(throw UnsupportedError("c"), Error);
}

}  // namespace
}  // namespace kvxfer
