// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA calls that fail become exceptions, once, here.

#include <kvxfer/error.hpp>

#include <cuda_runtime_api.h>

namespace kvxfer::cuda {

/// A CUDA call failed; code() is its status.
class [[gnu::visibility("default")]] CudaError final : public Error {
 public:
  CudaError(cudaError_t code, const char* call);
  CudaError(const CudaError&) = default;
  CudaError& operator=(const CudaError&) = default;
  ~CudaError() override;

  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// @throws CudaError naming `call` unless `status` is success.
inline void cuda_check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) [[unlikely]]
    throw CudaError(status, call);
}

}  // namespace kvxfer::cuda
