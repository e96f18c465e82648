// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Streams and events of the caller, and owners of our own. A reference owns nothing.

#include <kvxfer/cuda/check.hpp>

#include <cstdint>
#include <utility>

namespace kvxfer::cuda {

/// A stream that somebody else owns.
class StreamRef {
 public:
  explicit StreamRef(cudaStream_t stream) noexcept : stream_(stream) {}
  StreamRef(int) = delete;
  StreamRef(std::nullptr_t) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

  /// Waits until everything enqueued so far has run. @throws CudaError of any of it.
  void synchronize() const { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_;
};

/// A stream of the current device that does not wait for the default stream.
class Stream {
 public:
  /// `priority` as cudaStreamCreateWithPriority takes it: lower numbers first.
  explicit Stream(int priority = 0) {
    cuda_check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
               "cudaStreamCreateWithPriority");
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  [[nodiscard]] StreamRef ref() const noexcept { return StreamRef(stream_); }
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event of the current device.
class Event {
 public:
  /// `flags` as cudaEventCreateWithFlags takes them; events that time are made with
  /// cudaEventDefault.
  explicit Event(unsigned int flags = cudaEventDisableTiming) {
    cuda_check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

  void record(StreamRef stream) const {
    cuda_check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace kvxfer::cuda
