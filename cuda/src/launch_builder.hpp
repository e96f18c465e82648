// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns plans into kernel parameters. Pure host arithmetic: it runs, and is tested, without a
// device.

#include "device_planes.hpp"
#include "launch_params.hpp"

#include <kvxfer/segment.hpp>

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace kvxfer::cuda::detail {

/// One pair's rows of one segment.
struct PairWork {
  const Relayout* relayout;
  std::size_t index;  ///< of the relayout in the tables
  Segment segment;
  std::int64_t packed_address;   ///< of the region, when a side is packed
  const PageTable* source;       ///< null: packed
  const PageTable* destination;  ///< null: packed
};

/// What a launch reads beside its parameters.
struct ResidentTables {
  const PlaneEntry* planes;
  const Cell* cells;
  std::span<const PlaneEntry> host_planes;  ///< the same entries, for parameters that hold them
  const std::vector<std::vector<PlaneArrays::Group>>* groups;
};

/// Part `part` of `parts` of every work's positions.
struct Portion {
  std::int64_t part = 0;
  std::int64_t parts = 1;

  /// [begin, end) of `segment`, with the final flag dropped.
  [[nodiscard]] Segment of(const Segment& segment) const noexcept;
};

/// Fewest equal parts so that the page ids of each fit `max_pages`.
[[nodiscard]] std::int64_t parts_for(std::span<const PairWork> work, std::int64_t max_pages);

/// Page ids that `work` needs in one launch.
[[nodiscard]] std::int64_t page_id_count(std::span<const PairWork> work, const Portion& portion);

/// Fills `params`; item_count is 0 when there is nothing to move. False when the work has more
/// jobs or bands than one launch takes.
/// @throws UnsupportedError for more than 2^31 rows in one launch.
template <class Params>
[[nodiscard]] bool build_launch(std::span<const PairWork> work, const Portion& portion,
                                const ResidentTables& tables, std::int64_t tile_bytes,
                                Params& params);

/// Packed bytes of the portion.
[[nodiscard]] std::int64_t portion_bytes(std::span<const PairWork> work, const Portion& portion);

/// Calls `visit(params, bytes)` for one portion: once when it fits one launch, as almost all do.
template <class TileBytesFor, class Visit>
void visit_portion(std::span<const PairWork> work, const Portion& portion,
                   const ResidentTables& tables, TileBytesFor& tile_bytes_for, Visit& visit) {
  const std::int64_t bytes = portion_bytes(work, portion);
  const auto try_visit = [&](auto& params) {
    using Params = std::remove_reference_t<decltype(params)>;
    if (page_id_count(work, portion) > Params::kMaxPages ||
        !build_launch(work, portion, tables, tile_bytes_for(bytes), params))
      return false;
    if (params.header.item_count > 0) visit(params, bytes);
    return true;
  };
  if (SmallParams small; try_visit(small)) return;
  if (MediumParams medium; try_visit(medium)) return;
  if (LargeParams large; try_visit(large)) return;
  const std::size_t half = work.size() / 2;
  visit_portion(work.first(half), portion, tables, tile_bytes_for, visit);
  visit_portion(work.subspan(half), portion, tables, tile_bytes_for, visit);
}

/// Calls `visit(params, bytes)` for each launch that `work` needs; `tile_bytes_for(bytes)` is the
/// size of a tile in a launch of so many bytes.
template <class TileBytesFor, class Visit>
void for_each_launch(std::span<const PairWork> work, const ResidentTables& tables,
                     TileBytesFor tile_bytes_for, Visit visit) {
  const std::int64_t parts = parts_for(work, LargeParams::kMaxPages);
  for (std::int64_t part = 0; part < parts; ++part)
    visit_portion(work, {part, parts}, tables, tile_bytes_for, visit);
}

}  // namespace kvxfer::cuda::detail
