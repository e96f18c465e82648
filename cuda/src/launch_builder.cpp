// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "launch_builder.hpp"

#include <kvxfer/error.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace kvxfer::cuda::detail {

namespace {

constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

std::uint32_t u32(std::int64_t value) {
  return static_cast<std::uint32_t>(value);
}

/// @throws UnsupportedError unless a count of rows fits the kernel's 31 bits.
void require_rows(std::int64_t rows) {
  if (rows > kMaxRows) {
    throw UnsupportedError(kvxfer::detail::message("expected at most ", kMaxRows,
                                                   " rows in one launch, got ", rows,
                                                   "; send shorter segments"));
  }
}

/// Exact for n < 2^31: the multiplier's error stays below 2^(31 + shift) / n.
FastDivisor fast_divisor(std::int64_t divisor) {
  const auto d = static_cast<std::uint64_t>(divisor);
  const auto log2 = static_cast<std::uint32_t>(std::bit_width(d - 1));
  return {u32(divisor), static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + log2)) + d - 1) / d),
          log2};
}

/// Pages [first, last) of a table that hold the positions of a segment.
struct PageRange {
  std::int64_t first;
  std::int64_t last;

  [[nodiscard]] std::int64_t count() const noexcept { return last - first; }
};

PageRange pages_of(const PageTable& table, const Segment& segment) {
  const std::int64_t widened = table.layout().widened_page_tokens();
  const auto size = static_cast<std::int64_t>(table.pages().size());
  const std::int64_t begin = std::max<std::int64_t>(segment.begin - table.first_position(), 0);
  const std::int64_t end = std::max<std::int64_t>(segment.end - table.first_position(), 0);
  const std::int64_t first = std::min(begin / widened, size);
  return {first, std::clamp((end + widened - 1) / widened, first, size)};
}

/// Whether this work reads the page ids that the previous one brought.
bool is_shared(std::span<const PairWork> work, std::size_t i, const PageTable* PairWork::* side) {
  return i > 0 && work[i].*side == work[i - 1].*side && work[i].segment == work[i - 1].segment;
}

/// The page ids of one side of one work in the launch.
struct SidePages {
  const PageTable* table = nullptr;
  PageRange range{0, 0};
  std::uint32_t first_id = 0;
};

Side side_of(const SidePages& pages, std::int64_t page_rows, std::int64_t first_period,
             std::int64_t period_rows, std::int64_t cell_index) {
  if (pages.table == nullptr) return {};
  const std::int64_t first_page =
      pages.table->first_position() / pages.table->layout().widened_page_tokens() +
      pages.range.first;
  require_rows(pages.range.count() * page_rows + 2 * period_rows);
  const std::int64_t origin = first_period * period_rows + cell_index - first_page * page_rows;
  return {fast_divisor(page_rows), u32(period_rows), u32(origin), pages.first_id};
}

/// Fills a launch's parameters from works, group by group.
template <class Params>
class Builder {
 public:
  Builder(const Portion& portion, const ResidentTables& tables, Params& params)
      : portion_(portion), tables_(tables), params_(params) {
    params_.header.planes = tables.planes;
    if constexpr (Params::kMaxPlanes > 0) {
      if (tables.host_planes.size() <= Params::kMaxPlanes) {
        params_.header.planes = nullptr;
        std::ranges::copy(tables.host_planes, params_.planes);
      }
    }
    params_.header.item_count = 0;
    params_.header.band_count = 0;
  }

  void add_page_ids(std::span<const PairWork> work) {
    for (std::size_t i = 0; i < work.size(); ++i) {
      sources_[i] = is_shared(work, i, &PairWork::source)
                        ? sources_[i - 1]
                        : page_ids(work[i].source, portion_.of(work[i].segment));
      destinations_[i] = is_shared(work, i, &PairWork::destination)
                             ? destinations_[i - 1]
                             : page_ids(work[i].destination, portion_.of(work[i].segment));
    }
  }

