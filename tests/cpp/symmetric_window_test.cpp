// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/symmetric_window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <type_traits>

#include "kvxfer/scratch_layout.hpp"
#include "support/fake_ranks.hpp"

namespace kvxfer::cuda {
namespace {

using support::expect_all;
using support::expect_no_error;
using support::FakeNccl;
using support::FakeRank;
using support::kNoRank;
using support::run_fake_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

static_assert(!std::is_copy_constructible_v<SymmetricWindow>);
static_assert(std::is_nothrow_move_constructible_v<SymmetricWindow>);

constexpr WindowRequest kRequest{.size_bytes = 8192, .fingerprint = 7};
// Anything but the default stream.
const auto kStream = reinterpret_cast<CudaStream>(0x40);

void fill(const SymmetricWindow& window, std::int64_t offset, std::int64_t bytes, int value) {
  const WindowView view = window.view(offset, bytes);
  std::fill_n(view.data(), view.size_bytes(), static_cast<std::byte>(value));
}

/// Two gathers into one window, the second with other bytes; every byte is compared.
void expect_gathers(const SymmetricWindow& window, const FakeRank& mine, std::int64_t ranks) {
  for (int round = 1; round <= 2; ++round) {
    const std::int64_t offset = 1024 * round;
    fill(window, offset, ranks * 64, 0);
    fill(window, offset + mine.rank * 64, 64, static_cast<int>(10 * round + mine.rank));
    window.all_gather(offset, 64, kStream);
    const WindowView view = window.view(offset, ranks * 64);
    for (std::int64_t i = 0; i < view.size_bytes(); ++i) {
      ASSERT_EQ(static_cast<int>(view.data()[i]), 10 * round + i / 64) << "byte " << i;
    }
  }
}

TEST(SymmetricWindow, LivesInOneOrderOfCalls) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    Communicator communicator = mine.connect();
    SymmetricWindow window = SymmetricWindow::create(communicator, kRequest, mine.device);
    EXPECT_TRUE(window.is_registered_everywhere());
    window.all_gather(0, 64, kStream);
    window.close();
    window.close();
    communicator.close();
  }));
  // An exchange of all ranks stands between the registration and the first gather, and between the
  // last one's drain and the end of the window.
  EXPECT_THAT(nccl.calls_of(1),
              ElementsAre("exchange", "init policy 2", "exchange", "alloc 8192", "exchange",
                          "register 8192", "exchange", "all_gather 64", "drain", "exchange",
                          "deregister", "drain", "free", "finalize", "destroy"));
}

TEST(SymmetricWindow, GathersInPlace) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 4, [](FakeRank& mine) {
    const Communicator communicator = mine.connect();
    const auto window = SymmetricWindow::create(communicator, kRequest, mine.device);
    expect_gathers(window, mine, 4);
  }));
}

class NullWindow : public ::testing::TestWithParam<int> {};

TEST_P(NullWindow, KeepsTheMemoryAndTheOrdinaryPathOnAllRanks) {
  const FakeNccl nccl({.null_window_rank = GetParam()});
  expect_no_error(run_fake_ranks(nccl, 3, [](FakeRank& mine) {
    const Communicator communicator = mine.connect();
    const auto window = SymmetricWindow::create(communicator, kRequest, mine.device);
    EXPECT_FALSE(window.is_registered_everywhere());
    std::vector<WindowOutcome> expected(3, WindowOutcome::kRegistered);
    expected[static_cast<std::size_t>(GetParam())] = WindowOutcome::kNull;
    EXPECT_EQ(window.outcomes(), expected);
    expect_gathers(window, mine, 3);
    if (mine.rank == GetParam()) {
      EXPECT_THROW((void)window.peer_data(0, 0), UnsupportedError);
    }
  }));
  EXPECT_EQ(nccl.count("deregister"), 2);
  EXPECT_EQ(nccl.count("deregister", GetParam()), 0);
  EXPECT_EQ(nccl.count("free"), 3);
}

INSTANTIATE_TEST_SUITE_P(SymmetricWindow, NullWindow, ::testing::Values(0, 2));

