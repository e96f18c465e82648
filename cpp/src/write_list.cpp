// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "row_runs.hpp"

#include <kvxfer/error.hpp>
#include <kvxfer/write_list.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace kvxfer {

namespace {

constexpr std::int64_t kOnePage = std::numeric_limits<std::int64_t>::max();

/// One side of one plane: row `r` of page `p` is at base + p * page_stride + r * row_stride. Packed
/// rows are one page.
struct PlaneSide {
  std::int64_t base;
  std::int64_t page_rows;
  std::int64_t page_stride;
  std::int64_t row_stride;

  [[nodiscard]] bool has_dense_pages() const {
    return page_rows == kOnePage || page_stride == page_rows * row_stride;
  }
};

/// One plane of the pair, as its writes see it.
struct PlaneRoute {
  PlaneSide source;
  PlaneSide destination;
  std::int64_t bytes;  ///< of a row's slice

  [[nodiscard]] bool has_dense_rows() const {
    return source.row_stride == bytes && destination.row_stride == bytes;
  }
  /// Rows that follow one another in number do so in memory.
  [[nodiscard]] bool is_contiguous() const {
    return has_dense_rows() && source.has_dense_pages() && destination.has_dense_pages();
  }
};

/// A row run cut at the page ends of both sides; the rows count inside their pages.
struct Piece {
  std::int64_t source_page;
  std::int64_t source_row;
  std::int64_t destination_page;
  std::int64_t destination_row;
  std::int64_t length;
};

void cut_at_pages(std::vector<Piece>& pieces, std::span<const RowRun> rows,
                  const PlaneRoute& route) {
  const std::int64_t source_page_rows = route.source.page_rows;
  const std::int64_t destination_page_rows = route.destination.page_rows;
  pieces.clear();
  for (RowRun run : rows) {
    while (run.length > 0) {
      const std::int64_t source_row = run.source_row % source_page_rows;
      const std::int64_t destination_row = run.destination_row % destination_page_rows;
      const std::int64_t here = std::min(
          {run.length, source_page_rows - source_row, destination_page_rows - destination_row});
      pieces.push_back({run.source_row / source_page_rows, source_row,
                        run.destination_row / destination_page_rows, destination_row, here});
      run = {run.source_row + here, run.destination_row + here, run.length - here};
    }
  }
}

PlaneSide plane_side(const PageTable& table, std::int64_t index, std::int64_t offset_bytes,
                     std::int64_t page_rows) {
  const auto i = static_cast<std::size_t>(index);
  const Plane& plane = table.layout().planes()[i];
  return {table.plane_addresses()[i] + plane.page_offset_bytes + offset_bytes, page_rows,
          plane.page_stride_bytes, plane.row_stride_bytes};
}

/// The planes of one group in packed order.
struct GroupRoutes {
  std::vector<PlaneRoute> planes;
  bool is_contiguous;  ///< all of them
};

/// Routes of all groups. Without a source table the source rows are packed at 0.
std::vector<GroupRoutes> group_routes(const Relayout& relayout, const PageTable* source,
                                      const PageTable& destination) {
  std::vector<GroupRoutes> groups;
  groups.reserve(relayout.groups().size());
  for (const PlaneGroup& group : relayout.groups()) {
    GroupRoutes routes{{}, true};
    routes.planes.reserve(group.planes.size());
    for (const PlanePair& pair : group.planes) {
      PlaneSide from{0, kOnePage, 0, pair.bytes};
      if (source != nullptr)
        from = plane_side(*source, pair.source_plane, pair.source_offset_bytes,
                          group.source_page_rows);
      const PlaneSide to = plane_side(destination, pair.destination_plane,
                                      pair.destination_offset_bytes, group.destination_page_rows);
      routes.planes.push_back({from, to, pair.bytes});
      routes.is_contiguous = routes.is_contiguous && routes.planes.back().is_contiguous();
    }
    groups.push_back(std::move(routes));
  }
  return groups;
}

/// Appends the runs of one plane, joined where both sides continue. A plane never continues the run
/// of another.
class PlaneWriter {
 public:
  PlaneWriter(std::vector<Run>& runs, const PlaneRoute& route)
      : runs_(runs), first_(runs.size()), route_(route) {}

  /// For a contiguous plane. Row runs are as long as they can be, and so are these.
  void add_rows(std::span<const RowRun> rows) {
    const std::int64_t from = route_.source.base;
    const std::int64_t to = route_.destination.base;
    const std::int64_t bytes = route_.bytes;
    for (const RowRun& run : rows) {
      runs_.push_back(
          {from + run.source_row * bytes, to + run.destination_row * bytes, run.length * bytes});
    }
  }