  /// Bands of every work whose group `group` has the runs `runs`.
  bool add_bands(std::span<const PairWork> work, std::size_t group,
                 const std::vector<PlaneRun>& runs, std::int64_t tile_bytes) {
    const std::uint32_t job_begin = job_count_;
    std::int64_t most_rows = 0;
    for (std::size_t i = 0; i < work.size(); ++i) {
      if (!has_runs(work[i], group, runs)) continue;
      if (job_count_ == Params::kMaxJobs) return false;
      most_rows = std::max(most_rows, add_job(work[i], i, group));
    }
    if (most_rows == 0) {
      job_count_ = job_begin;
      return true;
    }
    for (const PlaneRun& run : runs)
      if (!add_band(run, job_begin, most_rows, tile_bytes)) return false;
    return true;
  }

  [[nodiscard]] bool has_runs(const PairWork& work, std::size_t group,
                              const std::vector<PlaneRun>& runs) const {
    const auto& groups = (*tables_.groups)[work.index];
    return group < groups.size() && groups[group].runs == runs;
  }

 private:
  SidePages page_ids(const PageTable* table, const Segment& segment) {
    if (table == nullptr) return {};
    const PageRange range = pages_of(*table, segment);
    const SidePages pages{table, range, page_count_};
    for (const std::int64_t id : table->pages().subspan(static_cast<std::size_t>(range.first),
                                                        static_cast<std::size_t>(range.count())))
      params_.page_ids[page_count_++] = static_cast<std::int32_t>(id);
    return pages;
  }

  std::int64_t add_job(const PairWork& work, std::size_t i, std::size_t group_index) {
    const PlaneGroup& group = work.relayout->groups()[group_index];
    const PlaneArrays::Group& resident = (*tables_.groups)[work.index][group_index];
    const TokenPattern& pattern = group.pattern;
    const Segment part = portion_.of(work.segment);
    const std::int64_t region_first = pattern.rows_before(work.segment.begin);
    const std::int64_t region_rows = pattern.rows_before(work.segment.end) - region_first;
    const std::int64_t first = pattern.rows_before(part.begin);
    const std::int64_t rows = pattern.rows_before(part.end) - first;
    const std::int64_t first_period = first / pattern.rows_per_period();
    require_rows(region_rows + pattern.rows_per_period());
    const bool has_cells = resident.cell_count > 0;
    const TokenCell cell = has_cells ? TokenCell{} : pattern.cells().front();
    params_.jobs[job_count_++] = {
        packed_address(work, group_index),
        has_cells ? tables_.cells + resident.cell_begin : nullptr,
        resident.cell_count,
        resident.plane_begin,
        u32(rows),
        u32(first - region_first),
        u32(region_rows),
        u32(first % pattern.rows_per_period()),
        fast_divisor(pattern.rows_per_period()),
        side_of(sources_[i], group.source_page_rows, first_period, pattern.source_period_rows(),
                cell.source_index),
        side_of(destinations_[i], group.destination_page_rows, first_period,
                pattern.destination_period_rows(), cell.destination_index)};
    return rows;
  }

  bool add_band(const PlaneRun& run, std::uint32_t job_begin, std::int64_t rows,
                std::int64_t tile_bytes) {
    if (params_.header.band_count == kMaxBands) return false;
    const std::int64_t most_tile_rows = std::max<std::int64_t>(tile_bytes / run.slice_bytes, 1);
    const std::int64_t tiles = (rows + most_tile_rows - 1) / most_tile_rows;
    const std::int64_t jobs = job_count_ - job_begin;
    const std::int64_t items = params_.header.item_count + tiles * jobs * run.plane_count;
    require_rows(items);
    std::uint32_t address_bits = 0;
    std::uint32_t packed_rows = 0;
    for (std::uint32_t j = job_begin; j < job_count_; ++j) {
      address_bits |= u32(params_.jobs[j].packed_address);
      packed_rows |= params_.jobs[j].packed_rows;
    }
    params_.header.bands[params_.header.band_count++] = {params_.header.item_count,
                                                         job_begin,
                                                         run.plane_offset,
                                                         u32((rows + tiles - 1) / tiles),
                                                         fast_divisor(tiles * jobs),
                                                         fast_divisor(jobs),
                                                         address_bits,
                                                         packed_rows & (~packed_rows + 1)};
    params_.header.item_count = u32(items);
    return true;
  }

