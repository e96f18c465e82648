// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_path.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kvxfer/error.hpp"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

RankConditions good() {
  RankConditions conditions;
  conditions.node = "node-a";
  conditions.nccl_code = 23102;
  conditions.driver_version = 13000;
  return conditions;
}

TEST(NcclVersion, IsReadFromTheCode) {
  EXPECT_EQ(nccl_version(22809), (NcclVersion{2, 28, 9}));
  EXPECT_EQ(nccl_version(23102), (NcclVersion{2, 31, 2}));
  EXPECT_EQ(nccl_version(22707), (NcclVersion{2, 27, 7}));
  EXPECT_EQ(nccl_version(2804), (NcclVersion{2, 8, 4}));
  EXPECT_EQ(nccl_version(0), NcclVersion{});
  EXPECT_THROW((void)nccl_version(-1), InvalidArgumentError);
}

TEST(NcclVersion, ComparesByNumber) {
  EXPECT_LT((NcclVersion{2, 9, 0}), (NcclVersion{2, 28, 0}));
  EXPECT_LT(nccl_version(20900), nccl_version(22800));
  EXPECT_LT(nccl_version(23007), kCopyEngineNccl);
  EXPECT_GE(nccl_version(23203), kCopyEngineNccl);
}

TEST(DecideGatherPath, TakesCopyEnginesWhenAllConditionsHold) {
  const std::vector<RankConditions> ranks(4, good());
  const GatherVerdict verdict = decide_gather_path(ranks);
  EXPECT_EQ(verdict.path, GatherPath::kCopyEngine);
  EXPECT_EQ(verdict.reason, FallbackReason::kNone);
}

struct Case {
  const char* name;
  FallbackReason reason;
  std::function<void(RankConditions&)> spoil;
  const char* words;
};

const std::vector<Case> kCases{
    {"Switch", FallbackReason::kSwitchedOff, [](auto& c) { c.is_switched_on = false; }, "off"},
    {"MemorySaver", FallbackReason::kMemorySaver, [](auto& c) { c.has_memory_saver = true; },
     "memory saver"},
    {"CustomPool", FallbackReason::kCustomPool, [](auto& c) { c.has_custom_pool = true; },
     "custom memory pool"},
    {"Node", FallbackReason::kSeveralNodes, [](auto& c) { c.node = "node-b"; },
     "more than one node"},
    {"NoNccl", FallbackReason::kNcclMissing, [](auto& c) { c.nccl_code = 0; }, "no NCCL library"},
    {"Nccl22809", FallbackReason::kNcclTooOld, [](auto& c) { c.nccl_code = 22809; }, "2.31.2"},
    {"Nccl22707", FallbackReason::kNcclTooOld, [](auto& c) { c.nccl_code = 22707; }, "2.31.2"},
    {"Nccl23007", FallbackReason::kNcclTooOld, [](auto& c) { c.nccl_code = 23007; }, "2.31.2"},
    {"OtherNccl", FallbackReason::kNcclDiffers, [](auto& c) { c.nccl_code = 23203; },
     "another version"},
    {"Driver", FallbackReason::kDriverTooOld, [](auto& c) { c.driver_version = 12040; }, "12.5"},
    {"CuMem", FallbackReason::kCuMemOff, [](auto& c) { c.nccl_cumem_enable = "0"; },
     "set NCCL_CUMEM_ENABLE=1 before NCCL starts"},
    {"Windows", FallbackReason::kWindowsOff, [](auto& c) { c.nccl_win_enable = "0"; },
     "NCCL_WIN_ENABLE"},
    {"Policy", FallbackReason::kPolicyContradicted, [](auto& c) { c.nccl_cta_policy = "DEFAULT"; },
     "NCCL_CTA_POLICY"},
};

class EachCondition : public ::testing::TestWithParam<Case> {};

TEST_P(EachCondition, OnOneRankDecidesForAll) {
  std::vector<RankConditions> ranks(3, good());
  GetParam().spoil(ranks[2]);
  const GatherVerdict verdict = decide_gather_path(ranks);
  EXPECT_EQ(verdict.path, GatherPath::kSm);
  EXPECT_EQ(verdict.reason, GetParam().reason);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.explanation, HasSubstr("rank 2: "));
  EXPECT_THAT(verdict.explanation, HasSubstr(GetParam().words));
}

INSTANTIATE_TEST_SUITE_P(DecideGatherPath, EachCondition, ::testing::ValuesIn(kCases),
                         [](const auto& parameter) { return parameter.param.name; });