TEST(SymmetricWindow, WithoutAWindowAnywhereDeregistersNothing) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    auto api = std::make_shared<NcclApi>(*mine.api);
    api->comm_window_register = [](NcclComm, void*, std::size_t, NcclWindow*, int) { return 0; };
    mine.api = api;
    const Communicator communicator = mine.connect();
    const auto window = SymmetricWindow::create(communicator, kRequest, mine.device);
    EXPECT_THAT(window.outcomes(), ElementsAre(WindowOutcome::kNull, WindowOutcome::kNull));
    expect_gathers(window, mine, 2);
  }));
  EXPECT_EQ(nccl.count("deregister"), 0);
  EXPECT_EQ(nccl.count("free"), 2);
}

/// A start that fails on rank 1 of 3: all ranks hear of it and keep nothing.
void expect_failed_start(const FakeNccl& nccl, const std::string& words,
                         const std::function<void(FakeRank&)>& prepare = nullptr) {
  const auto errors = run_fake_ranks(nccl, 3, [&](FakeRank& mine) {
    if (prepare != nullptr) prepare(mine);
    Communicator communicator = mine.connect();
    try {
      auto window = SymmetricWindow::create(communicator, kRequest, mine.device);
    } catch (const GroupError& error) {
      EXPECT_THAT(error.failed_ranks(), ElementsAre(1));
      communicator.close();
      throw;
    }
  });
  expect_all<GroupError>(errors, words);
  EXPECT_EQ(nccl.count("free"), nccl.count("alloc"));
  EXPECT_EQ(nccl.count("all_gather"), 0);
  EXPECT_EQ(nccl.count("destroy"), 3);
}

TEST(SymmetricWindow, FailsEverywhereWhenOneRegistrationFails) {
  const FakeNccl nccl({.failing_window_rank = 1});
  expect_failed_start(nccl, "rank 1: ncclCommWindowRegister failed with 5");
  EXPECT_EQ(nccl.count("register"), 3);
  EXPECT_EQ(nccl.count("deregister"), 2);
  EXPECT_EQ(nccl.count("free"), 3);
  EXPECT_THAT(nccl.calls_of(0), ElementsAre("exchange", "init policy 2", "exchange", "alloc 8192",
                                            "exchange", "register 8192", "exchange", "deregister",
                                            "drain", "free", "finalize", "destroy"));
}

TEST(SymmetricWindow, FailsEverywhereWhenOneRankHasNoMemory) {
  const FakeNccl nccl({.failing_alloc_rank = 1});
  expect_failed_start(nccl, "rank 1: ncclMemAlloc failed with 1");
  EXPECT_EQ(nccl.count("register"), 0);
  EXPECT_EQ(nccl.count("free"), 2);
}

TEST(SymmetricWindow, RefusesMemoryOffItsBoundaryBeforeNccl) {
  const FakeNccl nccl({.unaligned_rank = 1});
  expect_failed_start(nccl, "rank 1: expected window memory at a multiple of 4096 bytes, got 256");
  EXPECT_EQ(nccl.count("register"), 0);
  EXPECT_EQ(nccl.count("free"), 3);
}

TEST(SymmetricWindow, RefusesAThreadThatCaptures) {
  const FakeNccl nccl;
  expect_failed_start(nccl, "rank 1: expected no graph capture", [](FakeRank& mine) {
    if (mine.rank == 1) mine.device.is_capturing = [] { return true; };
  });
  EXPECT_EQ(nccl.count("register"), 0);
}

TEST(SymmetricWindow, RefusesALibraryWithoutWindows) {
  const FakeNccl nccl({}, KVXFER_FAKE_NCCL_WITHOUT_OPTIONAL);
  expect_all<GroupError>(run_fake_ranks(nccl, 2,
                                        [](FakeRank& mine) {
                                          const Communicator communicator = mine.connect();
                                          (void)SymmetricWindow::create(communicator, kRequest,
                                                                        mine.device);
                                        }),
                         "expected NCCL with symmetric windows, got version code 23102");
}

