// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_path.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "kvxfer/error.hpp"

namespace kvxfer {

namespace {

// NCCL's own gate: stream memory operations of its copy-engine collectives.
constexpr std::int64_t kLeastDriver = 12050;
constexpr int kZeroPolicyBit = 2;

bool has_zero_policy(std::string_view setting) {
  while (!setting.empty()) {
    const std::size_t bar = std::min(setting.find('|'), setting.size());
    const std::string_view word = setting.substr(0, bar);
    int bits = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), bits);
    const bool is_number = parsed.ec == std::errc{} && parsed.ptr == word.data() + word.size();
    if (word == "ZERO" || (is_number && (bits & kZeroPolicyBit) != 0)) return true;
    setting.remove_prefix(std::min(bar + 1, setting.size()));
  }
  return false;
}

/// A reason that holds for the ranks of which `applies` is true.
struct Rule {
  FallbackReason reason;
  bool (*applies)(const RankConditions& mine, const RankConditions& of_rank_0);
  const char* explanation;
};

constexpr std::array kRules{
    Rule{FallbackReason::kSwitchedOff,
         [](const RankConditions& c, const RankConditions&) { return !c.is_switched_on; },
         "copy engines are switched off"},
    Rule{FallbackReason::kMemorySaver,
         [](const RankConditions& c, const RankConditions&) { return c.has_memory_saver; },
         "a memory saver is active and may move the scratch"},
    Rule{FallbackReason::kCustomPool,
         [](const RankConditions& c, const RankConditions&) { return c.has_custom_pool; },
         "a custom memory pool is active"},
    Rule{FallbackReason::kSeveralNodes,
         [](const RankConditions& c, const RankConditions& first) { return c.node != first.node; },
         "the group spans more than one node"},
    Rule{FallbackReason::kNcclMissing,
         [](const RankConditions& c, const RankConditions&) { return c.nccl_code == 0; },
         "no NCCL library was found; install nvidia-nccl-cu13>=2.31.2 or give a path"},
    Rule{FallbackReason::kNcclTooOld,
         [](const RankConditions& c, const RankConditions&) {
           return nccl_version(c.nccl_code) < kCopyEngineNccl;
         },
         "NCCL is older than 2.31.2; install nvidia-nccl-cu13>=2.31.2 or give its path"},
    Rule{FallbackReason::kNcclDiffers,
         [](const RankConditions& c, const RankConditions& first) {
           return c.nccl_code != first.nccl_code;
         },
         "NCCL is of another version than on rank 0"},
    Rule{FallbackReason::kDriverTooOld,
         [](const RankConditions& c, const RankConditions&) {
           return c.driver_version < kLeastDriver;
         },
         "the driver is older than CUDA 12.5"},
    Rule{FallbackReason::kCuMemOff,
         [](const RankConditions& c, const RankConditions&) { return c.nccl_cumem_enable == "0"; },
         "cuMem off: NCCL_CUMEM_ENABLE is 0; set NCCL_CUMEM_ENABLE=1 before NCCL starts"},
    Rule{FallbackReason::kWindowsOff,
         [](const RankConditions& c, const RankConditions&) { return c.nccl_win_enable == "0"; },
         "NCCL_WIN_ENABLE is 0; set NCCL_WIN_ENABLE=1 or unset it before NCCL starts"},
    Rule{FallbackReason::kPolicyContradicted,
         [](const RankConditions& c, const RankConditions&) {
           return !c.nccl_cta_policy.empty() && !has_zero_policy(c.nccl_cta_policy);
         },
         "NCCL_CTA_POLICY overrides the communicator's zero policy; unset it before NCCL starts"},
};

template <class Predicate>
std::vector<std::int64_t> ranks_where(std::size_t rank_count, Predicate applies) {
  std::vector<std::int64_t> ranks;
  for (std::size_t rank = 0; rank < rank_count; ++rank) {
    if (applies(rank)) ranks.push_back(static_cast<std::int64_t>(rank));
  }
  return ranks;
}

std::string named(const std::vector<std::int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

GatherVerdict fallback(FallbackReason reason, std::vector<std::int64_t> ranks, const char* text) {
  std::string explanation = named(ranks) + ": " + text;
  return {GatherPath::kSm, reason, std::move(ranks), std::move(explanation)};
}

}  // namespace

NcclVersion nccl_version(std::int64_t code) {
  detail::require(code >= 0, "expected a version code >= 0, got ", code);
  // Up to 2.8 the code has three digits below the major number, since 2.9 four.
  const std::int64_t unit = code < 10000 ? 1000 : 10000;
  return {code / unit, code % unit / 100, code % 100};
}

GatherVerdict decide_gather_path(std::span<const RankConditions> of_every_rank) {
  const std::size_t rank_count = of_every_rank.size();
  detail::require(rank_count >= 1, "expected the conditions of every rank, got none");
  const auto on_host =
      ranks_where(rank_count, [&](std::size_t rank) { return of_every_rank[rank].is_host_pool; });
  detail::require(on_host.empty() || on_host.size() == rank_count,
                  "expected the pools of all ranks on the host or on devices, got host pools only "
                  "on ",
                  named(on_host));
  if (rank_count == 1) {
    return {GatherPath::kNone, FallbackReason::kOneRank, {}, "one rank has nothing to gather"};
  }
  if (!on_host.empty()) {
    return {GatherPath::kHostCopy, FallbackReason::kHostPool, {}, "the pools are on the host"};
  }
  for (const Rule& rule : kRules) {
    auto ranks = ranks_where(rank_count, [&](std::size_t rank) {
      return rule.applies(of_every_rank[rank], of_every_rank.front());
    });
    if (!ranks.empty()) return fallback(rule.reason, std::move(ranks), rule.explanation);
  }
  return {GatherPath::kCopyEngine, FallbackReason::kNone, {}, "all conditions hold"};
}

GatherVerdict decide_after_registration(const GatherVerdict& before,
                                        std::span<const WindowOutcome> of_every_rank) {
  detail::require(
      before.path == GatherPath::kCopyEngine,
      "expected a verdict for copy engines, got one without a window: ", before.explanation);
  detail::require(!of_every_rank.empty(), "expected the outcome of every rank, got none");
  const auto with = [&](WindowOutcome outcome) {
    return ranks_where(of_every_rank.size(),
                       [&](std::size_t rank) { return of_every_rank[rank] == outcome; });
  };
  if (auto ranks = with(WindowOutcome::kFailed); !ranks.empty()) {
    return fallback(FallbackReason::kRegistrationFailed, std::move(ranks),
                    "the window could not be allocated or registered");
  }
  if (auto ranks = with(WindowOutcome::kNull); !ranks.empty()) {
    return fallback(FallbackReason::kNullWindow, std::move(ranks),
                    "NCCL gave no window; it needs cuMem (NCCL_CUMEM_ENABLE), windows "
                    "(NCCL_WIN_ENABLE) and ranks that reach each other's memory");
  }
  return before;
}

}  // namespace kvxfer
