// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Preconditions that plans, write lists and row copies share; each is checked once, before anything
// is built or moved.

#include <kvxfer/relayout.hpp>
#include <kvxfer/segment.hpp>

namespace kvxfer::detail {

/// @throws InvalidArgumentError unless 0 <= begin <= end <= kMaxTokens.
void require_range(std::int64_t begin, std::int64_t end);

/// @throws InvalidArgumentError unless `table` belongs to the source of `relayout` and holds every
/// row that the pair
///         shares in [begin, end).
void require_source_rows(const Relayout& relayout, const PageTable& table, std::int64_t begin,
                         std::int64_t end);

/// The same for the destination.
void require_destination_rows(const Relayout& relayout, const PageTable& table, std::int64_t begin,
                              std::int64_t end);

/// As require_source_rows, and also the positions that the two shardings share although no plane
/// moves them.
void require_source_positions(const Relayout& relayout, const PageTable& table, std::int64_t begin,
                              std::int64_t end);

/// The same for the destination.
void require_destination_positions(const Relayout& relayout, const PageTable& table,
                                   std::int64_t begin, std::int64_t end);

/// @throws InvalidArgumentError unless the planes of `table` have base addresses.
void require_memory(const PageTable& table, const char* side);

}  // namespace kvxfer::detail
