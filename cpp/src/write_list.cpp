// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "row_runs.hpp"

#include <kvxfer/error.hpp>
#include <kvxfer/write_list.hpp>

#include <algorithm>
#include <limits>
#include <optional>

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

  [[nodiscard]] bool is_contiguous() const {
    return page_rows == kOnePage || page_stride == page_rows * row_stride;
  }
  [[nodiscard]] std::int64_t address(std::int64_t row) const {
    return base + row / page_rows * page_stride + row % page_rows * row_stride;
  }
  /// Rows from `row` to the end of its page.
  [[nodiscard]] std::int64_t rows_left(std::int64_t row) const {
    return page_rows - row % page_rows;
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
};

PlaneSide plane_side(const PageTable& table, std::int64_t index, std::int64_t offset_bytes,
                     std::int64_t page_rows) {
  const auto i = static_cast<std::size_t>(index);
  const Plane& plane = table.layout().planes()[i];
  return {table.plane_addresses()[i] + plane.page_offset_bytes + offset_bytes, page_rows,
          plane.page_stride_bytes, plane.row_stride_bytes};
}

/// Routes of all planes in packed order. Without a source table the source rows are packed at 0.
std::vector<PlaneRoute> plane_routes(const Relayout& relayout, const PageTable* source,
                                     const PageTable& destination) {
  std::vector<PlaneRoute> routes;
  for (const PlaneGroup& group : relayout.groups()) {
    for (const PlanePair& pair : group.planes) {
      PlaneSide from{0, kOnePage, 0, pair.bytes};
      if (source != nullptr)
        from = plane_side(*source, pair.source_plane, pair.source_offset_bytes,
                          group.source_page_rows);
      routes.push_back({from,
                        plane_side(destination, pair.destination_plane,
                                   pair.destination_offset_bytes, group.destination_page_rows),
                        pair.bytes});
    }
  }
  return routes;
}

/// Appends the runs of one plane, joined where both sides continue. A plane never continues the run
/// of another.
class PlaneWriter {
 public:
  PlaneWriter(std::vector<Run>& runs, const PlaneRoute& route)
      : runs_(runs), first_(runs.size()), route_(route) {}

  void add(std::span<const RowRun> rows) {
    if (!route_.has_dense_rows()) {
      for (const RowRun& run : rows)
        add_row_by_row(run);
    } else if (route_.source.is_contiguous() && route_.destination.is_contiguous()) {
      add_contiguous(rows);
    } else {
      for (const RowRun& run : rows)
        add_page_by_page(run);
    }
  }

 private:
  /// Row runs are as long as they can be, and so are these.
  void add_contiguous(std::span<const RowRun> rows) {
    const std::int64_t from = route_.source.base;
    const std::int64_t to = route_.destination.base;
    const std::int64_t bytes = route_.bytes;
    for (const RowRun& run : rows) {
      runs_.push_back(
          {from + run.source_row * bytes, to + run.destination_row * bytes, run.length * bytes});
    }
  }

  void add_page_by_page(RowRun run) {
    while (run.length > 0) {
      const std::int64_t here = std::min({run.length, route_.source.rows_left(run.source_row),
                                          route_.destination.rows_left(run.destination_row)});
      join(route_.source.address(run.source_row), route_.destination.address(run.destination_row),
           here * route_.bytes);
      run = {run.source_row + here, run.destination_row + here, run.length - here};
    }
  }

  void add_row_by_row(const RowRun& run) {
    for (std::int64_t i = 0; i < run.length; ++i) {
      join(route_.source.address(run.source_row + i),
           route_.destination.address(run.destination_row + i), route_.bytes);
    }
  }

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

/// The writes of all segments. With a region address the source rows of each segment are packed
/// there, plane after plane.
WriteList list_writes(const Relayout& relayout, std::size_t segment_count, const RowRunTable& rows,
                      std::vector<PlaneRoute> routes, std::optional<std::int64_t> region_address) {
  WriteList list;
  list.segment_offsets.reserve(segment_count + 1);
  list.segment_offsets.push_back(0);
  std::size_t run_count = 0;
  for (std::size_t i = 0; i < segment_count * relayout.groups().size(); ++i)
    run_count += rows.at(i).size() * relayout.groups()[i % relayout.groups().size()].planes.size();
  list.runs.reserve(run_count);

  std::size_t index = 0;
  for (std::size_t segment = 0; segment < segment_count; ++segment) {
    std::int64_t packed_address = region_address.value_or(0);
    auto route = routes.begin();
    for (const PlaneGroup& group : relayout.groups()) {
      const std::span<const RowRun> group_rows = rows.at(index++);
      std::int64_t row_count = 0;
      for (const RowRun& run : group_rows)
        row_count += run.length;
      for (std::size_t plane = 0; plane < group.planes.size(); ++plane, ++route) {
        if (region_address) route->source.base = packed_address;
        packed_address += row_count * route->bytes;
        PlaneWriter(list.runs, *route).add(group_rows);
      }
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
  return list_writes(relayout, segments.size(), packed_row_runs(relayout, segments, destination),
                     plane_routes(relayout, nullptr, destination), region_address);
}

WriteList direct_writes(const Relayout& relayout, std::span<const Segment> segments,
                        const PageTable& source, const PageTable& destination) {
  detail::require_memory(source, "source");
  detail::require_memory(destination, "destination");
  for (const Segment& segment : segments) {
    detail::require_source_rows(relayout, source, segment.begin, segment.end);
    detail::require_destination_rows(relayout, destination, segment.begin, segment.end);
  }
  return list_writes(relayout, segments.size(),
                     direct_row_runs(relayout, segments, source, destination),
                     plane_routes(relayout, &source, destination), std::nullopt);
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
