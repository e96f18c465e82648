// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/rank_group.hpp"

namespace kvxfer::cuda {

namespace {

constexpr char kSeparator = '\0';

/// "step NUL + payload" or "step NUL ! failure".
std::string encoded(const std::string& step, const StepResult& result) {
  std::string text = step + kSeparator;
  return result.failure.empty() ? text + '+' + result.payload : text + '!' + result.failure;
}

}  // namespace

DeadlineError::~DeadlineError() = default;
GroupError::~GroupError() = default;
RankGroup::~RankGroup() = default;

std::vector<std::string> agree(RankGroup& group, const std::string& step, const StepResult& mine,
                               std::chrono::milliseconds bound) {
  std::vector<std::string> payloads;
  std::vector<std::int64_t> failed;
  std::string words;
  const auto blame = [&](std::int64_t rank, const std::string& why) {
    failed.push_back(rank);
    words += detail::message("\n  rank ", rank, ": ", why);
  };
  const std::vector<std::string> messages = group.exchange(encoded(step, mine), bound);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto rank = static_cast<std::int64_t>(i);
    const std::size_t end = messages[i].find(kSeparator);
    const std::string other = messages[i].substr(0, end);
    if (end == std::string::npos || end + 1 >= messages[i].size()) {
      blame(rank, "sent no step");
    } else if (other != step) {
      blame(rank, "is at \"" + other + "\"");
    } else if (messages[i][end + 1] == '!') {
      blame(rank, messages[i].substr(end + 2));
    } else {
      payloads.push_back(messages[i].substr(end + 2));
    }
  }
  if (!failed.empty()) {
    throw GroupError(detail::message("expected all ranks to take step \"", step, "\", got", words),
                     failed);
  }
  return payloads;
}

}  // namespace kvxfer::cuda
