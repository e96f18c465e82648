// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks as threads of one process.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kvxfer/cuda/rank_group.hpp"

namespace kvxfer::support {

/// What the ranks of one group write to each other, by number of the exchange.
class Board {
 public:
  explicit Board(std::int64_t ranks) : ranks_(ranks) {}
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }

  std::vector<std::string> exchange(std::int64_t step, std::int64_t rank,
                                    const std::string& message, std::chrono::milliseconds bound) {
    std::unique_lock lock(mutex_);
    auto& messages = steps_[step];
    messages[rank] = message;
    changed_.notify_all();
    const bool is_full = changed_.wait_for(
        lock, bound, [&] { return static_cast<std::int64_t>(messages.size()) == ranks_; });
    if (!is_full) throw cuda::DeadlineError("expected all ranks, got too few", missing(messages));
    std::vector<std::string> all;
    for (const auto& entry : messages)
      all.push_back(entry.second);
    return all;
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> missing(
      const std::map<std::int64_t, std::string>& messages) const {
    std::vector<std::int64_t> ranks;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      if (messages.count(rank) == 0) ranks.push_back(rank);
    }
    return ranks;
  }

  std::int64_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, std::map<std::int64_t, std::string>> steps_;
};

class ThreadGroup final : public cuda::RankGroup {
 public:
  using Note = std::function<void(std::int64_t rank, const char*)>;

  ThreadGroup(std::shared_ptr<Board> board, std::int64_t rank, Note note = nullptr)
      : board_(std::move(board)), rank_(rank), note_(std::move(note)) {}

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t ranks() const override { return board_->ranks(); }

  std::vector<std::string> exchange(const std::string& message,
                                    std::chrono::milliseconds bound) override {
    auto messages = board_->exchange(step_++, rank_, message, bound);
    if (note_ != nullptr) note_(rank_, "exchange");
    return messages;
  }

 private:
  std::shared_ptr<Board> board_;
  std::int64_t rank_;
  Note note_;
  std::int64_t step_ = 0;
};

/// Runs `body` for every rank on a thread of its own; what each threw, null for none.
inline std::vector<std::exception_ptr> run_ranks(std::int64_t ranks,
                                                 const std::function<void(std::int64_t)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return errors;
}

}  // namespace kvxfer::support
