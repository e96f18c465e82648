// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the core must compute, found by looking at every token position on its own. Slow and written
// from the definitions: no periods, no cells, no closed forms, so that it shares no mistake with
// the core.

#include <kvxfer/pool_layout.hpp>
#include <kvxfer/segment.hpp>
#include <kvxfer/write_list.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace kvxfer::oracle {

/// One rank of one side in plain data; a stride of 0 is the dense one.
struct Pool {
  PoolLayout::Spec spec;
  std::vector<std::int64_t> pages;
  std::int64_t first_position = 0;
  std::vector<std::int64_t> plane_addresses;

  [[nodiscard]] const Plane& plane(std::int64_t index) const {
    return spec.planes.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] std::int64_t widened_page_tokens() const {
    return spec.page_size * spec.sharding.ranks();
  }
};

inline std::int64_t owner(const Sharding& sharding, std::int64_t position) {
  return position / sharding.interleave() % sharding.ranks();
}

inline bool holds(const Sharding& sharding, std::int64_t position) {
  return owner(sharding, position) == sharding.rank();
}

inline bool holds(const Pool& pool, const Plane& plane, std::int64_t position) {
  return plane.is_replicated || holds(pool.spec.sharding, position);
}

// --- rows and addresses ------------------------------------------------------------------------

inline std::int64_t page_of(const Pool& pool, std::int64_t position) {
  return pool.pages.at(
      static_cast<std::size_t>((position - pool.first_position) / pool.widened_page_tokens()));
}

/// Tokens that the plane holds between the start of the position's page and the position.
inline std::int64_t row_in_page(const Pool& pool, const Plane& plane, std::int64_t position) {
  const std::int64_t page_begin = position - position % pool.widened_page_tokens();
  std::int64_t row = 0;
  for (std::int64_t p = page_begin; p < position; ++p)
    row += holds(pool, plane, p) ? 1 : 0;
  return row;
}

/// Row number in the planes that are sharded.
inline std::int64_t row_of(const Pool& pool, std::int64_t position) {
  return page_of(pool, position) * pool.spec.page_size + row_in_page(pool, Plane{}, position);
}

inline std::int64_t page_rows(const Pool& pool, const Plane& plane) {
  return plane.is_replicated ? pool.widened_page_tokens() : pool.spec.page_size;
}

inline std::int64_t row_stride(const Plane& plane) {
  return plane.row_stride_bytes == 0 ? plane.row_bytes : plane.row_stride_bytes;
}

inline std::int64_t page_stride(const Pool& pool, const Plane& plane) {
  return plane.page_stride_bytes == 0 ? page_rows(pool, plane) * row_stride(plane)
                                      : plane.page_stride_bytes;
}

inline std::int64_t address_of(const Pool& pool, std::int64_t plane_index, std::int64_t position) {
  const Plane& plane = pool.plane(plane_index);
  return pool.plane_addresses.at(static_cast<std::size_t>(plane_index)) +
         page_of(pool, position) * page_stride(pool, plane) + plane.page_offset_bytes +
         row_in_page(pool, plane, position) * row_stride(plane);
}

// --- which bytes of a row move -----------------------------------------------------------------

/// Ranks of the group that hold `head`, rising.
inline std::vector<std::int64_t> holders_of(const HeadSharding& heads, std::int64_t head) {
  std::vector<std::int64_t> holders;
  for (std::int64_t rank = 0; rank < heads.ranks(); ++rank) {
    const bool has = heads.ranks() <= heads.total_heads()
                         ? head / (heads.total_heads() / heads.ranks()) == rank
                         : rank / (heads.ranks() / heads.total_heads()) == head;
    if (has) holders.push_back(rank);
  }
  return holders;
}

inline std::vector<std::int64_t> heads_of(const HeadSharding& heads) {
  std::vector<std::int64_t> held;
  for (std::int64_t head = 0; head < heads.total_heads(); ++head) {
    const auto holders = holders_of(heads, head);
    if (std::count(holders.begin(), holders.end(), heads.rank()) != 0) held.push_back(head);
  }
  return held;
}

