// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The three calls that a sender makes for every segment, in the form that both bindings wrap.

#include "../support/planner_request.hpp"

#include <kvxfer/write_list.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace kvxfer::bench {

inline std::vector<Segment> split(std::int64_t begin, std::int64_t end, bool is_final,
                                  std::int64_t prefix, std::int64_t alignment_tokens,
                                  std::optional<std::int64_t> capacity_tokens) {
  return split_segments({begin, end, prefix, is_final}, alignment_tokens, capacity_tokens);
}

inline WriteList list_writes(const Relayout& relayout, const std::vector<Segment>& segments,
                             std::int64_t region_address, const PageTable& destination) {
  return packed_writes(relayout, segments, region_address, destination);
}

inline Request make_request(std::int64_t plane_count) {
  return {latent_planes(plane_count), true};
}

inline PackBufferLayout make_layout(std::int64_t plane_count) {
  return make_pack_buffer(latent_planes(plane_count));
}

}  // namespace kvxfer::bench
