// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Two groups of ranks, their pools and one request, made from a description or from a seed. Pools
// are byte arrays without addresses, so that a test lays them in host or device memory.

#include <kvxfer/copy_rows.hpp>
#include <kvxfer/pack_plan.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvxfer::test {

using Random = std::mt19937_64;

inline std::int64_t pick(Random& random, std::vector<std::int64_t> values) {
  return values[random() % values.size()];
}

inline std::vector<std::byte> random_bytes(std::int64_t size, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  for (auto& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

/// How one group of ranks stores tokens and heads.
struct GroupShape {
  std::int64_t ranks = 1;
  std::int64_t interleave = 1;
  std::int64_t page_size = 64;
  std::int64_t head_ranks = 1;  ///< over which KV heads are divided, for planes with head_bytes
};

struct PlaneShape {
  PlaneKind kind = PlaneKind::kLatent;
  std::int64_t row_bytes = 576;  ///< of all heads together
  std::int64_t head_bytes = 0;
  bool is_replicated = false;
};

struct Description {
  GroupShape source{};
  GroupShape destination{};
  std::vector<PlaneShape> planes{PlaneShape{}};  ///< of each layer
  std::int64_t layers = 1;
  std::int64_t total_heads = 1;
  std::int64_t prefix_tokens = 0;  ///< where the tables start, lowered to each side's widened page
  std::int64_t begin = 0;
  std::int64_t end = 100;
  std::int64_t base_skew_bytes = 0;  ///< added to every base
  bool has_index_pages = false;      ///< keys and scales in one array of pages
  bool has_contiguous_pages = false;
  std::uint64_t seed = 1;
};

/// One rank's pool: where each plane starts in one byte array, and the request's pages.
struct Pool {
  std::shared_ptr<const PoolLayout> layout;
  std::vector<std::int64_t> plane_offsets;
  std::int64_t bytes = 0;
  std::vector<std::int64_t> pages;
  std::int64_t first_position = 0;

  [[nodiscard]] std::vector<std::int64_t> addresses(const std::byte* base) const {
    std::vector<std::int64_t> addresses;
    for (const std::int64_t offset : plane_offsets)
      addresses.push_back(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(base)) +
                          offset);
    return addresses;
  }
  [[nodiscard]] PageTable table(const std::byte* base) const {
    return {layout, pages, first_position, addresses(base)};
  }
};

class Scenario {
 public:
  explicit Scenario(const Description& description) : description_(description) {
    Random random(description.seed);
    for (const bool is_source : {true, false}) {
      const GroupShape& shape = is_source ? description.source : description.destination;
      const std::vector<std::int64_t> pages = make_pages(shape, random);
      auto& pools = is_source ? sources_ : destinations_;
      for (std::int64_t head = 0; head < shape.head_ranks; ++head)
        for (std::int64_t rank = 0; rank < shape.ranks; ++rank)
          pools.push_back(make_pool(shape, rank, head, pages));
    }
  }

  [[nodiscard]] const std::vector<Pool>& sources() const { return sources_; }
  [[nodiscard]] const std::vector<Pool>& destinations() const { return destinations_; }
  [[nodiscard]] Segment segment() const { return {description_.begin, description_.end, true}; }
  [[nodiscard]] Relayout relayout(std::size_t source, std::size_t destination) const {
    return {sources_[source].layout, destinations_[destination].layout};
  }
  [[nodiscard]] PackBufferLayout pack_layout(std::size_t source) const {
    std::vector<Relayout> relayouts;
    for (std::size_t d = 0; d < destinations_.size(); ++d)
      relayouts.push_back(relayout(source, d));
    const std::int64_t alignment = relayouts.front().alignment_tokens();
    const std::int64_t tokens = std::max<std::int64_t>(description_.end - description_.begin, 1);
    return {std::move(relayouts), (tokens + alignment - 1) / alignment * alignment};
  }

 private:
  static constexpr std::int64_t kSpare = 3;  // pages of the pool that the request does not use

  [[nodiscard]] std::int64_t first_position(const GroupShape& shape) const {
    const std::int64_t widened = shape.ranks * shape.page_size;
    return description_.prefix_tokens / widened * widened;
  }

  [[nodiscard]] std::int64_t page_count(const GroupShape& shape) const {
    const std::int64_t widened = shape.ranks * shape.page_size;
    return (description_.end - first_position(shape) + widened - 1) / widened;
  }

  std::vector<std::int64_t> make_pages(const GroupShape& shape, Random& random) const {
    std::vector<std::int64_t> pages(static_cast<std::size_t>(page_count(shape) + kSpare));
    std::iota(pages.begin(), pages.end(), 0);
    if (!description_.has_contiguous_pages) std::shuffle(pages.begin(), pages.end(), random);
    pages.resize(static_cast<std::size_t>(page_count(shape)));
    return pages;
  }

  Pool make_pool(const GroupShape& shape, std::int64_t rank, std::int64_t head_rank,
                 const std::vector<std::int64_t>& pages) const {
    PoolLayout::Spec spec;
    spec.page_size = shape.page_size;
    spec.page_count = page_count(shape) + kSpare;
    spec.sharding = Sharding(shape.ranks, rank, shape.ranks == 1 ? 1 : shape.interleave);
    spec.heads = HeadSharding(description_.total_heads, shape.head_ranks, head_rank);
    for (std::int64_t layer = 0; layer < description_.layers; ++layer) {
      for (const PlaneShape& plane : description_.planes)
        spec.planes.push_back(make_plane(plane, layer, *spec.heads));
      if (description_.has_index_pages) add_index_pages(spec, layer);
    }
    Pool pool{std::make_shared<const PoolLayout>(spec), {}, 0, pages, first_position(shape)};
    place_planes(pool);
    return pool;
  }

  static Plane make_plane(const PlaneShape& shape, std::int64_t layer, const HeadSharding& heads) {
    Plane plane;
    plane.layer = layer;
    plane.kind = shape.kind;
    plane.head_bytes = shape.head_bytes;
    plane.row_bytes =
        shape.head_bytes > 0 ? shape.head_bytes * heads.head_count() : shape.row_bytes;
    plane.is_replicated = shape.is_replicated;
    return plane;
  }

  /// 128-byte keys and 4-byte scales of a page behind each other, as sparse attention keeps them.
  static void add_index_pages(PoolLayout::Spec& spec, std::int64_t layer) {
    Plane key;
    key.layer = layer;
    key.kind = PlaneKind::kIndexKey;
    key.row_bytes = 128;
    key.page_stride_bytes = spec.page_size * 132;
    Plane scale = key;
    scale.kind = PlaneKind::kIndexScale;
    scale.row_bytes = 4;
    scale.page_offset_bytes = spec.page_size * 128;
    spec.planes.push_back(key);
    spec.planes.push_back(scale);
  }

  void place_planes(Pool& pool) const {
    constexpr std::int64_t kGuardBytes = 256;
    for (std::size_t i = 0; i < pool.layout->planes().size(); ++i) {
      const bool shares_array = pool.layout->planes()[i].kind == PlaneKind::kIndexScale;
      pool.plane_offsets.push_back(shares_array ? pool.plane_offsets.back()
                                                : pool.bytes + description_.base_skew_bytes);
      pool.bytes =
          (pool.plane_offsets.back() + pool.layout->plane_bytes(i) + kGuardBytes + 255) / 256 * 256;
    }
  }

  Description description_;
  std::vector<Pool> sources_;
  std::vector<Pool> destinations_;
};

/// Any sharding to any sharding, any row size, from a seed.
inline Description random_description(std::uint64_t seed) {
  Random random(seed);
  Description d;
  d.seed = seed;
  for (GroupShape* group : {&d.source, &d.destination}) {
    group->page_size = pick(random, {1, 4, 16, 64});
    group->ranks = pick(random, {1, 1, 2, 3, 4, 8});
    group->interleave = std::gcd(group->page_size, pick(random, {1, 1, 2, 4, 16}));
  }
  d.layers = pick(random, {1, 2, 3});
  d.planes.clear();
  d.planes.push_back({PlaneKind::kLatent, pick(random, {1, 3, 4, 16, 20, 576, 656, 1152, 512}), 0});
  if (random() % 3 == 0) {
    d.total_heads = 8;
    d.source.head_ranks = pick(random, {1, 2, 4});
    d.destination.head_ranks = pick(random, {1, 2, 8, 16});
    const std::int64_t head_bytes = pick(random, {2, 16, 64, 128});
    d.planes = {{PlaneKind::kKey, 0, head_bytes}, {PlaneKind::kValue, 0, head_bytes}};
  } else {  // planes without heads: two source ranks of one head group would write the same rows
    if (d.source.ranks == 1 && random() % 2 == 0)
      d.planes.push_back({PlaneKind::kRope, pick(random, {8, 128}), 0, true});
    d.has_index_pages = random() % 4 == 0;
  }
  d.base_skew_bytes = pick(random, {0, 0, 0, 1, 2, 4, 8, 16});
  const std::int64_t page = d.source.page_size * d.source.ranks;
  d.prefix_tokens = static_cast<std::int64_t>(random() % 400);
  d.begin = d.prefix_tokens + page * static_cast<std::int64_t>(random() % 3);
  d.end = d.begin + static_cast<std::int64_t>(random() % 700);
  return d;
}

}  // namespace kvxfer::test
