// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A fake libnccl and ranks that run on it. KVXFER_FAKE_NCCL is the path that the build gives.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <sstream>

#include "kvxfer/cuda/symmetric_window.hpp"
#include "support/fake_nccl.hpp"
#include "support/thread_group.hpp"

namespace kvxfer::support {

class FakeNccl {
 public:
  explicit FakeNccl(const FakeNcclScript& script = {}, const char* path = KVXFER_FAKE_NCCL)
      : path_(path), library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    function<ScriptFakeNccl>("fake_nccl_script")(&script);
  }

  [[nodiscard]] std::shared_ptr<const cuda::NcclApi> load() const {
    return cuda::load_nccl({.explicit_path = path_});
  }
  void note(std::int64_t rank, const char* call) const {
    function<NoteInFakeNccl>("fake_nccl_note")(static_cast<int>(rank), call);
  }

  /// The calls of one rank in order, or of all for kNoRank.
  [[nodiscard]] std::vector<std::string> calls_of(std::int64_t rank) const {
    std::istringstream lines(function<LogOfFakeNccl>("fake_nccl_log")());
    std::vector<std::string> calls;
    for (std::string line; std::getline(lines, line);) {
      const std::size_t space = line.find(' ');
      if (rank == kNoRank || line.substr(0, space) == std::to_string(rank)) {
        calls.push_back(line.substr(space + 1));
      }
    }
    return calls;
  }
  [[nodiscard]] std::int64_t count(const std::string& call, std::int64_t rank = kNoRank) const {
    std::int64_t found = 0;
    for (const std::string& each : calls_of(rank))
      found += each.rfind(call, 0) == 0 ? 1 : 0;
    return found;
  }

 private:
  template <class Function>
  [[nodiscard]] Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  std::string path_;
  void* library_;
};

/// What a rank's thread works with.
struct FakeRank {
  std::int64_t rank;
  std::shared_ptr<const cuda::NcclApi> api;
  std::shared_ptr<ThreadGroup> group;
  cuda::DeviceCalls device;

  cuda::Communicator connect(cuda::CtaPolicy policy = cuda::CtaPolicy::kZero,
                             std::chrono::milliseconds bound = std::chrono::seconds(20)) const {
    return cuda::Communicator::create(api, group, {.policy = policy, .bound = bound});
  }
};

/// Runs `body` on every rank of a group over the fake; exchanges and drains go to its log.
inline std::vector<std::exception_ptr> run_fake_ranks(const FakeNccl& nccl, std::int64_t ranks,
                                                      const std::function<void(FakeRank&)>& body) {
  const auto board = std::make_shared<Board>(ranks);
  return run_ranks(ranks, [&](std::int64_t rank) {
    const auto note = [&nccl](std::int64_t noted, const char* call) { nccl.note(noted, call); };
    FakeRank mine{rank,
                  nccl.load(),
                  std::make_shared<ThreadGroup>(board, rank, note),
                  {[&nccl, rank] { nccl.note(rank, "drain"); }, [] { return false; }}};
    body(mine);
  });
}

/// Rethrows the first error of any rank.
inline void expect_no_error(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

/// Expects every rank to have thrown `Expected` with the words in its message.
template <class Expected>
void expect_all(const std::vector<std::exception_ptr>& errors, const std::string& words) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_NE(errors[rank], nullptr) << "rank " << rank << " went on";
    try {
      std::rethrow_exception(errors[rank]);
    } catch (const Expected& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << " threw another type: " << error.what();
    }
  }
}

}  // namespace kvxfer::support
