// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "page_rows.hpp"
#include "stretches.hpp"

#include <kvxfer/error.hpp>
#include <kvxfer/write_list.hpp>

#include <limits>

namespace kvxfer {

namespace {

/// A piece of rows that lies in one page on every paged side; address arithmetic without the plane.
struct Piece {
  std::int64_t source_page;
  std::int64_t source_row;  ///< in its page, or in the packed region when the source is packed
  std::int64_t destination_page;
  std::int64_t destination_row;
  std::int64_t length;
};

/// One side of one plane: the address of a piece's first row is base + page * page_stride + row *
/// row_stride.
struct PlaneSide {
  std::int64_t base;
  std::int64_t page_stride;
  std::int64_t row_stride;
};

PlaneSide plane_side(const PageTable& table, std::int64_t index, std::int64_t slice_offset_bytes) {
  const auto i = static_cast<std::size_t>(index);
  const Plane& plane = table.layout().planes()[i];
  return {table.plane_addresses()[i] + plane.page_offset_bytes + slice_offset_bytes,
          plane.page_stride_bytes, plane.row_stride_bytes};
}

/// Appends runs, joining each to the previous one when both sides continue.
class RunBuilder {
 public:
  explicit RunBuilder(std::vector<Run>& runs) : runs_(runs), first_(runs.size()) {}

  void add(std::int64_t source, std::int64_t destination, std::int64_t bytes) {
    if (runs_.size() > first_) {
      Run& last = runs_.back();
      if (last.source + last.bytes == source && last.destination + last.bytes == destination) {
        last.bytes += bytes;
        return;
      }
    }
    runs_.push_back({source, destination, bytes});
  }

