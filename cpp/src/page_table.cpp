// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/error.hpp>
#include <kvxfer/page_table.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace kvxfer {

namespace {

/// Some page id that occurs twice, or -1. All ids are in [0, page_count).
std::int64_t repeated_page(std::span<const std::int64_t> pages, std::int64_t page_count) {
  constexpr std::int64_t kBits = 64;
  const auto words = static_cast<std::size_t>(page_count / kBits + 1);
  if (words >
      pages.size() * 16) {  // few pages of a large pool: a bitmap would cost more than sorting
    std::vector<std::int64_t> sorted(pages.begin(), pages.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
    return twin == sorted.end() ? -1 : *twin;
  }
  std::vector<std::uint64_t> seen(words);
  for (const std::int64_t page : pages) {
    std::uint64_t& word = seen[static_cast<std::size_t>(page / kBits)];
    const std::uint64_t bit = std::uint64_t{1} << (page % kBits);
    if ((word & bit) != 0) return page;
    word |= bit;
  }
  return -1;
}

}  // namespace

PageTable::PageTable(std::shared_ptr<const PoolLayout> layout, std::vector<std::int64_t> pages,
                     std::int64_t first_position, std::vector<std::int64_t> plane_addresses)
    : layout_(std::move(layout)),
      pages_(std::move(pages)),
      first_position_(first_position),
      plane_addresses_(std::move(plane_addresses)) {
  detail::require(layout_ != nullptr, "expected a layout, got none");
  const std::int64_t page_count = layout_->page_count();
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    detail::require(pages_[i] >= 0 && pages_[i] < page_count, "expected page ids in [0, ",
                    page_count, "), got pages[", i, "] = ", pages_[i]);
  }
  const std::int64_t repeated = repeated_page(pages_, page_count);
  detail::require(repeated < 0, "expected each page once, got page ", repeated, " twice");
  const std::int64_t widened = layout_->widened_page_tokens();
  detail::require(
      first_position >= 0 && first_position <= kMaxTokens && first_position % widened == 0,
      "expected a first_position that is a multiple of page_size ", layout_->page_size(),
      " * ranks ", layout_->sharding().ranks(), " = ", widened, " tokens, got ", first_position);

  const std::size_t plane_count = layout_->planes().size();
  if (plane_addresses_.empty()) plane_addresses_.assign(plane_count, 0);
  detail::require(plane_addresses_.size() == plane_count, "expected one base address for each of ",
                  plane_count, " planes, got ", plane_addresses_.size());
  for (std::size_t i = 0; i < plane_count; ++i) {
    const std::int64_t room = std::numeric_limits<std::int64_t>::max() - layout_->plane_bytes(i);
    detail::require(plane_addresses_[i] >= 0 && plane_addresses_[i] <= room,
                    "expected plane_addresses[", i, "] in [0, ", room, "], got ",
                    plane_addresses_[i]);
  }
  has_memory_ = std::all_of(plane_addresses_.begin(), plane_addresses_.end(),
                            [](std::int64_t a) { return a != 0; });
}

std::int64_t PageTable::end_position() const noexcept {
  return first_position_ +
         static_cast<std::int64_t>(pages_.size()) * layout_->widened_page_tokens();
}

}  // namespace kvxfer