  static std::int64_t packed_address(const PairWork& work, std::size_t group_index) {
    if (work.source != nullptr && work.destination != nullptr) return 0;
    std::int64_t address = work.packed_address;
    for (std::size_t g = 0; g < group_index; ++g) {
      const PlaneGroup& group = work.relayout->groups()[g];
      address += group.row_bytes * (group.pattern.rows_before(work.segment.end) -
                                    group.pattern.rows_before(work.segment.begin));
    }
    return address;
  }

  Portion portion_;
  const ResidentTables& tables_;
  Params& params_;
  std::array<SidePages, Params::kMaxJobs> sources_;
  std::array<SidePages, Params::kMaxJobs> destinations_;
  std::uint32_t job_count_ = 0;
  std::uint32_t page_count_ = 0;
};

/// Whether no earlier work has a group `group` with the runs of work `i`'s.
bool is_first_of_its_runs(std::span<const PairWork> work, std::size_t i, std::size_t group,
                          const ResidentTables& tables) {
  const auto& runs = (*tables.groups)[work[i].index][group].runs;
  for (std::size_t k = 0; k < i; ++k) {
    const auto& groups = (*tables.groups)[work[k].index];
    if (group < groups.size() && groups[group].runs == runs) return false;
  }
  return true;
}

}  // namespace

Segment Portion::of(const Segment& segment) const noexcept {
  const std::int64_t tokens = segment.end - segment.begin;
  return {segment.begin + tokens * part / parts, segment.begin + tokens * (part + 1) / parts,
          false};
}

std::int64_t page_id_count(std::span<const PairWork> work, const Portion& portion) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < work.size(); ++i) {
    const Segment segment = portion.of(work[i].segment);
    for (const auto side : {&PairWork::source, &PairWork::destination}) {
      if (work[i].*side != nullptr && !is_shared(work, i, side))
        count += pages_of(*(work[i].*side), segment).count();
    }
  }
  return count;
}

std::int64_t parts_for(std::span<const PairWork> work, std::int64_t max_pages) {
  std::int64_t parts = 1;
  const auto fits = [&] {
    for (std::int64_t part = 0; part < parts; ++part)
      if (page_id_count(work, {part, parts}) > max_pages) return false;
    return true;
  };
  while (!fits())
    parts *= 2;
  return parts;
}

std::int64_t portion_bytes(std::span<const PairWork> work, const Portion& portion) {
  std::int64_t bytes = 0;
  for (const PairWork& pair : work) {
    const Segment segment = portion.of(pair.segment);
    bytes += pair.relayout->segment_bytes(segment.begin, segment.end);
  }
  return bytes;
}

template <class Params>
bool build_launch(std::span<const PairWork> work, const Portion& portion,
                  const ResidentTables& tables, std::int64_t tile_bytes, Params& params) {
  if (work.size() > Params::kMaxJobs) return false;
  Builder<Params> builder(portion, tables, params);
  builder.add_page_ids(work);
  std::size_t group_count = 0;
  for (const PairWork& pair : work)
    group_count = std::max(group_count, pair.relayout->groups().size());
  for (std::size_t group = 0; group < group_count; ++group) {
    for (std::size_t i = 0; i < work.size(); ++i) {
      const auto& groups = (*tables.groups)[work[i].index];
      if (group >= groups.size() || !is_first_of_its_runs(work, i, group, tables)) continue;
      if (!builder.add_bands(work, group, groups[group].runs, tile_bytes)) return false;
    }
  }
  return true;
}

template bool build_launch(std::span<const PairWork>, const Portion&, const ResidentTables&,
                           std::int64_t, SmallParams&);
template bool build_launch(std::span<const PairWork>, const Portion&, const ResidentTables&,
                           std::int64_t, MediumParams&);
template bool build_launch(std::span<const PairWork>, const Portion&, const ResidentTables&,
                           std::int64_t, LargeParams&);

}  // namespace kvxfer::cuda::detail
