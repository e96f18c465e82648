// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/cuda/check.hpp>

namespace kvxfer::cuda {

CudaError::CudaError(cudaError_t code, const char* call)
    : Error(kvxfer::detail::message("expected ", call, " to succeed, got ", cudaGetErrorName(code),
                                    ": ", cudaGetErrorString(code))),
      code_(code) {}

CudaError::~CudaError() = default;

}  // namespace kvxfer::cuda
