// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Words in page-locked memory that a stream writes and a poller reads: completion without a host
// call per copy.

#include <kvxfer/cuda/buffer.hpp>
#include <kvxfer/cuda/stream.hpp>

#include <cstdint>

namespace kvxfer::cuda {

/// `count` words, all 0 at first. One thread may read while streams write.
class CompletionWords {
 public:
  /// @throws UnsupportedError when the device or its driver has no stream memory operations; events
  /// work everywhere.
  explicit CompletionWords(std::int64_t count);

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

  /// Enqueues: word `index` becomes `value` after all work enqueued on `stream` before, whose
  /// writes are visible to whoever reads the value.
  void write(std::int64_t index, std::uint32_t value, StreamRef stream) const;

  /// Enqueues: work that follows on `stream` starts once word `index` has reached `value`, in
  /// the order of numbers that wrap around. No multiprocessor waits.
  void wait(std::int64_t index, std::uint32_t value, StreamRef stream) const;

  /// The word. @throws InvalidArgumentError unless 0 <= index < count.
  [[nodiscard]] std::uint32_t read(std::int64_t index) const;

  /// Sets the word from the host, as a thread that frees a slot does.
  void set(std::int64_t index, std::uint32_t value) const;

 private:
  [[nodiscard]] std::uint32_t* word(std::int64_t index) const;

  std::int64_t count_;
  PinnedBuffer memory_;
};

}  // namespace kvxfer::cuda
