// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which path a prefix gather takes, and why. Every term is collective: the ranks exchange what each
// found, then all decide from the same list, so that none waits in a collective that another left
// out. Conditions of sglang #44029 and of NCCL's copy-engine allgather.

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvxfer {

/// A version of NCCL; compares by number.
struct NcclVersion {
  std::int64_t major = 0;
  std::int64_t minor = 0;
  std::int64_t patch = 0;

  auto operator<=>(const NcclVersion&) const = default;
};

/// From the code that ncclGetVersion gives, such as 23102 for 2.31.2.
/// @throws InvalidArgumentError for a negative code.
[[nodiscard]] NcclVersion nccl_version(std::int64_t code);

/// Least version whose first copy-engine collective on two ranks is safe.
inline constexpr NcclVersion kCopyEngineNccl{2, 31, 2};

enum class GatherPath : std::uint8_t {
  kNone,        ///< one rank has nothing to gather
  kHostCopy,    ///< pools on the host
  kSm,          ///< NCCL's kernels on ordinary memory or an unused window
  kCopyEngine,  ///< NCCL's copy engines on a symmetric window
};

enum class FallbackReason : std::uint8_t {
  kNone,
  kOneRank,
  kHostPool,
  kSwitchedOff,
  kMemorySaver,
  kCustomPool,
  kSeveralNodes,
  kNcclMissing,
  kNcclTooOld,
  kNcclDiffers,
  kDriverTooOld,
  kCuMemOff,
  kWindowsOff,
  kPolicyContradicted,
  kRegistrationFailed,
  kNullWindow,
};

/// What one rank found before memory is allocated. Settings are values of environment variables
/// that somebody else set, empty where unset; nothing here sets one.
struct RankConditions {
  bool is_switched_on = true;
  bool is_host_pool = false;
  bool has_memory_saver = false;
  bool has_custom_pool = false;
  std::string node;                 ///< equal for the ranks of one node
  std::int64_t nccl_code = 0;       ///< 0 when no library was found
  std::int64_t driver_version = 0;  ///< as cuDriverGetVersion gives it, such as 13000
  std::string nccl_cumem_enable;    ///< NCCL_CUMEM_ENABLE
  std::string nccl_win_enable;      ///< NCCL_WIN_ENABLE
  std::string nccl_cta_policy;      ///< NCCL_CTA_POLICY

  bool operator==(const RankConditions&) const = default;
};

/// The same on every rank that decides from the same list.
struct GatherVerdict {
  GatherPath path = GatherPath::kNone;
  FallbackReason reason = FallbackReason::kNone;
  std::vector<std::int64_t> ranks;  ///< that gave the reason; empty where it is about the group
  std::string explanation;          ///< for people: what was found, and what would change it

  bool operator==(const GatherVerdict&) const = default;
};

/// Decides from the conditions of all ranks, in rank order; the first reason that holds on any rank
/// is the group's.
/// @throws InvalidArgumentError for no rank, or host pools beside device pools.
[[nodiscard]] GatherVerdict decide_gather_path(std::span<const RankConditions> of_every_rank);

/// What became of a rank's registration.
enum class WindowOutcome : std::uint8_t {
  kRegistered,
  kNull,  ///< success without a window: this NCCL has no symmetric support here
  kFailed,
};

/// The verdict after registration: copy engines only if every rank has a window.
/// @throws InvalidArgumentError for no rank, or a verdict that asked for no window.
[[nodiscard]] GatherVerdict decide_after_registration(const GatherVerdict& before,
                                                      std::span<const WindowOutcome> of_every_rank);

}  // namespace kvxfer
