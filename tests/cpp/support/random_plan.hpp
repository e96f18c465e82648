// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Seeded random transfers between two small engines. The same seed gives the same transfer on every
// platform.

#include "support/oracle.hpp"

#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>

#include <initializer_list>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace kvxfer::support {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// Whole number in [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::int64_t any_of(std::initializer_list<std::int64_t> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  /// True once in `times`.
  bool once_in(std::int64_t times) { return between(1, times) == 1; }

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[static_cast<std::size_t>(engine_() % i)]);
  }

 private:
  std::mt19937_64 engine_;
};

/// One request between two engines: the pools of all ranks and pipeline stages on each side, and
/// the positions [prefix, end) that move. Source pages start at or before the prefix, destination
/// pages at it.
struct RandomPlan {
  std::vector<oracle::Pool> sources;
  std::vector<oracle::Pool> destinations;
  std::int64_t prefix = 0;
  std::int64_t end = 0;
  std::int64_t alignment_tokens = 1;
};

namespace detail {

struct Side {
  std::int64_t ranks;
  std::int64_t interleave;
  std::int64_t page_size;
  std::int64_t head_ranks;
  bool has_gaps;  ///< between rows
};

/// What both sides agree on about a plane.
struct PlaneShape {
  std::int64_t layer;
  PlaneKind kind;
  std::int64_t token_bytes;  ///< of a row, or of one head
  bool has_heads = false;
  bool is_replicated_at_source = false;
  bool is_replicated_at_destination = false;
};

inline Side random_side(Random& random, std::int64_t head_ranks) {
  const std::int64_t ranks = head_ranks > 2 ? random.between(1, head_ranks > 4 ? 1 : 2)
                                            : random.any_of({1, 1, 2, 3, 4, 6});
  const std::int64_t interleave = random.any_of({1, 1, 2, 3, 4});
  return {ranks, interleave, interleave * random.between(1, 3), head_ranks, random.once_in(3)};
}

inline std::vector<PlaneShape> random_shapes(Random& random, std::int64_t layers, bool has_heads) {
  std::vector<PlaneShape> shapes;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (has_heads && random.between(1, 3) > 1) {
      const std::int64_t head_bytes = random.any_of({1, 3, 8});
      shapes.push_back({layer, PlaneKind::kKey, head_bytes, true});
      shapes.push_back({layer, PlaneKind::kValue, head_bytes, true});
    } else {
      shapes.push_back({layer, PlaneKind::kLatent, random.any_of({1, 3, 7, 16, 576})});
      if (random.once_in(2)) {
        shapes.push_back({layer, PlaneKind::kIndexKey, random.any_of({2, 5, 128})});
        shapes.push_back({layer, PlaneKind::kIndexScale, random.any_of({1, 4})});
      }
    }
  }
  return shapes;
}

/// Strides of one side: dense, or with gaps, or index keys and scales in one page stride.
inline Plane random_plane(Random& random, const PlaneShape& shape, std::int64_t head_count,
                          bool has_gaps) {
  Plane plane;
  plane.layer = shape.layer;
  plane.kind = shape.kind;
  plane.row_bytes = shape.token_bytes * (shape.has_heads ? head_count : 1);
  plane.head_bytes = shape.has_heads ? shape.token_bytes : 0;
  if (has_gaps && random.once_in(2))
    plane.row_stride_bytes = plane.row_bytes + random.between(1, 5);
  return plane;
}

inline void add_page_gaps(Random& random, oracle::Pool& pool) {
  Plane* keys = nullptr;
  const bool has_gaps = random.once_in(3);
  for (Plane& plane : pool.spec.planes) {
    const std::int64_t rows_bytes = oracle::page_rows(pool, plane) * oracle::row_stride(plane);
    if (plane.kind == PlaneKind::kIndexKey) {
      plane.page_stride_bytes = rows_bytes;
      keys = &plane;
    } else if (plane.kind == PlaneKind::kIndexScale) {
      plane.page_offset_bytes = keys->page_stride_bytes;
      keys->page_stride_bytes += rows_bytes + random.between(0, 3);
      plane.page_stride_bytes = keys->page_stride_bytes;
    } else if (has_gaps && random.once_in(2)) {
      plane.page_offset_bytes = random.between(0, 9);
      plane.page_stride_bytes = plane.page_offset_bytes + rows_bytes + random.between(0, 9);
    }
  }
}

/// Pages for the positions [first_position, end) and some that the request does not own.
inline void add_pages(Random& random, oracle::Pool& pool, std::int64_t end) {
  const std::int64_t widened = pool.widened_page_tokens();
  const std::int64_t needed = (end - pool.first_position + widened - 1) / widened;
  const std::int64_t count = std::max<std::int64_t>(0, needed) + random.between(0, 1);
  pool.spec.page_count = count + random.between(1, 4);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(pool.spec.page_count));
  std::iota(ids.begin(), ids.end(), std::int64_t{0});
  random.shuffle(ids);
  if (random.once_in(4)) std::sort(ids.begin(), ids.end());  // consecutive pages: long runs
  pool.pages.assign(ids.begin(), ids.begin() + count);
}

