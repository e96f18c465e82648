// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/rank_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_group.hpp"

namespace kvxfer::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Gives every exchange the messages it is told.
class ToldGroup final : public RankGroup {
 public:
  explicit ToldGroup(std::vector<std::string> messages) : messages_(std::move(messages)) {}
  [[nodiscard]] std::int64_t rank() const override { return 0; }
  [[nodiscard]] std::int64_t ranks() const override {
    return static_cast<std::int64_t>(messages_.size());
  }
  std::vector<std::string> exchange(const std::string& message,
                                    std::chrono::milliseconds) override {
    messages_[0] = message;
    return messages_;
  }

 private:
  std::vector<std::string> messages_;
};

constexpr std::chrono::milliseconds kBound{10000};

TEST(Agree, GivesThePayloadsInRankOrder) {
  const auto board = std::make_shared<support::Board>(3);
  const auto errors = support::run_ranks(3, [&](std::int64_t rank) {
    support::ThreadGroup group(board, rank);
    const std::string mine = std::to_string(rank) + std::string("\0x", 2);
    const auto payloads = agree(group, "meet", {"", mine}, kBound);
    ASSERT_EQ(payloads.size(), 3U);
    EXPECT_EQ(payloads[static_cast<std::size_t>(rank)], mine);
    EXPECT_EQ(payloads[2].front(), '2');
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::IsNull()));
}

TEST(Agree, FailsEveryRankWhenOneFails) {
  const auto board = std::make_shared<support::Board>(3);
  support::run_ranks(3, [&](std::int64_t rank) {
    support::ThreadGroup group(board, rank);
    try {
      (void)agree(group, "meet", {rank == 1 ? "no memory" : "", ""}, kBound);
      ADD_FAILURE() << "rank " << rank << " went on";
    } catch (const GroupError& error) {
      EXPECT_THAT(error.failed_ranks(), ElementsAre(1));
      EXPECT_THAT(error.what(), HasSubstr("rank 1: no memory"));
    }
  });
}

TEST(Agree, SeesRanksAtDifferentSteps) {
  ToldGroup group({"", std::string("open\0+", 6), "", "noise"});
  try {
    (void)agree(group, "close", {}, kBound);
    FAIL() << "different steps passed";
  } catch (const GroupError& error) {
    EXPECT_THAT(error.failed_ranks(), ElementsAre(1, 2, 3));
    EXPECT_THAT(error.what(), HasSubstr("rank 1: is at \"open\""));
  }
}

TEST(Agree, NamesTheRanksThatDoNotCome) {
  const auto board = std::make_shared<support::Board>(3);
  support::ThreadGroup group(board, 1);
  try {
    (void)agree(group, "meet", {}, std::chrono::milliseconds(20));
    FAIL() << "an exchange without peers passed";
  } catch (const DeadlineError& error) {
    EXPECT_THAT(error.missing_ranks(), ElementsAre(0, 2));
  }
}

}  // namespace
}  // namespace kvxfer::cuda
