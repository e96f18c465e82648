// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "row_runs.hpp"

#include "page_rows.hpp"
#include "stretches.hpp"

namespace kvxfer {

RowRunTable packed_row_runs(const Relayout& relayout, std::span<const Segment> segments,
                            const PageTable& destination) {
  RowRunTable table;
  for (const Segment& segment : segments) {
    for (const PlaneGroup& group : relayout.groups()) {
      const std::int64_t page_rows = group.destination_page_rows;
      const std::int64_t first = group.pattern.rows_before(segment.begin);
      const std::int64_t last = group.pattern.rows_before(segment.end);
      const PageRows to(destination, page_rows);
      table.expect((last - first) / page_rows + 2);
      for_each_destination_stretch(group.pattern, first, last, [&](const Stretch& stretch) {
        std::int64_t row = stretch.row - first;
        to.for_each_run(stretch.destination_index, stretch.length, [&](const PageRun& run) {
          table.add({row, run.page * page_rows + run.row, run.length});
          row += run.length;
        });
      });
      table.end_group();
    }
  }
  return table;
}

namespace {

/// Adds one stretch, cut where a page ends on either side.
void add_stretch(RowRunTable& table, const Stretch& stretch, const PlaneGroup& group,
                 const PageRows& from, const PageRows& to) {
  std::int64_t source_index = stretch.source_index;
  to.for_each_run(stretch.destination_index, stretch.length, [&](const PageRun& target) {
    std::int64_t row = target.page * group.destination_page_rows + target.row;
    from.for_each_run(source_index, target.length, [&](const PageRun& origin) {
      table.add({origin.page * group.source_page_rows + origin.row, row, origin.length});
      row += origin.length;
    });
    source_index += target.length;
  });
}

}  // namespace

RowRunTable direct_row_runs(const Relayout& relayout, std::span<const Segment> segments,
                            const PageTable& source, const PageTable& destination) {
  RowRunTable table;
  for (const Segment& segment : segments) {
    for (const PlaneGroup& group : relayout.groups()) {
      const std::int64_t first = group.pattern.rows_before(segment.begin);
      const std::int64_t last = group.pattern.rows_before(segment.end);
      const PageRows from(source, group.source_page_rows);
      const PageRows to(destination, group.destination_page_rows);
      table.expect((last - first) / group.destination_page_rows + 2);
      if (group.pattern.is_source_dense() && group.pattern.is_destination_dense()) {
        if (first < last) add_stretch(table, {first, first, first, last - first}, group, from, to);
      } else {
        for_each_stretch(group.pattern, first, last, [&](const Stretch& stretch) {
          add_stretch(table, stretch, group, from, to);
        });
      }
      table.end_group();
    }
  }
  return table;
}

}  // namespace kvxfer
