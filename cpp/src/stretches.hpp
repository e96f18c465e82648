// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Walks a pair's rows as stretches that are contiguous where the caller needs it. Shared by the
// write lists and the row copies, so that what is announced and what is copied cannot differ.

#include <kvxfer/token_pattern.hpp>

#include <algorithm>
#include <cstdint>

namespace kvxfer {

/// Rows [row, row + length) of a pair and the local indices of the first one on both sides.
struct Stretch {
  std::int64_t row;
  std::int64_t source_index;
  std::int64_t destination_index;
  std::int64_t length;
};

/// Calls `visit(Stretch)` for rows [row_begin, row_end) in order; both local indices rise by one
/// inside a stretch.
template <class Visit>
void for_each_stretch(const TokenPattern& pattern, std::int64_t row_begin, std::int64_t row_end,
                      Visit visit) {
  if (row_begin >= row_end) return;
  const std::int64_t rows = pattern.rows_per_period();
  const auto& cells = pattern.cells();
  std::int64_t period = row_begin / rows;
  const std::int64_t first = row_begin % rows;
  auto cell = std::upper_bound(cells.begin(), cells.end(), first,
                               [](std::int64_t row, const TokenCell& c) { return row < c.row; }) -
              1;
  for (std::int64_t row = row_begin; row < row_end;) {
    const std::int64_t skip = row - period * rows - cell->row;
    const std::int64_t length = std::min(cell->length - skip, row_end - row);
    visit(Stretch{row, period * pattern.source_period_rows() + cell->source_index + skip,
                  period * pattern.destination_period_rows() + cell->destination_index + skip,
                  length});
    row += length;
    if (++cell == cells.end()) {
      cell = cells.begin();
      ++period;
    }
  }
}

/// As for_each_stretch, but only the source index counts: one stretch when the source sends all
/// that it holds.
template <class Visit>
void for_each_source_stretch(const TokenPattern& pattern, std::int64_t row_begin,
                             std::int64_t row_end, Visit visit) {
  if (pattern.is_source_dense()) {
    if (row_begin < row_end) visit(Stretch{row_begin, row_begin, -1, row_end - row_begin});
    return;
  }
  for_each_stretch(pattern, row_begin, row_end, visit);
}

/// As for_each_stretch, but only the destination index counts.
template <class Visit>
void for_each_destination_stretch(const TokenPattern& pattern, std::int64_t row_begin,
                                  std::int64_t row_end, Visit visit) {
  if (pattern.is_destination_dense()) {
    if (row_begin < row_end) visit(Stretch{row_begin, -1, row_begin, row_end - row_begin});
    return;
  }
  for_each_stretch(pattern, row_begin, row_end, visit);
}

}  // namespace kvxfer
