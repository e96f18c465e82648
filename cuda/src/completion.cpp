// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/cuda/completion.hpp>

#include <cuda.h>

#include <atomic>

namespace kvxfer::cuda {

namespace {

struct StreamMemoryOperations {
  decltype(&cuStreamWriteValue32) write;
  decltype(&cuStreamWaitValue32) wait;
};

void* driver_entry_point(const char* name) {
  constexpr unsigned int kDriverVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda_check(
      cudaGetDriverEntryPointByVersion(name, &function, kDriverVersion, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    throw UnsupportedError(kvxfer::detail::message("expected a driver with ", name,
                                                   ", got one without; use events instead"));
  }
  return function;
}

const StreamMemoryOperations& stream_memory_operations() {
  static const StreamMemoryOperations operations{
      reinterpret_cast<decltype(&cuStreamWriteValue32)>(driver_entry_point("cuStreamWriteValue32")),
      reinterpret_cast<decltype(&cuStreamWaitValue32)>(driver_entry_point("cuStreamWaitValue32"))};
  return operations;
}

CUdeviceptr device_address(const std::uint32_t* word) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(word));
}

void driver_check(CUresult status, const char* call) {
  // The driver's codes of these calls are the runtime's.
  cuda_check(static_cast<cudaError_t>(status), call);
}

std::int64_t require_count(std::int64_t count) {
  kvxfer::detail::require(count > 0, "expected a count of words > 0, got ", count);
  return count;
}

}  // namespace

CompletionWords::CompletionWords(std::int64_t count)
    : count_(require_count(count)),
      memory_(count * static_cast<std::int64_t>(sizeof(std::uint32_t))) {
  static_cast<void>(stream_memory_operations());
  for (std::int64_t i = 0; i < count; ++i)
    set(i, 0);
}

void CompletionWords::write(std::int64_t index, std::uint32_t value, StreamRef stream) const {
  driver_check(stream_memory_operations().write(stream.get(), device_address(word(index)), value,
                                                CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32");
}

void CompletionWords::wait(std::int64_t index, std::uint32_t value, StreamRef stream) const {
  driver_check(stream_memory_operations().wait(stream.get(), device_address(word(index)), value,
                                               CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
}

std::uint32_t CompletionWords::read(std::int64_t index) const {
  return std::atomic_ref<std::uint32_t>(*word(index)).load(std::memory_order_acquire);
}

void CompletionWords::set(std::int64_t index, std::uint32_t value) const {
  std::atomic_ref<std::uint32_t>(*word(index)).store(value, std::memory_order_release);
}

std::uint32_t* CompletionWords::word(std::int64_t index) const {
  kvxfer::detail::require(0 <= index && index < count_, "expected a word in [0, ", count_,
                          "), got ", index);
  return reinterpret_cast<std::uint32_t*>(memory_.data()) + index;
}

}  // namespace kvxfer::cuda
