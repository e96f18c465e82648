// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/cuda/stream_calls.hpp>

#include <kvxfer/cuda/check.hpp>

#include <cuda.h>

#include <vector>

namespace kvxfer::cuda {

namespace {

using BatchMemoryOperations = decltype(&cuStreamBatchMemOp);

BatchMemoryOperations batch_memory_operations() {
  constexpr unsigned int kDriverVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda_check(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, kDriverVersion,
                                              cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    throw UnsupportedError("expected a driver with cuStreamBatchMemOp, got one without");
  }
  return reinterpret_cast<BatchMemoryOperations>(function);
}

bool is_capturing(CudaStream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
             "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void copy_singly(std::span<const PeerCopy> copies, cudaStream_t stream) {
  for (const PeerCopy& copy : copies) {
    cuda_check(
        cudaMemcpyAsync(copy.destination, copy.source, static_cast<std::size_t>(copy.size_bytes),
                        cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  }
}

void copy_batch(std::span<const PeerCopy> copies, CudaStream handle) {
  auto* stream = static_cast<cudaStream_t>(handle);
  // A batch cannot be captured.
  if (is_capturing(handle)) return copy_singly(copies, stream);
  std::vector<void*> destinations;
  std::vector<const void*> sources;
  std::vector<std::size_t> sizes;
  for (const PeerCopy& copy : copies) {
    destinations.push_back(copy.destination);
    sources.push_back(copy.source);
    sizes.push_back(static_cast<std::size_t>(copy.size_bytes));
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  cuda_check(cudaMemcpyBatchAsync(destinations.data(), sources.data(), sizes.data(), sizes.size(),
                                  &attributes, &first, 1, stream),
             "cudaMemcpyBatchAsync");
}

void operate(BatchMemoryOperations enqueue, std::span<const WordOperation> operations,
             CudaStream stream) {
  std::vector<CUstreamBatchMemOpParams> batch(operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const WordOperation& operation = operations[i];
    const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(operation.word));
    if (operation.is_wait) {
      batch[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      batch[i].waitValue.address = address;
      batch[i].waitValue.value = operation.value;
      batch[i].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    } else {
      batch[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      batch[i].writeValue.address = address;
      batch[i].writeValue.value = operation.value;
      batch[i].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    }
  }
  // The driver's codes of this call are the runtime's.
  cuda_check(
      static_cast<cudaError_t>(enqueue(static_cast<CUstream>(stream),
                                       static_cast<unsigned int>(batch.size()), batch.data(), 0)),
      "cuStreamBatchMemOp");
}

}  // namespace

StreamCalls make_stream_calls() {
  const BatchMemoryOperations enqueue = batch_memory_operations();
  return {.copy = copy_batch,
          .operate = [enqueue](std::span<const WordOperation> operations,
                               CudaStream stream) { operate(enqueue, operations, stream); },
          .is_capturing = is_capturing};
}

}  // namespace kvxfer::cuda