  /// For any plane.
  void add_pieces(std::span<const Piece> pieces) {
    const auto [source, destination, bytes] = route_;  // copied: runs cannot alias it
    const bool has_dense_rows = route_.has_dense_rows();
    for (const Piece& piece : pieces) {
      std::int64_t from = source.base + piece.source_page * source.page_stride +
                          piece.source_row * source.row_stride;
      std::int64_t to = destination.base + piece.destination_page * destination.page_stride +
                        piece.destination_row * destination.row_stride;
      if (has_dense_rows) {
        join(from, to, piece.length * bytes);
        continue;
      }
      for (std::int64_t i = 0; i < piece.length; ++i) {
        join(from, to, bytes);
        from += source.row_stride;
        to += destination.row_stride;
      }
    }
  }

 private:
  void join(std::int64_t source, std::int64_t destination, std::int64_t bytes) {
    if (runs_.size() > first_) {
      Run& last = runs_.back();
      if (last.source + last.bytes == source && last.destination + last.bytes == destination) {
        last.bytes += bytes;
        return;
      }
    }
    runs_.push_back({source, destination, bytes});
  }

  std::vector<Run>& runs_;
  std::size_t first_;
  const PlaneRoute& route_;
};

std::int64_t length_of(std::span<const RowRun> rows) {
  std::int64_t length = 0;
  for (const RowRun& run : rows)
    length += run.length;
  return length;
}

/// Most runs that a group can need for these rows, so that a long list grows once.
std::int64_t most_runs(std::span<const RowRun> rows, const GroupRoutes& group) {
  const auto run_count = static_cast<std::int64_t>(rows.size());
  const auto plane_count = static_cast<std::int64_t>(group.planes.size());
  if (group.is_contiguous) return run_count * plane_count;
  const PlaneRoute& any = group.planes.front();
  const std::int64_t page_rows = std::min(any.source.page_rows, any.destination.page_rows);
  const std::int64_t row_count = length_of(rows);
  const std::int64_t piece_count = std::min(row_count, 2 * (row_count / page_rows + run_count));
  std::int64_t most = 0;
  for (const PlaneRoute& plane : group.planes)
    most += plane.has_dense_rows() ? piece_count : row_count;
  return most;
}

/// Appends one segment's runs of one group.
void add_group(std::vector<Run>& runs, std::span<const RowRun> rows, const GroupRoutes& group,
               std::vector<Piece>& pieces) {
  if (!group.is_contiguous) cut_at_pages(pieces, rows, group.planes.front());
  for (const PlaneRoute& plane : group.planes) {
    if (plane.is_contiguous()) {
      PlaneWriter(runs, plane).add_rows(rows);
    } else {
      PlaneWriter(runs, plane).add_pieces(pieces);
    }
  }
}

/// The writes of all segments. With a region address the source rows of each segment are packed
/// there, plane after plane.
WriteList list_writes(std::size_t segment_count, const RowRunTable& rows,
                      std::vector<GroupRoutes> groups, std::optional<std::int64_t> region_address) {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < segment_count * groups.size(); ++i)
    most += most_runs(rows.at(i), groups[i % groups.size()]);
  WriteList list;
  list.runs.reserve(static_cast<std::size_t>(most));
  list.segment_offsets.reserve(segment_count + 1);
  list.segment_offsets.push_back(0);

  std::vector<Piece> pieces;
  std::size_t index = 0;
  for (std::size_t segment = 0; segment < segment_count; ++segment) {
    std::int64_t packed_address = region_address.value_or(0);
    for (GroupRoutes& group : groups) {
      const std::span<const RowRun> group_rows = rows.at(index++);
      if (region_address) {
        const std::int64_t row_count = length_of(group_rows);
        for (PlaneRoute& plane : group.planes) {
          plane.source.base = packed_address;
          packed_address += row_count * plane.bytes;
        }
      }
      add_group(list.runs, group_rows, group, pieces);
    }
    list.segment_offsets.push_back(static_cast<std::int64_t>(list.runs.size()));
  }
  return list;
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
  detail::require_memory(destination, "destination");
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  for (const Segment& segment : segments) {
    detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
    room = std::min(room, std::numeric_limits<std::int64_t>::max() -
                              relayout.segment_bytes(segment.begin, segment.end));
  }
  detail::require(region_address >= 0 && region_address <= room, "expected region_address in [0, ",
                  room, "], got ", region_address);
  return list_writes(segments.size(), packed_row_runs(relayout, segments, destination),
                     group_routes(relayout, nullptr, destination), region_address);
}

WriteList direct_writes(const Relayout& relayout, std::span<const Segment> segments,
                        const PageTable& source, const PageTable& destination) {
  detail::require_memory(source, "source");
  detail::require_memory(destination, "destination");
  for (const Segment& segment : segments) {
    detail::require_source_rows(relayout, source, segment.begin, segment.end);
    detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
  }
  return list_writes(segments.size(), direct_row_runs(relayout, segments, source, destination),
                     group_routes(relayout, &source, destination), std::nullopt);
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
