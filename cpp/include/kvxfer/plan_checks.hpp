// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bounds of the row copies, apart from the copies: whoever moves rows (host loops, kernels) checks
// the same things before the first byte moves.

#include <kvxfer/pack_plan.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>

#include <cstdint>

namespace kvxfer {

/// @throws InvalidArgumentError if `source` is not the layout's source, has no memory or does not
/// cover the segment, or if the plan is not of this layout.
/// @throws CapacityError if a region or a buffer of `buffer_bytes` ends before the plan's last
/// byte.
void check_pack(const PackBufferLayout& layout, const PackPlan& plan, const PageTable& source,
                std::int64_t buffer_bytes);

/// @throws InvalidArgumentError if `destination` is not the relayout's, has no memory or does not
/// cover the segment.
/// @throws CapacityError if a region of `region_bytes` is shorter than the segment's packed bytes.
void check_unpack(const Relayout& relayout, const Segment& segment, std::int64_t region_bytes,
                  const PageTable& destination);

/// @throws InvalidArgumentError as check_unpack, for either side.
void check_copy(const Relayout& relayout, const Segment& segment, const PageTable& source,
                const PageTable& destination);

}  // namespace kvxfer
