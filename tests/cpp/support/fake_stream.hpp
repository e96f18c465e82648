// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stream that runs what is enqueued on a thread of its own, over host memory. Its words wait for
// ever, as a device's do.

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "kvxfer/cuda/copy_engine_gather.hpp"

namespace kvxfer::support {

class FakeStream {
 public:
  FakeStream() : thread_([this] { run(); }) {}
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  ~FakeStream() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  [[nodiscard]] cuda::CudaStream handle() { return this; }

  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool is_idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }

  static cuda::StreamCalls calls() {
    return {.copy =
                [](std::span<const cuda::PeerCopy> copies, cuda::CudaStream stream) {
                  of(stream).push([batch = std::vector(copies.begin(), copies.end())] {
                    for (const cuda::PeerCopy& copy : batch)
                      std::memcpy(copy.destination, copy.source,
                                  static_cast<std::size_t>(copy.size_bytes));
                  });
                },
            .operate =
                [](std::span<const cuda::WordOperation> operations, cuda::CudaStream stream) {
                  of(stream).push([batch = std::vector(operations.begin(), operations.end())] {
                    for (const cuda::WordOperation& operation : batch)
                      operate(operation);
                  });
                },
            .is_capturing = [](cuda::CudaStream) { return false; }};
  }

 private:
  static FakeStream& of(cuda::CudaStream stream) { return *static_cast<FakeStream*>(stream); }

  static void operate(const cuda::WordOperation& operation) {
    const std::atomic_ref<std::uint32_t> word(*operation.word);
    if (!operation.is_wait) return word.store(operation.value, std::memory_order_release);
    while (!has_reached(word.load(std::memory_order_acquire), operation.value))
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = queue_.front();
      lock.unlock();
      work();
      lock.lock();
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace kvxfer::support