/// The rank of the source group that writes `head` into this destination.
inline std::int64_t head_writer(const HeadSharding& source, const HeadSharding& destination,
                                std::int64_t head) {
  const auto readers = holders_of(destination, head);
  const auto replica = std::find(readers.begin(), readers.end(), destination.rank());
  const auto writers = holders_of(source, head);
  return writers.at(static_cast<std::size_t>(replica - readers.begin()) % writers.size());
}

/// Whether this is the lowest rank that writes a head into the destination: it also writes the rows
/// that are not divided by head.
inline bool writes_undivided(const HeadSharding& source, const HeadSharding& destination) {
  std::int64_t lowest = source.ranks();
  for (const std::int64_t head : heads_of(destination))
    lowest = std::min(lowest, head_writer(source, destination, head));
  return lowest == source.rank();
}

/// Bytes of a row that move between two planes.
struct Slice {
  std::int64_t source_plane;
  std::int64_t destination_plane;
  std::int64_t source_offset_bytes;
  std::int64_t destination_offset_bytes;
  std::int64_t bytes;
};

/// Cuts the slice to the heads that this source writes; false if there are none.
inline bool cut_to_heads(Slice& slice, const HeadSharding& source, const HeadSharding& destination,
                         std::int64_t head_bytes) {
  const auto from = heads_of(source);
  const auto to = heads_of(destination);
  slice.bytes = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto place = std::find(from.begin(), from.end(), to[i]);
    if (place == from.end() || head_writer(source, destination, to[i]) != source.rank()) continue;
    if (slice.bytes == 0) {
      slice.source_offset_bytes = (place - from.begin()) * head_bytes;
      slice.destination_offset_bytes = static_cast<std::int64_t>(i) * head_bytes;
    }
    slice.bytes += head_bytes;
  }
  return slice.bytes > 0;
}

inline bool share_a_token(const Sharding& source, const Sharding& destination) {
  for (std::int64_t p = 0; p < source.period_tokens() * destination.period_tokens(); ++p) {
    if (holds(source, p) && holds(destination, p)) return true;
  }
  return false;
}

/// Whether this rank is the first of its group that shares a token with the destination.
inline bool is_lowest_server(const Sharding& source, const Sharding& destination) {
  for (std::int64_t rank = 0; rank < source.ranks(); ++rank) {
    if (share_a_token(Sharding(source.ranks(), rank, source.interleave()), destination))
      return rank == source.rank();
  }
  return false;
}

inline bool moves(const Pool& source, const Pool& destination, const Slice& slice,
                  std::int64_t position) {
  return holds(source, source.plane(slice.source_plane), position) &&
         holds(destination, destination.plane(slice.destination_plane), position);
}

