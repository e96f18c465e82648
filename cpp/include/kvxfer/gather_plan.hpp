// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One batch's cached prefixes are gathered from a page-sharded pool into a scratch slot; this
// header says which rank sends which pages, where they arrive, and where attention finds a token.
// No memory is touched. Rule of sglang #37615 as merged.

#include <cstdint>
#include <span>
#include <vector>

#include "kvxfer/gather_shape.hpp"

namespace kvxfer {

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

}  // namespace kvxfer
