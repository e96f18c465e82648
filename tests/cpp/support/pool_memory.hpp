// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/oracle.hpp"
#include "support/random_plan.hpp"

#include <cstddef>
#include <vector>

namespace kvxfer::support {

/// Memory of one pool: its planes behind each other with guard bytes between them. Index keys and
/// scales of one layer share a page stride, so they share an array.
class PoolMemory {
 public:
  static constexpr std::int64_t kGuardBytes = 8;

  /// Allocates the pool's planes, fills all bytes with `fill` and sets the pool's addresses.
  PoolMemory(oracle::Pool& pool, std::byte fill) {
    std::vector<std::int64_t> offsets;
    std::int64_t size = kGuardBytes;
    for (std::size_t i = 0; i < pool.spec.planes.size(); ++i) {
      const Plane& plane = pool.spec.planes[i];
      offsets.push_back(size);
      if (plane.kind == PlaneKind::kIndexScale) continue;
      size += pool.spec.page_count * oracle::page_stride(pool, plane) + kGuardBytes;
    }
    bytes_.assign(static_cast<std::size_t>(size), fill);
    pool.plane_addresses.clear();
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      const Plane& plane = pool.spec.planes[i];
      std::size_t array = i;
      for (std::size_t j = 0; j < offsets.size(); ++j) {
        const Plane& other = pool.spec.planes[j];
        if (plane.kind == PlaneKind::kIndexScale && other.kind == PlaneKind::kIndexKey &&
            other.layer == plane.layer)
          array = j;
      }
      pool.plane_addresses.push_back(reinterpret_cast<std::int64_t>(bytes_.data()) +
                                     offsets[array]);
    }
  }

  PoolMemory(PoolMemory&&) = default;
  PoolMemory& operator=(PoolMemory&&) = default;
  PoolMemory(const PoolMemory&) = delete;  // the pool's addresses would stay with the original
  PoolMemory& operator=(const PoolMemory&) = delete;
  ~PoolMemory() = default;

  void fill_with(Random& random) {
    for (std::byte& byte : bytes_)
      byte = static_cast<std::byte>(random.between(0, 255));
  }

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace kvxfer::support
