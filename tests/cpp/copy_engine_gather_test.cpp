// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/copy_engine_gather.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "kvxfer/cuda/rank_group.hpp"
#include "support/fake_stream.hpp"

namespace kvxfer::cuda {
namespace {

using support::FakeStream;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::chrono::milliseconds kLong{20000};
constexpr std::chrono::milliseconds kShort{80};
constexpr TagOptions kConstant{GatherTags::kConstant};
const auto kStream = reinterpret_cast<CudaStream>(0x40);

/// Boards and windows of a group in one process.
class Group {
 public:
  explicit Group(std::int64_t ranks, std::int64_t window_bytes = 4096)
      : boards(ranks, 2),
        lines_(static_cast<std::size_t>(boards.bytes() / HandshakeBoards::kWordStride)),
        windows_(static_cast<std::size_t>(ranks),
                 std::vector<std::byte>(static_cast<std::size_t>(window_bytes))) {}

  [[nodiscard]] PeerMemory memory() {
    PeerMemory memory{std::as_writable_bytes(std::span(lines_)), {}, 0};
    for (auto& window : windows_)
      memory.windows.push_back(window.data());
    memory.window_bytes = static_cast<std::int64_t>(windows_.front().size());
    return memory;
  }
  std::byte* window(std::int64_t rank) { return windows_[static_cast<std::size_t>(rank)].data(); }
  std::uint32_t* word(std::int64_t offset_bytes) {
    return reinterpret_cast<std::uint32_t*>(std::as_writable_bytes(std::span(lines_)).data() +
                                            offset_bytes);
  }

  const HandshakeBoards boards;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
  std::vector<std::vector<std::byte>> windows_;
};

/// Writes down what is enqueued and runs none of it.
struct Recorder {
  std::vector<std::string> calls;
  std::vector<PeerCopy> copies;
  std::vector<WordOperation> operations;
  bool is_capturing = false;

