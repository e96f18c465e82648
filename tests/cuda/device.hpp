// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A device for tests: skipped without one, unless KVXFER_REQUIRE_GPU=1 asks for a failure.

#include <kvxfer/cuda/buffer.hpp>
#include <kvxfer/cuda/stream.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace kvxfer::test {

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return;
    const char* required = std::getenv("KVXFER_REQUIRE_GPU");
    if (required != nullptr && std::string(required) == "1")
      FAIL() << "KVXFER_REQUIRE_GPU=1, but: " << cudaGetErrorString(status);
    GTEST_SKIP() << "no device: " << cudaGetErrorString(status);
  }
};

inline cuda::DeviceBuffer to_device(const std::vector<std::byte>& bytes) {
  cuda::DeviceBuffer buffer(static_cast<std::int64_t>(bytes.size()));
  cuda::cuda_check(cudaMemcpy(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                   "cudaMemcpy to the device");
  return buffer;
}

inline void to_host(const cuda::DeviceBuffer& buffer, std::vector<std::byte>& bytes) {
  cuda::cuda_check(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost),
                   "cudaMemcpy to the host");
}

}  // namespace kvxfer::test
