// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_shape.hpp"

#include "gather_checks.hpp"
#include "kvxfer/error.hpp"

namespace kvxfer {

namespace {

// Bounds the table of places, every page number and, with the page size, every row number.
constexpr std::int64_t kMaxPages = std::int64_t{1} << 31;
constexpr std::int64_t kMaxPageSize = std::int64_t{1} << 20;

void require_between(std::int64_t least, std::int64_t value, std::int64_t most, const char* name) {
  detail::require(value >= least && value <= most, "expected ", name, " in [", least, ", ", most,
                  "], got ", value);
}

}  // namespace

namespace detail {

void require_shape(const GatherShape& shape) {
  require_between(1, shape.ranks, kMaxPages, "ranks");
  require_between(1, shape.page_size, kMaxPageSize, "page_size");
  require_between(1, shape.logical_page_count, kMaxPages, "logical_page_count");
  require_between(0, shape.prefix_region_pages, kMaxPages, "prefix_region_pages");
  require_between(0, shape.chunk_region_pages, kMaxPages, "chunk_region_pages");
  detail::require(shape.prefix_region_pages % shape.ranks == 0,
                  "expected prefix_region_pages to be a multiple of ranks ", shape.ranks, ", got ",
                  shape.prefix_region_pages);
}

void require_room(std::int64_t pages, std::int64_t region_pages, const char* region) {
  if (pages > region_pages) {
    throw CapacityError(detail::message("expected at most ", region_pages, " pages in the ", region,
                                        " region, got ", pages));
  }
}

}  // namespace detail

GatherShape make_gather_shape(const GatherLimits& limits) {
  GatherShape shape{limits.ranks, limits.page_size, limits.logical_page_count, 0, 0};
  detail::require_shape(shape);
  require_between(0, limits.context_tokens, kMaxPages, "context_tokens");
  require_between(1, limits.context_count, kMaxPages, "context_count");
  require_between(0, limits.chunk_tokens, kMaxPages, "chunk_tokens");
  const std::int64_t context_pages =
      shape.ranks *
      detail::rounded_up_quotient(limits.context_tokens, shape.ranks * shape.page_size);
  detail::require(context_pages <= kMaxPages / limits.context_count,
                  "expected a prefix region of at most ", kMaxPages, " pages, got ",
                  limits.context_count, " contexts of ", context_pages);
  shape.prefix_region_pages = limits.context_count * context_pages;
  shape.chunk_region_pages = detail::rounded_up_quotient(limits.chunk_tokens, shape.page_size);
  return shape;
}

ScratchDemand scratch_demand(const GatherShape& shape, std::int64_t prefix_tokens,
                             std::int64_t new_tokens) {
  detail::require_shape(shape);
  detail::require(prefix_tokens >= 0 && prefix_tokens % shape.page_size == 0,
                  "expected prefix_tokens to be a multiple of page_size ", shape.page_size,
                  ", got ", prefix_tokens);
  detail::require(new_tokens >= 0, "expected new_tokens >= 0, got ", new_tokens);
  const std::int64_t block_pages =
      detail::rounded_up_quotient(prefix_tokens / shape.page_size, shape.ranks);
  const std::int64_t chunk_pages = detail::rounded_up_quotient(new_tokens, shape.page_size);
  if (block_pages > shape.prefix_region_pages / shape.ranks) {
    throw CapacityError(detail::message("expected a prefix of at most ", shape.prefix_region_pages,
                                        " pages in whole rounds of ", shape.ranks, " ranks, got ",
                                        prefix_tokens / shape.page_size));
  }
  detail::require_room(chunk_pages, shape.chunk_region_pages, "chunk");
  return {shape.ranks * block_pages, chunk_pages};
}

}  // namespace kvxfer
