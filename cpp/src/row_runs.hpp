// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of a pair that follow one another on both sides. They do not depend on the plane, so they
// are found once for all planes that share a token pattern.

#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>
#include <kvxfer/segment.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvxfer {

/// Rows whose numbers rise together on both sides. A paged row's number is page * page rows + row
/// in page; packed rows of a group are numbered from 0 in each segment.
struct RowRun {
  std::int64_t source_row;
  std::int64_t destination_row;
  std::int64_t length;
};

/// The row runs of every segment and, inside it, of every plane group.
class RowRunTable {
 public:
  /// Runs of the `index`-th (segment, group), as long as they can be.
  [[nodiscard]] std::span<const RowRun> at(std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::span(runs_).subspan(begin, ends_[index] - begin);
  }

  /// Makes room for so many more runs, at the least.
  void expect(std::int64_t run_count) {
    const std::size_t needed = runs_.size() + static_cast<std::size_t>(run_count);
    if (needed > runs_.capacity()) runs_.reserve(std::max(needed, 2 * runs_.capacity()));
  }

  /// Appends a run of the current group, or lengthens its last one.
  void add(const RowRun& run) {
    if (runs_.size() > begin_) {
      RowRun& last = runs_.back();
      if (last.source_row + last.length == run.source_row &&
          last.destination_row + last.length == run.destination_row) {
        last.length += run.length;
        return;
      }
    }
    runs_.push_back(run);
  }

  void end_group() {
    begin_ = runs_.size();
    ends_.push_back(begin_);
  }

 private:
  std::vector<RowRun> runs_;
  std::vector<std::size_t> ends_;
  std::size_t begin_ = 0;  ///< of the current group
};

/// From packed rows to destination rows. The table must cover the segments.
[[nodiscard]] RowRunTable packed_row_runs(const Relayout& relayout,
                                          std::span<const Segment> segments,
                                          const PageTable& destination);

/// From source rows to destination rows. The tables must cover the segments.
[[nodiscard]] RowRunTable direct_row_runs(const Relayout& relayout,
                                          std::span<const Segment> segments,
                                          const PageTable& source, const PageTable& destination);

}  // namespace kvxfer
