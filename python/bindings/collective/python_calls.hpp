// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/pybind11.h>

#include <kvxfer/cuda/rank_group.hpp>
#include <kvxfer/cuda/symmetric_window.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvxfer::bindings::collective {

/// A Python callable that is called and dropped by threads without the GIL.
using SharedCallable = std::shared_ptr<pybind11::object>;

/// @throws InvalidArgumentError unless it can be called.
[[nodiscard]] SharedCallable shared_callable(const pybind11::object& callable, const char* name);

/// Ranks that exchange texts by a Python callable, which has its own bound.
class PythonGroup final : public kvxfer::cuda::RankGroup {
 public:
  /// @throws InvalidArgumentError unless 0 <= rank < ranks.
  PythonGroup(std::int64_t rank, std::int64_t ranks, const pybind11::object& exchange);

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t ranks() const override { return ranks_; }

  /// Bytes travel as characters U+0000 to U+00FF. A TimeoutError of the callable becomes a
  /// DeadlineError, another exception a GroupError with its words.
  [[nodiscard]] std::vector<std::string> exchange(const std::string& message,
                                                  std::chrono::milliseconds bound) override;

 private:
  std::int64_t rank_;
  std::int64_t ranks_;
  SharedCallable exchange_;
};

/// The two calls of a window, from Python callables.
[[nodiscard]] kvxfer::cuda::DeviceCalls device_calls(const pybind11::object& synchronize,
                                                     const pybind11::object& is_capturing);

}  // namespace kvxfer::bindings::collective