TEST(DecideGatherPath, NamesAllRanksOfTheFirstReason) {
  std::vector<RankConditions> ranks(4, good());
  ranks[1].has_custom_pool = true;
  ranks[3].has_custom_pool = true;
  ranks[2].nccl_cumem_enable = "0";
  const GatherVerdict verdict = decide_gather_path(ranks);
  EXPECT_EQ(verdict.reason, FallbackReason::kCustomPool);
  EXPECT_THAT(verdict.ranks, ElementsAre(1, 3));
  EXPECT_THAT(verdict.explanation, HasSubstr("ranks 1, 3: "));
}

TEST(DecideGatherPath, LetsNcclDecideWhereASettingIsUnsetOrOn) {
  for (const char* cumem : {"", "1", "-2"}) {
    std::vector<RankConditions> ranks(2, good());
    ranks[0].nccl_cumem_enable = cumem;
    EXPECT_EQ(decide_gather_path(ranks).path, GatherPath::kCopyEngine) << cumem;
  }
}

TEST(DecideGatherPath, ReadsThePolicyAsNcclDoes) {
  const auto path_with = [](const char* policy) {
    std::vector<RankConditions> ranks(2, good());
    ranks[1].nccl_cta_policy = policy;
    return decide_gather_path(ranks).path;
  };
  for (const char* policy : {"", "ZERO", "2", "3", "EFFICIENCY|ZERO", "ZERO|EFFICIENCY"}) {
    EXPECT_EQ(path_with(policy), GatherPath::kCopyEngine) << policy;
  }
  for (const char* policy : {"DEFAULT", "EFFICIENCY", "0", "1", "2x", "|", "NONZERO"}) {
    EXPECT_EQ(path_with(policy), GatherPath::kSm) << policy;
  }
}

TEST(DecideGatherPath, GathersNothingOnOneRank) {
  const std::vector<RankConditions> ranks(1, good());
  EXPECT_EQ(decide_gather_path(ranks).path, GatherPath::kNone);
  EXPECT_EQ(decide_gather_path(ranks).reason, FallbackReason::kOneRank);
}

TEST(DecideGatherPath, CopiesOnTheHostForHostPools) {
  std::vector<RankConditions> ranks(2);
  ranks[0].is_host_pool = ranks[1].is_host_pool = true;
  EXPECT_EQ(decide_gather_path(ranks).path, GatherPath::kHostCopy);
  EXPECT_EQ(decide_gather_path(ranks).reason, FallbackReason::kHostPool);
  ranks[0] = good();
  EXPECT_THAT([&] { (void)decide_gather_path(ranks); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("only on rank 1")));
  EXPECT_THROW((void)decide_gather_path({}), InvalidArgumentError);
}

TEST(DecideAfterRegistration, KeepsTheVerdictWhenAllHaveAWindow) {
  const GatherVerdict before = decide_gather_path(std::vector<RankConditions>(2, good()));
  const std::vector<WindowOutcome> all(2, WindowOutcome::kRegistered);
  EXPECT_EQ(decide_after_registration(before, all), before);
}

TEST(DecideAfterRegistration, TakesTheOrdinaryPathWhenOneRankHasNoWindow) {
  const GatherVerdict before = decide_gather_path(std::vector<RankConditions>(3, good()));
  std::vector<WindowOutcome> outcomes(3, WindowOutcome::kRegistered);
  outcomes[1] = WindowOutcome::kNull;
  GatherVerdict verdict = decide_after_registration(before, outcomes);
  EXPECT_EQ(verdict.path, GatherPath::kSm);
  EXPECT_EQ(verdict.reason, FallbackReason::kNullWindow);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  outcomes[2] = WindowOutcome::kFailed;
  verdict = decide_after_registration(before, outcomes);
  EXPECT_EQ(verdict.reason, FallbackReason::kRegistrationFailed);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
}

TEST(DecideAfterRegistration, RefusesAVerdictWithoutAWindow) {
  const GatherVerdict before = decide_gather_path(std::vector<RankConditions>(1, good()));
  const std::vector<WindowOutcome> one(1, WindowOutcome::kRegistered);
  EXPECT_THROW((void)decide_after_registration(before, one), InvalidArgumentError);
  const GatherVerdict engines = decide_gather_path(std::vector<RankConditions>(2, good()));
  EXPECT_THROW((void)decide_after_registration(engines, {}), InvalidArgumentError);
}

}  // namespace
}  // namespace kvxfer
