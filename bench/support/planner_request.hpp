// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The request that the planner benchmarks plan: prefill on one rank, pages of 64 tokens, rows of
// 576 bytes, 163,840 tokens in segments of 8,192, to the first of four decode ranks.

#include <kvxfer/pack_plan.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>
#include <kvxfer/segment.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace kvxfer::bench {

constexpr std::int64_t kPageSize = 64;
constexpr std::int64_t kRowBytes = 576;
constexpr std::int64_t kDecodeRanks = 4;
constexpr std::int64_t kCapacityTokens = 8192;
constexpr std::int64_t kRequestTokens = 163840;
constexpr std::int64_t kPoolPages = 4096;
constexpr std::int64_t kRegionAddress = std::int64_t{1} << 40;
constexpr Segment kSegment{kCapacityTokens, 2 * kCapacityTokens, false};

/// `plane_count` planes of one kind, one a layer.
inline std::vector<Plane> latent_planes(std::int64_t plane_count) {
  std::vector<Plane> planes(static_cast<std::size_t>(plane_count));
  for (std::size_t layer = 0; layer < planes.size(); ++layer) {
    planes[layer].layer = static_cast<std::int64_t>(layer);
    planes[layer].row_bytes = kRowBytes;
  }
  return planes;
}

/// Pages that hold 64 keys of 128 bytes and behind them 64 scales of 4 bytes: two planes a layer.
inline std::vector<Plane> index_planes(std::int64_t plane_count) {
  std::vector<Plane> planes(static_cast<std::size_t>(plane_count));
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const bool is_key = i % 2 == 0;
    planes[i].layer = static_cast<std::int64_t>(i / 2);
    planes[i].kind = is_key ? PlaneKind::kIndexKey : PlaneKind::kIndexScale;
    planes[i].row_bytes = is_key ? 128 : 4;
    planes[i].page_stride_bytes = kPageSize * 132;
    planes[i].page_offset_bytes = is_key ? 0 : kPageSize * 128;
  }
  return planes;
}

inline std::shared_ptr<const PoolLayout> make_pool(std::vector<Plane> planes,
                                                   const Sharding& sharding) {
  return std::make_shared<PoolLayout>(
      PoolLayout::Spec{kPageSize, kPoolPages, std::move(planes), sharding, std::nullopt});
}

/// The pages of the whole request; the planes of a pool lie one after another.
inline PageTable make_table(const std::shared_ptr<const PoolLayout>& layout, bool is_shuffled) {
  std::vector<std::int64_t> pages(static_cast<std::size_t>(kPoolPages));
  std::iota(pages.begin(), pages.end(), 0);
  if (is_shuffled) std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  pages.resize(static_cast<std::size_t>(kRequestTokens / layout->widened_page_tokens()));
  std::vector<std::int64_t> addresses;
  std::int64_t address = kRegionAddress;
  for (std::size_t plane = 0; plane < layout->planes().size(); ++plane) {
    addresses.push_back(address);
    address += layout->plane_bytes(plane);
  }
  return {layout, std::move(pages), 0, std::move(addresses)};
}

/// One request on its way from the prefill rank to the first decode rank.
struct Request {
  Request(const std::vector<Plane>& planes, bool is_shuffled)
      : source_layout(make_pool(planes, Sharding{})),
        destination_layout(make_pool(planes, Sharding(kDecodeRanks, 0))),
        relayout(source_layout, destination_layout),
        source(make_table(source_layout, is_shuffled)),
        destination(make_table(destination_layout, is_shuffled)) {}

  [[nodiscard]] static std::vector<Segment> segments() {
    return split_segments({0, kRequestTokens, 0, true}, kPageSize, kCapacityTokens);
  }

  std::shared_ptr<const PoolLayout> source_layout;
  std::shared_ptr<const PoolLayout> destination_layout;
  Relayout relayout;
  PageTable source;
  PageTable destination;
};

/// The pack buffer that serves all four decode ranks.
inline PackBufferLayout make_pack_buffer(const std::vector<Plane>& planes) {
  const auto source = make_pool(planes, Sharding{});
  std::vector<Relayout> relayouts;
  for (std::int64_t rank = 0; rank < kDecodeRanks; ++rank)
    relayouts.emplace_back(source, make_pool(planes, Sharding(kDecodeRanks, rank)));
  return {std::move(relayouts), kCapacityTokens};
}

}  // namespace kvxfer::bench
