// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/host_allgather.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>

#include "kvxfer/error.hpp"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::chrono::milliseconds kLong{20000};
constexpr std::chrono::milliseconds kShort{80};

/// Boards and windows of a group whose ranks are threads.
class Group {
 public:
  Group(std::int64_t ranks, std::int64_t window_bytes)
      : boards(ranks, 2),
        board_lines_(static_cast<std::size_t>(boards.bytes() / HandshakeBoards::kWordStride)),
        windows_(static_cast<std::size_t>(ranks),
                 std::vector<std::byte>(static_cast<std::size_t>(window_bytes))) {}

  [[nodiscard]] HostGroupMemory memory() {
    HostGroupMemory memory{std::as_writable_bytes(std::span(board_lines_)), {}};
    for (auto& window : windows_)
      memory.windows.emplace_back(window);
    return memory;
  }
  std::byte* window(std::int64_t rank) { return windows_[static_cast<std::size_t>(rank)].data(); }

  const HandshakeBoards boards;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> board_lines_;
  std::vector<std::vector<std::byte>> windows_;
};

std::vector<std::unique_ptr<HostAllgather>> members_of(Group& group, std::uint32_t first_tag = 1) {
  std::vector<std::unique_ptr<HostAllgather>> members;
  for (std::int64_t rank = 0; rank < group.boards.ranks(); ++rank) {
    members.push_back(
        std::make_unique<HostAllgather>(group.boards, rank, group.memory(), first_tag));
  }
  return members;
}

int value_of(std::int64_t layer, std::int64_t rank) {
  return static_cast<int>((layer * 16 + rank) % 251);
}

