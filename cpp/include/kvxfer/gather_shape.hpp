// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A prefill worker's pool sharded by page over its ranks: logical page p lies on rank p % ranks as
// local page p / ranks, which is Sharding with an interleave of one page. Its sizes, those of the
// scratch slots that prefixes are gathered into, and what a request takes of a slot.

#include <cstdint>

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
