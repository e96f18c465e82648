// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_plan.hpp"

#include <algorithm>

#include "gather_checks.hpp"
#include "kvxfer/error.hpp"

namespace kvxfer {

namespace {

void require_page(const GatherShape& shape, std::int64_t page) {
  detail::require(page >= 0 && page < shape.logical_page_count, "expected logical pages in [0, ",
                  shape.logical_page_count, "), got ", page);
}

/// The pages of all requests by (owner, local page), each once; their index is still open.
std::vector<GatheredPage> distinct_pages(const GatherShape& shape,
                                         std::span<const std::vector<std::int64_t>> prefix_pages) {
  std::vector<GatheredPage> distinct;
  std::vector<std::int64_t> sorted;
  for (const auto& request : prefix_pages) {
    sorted = request;
    std::sort(sorted.begin(), sorted.end());
    const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
    detail::require(twin == sorted.end(), "expected each page of a request once, got logical page ",
                    twin == sorted.end() ? 0 : *twin, " twice");
    for (const std::int64_t page : sorted) {
      require_page(shape, page);
      distinct.push_back({page, page % shape.ranks, 0});
    }
  }
  std::sort(distinct.begin(), distinct.end(), [](const GatheredPage& a, const GatheredPage& b) {
    return a.owner != b.owner ? a.owner < b.owner : a.page < b.page;
  });
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return distinct;
}

}  // namespace

GatherPlan::GatherPlan(const GatherShape& shape,
                       std::span<const std::vector<std::int64_t>> prefix_pages,
                       std::span<const std::int64_t> chunk_pages)
    : shape_(shape) {
  detail::require_shape(shape_);
  place_prefix(prefix_pages);
  place_chunk(chunk_pages);
}

void GatherPlan::place_prefix(std::span<const std::vector<std::int64_t>> prefix_pages) {
  for (const auto& request : prefix_pages) {
    block_pages_ +=
        detail::rounded_up_quotient(static_cast<std::int64_t>(request.size()), shape_.ranks);
  }
  detail::require_room(block_pages_, shape_.prefix_region_pages / shape_.ranks, "prefix");
  gathered_pages_ = distinct_pages(shape_, prefix_pages);
  std::int64_t owner = -1;
  std::int64_t index = 0;
  for (GatheredPage& gathered : gathered_pages_) {
    index = gathered.owner == owner ? index + 1 : 0;
    owner = gathered.owner;
    gathered.index = index;
    if (index >= block_pages_) {
      throw CapacityError(
          detail::message("expected at most ", block_pages_, " prefix pages of rank ", owner,
                          ", got more: the pages of a request do not go round the ranks"));
    }
  }
}

void GatherPlan::place_chunk(std::span<const std::int64_t> chunk_pages) {
  detail::require_room(static_cast<std::int64_t>(chunk_pages.size()), shape_.chunk_region_pages,
                       "chunk");
  chunk_pages_.assign(chunk_pages.begin(), chunk_pages.end());
  const auto nowhere = static_cast<std::int64_t>(gathered_pages_.size() + chunk_pages_.size());
  places_.assign(static_cast<std::size_t>(shape_.logical_page_count), nowhere);
  std::int64_t next = 0;
  for (const GatheredPage& gathered : gathered_pages_) {
    places_[static_cast<std::size_t>(gathered.page)] = next++;
  }
  for (const std::int64_t page : chunk_pages_) {
    require_page(shape_, page);
    std::int64_t& place = places_[static_cast<std::size_t>(page)];
    detail::require(place == nowhere,
                    "expected each new page once and in no prefix, got logical page ", page);
    place = next++;
  }
}

std::vector<std::int64_t> GatherPlan::send_pages(std::int64_t rank) const {
  detail::require(rank >= 0 && rank < shape_.ranks, "expected rank in [0, ", shape_.ranks,
                  "), got ", rank);
  std::vector<std::int64_t> pages;
  pages.reserve(static_cast<std::size_t>(block_pages_));
  for (const GatheredPage& gathered : gathered_pages_) {
    if (gathered.owner == rank) pages.push_back(gathered.page / shape_.ranks);
  }
  pages.resize(static_cast<std::size_t>(block_pages_), 0);
  return pages;
}

PageMap GatherPlan::page_map() const noexcept {
  return {0, block_pages_, shape_.prefix_region_pages,
          shape_.prefix_region_pages + shape_.chunk_region_pages};
}

std::vector<std::int64_t> GatherPlan::places_in(const PageMap& map) const {
  std::vector<std::int64_t> numbers;
  numbers.reserve(gathered_pages_.size() + chunk_pages_.size() + 1);
  for (const GatheredPage& gathered : gathered_pages_) {
    numbers.push_back(map.first_page + gathered.owner * map.owner_stride_pages + gathered.index);
  }
  for (std::size_t j = 0; j < chunk_pages_.size(); ++j) {
    numbers.push_back(map.chunk_page + static_cast<std::int64_t>(j));
  }
  numbers.push_back(map.trash_page);
  return numbers;
}

std::vector<std::int64_t> GatherPlan::scratch_pages(const PageMap& map) const {
  const std::vector<std::int64_t> numbers = places_in(map);
  std::vector<std::int64_t> pages(places_.size());
  std::transform(places_.begin(), places_.end(), pages.begin(),
                 [&](std::int64_t place) { return numbers[static_cast<std::size_t>(place)]; });
  return pages;
}

void GatherPlan::translate(const PageMap& map, std::span<const std::int64_t> locations,
                           std::span<std::int64_t> rows) const {
  detail::require(locations.size() == rows.size(), "expected as many rows as locations, got ",
                  rows.size(), " and ", locations.size());
  const std::int64_t location_count = shape_.logical_page_count * shape_.page_size;
  for (const std::int64_t location : locations) {
    detail::require(location >= 0 && location < location_count, "expected locations in [0, ",
                    location_count, "), got ", location);
  }
  const std::vector<std::int64_t> numbers = places_in(map);
  for (std::size_t i = 0; i < locations.size(); ++i) {
    const auto page = static_cast<std::size_t>(locations[i] / shape_.page_size);
    rows[i] = numbers[static_cast<std::size_t>(places_[page])] * shape_.page_size +
              locations[i] % shape_.page_size;
  }
}

}  // namespace kvxfer