  StreamCalls table() {
    return {.copy =
                [this](std::span<const PeerCopy> batch, CudaStream stream) {
                  EXPECT_EQ(stream, kStream);
                  calls.push_back("copy " + std::to_string(batch.size()));
                  copies.insert(copies.end(), batch.begin(), batch.end());
                },
            .operate =
                [this](std::span<const WordOperation> batch, CudaStream stream) {
                  EXPECT_EQ(stream, kStream);
                  std::string text = "words";
                  for (const WordOperation& operation : batch)
                    text += operation.is_wait ? " w" : " " + std::to_string(operation.value);
                  calls.push_back(text);
                  operations.insert(operations.end(), batch.begin(), batch.end());
                },
            .is_capturing = [this](CudaStream) { return is_capturing; }};
  }
};

TEST(CopyEngineGather, EnqueuesOneBatchOfCopiesBetweenTwoHandshakes) {
  Group group(4);
  Recorder recorder;
  CopyEngineGather mine(group.boards, 1, group.memory(), recorder.table());
  const BlockSpan joined{256, 512, 500};
  mine.gather(0, 1, std::span(&joined, 1), kStream);
  EXPECT_THAT(recorder.calls, ElementsAre("words w w w", "copy 3", "words 1 1 1 w w w"));
  const std::byte* own = group.window(1) + 256 + 512;
  EXPECT_THAT(recorder.copies, ElementsAre(PeerCopy{group.window(2) + 768, own, 500},
                                           PeerCopy{group.window(3) + 768, own, 500},
                                           PeerCopy{group.window(0) + 768, own, 500}));
  EXPECT_EQ(recorder.operations[0],
            (WordOperation{true, group.word(group.boards.credit_offset_bytes(1, 0, 2)), 1}));
  EXPECT_EQ(recorder.operations[3],
            (WordOperation{false, group.word(group.boards.done_offset_bytes(2, 0, 1)), 1}));
  EXPECT_EQ(recorder.operations[6],
            (WordOperation{true, group.word(group.boards.done_offset_bytes(1, 0, 2)), 1}));
  recorder.calls.clear();
  mine.release(0, kStream);
  EXPECT_THAT(recorder.calls, ElementsAre("words 2 2 2"));
  EXPECT_EQ(recorder.operations[9].word, group.word(group.boards.credit_offset_bytes(2, 0, 1)));
}

TEST(CopyEngineGather, CopiesEveryDenseTensorUnderOneHandshake) {
  Group group(3);
  Recorder recorder;
  CopyEngineGather mine(group.boards, 0, group.memory(), recorder.table());
  const std::vector<BlockSpan> dense{{0, 100, 100}, {1024, 64, 64}, {2048, 8, 8}};
  mine.gather(1, 1, dense, kStream);
  EXPECT_THAT(recorder.calls, ElementsAre("words w w", "copy 6", "words 1 1 w w"));
  std::int64_t bytes = 0;
  for (const PeerCopy& copy : recorder.copies)
    bytes += copy.size_bytes;
  EXPECT_EQ(bytes, 2 * (100 + 64 + 8));
}

TEST(CopyEngineGather, SetsConstantWordsBackUnderReplay) {
  Group group(3);
  Recorder recorder;
  recorder.is_capturing = true;
  CopyEngineGather mine(group.boards, 0, group.memory(), recorder.table(), kConstant);
  const BlockSpan span{0, 64, 64};
  for (int replay = 0; replay < 3; ++replay) {
    recorder.calls.clear();
    mine.gather(0, mine.next_tag(0), std::span(&span, 1), kStream);
    mine.release(0, kStream);
    EXPECT_THAT(recorder.calls,
                ElementsAre("words w w 0 0", "copy 2", "words 1 1 w w 0 0", "words 1 1"));
  }
}

TEST(CopyEngineGather, CutsCopiesAndCallsThatAreTooLarge) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  Group group(200, 8);
  Recorder recorder;
  PeerMemory memory = group.memory();
  memory.window_bytes = 200 * 150 * kMiB;  // nothing is copied
  CopyEngineGather mine(group.boards, 199, memory, recorder.table());
  const BlockSpan span{0, 150 * kMiB, 150 * kMiB};
  mine.gather(0, 1, std::span(&span, 1), kStream);
  ASSERT_EQ(recorder.copies.size(), 3U * 199U);
  std::int64_t next = 199 * 150 * kMiB;
  for (const std::int64_t size_mib : {64, 64, 22}) {
    const PeerCopy& copy = recorder.copies[static_cast<std::size_t>((next / kMiB - 29850) / 64)];
    EXPECT_EQ(copy, (PeerCopy{group.window(0) + next, group.window(199) + next, size_mib * kMiB}));
    next += size_mib * kMiB;
  }
  EXPECT_EQ(recorder.operations.size(), 3U * 199U);
  EXPECT_EQ(recorder.calls.size(), 4U);  // 199 waits, the batch, 255 and 143 words
}

int value_of(std::int64_t layer, std::int64_t rank) {
  return static_cast<int>((layer * 16 + rank) % 251);
}

/// Layers in alternating slots with random pauses, the next enqueued while one is read; every byte
/// of every block is compared.
void read_layers(Group& group, CopyEngineGather& mine, std::int64_t rank, bool is_constant) {
  constexpr std::int64_t kLayers = 30;
  const std::vector<BlockSpan> spans{{0, 200, 150}, {1000, 64, 64}};
  FakeStream stream;
  std::mt19937 engine(static_cast<unsigned>(rank));
  const std::uint32_t first = mine.next_tag(0);
  const auto enqueue = [&](std::int64_t layer) {
    std::vector<BlockSpan> placed = spans;
    for (BlockSpan& span : placed)
      span.offset_bytes += layer % 2 * 2000;
    const auto pause = std::chrono::microseconds(engine() % 300);
    stream.push([&group, rank, layer, placed, pause] {
      std::this_thread::sleep_for(pause);
      for (const BlockSpan& span : placed)
        std::fill_n(group.window(rank) + span.offset_bytes + rank * span.stride_bytes, span.bytes,
                    static_cast<std::byte>(value_of(layer, rank)));
    });
    const auto count = static_cast<std::uint32_t>(layer / 2);
    mine.gather(layer % 2, is_constant ? 1 : first + count, placed, stream.handle());
  };
  enqueue(0);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    mine.wait(layer % 2, [&] { return stream.is_idle(); }, kLong);
    if (layer + 1 < kLayers) enqueue(layer + 1);
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
    mine.release(layer % 2, stream.handle());
  }
  stream.drain();
}

