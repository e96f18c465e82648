// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the ranks of a group tell each other what they found before NCCL connects them, and whether
// each step went well. The caller brings the means: torch.distributed, a store, sockets.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/error.hpp"

namespace kvxfer::cuda {

/// A bounded wait ran out; missing_ranks() had not come. Empty where the ranks cannot be told.
class [[gnu::visibility("default")]] DeadlineError final : public Error {
 public:
  DeadlineError(const std::string& message, std::vector<std::int64_t> missing_ranks)
      : Error(message), missing_ranks_(std::move(missing_ranks)) {}
  DeadlineError(const DeadlineError&) = default;
  DeadlineError& operator=(const DeadlineError&) = default;
  ~DeadlineError() override;

  [[nodiscard]] const std::vector<std::int64_t>& missing_ranks() const noexcept {
    return missing_ranks_;
  }

 private:
  std::vector<std::int64_t> missing_ranks_;
};

/// A step failed on some ranks, so every rank gave it up; failed_ranks() says on which.
class [[gnu::visibility("default")]] GroupError final : public Error {
 public:
  GroupError(const std::string& message, std::vector<std::int64_t> failed_ranks)
      : Error(message), failed_ranks_(std::move(failed_ranks)) {}
  GroupError(const GroupError&) = default;
  GroupError& operator=(const GroupError&) = default;
  ~GroupError() override;

  [[nodiscard]] const std::vector<std::int64_t>& failed_ranks() const noexcept {
    return failed_ranks_;
  }

 private:
  std::vector<std::int64_t> failed_ranks_;
};

/// The ranks of a shard group, as the caller connects them. One thread at a time.
class RankGroup {
 public:
  RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  virtual ~RankGroup();

  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t ranks() const = 0;

  /// The messages of all ranks, in rank order; a barrier, too.
  /// @throws DeadlineError after `bound`, with the ranks that did not come.
  [[nodiscard]] virtual std::vector<std::string> exchange(const std::string& message,
                                                          std::chrono::milliseconds bound) = 0;
};

/// What a rank brings to a step that all ranks take or none: a failure in words, or a payload.
struct StepResult {
  std::string failure;  ///< empty when the step went well
  std::string payload;
};

/// The payloads of all ranks if the step went well on every one.
/// @throws GroupError on all ranks if it failed on one, or if the ranks are at different steps.
/// @throws DeadlineError as RankGroup::exchange().
[[nodiscard]] std::vector<std::string> agree(RankGroup& group, const std::string& step,
                                             const StepResult& mine,
                                             std::chrono::milliseconds bound);

}  // namespace kvxfer::cuda