TEST(SymmetricWindow, RefusesRanksWithDifferentLayouts) {
  for (const bool is_size : {false, true}) {
    const FakeNccl nccl;
    expect_all<GroupError>(run_fake_ranks(nccl, 2,
                                          [&](FakeRank& mine) {
                                            const Communicator communicator = mine.connect();
                                            WindowRequest request = kRequest;
                                            if (mine.rank == 1 && is_size)
                                              request.size_bytes = 4096;
                                            if (mine.rank == 1 && !is_size) request.fingerprint = 8;
                                            (void)SymmetricWindow::create(communicator, request,
                                                                          mine.device);
                                          }),
                           "ask for the window of rank 0 (bytes, layout: 8192, 7)");
    EXPECT_EQ(nccl.count("register"), 0);
    EXPECT_EQ(nccl.count("free"), 2);
  }
}

TEST(SymmetricWindow, AbortsARegistrationThatHangs) {
  const FakeNccl nccl({.hanging_window_rank = 1});
  const auto errors = run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    const Communicator communicator =
        mine.connect(CtaPolicy::kZero, std::chrono::milliseconds(150));
    (void)SymmetricWindow::create(communicator, kRequest, mine.device);
  });
  expect_all<GroupError>(errors, "rank 1: expected ncclCommWindowRegister to end within 150 ms");
  EXPECT_EQ(nccl.count("abort", 1), 1);
  EXPECT_EQ(nccl.count("deregister", 1), 0);
  EXPECT_EQ(nccl.count("deregister", 0), 1);
  EXPECT_EQ(nccl.count("free"), 2);
}

TEST(SymmetricWindow, FreesOnceWhenTheLastViewIsGone) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [&](FakeRank& mine) {
    Communicator communicator = mine.connect();
    std::optional<WindowView> view;
    {
      SymmetricWindow window = SymmetricWindow::create(communicator, kRequest, mine.device);
      view = window.view(4096, 100);
      window.close();
      EXPECT_THROW((void)window.view(0, 1), InvalidArgumentError);
      EXPECT_THROW(window.all_gather(0, 1, kStream), InvalidArgumentError);
    }
    EXPECT_EQ(nccl.count("deregister", mine.rank), 1);
    EXPECT_EQ(nccl.count("free", mine.rank), 0);
    view->data()[99] = std::byte{1};
    EXPECT_THROW(communicator.close(), InvalidArgumentError);
    const std::optional<WindowView> copy = view;
    view.reset();
    EXPECT_EQ(nccl.count("free", mine.rank), 0);
  }));
  EXPECT_EQ(nccl.count("free", 0), 1);
  EXPECT_EQ(nccl.calls_of(0).back(), "destroy");
}

TEST(SymmetricWindow, RegistersOnceForAllSlotsOfAPool) {
  const FakeNccl nccl;
  ScratchSpec spec;
  spec.tensors = {{"kv", 576}, {"index_k", 132}};
  spec.ranks = 2;
  spec.prefix_region_pages = 8;
  spec.chunk_region_pages = 2;
  const ScratchLayout layout(spec);
  constexpr std::int64_t kTimes = 50;
  expect_no_error(run_fake_ranks(nccl, 2, [&](FakeRank& mine) {
    const Communicator communicator = mine.connect();
    for (std::int64_t i = 0; i < kTimes; ++i) {
      const auto window = SymmetricWindow::create(
          communicator, {.size_bytes = layout.bytes(), .fingerprint = layout.fingerprint()},
          mine.device);
      std::vector<WindowView> views;
      for (std::int64_t layer = 0; layer < 60; ++layer) {
        for (std::int64_t tensor = 0; tensor < 2; ++tensor) {
          const ScratchView place = layout.view(layer % 2, tensor);
          views.push_back(window.view(place.offset_bytes, place.page_count * place.page_bytes));
        }
      }
    }
  }));
  for (const std::int64_t rank : {0, 1}) {
    for (const char* call : {"alloc", "register", "deregister", "free"}) {
      EXPECT_EQ(nccl.count(call, rank), kTimes) << call;
    }
  }
}