struct Run {
  std::int64_t ranks;
  TagOptions tags;
};

class EveryRank : public ::testing::TestWithParam<Run> {};

TEST_P(EveryRank, ReadsWhatEveryRankPacked) {
  const auto [ranks, tags] = GetParam();
  Group group(ranks);
  std::vector<std::unique_ptr<CopyEngineGather>> members;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    members.push_back(std::make_unique<CopyEngineGather>(group.boards, rank, group.memory(),
                                                         FakeStream::calls(), tags));
  }
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, is_constant = tags.kind == GatherTags::kConstant] {
      read_layers(group, *members[static_cast<std::size_t>(rank)], rank, is_constant);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

INSTANTIATE_TEST_SUITE_P(CopyEngineGather, EveryRank,
                         ::testing::Values(Run{1, {}}, Run{2, {}}, Run{4, {}},
                                           Run{3, {GatherTags::kGrowing, 0xfffffffbU}},
                                           Run{2, kConstant}, Run{4, kConstant}));

class MissingPeer : public ::testing::TestWithParam<GatherTags> {};

TEST_P(MissingPeer, IsNamedAndTheStreamRunsOn) {
  Group group(3);
  FakeStream stream;
  CopyEngineGather mine(group.boards, 0, group.memory(), FakeStream::calls(), {GetParam()});
  // Rank 1 gives its credit and its block, rank 2 only its credit.
  *group.word(group.boards.credit_offset_bytes(0, 0, 1)) = 1;
  *group.word(group.boards.credit_offset_bytes(0, 0, 2)) = 1;
  *group.word(group.boards.done_offset_bytes(0, 0, 1)) = 1;
  const BlockSpan span{0, 64, 64};
  mine.gather(0, 1, std::span(&span, 1), stream.handle());
  // Until the stream has used the credits and told rank 2.
  const std::atomic_ref<std::uint32_t> told(*group.word(group.boards.done_offset_bytes(2, 0, 0)));
  while (told.load() != 1)
    std::this_thread::yield();
  try {
    mine.wait(0, [&] { return stream.is_idle(); }, kShort);
    ADD_FAILURE() << "nobody was missed";
  } catch (const DeadlineError& error) {
    EXPECT_THAT(error.missing_ranks(), ElementsAre(2));
    EXPECT_THAT(error.what(), HasSubstr("expected rank 2 at the last gather of slot 0"));
  }
  stream.drain();
  EXPECT_THAT([&] { mine.gather(1, 1, std::span(&span, 1), stream.handle()); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("got one that gave up")));
}

TEST_P(MissingPeer, IsNamedWhenItStillReadsTheSlot) {
  Group group(3);
  FakeStream stream;
  CopyEngineGather mine(group.boards, 0, group.memory(), FakeStream::calls(), {GetParam()});
  *group.word(group.boards.credit_offset_bytes(0, 1, 2)) = 1;
  group.window(1)[0] = std::byte{77};
  const BlockSpan span{0, 64, 64};
  mine.gather(1, 1, std::span(&span, 1), stream.handle());
  std::this_thread::sleep_for(kShort / 4);
  EXPECT_EQ(group.window(1)[0], std::byte{77}) << "a slot was written before it was free";
  EXPECT_EQ(group.window(2)[0], std::byte{0});
  try {
    mine.wait(1, [&] { return stream.is_idle(); }, kShort);
    ADD_FAILURE() << "nobody was missed";
  } catch (const DeadlineError& error) {
    EXPECT_THAT(error.missing_ranks(), ElementsAre(1));
  }
  stream.drain();
}

INSTANTIATE_TEST_SUITE_P(CopyEngineGather, MissingPeer,
                         ::testing::Values(GatherTags::kGrowing, GatherTags::kConstant));

TEST(CopyEngineGather, TellsAStreamThatIsLateFromAPeer) {
  Group group(2);
  Recorder recorder;  // runs nothing
  CopyEngineGather mine(group.boards, 0, group.memory(), recorder.table());
  const CopyEngineGather peer(group.boards, 1, group.memory(), recorder.table());
  *group.word(group.boards.done_offset_bytes(0, 0, 1)) = 1;
  mine.gather(0, 1, {}, kStream);
  try {
    mine.wait(0, [] { return false; }, kShort);
    ADD_FAILURE() << "the stream came";
  } catch (const DeadlineError& error) {
    EXPECT_THAT(error.missing_ranks(), IsEmpty());
    EXPECT_THAT(error.what(), HasSubstr("expected the stream at"));
  }
}

TEST(CopyEngineGather, NamesAPeerThatIsAtAnotherGather) {
  Group group(2);
  Recorder recorder;
  CopyEngineGather mine(group.boards, 0, group.memory(), recorder.table());
  const CopyEngineGather ahead(group.boards, 1, group.memory(), recorder.table(),
                               {GatherTags::kGrowing, 5});
  mine.gather(0, 1, {}, kStream);
  try {
    mine.wait(0, [] { return false; }, kShort);
    ADD_FAILURE() << "the ranks are at one gather";
  } catch (const GroupError& error) {
    EXPECT_THAT(error.failed_ranks(), ElementsAre(1));
  }
}

TEST(CopyEngineGather, RefusesWhatWouldCorrupt) {
  Group group(2);
  Recorder recorder;
  CopyEngineGather mine(group.boards, 0, group.memory(), recorder.table());
  const auto gather = [&](std::uint32_t tag, BlockSpan span, CudaStream stream = kStream) {
    mine.gather(0, tag, std::span(&span, 1), stream);
  };
  EXPECT_THROW(gather(2, {0, 8, 8}), InvalidArgumentError);
  EXPECT_THROW(gather(1, {4090, 8, 8}), InvalidArgumentError);
  EXPECT_THROW(gather(1, {0, 8, 9}), InvalidArgumentError);
  EXPECT_THROW(gather(1, {-1, 8, 8}), InvalidArgumentError);
  EXPECT_THROW(gather(1, {0, 8, 8}, nullptr), InvalidArgumentError);
  EXPECT_THROW(mine.gather(2, 1, {}, kStream), InvalidArgumentError);
  EXPECT_THROW(mine.release(0, kStream), InvalidArgumentError);
  recorder.is_capturing = true;
  EXPECT_THAT([&] { gather(1, {0, 8, 8}); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("expected constant tags")));
  recorder.is_capturing = false;
  EXPECT_THAT(recorder.calls, IsEmpty());
  gather(1, {0, 8, 8});
  EXPECT_THAT([&] { gather(2, {0, 8, 8}); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("to be released")));
}

TEST(CopyEngineGather, RefusesMemoryThatDoesNotFit) {
  Group group(2);
  Recorder recorder;
  const auto make = [&](std::int64_t rank, const PeerMemory& memory, StreamCalls calls) {
    CopyEngineGather(group.boards, rank, memory, std::move(calls));
  };
  EXPECT_THROW(make(2, group.memory(), recorder.table()), InvalidArgumentError);
  EXPECT_THROW(make(0, group.memory(), {}), InvalidArgumentError);
  PeerMemory memory = group.memory();
  memory.windows[1] = nullptr;
  EXPECT_THROW(make(0, memory, recorder.table()), InvalidArgumentError);
  memory = group.memory();
  memory.boards = memory.boards.subspan(64);
  EXPECT_THROW(make(0, memory, recorder.table()), InvalidArgumentError);
  EXPECT_THROW(CopyEngineGather(group.boards, 0, group.memory(), recorder.table(),
                                {GatherTags::kConstant, 2}),
               InvalidArgumentError);
}

}  // namespace
}  // namespace kvxfer::cuda
