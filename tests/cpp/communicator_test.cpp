// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "support/fake_ranks.hpp"

namespace kvxfer::cuda {
namespace {

using support::expect_all;
using support::expect_no_error;
using support::FakeNccl;
using support::FakeRank;
using support::run_fake_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

static_assert(!std::is_copy_constructible_v<Communicator>);
static_assert(std::is_nothrow_move_constructible_v<Communicator>);

constexpr std::chrono::milliseconds kShort{150};

TEST(Communicator, ConnectsAndEndsInOrder) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 3, [](FakeRank& mine) {
    Communicator communicator = mine.connect();
    EXPECT_EQ(communicator.rank(), mine.rank);
    EXPECT_EQ(communicator.ranks(), 3);
    EXPECT_NO_THROW(communicator.check());
    communicator.close();
    communicator.close();
    EXPECT_THROW(communicator.check(), InvalidArgumentError);
  }));
  EXPECT_THAT(nccl.calls_of(1),
              ElementsAre("exchange", "init policy 2", "exchange", "finalize", "destroy"));
}

TEST(Communicator, HasThePolicyItWasGiven) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    mine.connect(CtaPolicy::kDefault);
    mine.connect(CtaPolicy::kEfficiency);
  }));
  EXPECT_EQ(nccl.count("init policy -2147483648"), 2);
  EXPECT_EQ(nccl.count("init policy 1"), 2);
  EXPECT_EQ(nccl.count("destroy"), 4);
}

TEST(Communicator, RefusesTheZeroPolicyBeforeTheFirstSafeVersion) {
  for (const int version : {22809, 23007}) {
    const FakeNccl nccl({.version = version});
    expect_all<GroupError>(
        run_fake_ranks(nccl, 2, [](FakeRank& mine) { mine.connect(CtaPolicy::kZero); }),
        "expected NCCL >= 2.31.2 for the zero policy");
    EXPECT_EQ(nccl.count("init"), 0);
    expect_no_error(
        run_fake_ranks(nccl, 2, [](FakeRank& mine) { mine.connect(CtaPolicy::kDefault); }));
  }
}

TEST(Communicator, RefusesRanksWithDifferentVersions) {
  const FakeNccl nccl;
  expect_all<GroupError>(run_fake_ranks(nccl, 3,
                                        [](FakeRank& mine) {
                                          auto other = std::make_shared<NcclApi>(*mine.api);
                                          if (mine.rank == 2) other->version_code = 23203;
                                          mine.api = other;
                                          mine.connect();
                                        }),
                         "23102 on rank 0 and 23203 on rank 2");
  EXPECT_EQ(nccl.count("init"), 0);
}

TEST(Communicator, WaitsForALatePeer) {
  const FakeNccl nccl({.slow_rank = 1, .slow_ms = 60});
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) { mine.connect().close(); }));
  EXPECT_EQ(nccl.count("destroy"), 2);
  EXPECT_EQ(nccl.count("abort"), 0);
}

TEST(Communicator, GivesUpOnAPeerThatNeverConnects) {
  const FakeNccl nccl({.slow_rank = 1, .slow_ms = 60000});
  const auto errors =
      run_fake_ranks(nccl, 2, [](FakeRank& mine) { mine.connect(CtaPolicy::kZero, kShort); });
  expect_all<GroupError>(errors, "expected ncclCommInitRankConfig to end within 150 ms");
  EXPECT_EQ(nccl.count("abort", 0), 1);
  EXPECT_EQ(nccl.count("abort", 1), 1);
  EXPECT_EQ(nccl.count("finalize"), 0);
  EXPECT_EQ(nccl.count("destroy"), 0);
}

TEST(Communicator, NamesARankThatNeverComes) {
  const FakeNccl nccl;
  const auto errors = run_fake_ranks(nccl, 3, [](FakeRank& mine) {
    if (mine.rank == 1) return;
    try {
      mine.connect(CtaPolicy::kZero, kShort);
      ADD_FAILURE() << "two of three ranks connected";
    } catch (const DeadlineError& error) {
      EXPECT_THAT(error.missing_ranks(), ElementsAre(1));
    }
  });
  expect_no_error(errors);
  EXPECT_EQ(nccl.count("init"), 0);
}

TEST(Communicator, TellsALinkThatFailed) {
  FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [&](FakeRank& mine) {
    Communicator communicator = mine.connect();
    (void)agree(*mine.group, "script", {}, std::chrono::seconds(20));
    if (mine.rank == 0) nccl = FakeNccl({.failing_link_rank = 1});
    (void)agree(*mine.group, "scripted", {}, std::chrono::seconds(20));
    if (mine.rank == 1) {
      EXPECT_THAT([&] { communicator.check(); },
                  ThrowsMessage<NcclError>(HasSubstr("a collective failed with 6")));
      communicator.abort();
      communicator.abort();
      EXPECT_TRUE(communicator.is_aborted());
      EXPECT_THROW(communicator.check(), InvalidArgumentError);
    }
  }));
  EXPECT_EQ(nccl.count("abort", 1), 1);
  EXPECT_EQ(nccl.count("destroy", 1), 0);
  EXPECT_EQ(nccl.count("destroy", 0), 1);
}

TEST(Communicator, GathersInOrdinaryMemory) {
  const FakeNccl nccl({.version = 22809});
  expect_no_error(run_fake_ranks(nccl, 3, [](FakeRank& mine) {
    const Communicator communicator = mine.connect(CtaPolicy::kDefault);
    std::vector<std::byte> memory(3 * 8, std::byte{0xee});
    std::fill_n(memory.begin() + mine.rank * 8, 8, static_cast<std::byte>(mine.rank));
    const auto stream = reinterpret_cast<CudaStream>(0x40);
    communicator.all_gather(memory.data(), 8, stream);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      ASSERT_EQ(static_cast<std::size_t>(memory[i]), i / 8) << "byte " << i;
    }
    EXPECT_THROW(communicator.all_gather(memory.data(), 8, nullptr), InvalidArgumentError);
    EXPECT_THROW(communicator.all_gather(memory.data(), 0, stream), InvalidArgumentError);
    EXPECT_THROW(communicator.all_gather(nullptr, 8, stream), InvalidArgumentError);
  }));
  EXPECT_EQ(nccl.count("all_gather"), 3);
}

TEST(Communicator, EndsAfterTheGraphsThatHoldIt) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [&](FakeRank& mine) {
    auto graph = [&] {
      Communicator communicator = mine.connect();
      auto held = communicator.hold();
      EXPECT_THAT([&] { communicator.close(); },
                  ThrowsMessage<InvalidArgumentError>(HasSubstr("got 1 that hold it")));
      return held;
    }();
    EXPECT_EQ(nccl.count("destroy", mine.rank), 0);
    graph.reset();
    EXPECT_EQ(nccl.count("destroy", mine.rank), 1);
  }));
}

TEST(Communicator, ServesALibraryWithoutOptionalFunctions) {
  const FakeNccl nccl({}, KVXFER_FAKE_NCCL_WITHOUT_OPTIONAL);
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) { mine.connect().close(); }));
  EXPECT_THAT(nccl.calls_of(0), ElementsAre("exchange", "init policy 2", "exchange", "destroy"));
}

}  // namespace
}  // namespace kvxfer::cuda
