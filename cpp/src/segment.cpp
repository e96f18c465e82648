// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/error.hpp>
#include <kvxfer/segment.hpp>
#include <kvxfer/sharding.hpp>

#include <algorithm>

namespace kvxfer {

std::vector<Segment> split_segments(const SendRange& send, std::int64_t alignment_tokens,
                                    std::optional<std::int64_t> capacity_tokens) {
  detail::require(send.prefix >= 0 && send.prefix <= send.begin,
                  "expected 0 <= prefix <= begin, got prefix ", send.prefix, " and begin ",
                  send.begin);
  detail::require(send.begin <= kMaxTokens && send.end <= kMaxTokens &&
                      (send.begin <= send.end || !send.is_final),
                  "expected begin <= end <= ", kMaxTokens, " tokens, got [", send.begin, ", ",
                  send.end, ")");
  detail::require(alignment_tokens >= 1, "expected alignment_tokens >= 1, got ", alignment_tokens);
  detail::require(
      !capacity_tokens || (*capacity_tokens >= 1 && *capacity_tokens % alignment_tokens == 0),
      "expected capacity_tokens to be a positive multiple of alignment_tokens ", alignment_tokens,
      ", got ", capacity_tokens.value_or(0));

  std::int64_t end = send.end;
  if (!send.is_final) {
    if (send.end <= send.begin) return {};
    end = send.prefix + (send.end - send.prefix) / alignment_tokens * alignment_tokens;
    if (end <= send.begin) return {};
  }
  const std::int64_t capacity = std::min(capacity_tokens.value_or(kMaxTokens), kMaxTokens);
  const std::int64_t first = (send.begin - send.prefix) / capacity;
  const std::int64_t last = (std::max(end - 1, send.begin) - send.prefix) / capacity;
  std::vector<Segment> segments;
  segments.reserve(static_cast<std::size_t>(last - first + 1));  // what cannot fit fails at once
  std::int64_t begin = send.begin;
  do {
    const std::int64_t next_cut = send.prefix + ((begin - send.prefix) / capacity + 1) * capacity;
    const std::int64_t segment_end = std::min(next_cut, end);
    segments.push_back({begin, segment_end, false});
    begin = segment_end;
  } while (begin < end);
  segments.back().is_final = send.is_final;
  return segments;
}

}  // namespace kvxfer
