// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/cuda/copy_engine_gather.hpp>
#include <kvxfer/cuda/stream_calls.hpp>

#include "device.hpp"

#include <algorithm>
#include <array>
#include <memory>

namespace kvxfer::test {

namespace {

constexpr std::int64_t kRanks = 2;
constexpr std::int64_t kBlockBytes = 70'001;
constexpr BlockSpan kSpan{4096, 71'680, kBlockBytes};
constexpr std::int64_t kWindowBytes = kSpan.offset_bytes + kRanks * kSpan.stride_bytes;
constexpr std::chrono::milliseconds kBound{20000};

/// Two ranks of one process on one device, each with a window and a stream.
class Pair {
 public:
  explicit Pair(cuda::GatherTags kind) : boards_(kRanks, 1), words_(boards_.bytes()) {
    cuda::PeerMemory memory{
        {words_.data(), static_cast<std::size_t>(words_.bytes())}, {}, kWindowBytes};
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      windows_.push_back(std::make_unique<cuda::DeviceBuffer>(kWindowBytes));
      memory.windows.push_back(window(rank));
    }
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      sides_.push_back(std::make_unique<cuda::CopyEngineGather>(
          boards_, rank, memory, cuda::make_stream_calls(), cuda::TagOptions{kind}));
    }
  }

  [[nodiscard]] std::byte* window(std::int64_t rank) const {
    return windows_[static_cast<std::size_t>(rank)]->data();
  }
  [[nodiscard]] cuda::CopyEngineGather& side(std::int64_t rank) const {
    return *sides_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] cudaStream_t stream(std::int64_t rank) const {
    return streams_[static_cast<std::size_t>(rank)].get();
  }

  /// Poisons the window, then packs the rank's block for a round.
  void pack(std::int64_t rank, int round) const {
    cuda::cuda_check(cudaMemsetAsync(window(rank), 0xee, kWindowBytes, stream(rank)),
                     "cudaMemsetAsync");
    std::byte* block = window(rank) + kSpan.offset_bytes + rank * kSpan.stride_bytes;
    cuda::cuda_check(cudaMemsetAsync(block, value_of(rank, round), kBlockBytes, stream(rank)),
                     "cudaMemsetAsync");
  }

  /// Waits, bounded, and compares every byte of every window; `round` names a failure.
  void expect_gathered(int round) const {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      side(rank).wait(0, [&] { return cudaStreamQuery(stream(rank)) == cudaSuccess; }, kBound);
    }
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<std::byte> found(static_cast<std::size_t>(kWindowBytes));
      to_host(*windows_[static_cast<std::size_t>(rank)], found);
      std::vector<std::byte> expected(found.size(), std::byte{0xee});
      for (std::int64_t owner = 0; owner < kRanks; ++owner) {
        std::fill_n(expected.begin() + kSpan.offset_bytes + owner * kSpan.stride_bytes, kBlockBytes,
                    static_cast<std::byte>(value_of(owner, round)));
      }
      ASSERT_TRUE(found == expected) << "rank " << rank << ", round " << round;
    }
  }

 private:
  static int value_of(std::int64_t rank, int round) {
    return static_cast<int>((round * kRanks + rank) % 200);
  }

  HandshakeBoards boards_;
  cuda::PinnedBuffer words_;
  std::array<cuda::Stream, kRanks> streams_;
  std::vector<std::unique_ptr<cuda::DeviceBuffer>> windows_;
  std::vector<std::unique_ptr<cuda::CopyEngineGather>> sides_;
};

using CudaCopyEngineGather = DeviceTest;

TEST_F(CudaCopyEngineGather, BringsEveryBlockEveryRound) {
  const Pair pair(cuda::GatherTags::kGrowing);
  for (int round = 0; round < 20; ++round) {
    // A peer may write as soon as this rank released, so all poison before any gathers.
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      pair.pack(rank, round);
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      cuda::cuda_check(cudaStreamSynchronize(pair.stream(rank)), "cudaStreamSynchronize");
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      pair.side(rank).gather(0, pair.side(rank).next_tag(0), std::span(&kSpan, 1),
                             pair.stream(rank));
    pair.expect_gathered(round);
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      pair.side(rank).release(0, pair.stream(rank));
  }
}

TEST_F(CudaCopyEngineGather, IsReplayed) {
  const Pair pair(cuda::GatherTags::kConstant);
  std::array<cudaGraphExec_t, kRanks> graphs{};
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const cudaStream_t stream = pair.stream(rank);
    cuda::cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
                     "cudaStreamBeginCapture");
    pair.side(rank).gather(0, 1, std::span(&kSpan, 1), stream);
    pair.side(rank).release(0, stream);
    cudaGraph_t graph = nullptr;
    cuda::cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda::cuda_check(cudaGraphInstantiate(&graphs[static_cast<std::size_t>(rank)], graph, 0),
                     "cudaGraphInstantiate");
    cuda::cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  for (int round = 0; round < 100; ++round) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      pair.pack(rank, round);
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      cuda::cuda_check(cudaStreamSynchronize(pair.stream(rank)), "cudaStreamSynchronize");
    for (std::int64_t rank = 0; rank < kRanks; ++rank)
      cuda::cuda_check(cudaGraphLaunch(graphs[static_cast<std::size_t>(rank)], pair.stream(rank)),
                       "cudaGraphLaunch");
    pair.expect_gathered(round);
  }
  for (const cudaGraphExec_t graph : graphs)
    cuda::cuda_check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

TEST_F(CudaCopyEngineGather, LetsTheStreamOfAMissingPeerGo) {
  const Pair pair(cuda::GatherTags::kGrowing);
  pair.side(0).gather(0, 1, std::span(&kSpan, 1), pair.stream(0));
  const auto is_ready = [&] { return cudaStreamQuery(pair.stream(0)) == cudaSuccess; };
  EXPECT_THROW(pair.side(0).wait(0, is_ready, std::chrono::milliseconds(500)), Error);
  EXPECT_TRUE(is_ready());
}

}  // namespace

}  // namespace kvxfer::test
