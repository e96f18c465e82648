// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the shape and the plan of a gather check alike.

#include "kvxfer/gather_shape.hpp"

namespace kvxfer::detail {

/// @throws InvalidArgumentError for a size out of range. A shape that passes has page and row
/// numbers far inside int64.
void require_shape(const GatherShape& shape);

/// @throws CapacityError unless the region holds so many pages.
void require_room(std::int64_t pages, std::int64_t region_pages, const char* region);

[[nodiscard]] constexpr std::int64_t rounded_up_quotient(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace kvxfer::detail
