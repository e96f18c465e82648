// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "page_rows.hpp"
#include "stretches.hpp"

#include <kvxfer/error.hpp>
#include <kvxfer/relayout.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace kvxfer {

namespace {

constexpr std::int64_t kMaxTokenBytes = std::int64_t{1} << 22;

using PlaneKey = std::pair<std::int64_t, PlaneKind>;

std::map<PlaneKey, std::int64_t> planes_by_key(const PoolLayout& layout) {
  std::map<PlaneKey, std::int64_t> planes;
  for (std::size_t i = 0; i < layout.planes().size(); ++i) {
    const Plane& plane = layout.planes()[i];
    planes.emplace(PlaneKey{plane.layer, plane.kind}, static_cast<std::int64_t>(i));
  }
  return planes;
}

std::set<std::int64_t> layers_of(const PoolLayout& layout) {
  std::set<std::int64_t> layers;
  for (const Plane& plane : layout.planes())
    layers.insert(plane.layer);
  return layers;
}

/// How one plane's tokens are divided: over the group's ranks, or not at all.
Sharding plane_sharding(const PoolLayout& layout, const Plane& plane) {
  return plane.is_replicated ? Sharding{} : layout.sharding();
}

void require_same_plane(const Plane& source, const Plane& destination) {
  const auto name = to_string(source);
  detail::require(source.dtype == destination.dtype, name,
                  ": expected the same dtype on both sides, got source ", source.dtype,
                  " and destination ", destination.dtype);
  detail::require(source.head_bytes == destination.head_bytes, name,
                  ": expected the same head_bytes on both sides, got source ", source.head_bytes,
                  " and destination ", destination.head_bytes);
  detail::require(source.head_bytes > 0 || source.row_bytes == destination.row_bytes, name,
                  ": expected the same row_bytes on both sides, got source ", source.row_bytes,
                  " and destination ", destination.row_bytes);
}

/// The lowest source rank that shares tokens with this destination writes what every source rank
/// holds.
bool is_lowest_server(const Sharding& source, const Sharding& destination) {
  for (std::int64_t rank = 0; rank < source.rank(); ++rank) {
    if (!TokenPattern(Sharding(source.ranks(), rank, source.interleave()), destination).is_empty())
      return false;
  }
  return !TokenPattern(source, destination).is_empty();
}

/// Rows that are not divided by head are the same on every rank of a head group: the lowest source
/// rank that shares a head with this destination writes them.
bool is_lowest_head_server(const HeadSharding& source, const HeadSharding& destination) {
  for (std::int64_t rank = 0; rank < source.rank(); ++rank) {
    if (shared_heads(HeadSharding(source.total_heads(), source.ranks(), rank), destination))
      return false;
  }
  return shared_heads(source, destination).has_value();
}

bool are_rows_dense(const Plane& plane, std::int64_t slice_bytes) {
  return plane.row_stride_bytes == slice_bytes;
}

}  // namespace

Relayout::Relayout(std::shared_ptr<const PoolLayout> source,
                   std::shared_ptr<const PoolLayout> destination)
    : source_(std::move(source)),
      destination_(std::move(destination)),
      pattern_(source_->sharding(), destination_->sharding()) {
  match_planes();
  std::stable_sort(groups_.begin(), groups_.end(), [](const PlaneGroup& a, const PlaneGroup& b) {
    return a.planes.front().is_replicated < b.planes.front().is_replicated;
  });
  std::int64_t token_bytes = 0;
  for (const PlaneGroup& group : groups_) {
    token_bytes += group.row_bytes;
    needs_unpacking_ = needs_unpacking_ || !group.pattern.is_destination_dense();
    needs_packing_ =
        needs_packing_ || !group.pattern.is_destination_dense() || !group.pattern.is_source_dense();
  }
  if (token_bytes > kMaxTokenBytes) {
    throw UnsupportedError(detail::message("expected at most ", kMaxTokenBytes,
                                           " bytes a token over all planes, got ", token_bytes));
  }
}

void Relayout::match_planes() {
  const auto source_planes = planes_by_key(*source_);
  const auto destination_planes = planes_by_key(*destination_);
  const auto source_layers = layers_of(*source_);
  const auto destination_layers = layers_of(*destination_);
  for (const auto& [key, index] : destination_planes) {
    if (source_planes.contains(key)) continue;
    detail::require(
        !source_layers.contains(key.first),
        to_string(destination_->planes()[static_cast<std::size_t>(index)]),
        ": expected on both sides, since both hold this layer, got it on the destination only");
    unmatched_destination_planes_.push_back(index);
  }
  for (const auto& [key, index] : source_planes) {
    const auto twin = destination_planes.find(key);
    if (twin == destination_planes.end()) {
      detail::require(
          !destination_layers.contains(key.first),
          to_string(source_->planes()[static_cast<std::size_t>(index)]),
          ": expected on both sides, since both hold this layer, got it on the source only");
      unmatched_source_planes_.push_back(index);
      continue;
    }
    const Plane& from = source_->planes()[static_cast<std::size_t>(index)];
    const Plane& to = destination_->planes()[static_cast<std::size_t>(twin->second)];
    require_same_plane(from, to);
    PlanePair pair{index, twin->second, 0, 0, from.row_bytes, to.is_replicated};
    if (from.head_bytes > 0) {
      const auto heads = shared_heads(*source_->heads(), *destination_->heads());
      if (!heads) continue;
      pair.source_offset_bytes = heads->source_first * from.head_bytes;
      pair.destination_offset_bytes = heads->destination_first * from.head_bytes;
      pair.bytes = heads->head_count * from.head_bytes;
    } else if (source_->heads() && destination_->heads() &&
               !is_lowest_head_server(*source_->heads(), *destination_->heads())) {
      continue;
    }
    add_plane(pair);
  }
}