TEST(SymmetricWindow, GivesUpOnPeersThatDoNotClose) {
  const FakeNccl nccl;
  std::optional<SymmetricWindow> kept;
  expect_no_error(run_fake_ranks(nccl, 2, [&](FakeRank& mine) {
    Communicator communicator = mine.connect(CtaPolicy::kZero, std::chrono::milliseconds(150));
    SymmetricWindow window = SymmetricWindow::create(communicator, kRequest, mine.device);
    if (mine.rank == 1) {
      // The peer that is gone: it releases nothing while rank 0 closes.
      kept.emplace(std::move(window));
      return;
    }
    try {
      window.close();
      ADD_FAILURE() << "rank 0 closed alone";
    } catch (const DeadlineError& error) {
      EXPECT_THAT(error.missing_ranks(), ElementsAre(1));
    }
    EXPECT_TRUE(communicator.is_aborted());
    EXPECT_EQ(nccl.count("deregister", 0), 0);
    EXPECT_EQ(nccl.count("free", 0), 1);
  }));
  kept.reset();
}

TEST(SymmetricWindow, ReleasesAlthoughTheDrainFails) {
  const FakeNccl nccl;
  const auto errors = run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    const Communicator communicator = mine.connect();
    if (mine.rank == 1) {
      mine.device.synchronize = [] { throw InvalidArgumentError("the device is lost"); };
    }
    SymmetricWindow window = SymmetricWindow::create(communicator, kRequest, mine.device);
    window.close();
  });
  expect_all<GroupError>(errors, "rank 1: the device is lost");
  EXPECT_EQ(nccl.count("deregister"), 2);
  EXPECT_EQ(nccl.count("free"), 2);
}

TEST(SymmetricWindow, LeavesAFailureOfItsDestructorWithTheCommunicator) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    const Communicator communicator = mine.connect();
    if (mine.rank == 1) {
      mine.device.synchronize = [] { throw InvalidArgumentError("the device is lost"); };
    }
    {
      const auto window = SymmetricWindow::create(communicator, kRequest, mine.device);
    }
    EXPECT_THAT(communicator.release_failure(), HasSubstr("the device is lost"));
  }));
  EXPECT_EQ(nccl.count("deregister"), 2);
  EXPECT_EQ(nccl.count("free"), 2);
}

TEST(SymmetricWindow, RefusesBytesOutsideAndTheDefaultStream) {
  const FakeNccl nccl;
  expect_no_error(run_fake_ranks(nccl, 2, [](FakeRank& mine) {
    const Communicator communicator = mine.connect();
    const auto window = SymmetricWindow::create(communicator, kRequest, mine.device);
    EXPECT_NO_THROW((void)window.view(0, 8192));
    EXPECT_THROW((void)window.view(1, 8192), InvalidArgumentError);
    EXPECT_THROW((void)window.view(-1, 2), InvalidArgumentError);
    EXPECT_THROW((void)window.view(0, 0), InvalidArgumentError);
    EXPECT_THROW(window.all_gather(0, 4097, kStream), InvalidArgumentError);
    EXPECT_THROW(window.all_gather(1, 4096, kStream), InvalidArgumentError);
    EXPECT_THROW(window.all_gather(0, 0, kStream), InvalidArgumentError);
    EXPECT_THAT([&] { window.all_gather(0, 64, nullptr); },
                ThrowsMessage<InvalidArgumentError>(HasSubstr("got the default")));
    EXPECT_EQ(window.peer_data(mine.rank, 16), window.view(16, 1).data());
    window.view(16, 1).data()[0] = static_cast<std::byte>(7 + mine.rank);
    (void)agree(*mine.group, "written", {}, std::chrono::seconds(20));
    EXPECT_EQ(window.peer_data(1 - mine.rank, 16)[0], static_cast<std::byte>(8 - mine.rank));
    (void)agree(*mine.group, "read", {}, std::chrono::seconds(20));
    EXPECT_THROW((void)window.peer_data(2, 0), InvalidArgumentError);
    EXPECT_THROW((void)window.peer_data(0, 8192), InvalidArgumentError);
  }));
  EXPECT_EQ(nccl.count("all_gather"), 0);
}

}  // namespace
}  // namespace kvxfer::cuda