 private:
  std::vector<Run>& runs_;
  std::size_t first_;
};

void add_plane_runs(std::vector<Run>& runs, const std::vector<Piece>& pieces,
                    const PlaneSide& source, const PlaneSide& destination,
                    std::int64_t slice_bytes) {
  RunBuilder builder(runs);  // a plane never continues another plane's run
  const bool is_dense = source.row_stride == slice_bytes && destination.row_stride == slice_bytes;
  for (const Piece& piece : pieces) {
    std::int64_t from =
        source.base + piece.source_page * source.page_stride + piece.source_row * source.row_stride;
    std::int64_t to = destination.base + piece.destination_page * destination.page_stride +
                      piece.destination_row * destination.row_stride;
    if (is_dense) {
      builder.add(from, to, piece.length * slice_bytes);
      continue;
    }
    for (std::int64_t i = 0; i < piece.length; ++i) {
      builder.add(from, to, slice_bytes);
      from += source.row_stride;
      to += destination.row_stride;
    }
  }
}

std::vector<Piece> packed_pieces(const PlaneGroup& group, const Segment& segment,
                                 const PageTable& destination) {
  const std::int64_t first = group.pattern.rows_before(segment.begin);
  const std::int64_t last = group.pattern.rows_before(segment.end);
  const PageRows to(destination, group.destination_page_rows);
  std::vector<Piece> pieces;
  pieces.reserve(static_cast<std::size_t>((last - first) / group.destination_page_rows + 2));
  for_each_destination_stretch(group.pattern, first, last, [&](const Stretch& stretch) {
    std::int64_t row = stretch.row - first;
    to.for_each_run(stretch.destination_index, stretch.length, [&](const PageRun& run) {
      pieces.push_back({0, row, run.page, run.row, run.length});
      row += run.length;
    });
  });
  return pieces;
}

std::vector<Piece> direct_pieces(const PlaneGroup& group, const Segment& segment,
                                 const PageTable& source, const PageTable& destination) {
  const std::int64_t first = group.pattern.rows_before(segment.begin);
  const std::int64_t last = group.pattern.rows_before(segment.end);
  const PageRows from(source, group.source_page_rows);
  const PageRows to(destination, group.destination_page_rows);
  std::vector<Piece> pieces;
  const auto add_pieces = [&](const Stretch& stretch) {
    std::int64_t source_index = stretch.source_index;
    to.for_each_run(stretch.destination_index, stretch.length, [&](const PageRun& target) {
      std::int64_t row = target.row;
      from.for_each_run(source_index, target.length, [&](const PageRun& origin) {
        pieces.push_back({origin.page, origin.row, target.page, row, origin.length});
        row += origin.length;
      });
      source_index += target.length;
    });
  };
  if (group.pattern.is_source_dense() && group.pattern.is_destination_dense()) {
    if (first < last) add_pieces({first, first, first, last - first});
  } else {
    for_each_stretch(group.pattern, first, last, add_pieces);
  }
  return pieces;
}

}  // namespace

std::int64_t WriteList::bytes() const noexcept {
  std::int64_t total = 0;
  for (const Run& run : runs)
    total += run.bytes;
  return total;
}

WriteList packed_writes(const Relayout& relayout, std::span<const Segment> segments,
                        std::int64_t region_address, const PageTable& destination) {
  detail::require(region_address >= 0, "expected region_address >= 0, got ", region_address);
  detail::require_memory(destination, "destination");
  WriteList list;
  list.segment_offsets.reserve(segments.size() + 1);
  list.segment_offsets.push_back(0);
  for (const Segment& segment : segments) {
    detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
    std::int64_t plane_address = region_address;
    for (const PlaneGroup& group : relayout.groups()) {
      const auto pieces = packed_pieces(group, segment, destination);
      const std::int64_t rows =
          group.pattern.rows_before(segment.end) - group.pattern.rows_before(segment.begin);
      list.runs.reserve(list.runs.size() + pieces.size() * group.planes.size());
      for (const PlanePair& pair : group.planes) {
        add_plane_runs(
            list.runs, pieces, {plane_address, 0, pair.bytes},
            plane_side(destination, pair.destination_plane, pair.destination_offset_bytes),
            pair.bytes);
        plane_address += rows * pair.bytes;
      }
    }
    list.segment_offsets.push_back(static_cast<std::int64_t>(list.runs.size()));
  }
  return list;
}

WriteList direct_writes(const Relayout& relayout, std::span<const Segment> segments,
                        const PageTable& source, const PageTable& destination) {
  detail::require_memory(source, "source");
  detail::require_memory(destination, "destination");
  WriteList list;
  list.segment_offsets.reserve(segments.size() + 1);
  list.segment_offsets.push_back(0);
  for (const Segment& segment : segments) {
    detail::require_source_rows(relayout, source, segment.begin, segment.end);
    detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
    for (const PlaneGroup& group : relayout.groups()) {
      const auto pieces = direct_pieces(group, segment, source, destination);
      for (const PlanePair& pair : group.planes) {
        add_plane_runs(
            list.runs, pieces, plane_side(source, pair.source_plane, pair.source_offset_bytes),
            plane_side(destination, pair.destination_plane, pair.destination_offset_bytes),
            pair.bytes);
      }
    }
    list.segment_offsets.push_back(static_cast<std::int64_t>(list.runs.size()));
  }
  return list;
}

WriteList landing_write(const Relayout& relayout, const Segment& segment,
                        std::int64_t region_address, std::int64_t landing_address) {
  const std::int64_t bytes = relayout.segment_bytes(segment.begin, segment.end);
  const std::int64_t room = std::numeric_limits<std::int64_t>::max() - bytes;
  detail::require(region_address >= 0 && region_address <= room && landing_address >= 0 &&
                      landing_address <= room,
                  "expected addresses in [0, ", room, "], got region_address ", region_address,
                  " and landing_address ", landing_address);
  if (bytes == 0) return {{}, {0, 0}};
  return {{{region_address, landing_address, bytes}}, {0, 1}};
}

}  // namespace kvxfer
