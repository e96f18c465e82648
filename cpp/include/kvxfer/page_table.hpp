// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where one rank keeps the rows of one request: its page ids in position order, and the base
// address of each plane.

#include <kvxfer/pool_layout.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvxfer {

/// The pages of one request on one rank, checked once against the rank's layout.
///
/// Page `j` holds the rank's rows of positions [first_position + j * V, first_position + (j + 1) *
/// V), V being the layout's widened page. Base addresses are numbers, because a peer's cannot be
/// dereferenced here; they are 0 for a table that is only planned with. The layout must outlive the
/// table's use of it: the table shares it.
class PageTable {
 public:
  /// @throws InvalidArgumentError unless every page id lies in [0, page_count) and occurs once,
  /// first_position is a
  ///         multiple of the widened page, and plane_addresses is empty or holds one address >= 0
  ///         per plane that does not wrap.
  PageTable(std::shared_ptr<const PoolLayout> layout, std::vector<std::int64_t> pages,
            std::int64_t first_position = 0, std::vector<std::int64_t> plane_addresses = {});

  [[nodiscard]] const PoolLayout& layout() const noexcept { return *layout_; }
  /// The layout for an owner that outlives the table.
  [[nodiscard]] const std::shared_ptr<const PoolLayout>& shared_layout() const noexcept {
    return layout_;
  }
  [[nodiscard]] std::span<const std::int64_t> pages() const noexcept { return pages_; }
  [[nodiscard]] std::int64_t first_position() const noexcept { return first_position_; }
  /// One past the last position whose rows the pages can hold.
  [[nodiscard]] std::int64_t end_position() const noexcept;
  [[nodiscard]] std::span<const std::int64_t> plane_addresses() const noexcept {
    return plane_addresses_;
  }
  /// Whether every plane has a base address, as copies and writes need.
  [[nodiscard]] bool has_memory() const noexcept { return has_memory_; }

 private:
  std::shared_ptr<const PoolLayout> layout_;
  std::vector<std::int64_t> pages_;
  std::int64_t first_position_;
  std::vector<std::int64_t> plane_addresses_;
  bool has_memory_;
};

}  // namespace kvxfer
