// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Local indices to pages: the only place where a page table is walked.

#include <kvxfer/page_table.hpp>

#include <algorithm>
#include <cstdint>

namespace kvxfer {

/// Rows [row, row + length) of one page.
struct PageRun {
  std::int64_t page;    ///< page id
  std::int64_t row;     ///< first row inside the page
  std::int64_t length;  ///< rows
};

/// The page table of one rank, read in local indices of planes whose pages hold `page_rows` rows.
class PageRows {
 public:
  PageRows(const PageTable& table, std::int64_t page_rows)
      : pages_(table.pages()),
        page_rows_(page_rows),
        first_index_(table.first_position() / table.layout().widened_page_tokens() * page_rows) {}

  [[nodiscard]] std::int64_t first_index() const noexcept { return first_index_; }
  /// One past the last local index that the pages hold.
  [[nodiscard]] std::int64_t end_index() const noexcept {
    return first_index_ + static_cast<std::int64_t>(pages_.size()) * page_rows_;
  }

  [[nodiscard]] PageRun at(std::int64_t index) const noexcept {
    const std::int64_t offset = index - first_index_;
    return {pages_[static_cast<std::size_t>(offset / page_rows_)], offset % page_rows_, 1};
  }

  /// Calls `visit(PageRun)` for local indices [index, index + length), cut at page ends.
  template <class Visit>
  void for_each_run(std::int64_t index, std::int64_t length, Visit visit) const {
    const std::int64_t offset = index - first_index_;
    auto page = static_cast<std::size_t>(offset / page_rows_);
    for (std::int64_t row = offset % page_rows_; length > 0; row = 0, ++page) {
      const std::int64_t here = std::min(length, page_rows_ - row);
      visit(PageRun{pages_[page], row, here});
      length -= here;
    }
  }

 private:
  std::span<const std::int64_t> pages_;
  std::int64_t page_rows_;
  std::int64_t first_index_;
};

}  // namespace kvxfer
