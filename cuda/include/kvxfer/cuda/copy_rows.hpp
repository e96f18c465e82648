// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Row copies on a stream, for the plans that host memory takes too. Tables of planes live on the
// device since registration; a call sends page ids and a few numbers as kernel parameters, one
// launch for all planes and all ranks, and returns. Nothing is allocated, uploaded or waited for.

#include <kvxfer/cuda/stream.hpp>
#include <kvxfer/pack_plan.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvxfer::cuda {

namespace detail {
class DevicePlanes;
}

/// Where and how wide a copy runs.
struct Launch {
  StreamRef stream;
  std::int64_t max_ctas = 0;    ///< at most so many multiprocessors; 0: as many as pay
  cudaEvent_t after = nullptr;  ///< the copy waits for it on the device; null: stream order only
};

/// Resident tables of the planes that one source rank packs. Copyable; copies share the tables.
/// They belong to the device that is current when they are made and must outlive their launches.
class PackTables {
 public:
  /// `source_addresses`: base of each plane of the source pool, as its page tables carry them.
  /// @throws InvalidArgumentError unless there is one address a plane. @throws CudaError.
  PackTables(PackBufferLayout layout, std::vector<std::int64_t> source_addresses);

  [[nodiscard]] const PackBufferLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const detail::DevicePlanes& planes() const noexcept { return *planes_; }

 private:
  PackBufferLayout layout_;
  std::shared_ptr<const detail::DevicePlanes> planes_;
};

/// Resident tables of the planes that one destination rank unpacks, from any of its source ranks.
class UnpackTables {
 public:
  /// @throws InvalidArgumentError unless the relayouts have one destination and there is one
  /// address a plane. @throws CudaError.
  UnpackTables(std::vector<Relayout> relayouts, std::vector<std::int64_t> destination_addresses);

  [[nodiscard]] const std::vector<Relayout>& relayouts() const noexcept { return relayouts_; }
  [[nodiscard]] const detail::DevicePlanes& planes() const noexcept { return *planes_; }

 private:
  std::vector<Relayout> relayouts_;
  std::shared_ptr<const detail::DevicePlanes> planes_;
};

/// Resident tables of one pair whose pools are both mapped on this device.
class CopyTables {
 public:
  /// @throws InvalidArgumentError unless there is one address a plane on either side.
  /// @throws CudaError.
  CopyTables(Relayout relayout, std::vector<std::int64_t> source_addresses,
             std::vector<std::int64_t> destination_addresses);

  [[nodiscard]] const Relayout& relayout() const noexcept { return relayout_; }
  [[nodiscard]] const detail::DevicePlanes& planes() const noexcept { return *planes_; }

 private:
  Relayout relayout_;
  std::shared_ptr<const detail::DevicePlanes> planes_;
};

/// A packed region that has landed.
struct LandedRegion {
  std::int64_t index;  ///< which relayout of the tables
  Segment segment;
  std::span<const std::byte> bytes;  ///< device memory
};

/// Enqueues what kvxfer::pack_rows does. Source pages and `buffer` (device memory) must stay until
/// the copy has run. Every bound is checked before anything is enqueued.
/// @throws what kvxfer::pack_rows throws, and InvalidArgumentError for a table with other plane
/// addresses than the registered ones. @throws CudaError.
void pack_rows(const PackTables& tables, const PackPlan& plan, const PageTable& source,
               std::span<std::byte> buffer, const Launch& launch);

/// Enqueues kvxfer::unpack_rows for all `regions`, in one launch. @throws as pack_rows.
void unpack_rows(const UnpackTables& tables, std::span<const LandedRegion> regions,
                 const PageTable& destination, const Launch& launch);

/// Enqueues kvxfer::copy_rows. @throws as pack_rows.
void copy_rows(const CopyTables& tables, const Segment& segment, const PageTable& source,
               const PageTable& destination, const Launch& launch);

}  // namespace kvxfer::cuda