/// Pools of every rank of one side that holds the layers [layer_begin, layer_end).
inline void add_pools(Random& random, std::vector<oracle::Pool>& pools, const Side& side,
                      std::vector<PlaneShape> shapes, std::int64_t total_heads, bool is_source) {
  std::vector<Plane> planes;
  const std::int64_t head_count = std::max<std::int64_t>(1, total_heads / side.head_ranks);
  for (const PlaneShape& shape : shapes) {
    planes.push_back(random_plane(random, shape, head_count, side.has_gaps));
    planes.back().is_replicated =
        is_source ? shape.is_replicated_at_source : shape.is_replicated_at_destination;
  }
  for (std::int64_t rank = 0; rank < side.ranks; ++rank) {
    for (std::int64_t head_rank = 0; head_rank < side.head_ranks; ++head_rank) {
      oracle::Pool pool;
      pool.spec.page_size = side.page_size;
      pool.spec.planes = planes;
      pool.spec.sharding = Sharding(side.ranks, rank, side.interleave);
      if (total_heads > 0) pool.spec.heads = HeadSharding(total_heads, side.head_ranks, head_rank);
      pools.push_back(std::move(pool));
    }
  }
}

}  // namespace detail

inline RandomPlan random_plan(std::uint64_t seed) {
  Random random(seed);
  const bool has_heads = random.once_in(3);
  const std::int64_t total_heads = has_heads ? random.any_of({1, 2, 4, 6}) : 0;
  const auto head_ranks = [&] {
    return has_heads ? random.any_of({1, total_heads, total_heads * 2, (total_heads + 1) / 2})
                     : std::int64_t{1};
  };
  detail::Side source = detail::random_side(random, head_ranks());
  detail::Side destination = detail::random_side(random, head_ranks());
  if (random.once_in(5)) {
    const std::int64_t scale = random.between(1, 2);
    destination = source;
    destination.page_size = source.page_size * scale;
  }

  const std::int64_t layers = random.between(1, 3);
  auto shapes = detail::random_shapes(random, layers, has_heads);
  const bool keeps_all = source.ranks > 1 && (destination.ranks > 1 || random.once_in(2));
  if (random.once_in(3))  // a draft: every destination rank keeps all of it
    shapes.push_back(
        {layers, PlaneKind::kValue, 3, has_heads && random.once_in(2), keeps_all, true});
  if (random.once_in(3)) {  // and of the index planes, or of the first layer
    const bool is_first_layer = random.once_in(2);
    for (detail::PlaneShape& shape : shapes) {
      const bool is_index =
          shape.kind == PlaneKind::kIndexKey || shape.kind == PlaneKind::kIndexScale;
      if (is_first_layer ? shape.layer > 0 : !is_index) continue;
      shape.is_replicated_at_source = keeps_all;
      shape.is_replicated_at_destination = true;
    }
  }
  if (random.once_in(5))
    shapes[static_cast<std::size_t>(random.between(0, layers - 1))].is_replicated_at_source = true;

  RandomPlan plan;
  const std::int64_t stage_end = random.once_in(3) ? random.between(1, layers) : layers + 1;
  for (const auto& [begin, end] :
       {std::pair{std::int64_t{0}, stage_end}, {stage_end, layers + 1}}) {
    std::vector<detail::PlaneShape> stage;
    for (const auto& shape : shapes) {
      if (shape.layer >= begin && shape.layer < end) stage.push_back(shape);
    }
    if (!stage.empty()) detail::add_pools(random, plan.sources, source, stage, total_heads, true);
  }
  if (random.once_in(5))  // the destination lacks a layer
    std::erase_if(shapes, [](const detail::PlaneShape& shape) { return shape.layer == 0; });
  if (random.once_in(4))  // or has one of its own
    shapes.push_back({layers + 1, PlaneKind::kLatent, 2, false, false, random.once_in(2)});
  detail::add_pools(random, plan.destinations, destination, shapes, total_heads, false);

  const std::int64_t source_widened = source.page_size * source.ranks;
  const std::int64_t destination_widened = destination.page_size * destination.ranks;
  plan.alignment_tokens = source_widened;
  plan.prefix = destination_widened * random.between(0, 2);
  plan.end = plan.prefix + random.between(0, 2 * std::max(source_widened, destination_widened) + 3);
  for (auto* pools : {&plan.sources, &plan.destinations}) {
    for (oracle::Pool& pool : *pools) {
      pool.first_position = pools == &plan.destinations
                                ? plan.prefix
                                : random.between(0, plan.prefix / source_widened) * source_widened;
      detail::add_page_gaps(random, pool);
      detail::add_pages(random, pool, plan.end);
      random.shuffle(pool.spec.planes);
    }
  }
  return plan;
}

// --- the same things as the core's values ------------------------------------------------------

/// A pool's page table, and through it its layout.
inline PageTable make_table(const oracle::Pool& pool) {
  return PageTable(std::make_shared<const PoolLayout>(pool.spec), pool.pages, pool.first_position,
                   pool.plane_addresses);
}

inline Relayout make_relayout(const oracle::Pool& source, const oracle::Pool& destination) {
  return Relayout(std::make_shared<const PoolLayout>(source.spec),
                  std::make_shared<const PoolLayout>(destination.spec));
}

/// Calls `visit(source, destination)` for every pair of pools.
template <class Visit>
void for_each_pair(RandomPlan& plan, Visit visit) {
  for (oracle::Pool& source : plan.sources) {
    for (oracle::Pool& destination : plan.destinations)
      visit(source, destination);
  }
}

}  // namespace kvxfer::support
