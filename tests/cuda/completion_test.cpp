// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/cuda/completion.hpp>
#include <kvxfer/error.hpp>

#include "device.hpp"

#include <chrono>
#include <thread>

namespace kvxfer::test {

namespace {

using CudaCompletion = DeviceTest;

/// Polls for at most ten seconds.
bool reaches(const cuda::CompletionWords& words, std::int64_t index, std::uint32_t value) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (words.read(index) != value) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_F(CudaCompletion, WordsStartAtZeroAndTakeTheStreamsValue) {
  const cuda::CompletionWords words(3);
  const cuda::Stream stream;
  EXPECT_EQ(words.read(1), 0U);
  words.write(1, 7, stream.ref());
  EXPECT_TRUE(reaches(words, 1, 7));
  EXPECT_EQ(words.read(0), 0U);
  EXPECT_EQ(words.read(2), 0U);
}

TEST_F(CudaCompletion, StreamWaitsForTheHostsWord) {
  const cuda::CompletionWords words(2);
  const cuda::Stream stream;
  words.wait(0, 1, stream.ref());
  words.write(1, 5, stream.ref());
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
  EXPECT_EQ(words.read(1), 0U);
  words.set(0, 1);
  EXPECT_TRUE(reaches(words, 1, 5));
}

TEST_F(CudaCompletion, RefusesWordsThatItDoesNotHave) {
  EXPECT_THROW(cuda::CompletionWords(0), InvalidArgumentError);
  const cuda::CompletionWords words(1);
  EXPECT_THROW(static_cast<void>(words.read(1)), InvalidArgumentError);
  EXPECT_THROW(words.set(-1, 0), InvalidArgumentError);
}

}  // namespace

}  // namespace kvxfer::test