void Relayout::add_plane(const PlanePair& pair) {
  const Plane& from = source_->planes()[static_cast<std::size_t>(pair.source_plane)];
  const Plane& to = destination_->planes()[static_cast<std::size_t>(pair.destination_plane)];
  const Sharding source_sharding = plane_sharding(*source_, from);
  const Sharding destination_sharding = plane_sharding(*destination_, to);
  if (to.is_replicated && destination_->sharding().ranks() > 1 && source_sharding.ranks() > 1) {
    throw UnsupportedError(
        detail::message(to_string(from),
                        ": expected a source that holds all tokens, since the "
                        "destination replicates this plane, got one sharded over ",
                        source_sharding.ranks(), " ranks"));
  }
  if (from.is_replicated && !is_lowest_server(source_->sharding(), destination_->sharding()))
    return;

  TokenPattern pattern(source_sharding, destination_sharding);
  if (pattern.is_empty()) return;
  needs_packing_ =
      needs_packing_ || !are_rows_dense(from, pair.bytes) || !are_rows_dense(to, pair.bytes);
  needs_unpacking_ = needs_unpacking_ || !are_rows_dense(to, pair.bytes);

  const std::int64_t source_page_rows =
      source_->plane_page_rows(static_cast<std::size_t>(pair.source_plane));
  const std::int64_t destination_page_rows =
      destination_->plane_page_rows(static_cast<std::size_t>(pair.destination_plane));
  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const PlaneGroup& g) {
    return g.pattern == pattern && g.source_page_rows == source_page_rows &&
           g.destination_page_rows == destination_page_rows &&
           g.planes.front().is_replicated == pair.is_replicated;
  });
  if (group == groups_.end()) {
    groups_.push_back({std::move(pattern), {}, 0, source_page_rows, destination_page_rows});
    group = groups_.end() - 1;
  }
  group->planes.push_back(pair);
  group->row_bytes += pair.bytes;
}

std::int64_t Relayout::segment_bytes(std::int64_t begin, std::int64_t end) const {
  detail::require_range(begin, end);
  std::int64_t bytes = 0;
  for (const PlaneGroup& group : groups_) {
    bytes += (group.pattern.rows_before(end) - group.pattern.rows_before(begin)) * group.row_bytes;
  }
  return bytes;
}

std::int64_t Relayout::max_segment_bytes(std::int64_t window_tokens) const {
  detail::require_range(0, window_tokens);
  std::int64_t bytes = 0;
  for (const PlaneGroup& group : groups_)
    bytes += group.pattern.max_rows(window_tokens) * group.row_bytes;
  return bytes;
}

std::int64_t Relayout::row_count(std::int64_t begin, std::int64_t end) const {
  detail::require_range(begin, end);
  return pattern_.rows_before(end) - pattern_.rows_before(begin);
}

std::vector<std::int64_t> Relayout::positions(std::int64_t begin, std::int64_t end) const {
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(row_count(begin, end)));
  for_each_stretch(pattern_, pattern_.rows_before(begin), pattern_.rows_before(end),
                   [&](const Stretch& stretch) {
                     for (std::int64_t i = 0; i < stretch.length; ++i) {
                       positions.push_back(source_->sharding().position(stretch.source_index + i));
                     }
                   });
  return positions;
}

std::vector<std::int64_t> Relayout::source_rows(std::int64_t begin, std::int64_t end,
                                                const PageTable& table) const {
  detail::require_source_positions(*this, table, begin, end);
  const PageRows pages(table, source_->page_size());
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(row_count(begin, end)));
  for_each_stretch(pattern_, pattern_.rows_before(begin), pattern_.rows_before(end),
                   [&](const Stretch& stretch) {
                     pages.for_each_run(
                         stretch.source_index, stretch.length, [&](const PageRun& run) {
                           for (std::int64_t i = 0; i < run.length; ++i)
                             rows.push_back(run.page * source_->page_size() + run.row + i);
                         });
                   });
  return rows;
}

std::vector<std::int64_t> Relayout::destination_rows(std::int64_t begin, std::int64_t end,
                                                     const PageTable& table) const {
  detail::require_destination_positions(*this, table, begin, end);
  const PageRows pages(table, destination_->page_size());
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(row_count(begin, end)));
  for_each_stretch(pattern_, pattern_.rows_before(begin), pattern_.rows_before(end),
                   [&](const Stretch& stretch) {
                     pages.for_each_run(
                         stretch.destination_index, stretch.length, [&](const PageRun& run) {
                           for (std::int64_t i = 0; i < run.length; ++i)
                             rows.push_back(run.page * destination_->page_size() + run.row + i);
                         });
                   });
  return rows;
}

bool Relayout::operator==(const Relayout& other) const {
  return *source_ == *other.source_ && *destination_ == *other.destination_;
}

}  // namespace kvxfer
