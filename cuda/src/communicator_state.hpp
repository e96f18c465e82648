// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a communicator and its windows share; ends NCCL's communicator when the last of them goes.

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "kvxfer/cuda/communicator.hpp"

namespace kvxfer::cuda {

class CommunicatorState {
 public:
  CommunicatorState(std::shared_ptr<const NcclApi> api, std::shared_ptr<RankGroup> group,
                    const CommunicatorOptions& options);
  CommunicatorState(const CommunicatorState&) = delete;
  CommunicatorState& operator=(const CommunicatorState&) = delete;
  ~CommunicatorState();

  [[nodiscard]] const NcclApi& api() const { return *api_; }
  [[nodiscard]] RankGroup& group() const { return *group_; }
  [[nodiscard]] const CommunicatorOptions& options() const { return options_; }
  /// @throws InvalidArgumentError once it ended.
  [[nodiscard]] NcclComm handle() const;
  [[nodiscard]] bool is_open() const { return handle_.load() != nullptr; }
  [[nodiscard]] bool is_aborted() const { return is_aborted_.load(); }

  /// Starts NCCL's side and waits until it is connected.
  void start(const NcclUniqueId& id);
  /// Waits until NCCL is done with the call that gave `status`.
  /// @throws NcclError, or DeadlineError after the bound.
  void wait(int status, const char* call) const;
  void check() const;
  /// As Communicator::all_gather().
  void all_gather(std::byte* received, std::int64_t block_bytes, CudaStream stream) const;
  void abort() noexcept;
  void destroy();

  void keep_release_failure(const std::string& words) noexcept;
  [[nodiscard]] std::string release_failure() const;

 private:
  /// What NCCL says of the communicator: success, in progress or an error.
  [[nodiscard]] int async_state() const;

  std::shared_ptr<const NcclApi> api_;
  std::shared_ptr<RankGroup> group_;
  CommunicatorOptions options_;
  NcclComm connecting_ = nullptr;  // NCCL writes it once more when it is connected
  std::atomic<NcclComm> handle_{nullptr};
  std::atomic<bool> is_aborted_{false};
  std::string release_failure_;
  mutable std::mutex polling_;  // abort() frees what a poll of another thread reads
};

}  // namespace kvxfer::cuda
