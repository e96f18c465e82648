// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// An NCCL communicator of its own for prefix gathers: its policy is its own and never the
// environment's, its start is bounded, and it ends after everything that uses it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kvxfer/cuda/nccl_api.hpp"
#include "kvxfer/cuda/rank_group.hpp"

namespace kvxfer::cuda {

/// NCCL's CTA policy.
enum class CtaPolicy : std::uint8_t {
  kDefault = 0,
  kEfficiency = 1,
  kZero = 2,  ///< copy engines where NCCL can
};

struct CommunicatorOptions {
  CtaPolicy policy = CtaPolicy::kDefault;
  /// Of every wait: for peers, for NCCL to connect them, and for its end.
  std::chrono::milliseconds bound = std::chrono::seconds(60);
};

class CommunicatorState;

/// Connected ranks. One thread at a time, except abort().
class Communicator {
 public:
  /// Connects the ranks of `group`; collective. A failure on one rank fails all of them.
  /// @throws GroupError for a failure of any rank: a zero policy with an NCCL before 2.31.2 (its
  ///         first copy-engine gather can hang two ranks), different versions, NCCL's own.
  /// @throws DeadlineError when ranks do not come within the bound.
  [[nodiscard]] static Communicator create(std::shared_ptr<const NcclApi> api,
                                           std::shared_ptr<RankGroup> group,
                                           const CommunicatorOptions& options);

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&&) noexcept = default;
  /// Lets go. NCCL's communicator ends once no window, view or graph holds it either.
  ~Communicator();

  [[nodiscard]] std::int64_t rank() const;
  [[nodiscard]] std::int64_t ranks() const;
  [[nodiscard]] const CommunicatorOptions& options() const;
  [[nodiscard]] NcclComm handle() const;
  [[nodiscard]] bool is_aborted() const;

  /// Enqueues an in-place gather in ordinary device memory: rank r's `block_bytes` at
  /// received + r * block_bytes reach every rank. The memory must outlive it.
  /// @throws InvalidArgumentError for no memory, empty blocks or the default stream.
  void all_gather(std::byte* received, std::int64_t block_bytes, CudaStream stream) const;

  /// @throws NcclError if a peer or a link failed since; InvalidArgumentError once it ended.
  void check() const;

  /// What a window's destructor could not throw: the first failure of a release, empty for none.
  [[nodiscard]] std::string release_failure() const;

  /// Ends everything in flight on this rank without waiting for peers. From any thread, repeatedly.
  void abort() noexcept;

  /// Ends it, for callers who want the error. Bounded; repeated calls do nothing.
  /// @throws InvalidArgumentError while a window, a view or a graph holds it.
  /// @throws NcclError of NCCL, or DeadlineError, after which it is aborted.
  void close();

  /// Whoever keeps the result keeps the communicator from ending: windows, and captured graphs of
  /// its gathers, with which NCCL would hang in its end.
  [[nodiscard]] std::shared_ptr<CommunicatorState> hold() const { return state_; }

 private:
  explicit Communicator(std::shared_ptr<CommunicatorState> state);
  std::shared_ptr<CommunicatorState> state_;
};

}  // namespace kvxfer::cuda
