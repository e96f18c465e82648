// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include "page_rows.hpp"
#include "stretches.hpp"

#include <kvxfer/error.hpp>

namespace kvxfer::detail {

namespace {

enum class Side : std::uint8_t { kSource, kDestination };

/// Local index of row `row` of a pair on one side.
std::int64_t local_index(const TokenPattern& pattern, std::int64_t row, Side side) {
  std::int64_t index = -1;
  for_each_stretch(pattern, row, row + 1, [&](const Stretch& stretch) {
    index = side == Side::kSource ? stretch.source_index : stretch.destination_index;
  });
  return index;
}

void require_rows(const TokenPattern& pattern, const PageRows& rows, const PageTable& table,
                  const Segment& range, Side side) {
  const std::int64_t first = pattern.rows_before(range.begin);
  const std::int64_t last = pattern.rows_before(range.end);
  if (first == last) return;
  // Local indices rise with the row, so the ends bound everything between them.
  require(local_index(pattern, first, side) >= rows.first_index() &&
              local_index(pattern, last - 1, side) < rows.end_index(),
          "expected ", side == Side::kSource ? "source" : "destination", " pages for positions [",
          range.begin, ", ", range.end, "), got ", table.pages().size(), " pages for [",
          table.first_position(), ", ", table.end_position(), ")");
}

void require_side(const Relayout& relayout, const PageTable& table, const Segment& range,
                  Side side) {
  require_range(range.begin, range.end);
  const bool is_source = side == Side::kSource;
  const PoolLayout& layout = is_source ? relayout.source() : relayout.destination();
  require(&layout == &table.layout() || layout == table.layout(), "expected a page table of the ",
          is_source ? "source" : "destination", "'s layout, got one of another layout (page_size ",
          table.layout().page_size(), " against ", layout.page_size(), ", ",
          table.layout().planes().size(), " planes against ", layout.planes().size(), ", rank ",
          table.layout().sharding().rank(), " of ", table.layout().sharding().ranks(), " against ",
          layout.sharding().rank(), " of ", layout.sharding().ranks(), ")");
  for (const PlaneGroup& group : relayout.groups()) {
    const PageRows rows(table, is_source ? group.source_page_rows : group.destination_page_rows);
    require_rows(group.pattern, rows, table, range, side);
  }
}

void require_shared_positions(const Relayout& relayout, const PageTable& table,
                              const Segment& range, Side side) {
  require_side(relayout, table, range, side);
  const PageRows rows(table, table.layout().page_size());
  require_rows(relayout.pattern(), rows, table, range, side);
}

}  // namespace

void require_range(std::int64_t begin, std::int64_t end) {
  require(0 <= begin && begin <= end && end <= kMaxTokens,
          "expected 0 <= begin <= end <= ", kMaxTokens, " tokens, got [", begin, ", ", end, ")");
}

void require_source_rows(const Relayout& relayout, const PageTable& table, std::int64_t begin,
                         std::int64_t end) {
  require_side(relayout, table, {begin, end, false}, Side::kSource);
}

void require_destination_rows(const Relayout& relayout, const PageTable& table, std::int64_t begin,
                              std::int64_t end) {
  require_side(relayout, table, {begin, end, false}, Side::kDestination);
}

void require_source_positions(const Relayout& relayout, const PageTable& table, std::int64_t begin,
                              std::int64_t end) {
  require_shared_positions(relayout, table, {begin, end, false}, Side::kSource);
}

void require_destination_positions(const Relayout& relayout, const PageTable& table,
                                   std::int64_t begin, std::int64_t end) {
  require_shared_positions(relayout, table, {begin, end, false}, Side::kDestination);
}

void require_memory(const PageTable& table, const char* side) {
  require(table.has_memory(), "expected a base address for each ", side,
          " plane, got a page table without");
}

}  // namespace kvxfer::detail
