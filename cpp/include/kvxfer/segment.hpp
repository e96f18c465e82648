// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A send can be longer than the pack buffer. It is cut at a page-aligned capacity on a grid that
// starts where the decode side's prefix ends. Nothing here touches memory. Rule of sglang PR
// #40376.

#include <cstdint>
#include <optional>
#include <vector>

namespace kvxfer {

/// Half-open range of request positions that is sent at once.
struct Segment {
  std::int64_t begin = 0;  ///< first position
  std::int64_t end = 0;    ///< one past the last position
  bool is_final = false;   ///< carries state and metadata; exactly one per request

  bool operator==(const Segment&) const = default;
};

/// One call of the engine: positions that are ready to go.
struct SendRange {
  std::int64_t begin = 0;  ///< where the previous send ended after lowering; `prefix` for the first
  std::int64_t end = 0;    ///< one past the last position
  std::int64_t prefix = 0;  ///< tokens that the destination holds already: where the grid starts
  bool is_final = false;    ///< no send of this request follows
};

/// Cuts `send` at `prefix + k * capacity_tokens`.
///
/// The segments are in order, disjoint and cover the send. A non-final send ends at the last
/// `prefix + n * alignment_tokens` it reaches and yields nothing when that is not beyond its begin;
/// the rest waits for the next send. A final send yields exactly one final segment, its last, which
/// is empty when the send is. Without a capacity (nothing to pack) the send is not cut.
/// @throws InvalidArgumentError unless 0 <= prefix <= begin, alignment_tokens >= 1, the capacity is
/// a positive multiple
///         of it, and begin <= end for a final send.
[[nodiscard]] std::vector<Segment> split_segments(const SendRange& send,
                                                  std::int64_t alignment_tokens,
                                                  std::optional<std::int64_t> capacity_tokens);

}  // namespace kvxfer
