// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Row copies on host memory. Plain loops: they are the specification that faster copies are
// compared with. Every bound is checked before the first byte moves.

#include <kvxfer/pack_plan.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>

#include <cstddef>
#include <span>

namespace kvxfer {

/// Gathers the plan's rows of every region from the source's pages into `buffer`. Bytes outside the
/// plan's regions are not touched. The pages must stay unchanged until this returns.
/// @throws InvalidArgumentError if `source` is not the layout's source, has no memory or does not
/// cover the segment.
/// @throws CapacityError if `buffer` ends before the plan's last byte.
void pack_rows(const PackBufferLayout& layout, const PackPlan& plan, const PageTable& source,
               std::span<std::byte> buffer);

/// Scatters one packed region of `segment` into the destination's pages. Nothing else in them is
/// touched.
/// @throws InvalidArgumentError as pack_rows, for the destination.
/// @throws CapacityError if `region` is shorter than the segment's packed bytes.
void unpack_rows(const Relayout& relayout, const Segment& segment,
                 std::span<const std::byte> region, const PageTable& destination);

/// Copies the pair's rows of `segment` from source pages to destination pages. The two pools must
/// not overlap.
/// @throws InvalidArgumentError as pack_rows, for either side.
void copy_rows(const Relayout& relayout, const Segment& segment, const PageTable& source,
               const PageTable& destination);

}  // namespace kvxfer