/// What moves between two pools, in packed order: replicated planes behind the others, then the
/// planes that share their tokens together, then by layer and kind.
inline std::vector<Slice> slices_of(const Pool& source, const Pool& destination) {
  const bool writes_replicated = is_lowest_server(source.spec.sharding, destination.spec.sharding);
  const bool shares = share_a_token(source.spec.sharding, destination.spec.sharding);
  std::vector<std::tuple<std::int64_t, PlaneKind, Slice>> found;
  for (std::size_t i = 0; i < source.spec.planes.size(); ++i) {
    for (std::size_t j = 0; j < destination.spec.planes.size(); ++j) {
      const Plane& from = source.spec.planes[i];
      const Plane& to = destination.spec.planes[j];
      if (from.layer != to.layer || from.kind != to.kind) continue;
      Slice slice{static_cast<std::int64_t>(i), static_cast<std::int64_t>(j), 0, 0, from.row_bytes};
      if (from.is_replicated ? !writes_replicated : !(shares || to.is_replicated)) continue;
      if (from.head_bytes == 0 && source.spec.heads && destination.spec.heads &&
          !writes_undivided(*source.spec.heads, *destination.spec.heads))
        continue;
      if (from.head_bytes > 0 &&
          !cut_to_heads(slice, *source.spec.heads, *destination.spec.heads, from.head_bytes))
        continue;
      found.emplace_back(from.layer, from.kind, slice);
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  const auto tokens_of = [&](const Slice& slice) {
    return std::pair(
        destination.plane(slice.destination_plane).is_replicated,
        source.plane(slice.source_plane).is_replicated && source.spec.sharding.ranks() > 1);
  };
  std::vector<Slice> ordered;
  for (const bool is_replicated : {false, true}) {
    for (const auto& first : found) {
      for (const auto& next : found) {
        const auto key = tokens_of(std::get<2>(first));
        const bool is_taken = std::any_of(ordered.begin(), ordered.end(), [&](const Slice& s) {
          return s.source_plane == std::get<2>(next).source_plane;
        });
        if (key.first == is_replicated && key == tokens_of(std::get<2>(next)) && !is_taken)
          ordered.push_back(std::get<2>(next));
      }
    }
  }
  return ordered;
}

// --- bytes, writes and memory ------------------------------------------------------------------

/// Packed bytes that one position needs.
inline std::int64_t bytes_at(const Pool& source, const Pool& destination,
                             const std::vector<Slice>& slices, std::int64_t position) {
  std::int64_t bytes = 0;
  for (const Slice& slice : slices)
    bytes += moves(source, destination, slice, position) ? slice.bytes : 0;
  return bytes;
}

/// Most packed bytes of `window_tokens` consecutive positions: every start is tried.
inline std::int64_t max_window_bytes(const Pool& source, const Pool& destination,
                                     std::int64_t window_tokens) {
  const auto slices = slices_of(source, destination);
  const std::int64_t starts =
      source.spec.sharding.period_tokens() * destination.spec.sharding.period_tokens();
  std::vector<std::int64_t> before{0};
  for (std::int64_t p = 0; p < starts + window_tokens; ++p)
    before.push_back(before.back() + bytes_at(source, destination, slices, p));
  std::int64_t most = 0;
  for (std::size_t p = 0; p < static_cast<std::size_t>(starts); ++p)
    most = std::max(most, before[p + static_cast<std::size_t>(window_tokens)] - before[p]);
  return most;
}

/// Adds a row; one that continues the previous run on both sides lengthens it.
inline void add_row(std::vector<Run>& runs, std::size_t first_run, const Run& row) {
  if (runs.size() > first_run && runs.back().source + runs.back().bytes == row.source &&
      runs.back().destination + runs.back().bytes == row.destination) {
    runs.back().bytes += row.bytes;
  } else {
    runs.push_back(row);
  }
}

/// Writes of one segment, row by row and plane by plane. With a region address the source rows lie
/// packed there.
inline std::vector<Run> runs_of(const Pool& source, const Pool& destination, const Segment& segment,
                                std::optional<std::int64_t> region_address = std::nullopt) {
  std::vector<Run> runs;
  std::int64_t packed = region_address.value_or(0);
  for (const Slice& slice : slices_of(source, destination)) {
    const std::size_t first_run = runs.size();
    for (std::int64_t p = segment.begin; p < segment.end; ++p) {
      if (!moves(source, destination, slice, p)) continue;
      const std::int64_t from =
          region_address ? packed
                         : address_of(source, slice.source_plane, p) + slice.source_offset_bytes;
      const std::int64_t to =
          address_of(destination, slice.destination_plane, p) + slice.destination_offset_bytes;
      add_row(runs, first_run, {from, to, slice.bytes});
      packed += slice.bytes;
    }
  }
  return runs;
}

/// Carries writes out in this process.
inline void execute(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    std::memcpy(reinterpret_cast<void*>(run.destination), reinterpret_cast<void*>(run.source),
                static_cast<std::size_t>(run.bytes));
  }
}

// --- segments ----------------------------------------------------------------------------------

/// Splits by walking: a segment ends before every position that lies on the grid.
inline std::vector<Segment> split(SendRange send, std::int64_t alignment_tokens,
                                  std::optional<std::int64_t> capacity_tokens) {
  while (!send.is_final && send.end > send.begin &&
         (send.end - send.prefix) % alignment_tokens != 0)
    --send.end;
  if (!send.is_final && send.end <= send.begin) return {};
  std::vector<Segment> segments{{send.begin, send.begin, false}};
  for (std::int64_t p = send.begin; p < send.end; ++p) {
    if (capacity_tokens && p != send.begin && (p - send.prefix) % *capacity_tokens == 0)
      segments.push_back({p, p, false});
    segments.back().end = p + 1;
  }
  segments.back().is_final = send.is_final;
  return segments;
}

}  // namespace kvxfer::oracle
