// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owners of device memory and of page-locked host memory. Allocation is for set-up, never for a
// launch.

#include <kvxfer/cuda/check.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvxfer::cuda {

/// Memory of the device that was current when it was made.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) cuda_check(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) static_cast<void>(cudaFree(data_));
  }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept {
    return {data(), static_cast<std::size_t>(bytes_)};
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Page-locked host memory that every device can read and write.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::int64_t bytes) : bytes_(bytes) {
    cuda_check(cudaHostAlloc(&data_, static_cast<std::size_t>(bytes),
                             cudaHostAllocPortable | cudaHostAllocMapped),
               "cudaHostAlloc");
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
  }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace kvxfer::cuda