/// Ten layers in alternating slots with random pauses; the next is gathered while one is read.
void read_layers(Group& group, HostAllgather& mine, std::int64_t rank, std::uint32_t first_tag) {
  const std::vector<BlockSpan> spans{{0, 200, 150}, {1000, 64, 64}};
  std::mt19937 engine(static_cast<unsigned>(rank));
  const auto gather = [&](std::int64_t layer) {
    const std::int64_t slot = layer % 2;
    std::vector<BlockSpan> placed = spans;
    for (BlockSpan& span : placed) {
      span.offset_bytes += slot * 2000;
      std::fill_n(group.window(rank) + span.offset_bytes + rank * span.stride_bytes, span.bytes,
                  static_cast<std::byte>(value_of(layer, rank)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(engine() % 300));
    const auto tag = first_tag + static_cast<std::uint32_t>(layer / 2);
    ASSERT_TRUE(mine.gather(slot, tag, placed, kLong).is_complete());
  };
  gather(0);
  for (std::int64_t layer = 0; layer < 10; ++layer) {
    if (layer + 1 < 10) gather(layer + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(engine() % 300));
    for (const BlockSpan& span : spans) {
      for (std::int64_t owner = 0; owner < group.boards.ranks(); ++owner) {
        const std::byte* block =
            group.window(rank) + layer % 2 * 2000 + span.offset_bytes + owner * span.stride_bytes;
        ASSERT_TRUE(std::all_of(
            block, block + span.bytes,
            [&](std::byte byte) { return byte == static_cast<std::byte>(value_of(layer, owner)); }))
            << "layer " << layer << ", block of rank " << owner << " on rank " << rank;
      }
    }
    mine.release(layer % 2);
  }
}

class RanksAndTags : public ::testing::TestWithParam<std::pair<std::int64_t, std::uint32_t>> {};

TEST_P(RanksAndTags, EveryRankReadsWhatEveryRankPacked) {
  const auto [ranks, first_tag] = GetParam();
  Group group(ranks, 4000);
  auto members = members_of(group, first_tag);
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, tag = first_tag] {
      read_layers(group, *members[static_cast<std::size_t>(rank)], rank, tag);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

INSTANTIATE_TEST_SUITE_P(HostAllgather, RanksAndTags,
                         ::testing::Values(std::pair{1, 1U}, std::pair{2, 1U}, std::pair{3, 1U},
                                           std::pair{5, 1U}, std::pair{3, 0xfffffffdU}));

TEST(HostAllgather, NamesThePeersThatDoNotCome) {
  Group group(3, 1000);
  auto members = members_of(group);
  const std::vector<BlockSpan> spans{{0, 8, 8}};
  const HandshakeReport report = members[0]->gather(0, 1, spans, kShort);
  EXPECT_THAT(report.missing_ranks, ElementsAre(1, 2));
  EXPECT_THAT(report.skipped_ranks, IsEmpty());
  EXPECT_THAT([&] { (void)members[0]->gather(0, 1, spans, kShort); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("got one that gave up")));
}

TEST(HostAllgather, WaitsForTheCreditOfAPeerThatStillReads) {
  Group group(2, 1000);
  auto members = members_of(group);
  const std::vector<BlockSpan> spans{{0, 8, 8}};
  std::thread peer([&] { EXPECT_TRUE(members[1]->gather(0, 1, spans, kLong).is_complete()); });
  EXPECT_TRUE(members[0]->gather(0, 1, spans, kLong).is_complete());
  peer.join();
  members[0]->release(0);
  group.window(1)[0] = std::byte{77};
  group.window(0)[0] = std::byte{99};
  EXPECT_THAT(members[0]->gather(0, 2, spans, kShort).missing_ranks, ElementsAre(1));
  EXPECT_EQ(group.window(1)[0], std::byte{77}) << "a slot was written before it was free";
}

TEST(HostAllgather, SeesAPeerThatIsAtAnotherGather) {
  Group group(2, 1000);
  auto members = members_of(group);
  // Rank 1 counts one gather of the slot more than took place.
  const HostAllgather ahead(group.boards, 1, group.memory(), 2);
  const std::vector<BlockSpan> spans{{0, 8, 8}};
  const HandshakeReport report = members[0]->gather(0, 1, spans, kLong);
  EXPECT_THAT(report.skipped_ranks, ElementsAre(1));
}

TEST(HostAllgather, RefusesAGatherOutOfTurn) {
  Group group(1, 1000);
  auto members = members_of(group);
  HostAllgather& mine = *members[0];
  const std::vector<BlockSpan> spans{{0, 8, 8}};
  EXPECT_THROW(mine.release(0), InvalidArgumentError);
  EXPECT_THAT([&] { (void)mine.gather(0, 2, spans, kLong); },
              ThrowsMessage<InvalidArgumentError>(
                  HasSubstr("expected gather 1 of slot 0, got 2: one was left out")));
  EXPECT_TRUE(mine.gather(0, 1, spans, kLong).is_complete());
  EXPECT_EQ(mine.next_tag(0), 2U);
  EXPECT_EQ(mine.next_tag(1), 1U);
  EXPECT_THROW((void)mine.gather(0, 2, spans, kLong), InvalidArgumentError);
  mine.release(0);
  EXPECT_TRUE(mine.gather(0, 2, spans, kLong).is_complete());
  EXPECT_THROW((void)mine.gather(2, 1, spans, kLong), InvalidArgumentError);
}

TEST(HostAllgather, RefusesBlocksOutsideTheWindow) {
  Group group(2, 1000);
  auto members = members_of(group);
  for (const BlockSpan& span :
       {BlockSpan{-1, 8, 8}, BlockSpan{0, 8, 9}, BlockSpan{993, 8, 8}, BlockSpan{990, 8, 8},
        BlockSpan{0, 993, 8}, BlockSpan{0, 1LL << 62, 8}, BlockSpan{0, 8, -1}}) {
    EXPECT_THROW((void)members[0]->gather(0, 1, std::vector{span}, kShort), InvalidArgumentError)
        << span.offset_bytes << " " << span.stride_bytes << " " << span.bytes;
  }
  EXPECT_EQ(members[0]->next_tag(0), 1U);
}

TEST(HostAllgather, RefusesMemoryThatDoesNotFit) {
  Group group(2, 1000);
  HostGroupMemory memory = group.memory();
  EXPECT_THROW(HostAllgather(group.boards, 2, memory), InvalidArgumentError);
  memory.windows.pop_back();
  EXPECT_THROW(HostAllgather(group.boards, 0, memory), InvalidArgumentError);
  memory = group.memory();
  memory.windows[1] = memory.windows[1].first(999);
  EXPECT_THROW(HostAllgather(group.boards, 0, memory), InvalidArgumentError);
  memory = group.memory();
  memory.boards = memory.boards.first(memory.boards.size() - 1);
  EXPECT_THROW(HostAllgather(group.boards, 0, memory), InvalidArgumentError);
}

}  // namespace
}  // namespace kvxfer
