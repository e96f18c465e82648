// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A prefill worker's pool sharded by page over its ranks: logical page p lies on rank p % ranks as
// local page p / ranks, which is Sharding with an interleave of one page. One batch's cached
// prefixes are gathered into a scratch slot; this header says which rank sends which pages, where
// they arrive, and where attention finds a token. No memory is touched. Rule of sglang #37615 as
// merged.

#include <cstdint>
#include <span>
#include <vector>

namespace kvxfer {

/// Sizes that stay the same for every batch. A scratch slot holds, in pages: the prefix region, the
/// chunk region, and one trash page that every page without a place is translated to.
struct GatherShape {
  std::int64_t ranks = 1;                ///< of the shard group
  std::int64_t page_size = 0;            ///< tokens
  std::int64_t logical_page_count = 0;   ///< of the whole sharded pool
  std::int64_t prefix_region_pages = 0;  ///< of a scratch slot; a multiple of ranks
  std::int64_t chunk_region_pages = 0;   ///< of a scratch slot

  bool operator==(const GatherShape&) const = default;
};

/// What an engine bounds a batch by, from which the regions of a scratch slot follow.
struct GatherLimits {
  std::int64_t ranks = 1;
  std::int64_t page_size = 0;           ///< tokens
  std::int64_t logical_page_count = 0;  ///< of the whole sharded pool
  std::int64_t context_tokens = 0;      ///< longest prefix of one request
  std::int64_t context_count = 8;       ///< full prefixes that fit at once
  std::int64_t chunk_tokens = 0;        ///< new tokens of a batch

  bool operator==(const GatherLimits&) const = default;
};

/// Regions for `limits`: each context is rounded up to whole pages on every rank, then multiplied.
/// @throws InvalidArgumentError for sizes below their minimum or out of range.
[[nodiscard]] GatherShape make_gather_shape(const GatherLimits& limits);

/// Where one gathered page lies in the prefix region: in the owner's block, at `index`.
struct GatheredPage {
  std::int64_t page;   ///< logical page
  std::int64_t owner;  ///< rank that sends it
  std::int64_t index;  ///< among the owner's pages, by rising local page

  bool operator==(const GatheredPage&) const = default;
};

/// Page numbers of one tensor's view of a scratch slot: gathered page (owner, index) is number
/// `first_page + owner * owner_stride_pages + index`.
struct PageMap {
  std::int64_t first_page = 0;
  std::int64_t owner_stride_pages = 0;  ///< from one owner's block to the next owner's
  std::int64_t chunk_page = 0;          ///< first page of the chunk region
  std::int64_t trash_page = 0;

  bool operator==(const PageMap&) const = default;
};

/// One batch: prefix pages of its requests (shared ones once), and the pages that its new tokens go
/// to. Every rank builds the same plan from the same tables.
class GatherPlan {
 public:
  /// `prefix_pages` holds each request's cached pages in position order, before deduplication;
  /// `chunk_pages` the pages of the batch's new tokens, in batch order.
  /// @throws InvalidArgumentError for sizes out of range, a page outside the pool, one that a
  ///         request lists twice, or a new page that is listed before.
  /// @throws CapacityError when the blocks exceed the prefix region, the new pages the chunk
  ///         region, or a rank's pages its block because a request's owners are too uneven.
  GatherPlan(const GatherShape& shape, std::span<const std::vector<std::int64_t>> prefix_pages,
             std::span<const std::int64_t> chunk_pages);

  [[nodiscard]] const GatherShape& shape() const noexcept { return shape_; }

  /// Pages of every rank's block: sum over requests of ceil(prefix pages / ranks), before
  /// deduplication. Known without looking at a page; enough because each request's owners go round.
  [[nodiscard]] std::int64_t block_pages() const noexcept { return block_pages_; }

  /// The distinct prefix pages by (owner, index).
  [[nodiscard]] const std::vector<GatheredPage>& gathered_pages() const noexcept {
    return gathered_pages_;
  }

  /// Logical pages of the chunk region, in order.
  [[nodiscard]] const std::vector<std::int64_t>& chunk_pages() const noexcept {
    return chunk_pages_;
  }

  /// Local pages that `rank` packs into its block, rising, padded with local page 0 up to
  /// block_pages(). @throws InvalidArgumentError unless 0 <= rank < ranks.
  [[nodiscard]] std::vector<std::int64_t> send_pages(std::int64_t rank) const;

  /// The map of a view that holds the owners' blocks back to back, then the chunk region at the end
  /// of the prefix region, then the trash page.
  [[nodiscard]] PageMap page_map() const noexcept;

  /// Scratch page of every logical page, through `map`.
  [[nodiscard]] std::vector<std::int64_t> scratch_pages(const PageMap& map) const;

  /// Scratch row of each logical token location, into `rows` of the same size. The trash page's for
  /// a location of a page without a place. Nothing is written if it throws.
  /// @throws InvalidArgumentError for different sizes or a location outside the pool.
  void translate(const PageMap& map, std::span<const std::int64_t> locations,
                 std::span<std::int64_t> rows) const;

  bool operator==(const GatherPlan&) const = default;

 private:
  void place_prefix(std::span<const std::vector<std::int64_t>> prefix_pages);
  void place_chunk(std::span<const std::int64_t> chunk_pages);
  [[nodiscard]] std::vector<std::int64_t> places_in(const PageMap& map) const;

  GatherShape shape_;
  std::int64_t block_pages_ = 0;
  std::vector<GatheredPage> gathered_pages_;
  std::vector<std::int64_t> chunk_pages_;
  // Of every logical page: its number among gathered_pages_ followed by chunk_pages_, or their sum.
  std::vector<std::int64_t> places_;
};

/// Pages of a scratch slot that a request takes when it joins a batch.
struct ScratchDemand {
  std::int64_t prefix_region_pages;
  std::int64_t chunk_region_pages;

  bool operator==(const ScratchDemand&) const = default;
};

/// What admission must find free: the prefix counts as whole rounds of the ranks, because every
/// rank's block grows by ceil(prefix pages / ranks).
/// @throws InvalidArgumentError for negative token counts or a prefix that is not whole pages.
/// @throws CapacityError when an empty slot would not hold the request.
[[nodiscard]] ScratchDemand scratch_demand(const GatherShape& shape, std::int64_t prefix_tokens,
                                           std::int64_t new_tokens);

}  // namespace kvxfer
