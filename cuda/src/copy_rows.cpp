// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include "copy_kernel.hpp"
#include "device_planes.hpp"
#include "launch_builder.hpp"

#include <kvxfer/cuda/copy_rows.hpp>
#include <kvxfer/plan_checks.hpp>

#include <algorithm>
#include <array>

namespace kvxfer::cuda {

namespace {

using detail::PairWork;

/// Pairs of one launch at most: three groups each fill the large parameters.
constexpr std::size_t kMaxPairs = detail::LargeParams::kMaxJobs / 3;
using WorkArray = std::array<PairWork, kMaxPairs>;

detail::Direction direction_of(const PairWork& work) {
  if (work.destination == nullptr) return detail::Direction::kPack;
  return work.source == nullptr ? detail::Direction::kUnpack : detail::Direction::kCopy;
}

void enqueue(const detail::DevicePlanes& planes, std::span<const PairWork> work,
             const Launch& launch) {
  const detail::ResidentTables tables{planes.planes(), planes.cells(), planes.host_planes(),
                                      &planes.groups()};
  const auto shape_for = [&](std::int64_t bytes) {
    return detail::launch_shape(planes.multiprocessors(), launch.max_ctas, bytes);
  };
  detail::for_each_launch(
      work, tables, [&](std::int64_t bytes) { return shape_for(bytes).tile_bytes; },
      [&](const auto& params, std::int64_t bytes) {
        detail::launch_copy(params, direction_of(work.front()), shape_for(bytes), launch.stream);
      });
}

/// Enqueues `count` works, kMaxPairs at a time; `work_at(i)` makes them.
template <class WorkAt>
void enqueue_all(const detail::DevicePlanes& planes, std::size_t count, const Launch& launch,
                 WorkAt work_at) {
  if (launch.after != nullptr)
    cuda_check(cudaStreamWaitEvent(launch.stream.get(), launch.after), "cudaStreamWaitEvent");
  for (std::size_t begin = 0; begin < count; begin += kMaxPairs) {
    WorkArray work;
    const std::size_t size = std::min(kMaxPairs, count - begin);
    for (std::size_t i = 0; i < size; ++i)
      work[i] = work_at(begin + i);
    enqueue(planes, std::span(work).first(size), launch);
  }
}

std::int64_t address_of(const std::byte* data) {
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(data));
}

void require_launch(const Launch& launch) {
  kvxfer::detail::require(launch.max_ctas >= 0, "expected max_ctas >= 0, got ", launch.max_ctas);
}

std::vector<Relayout> of_one_destination(std::vector<Relayout> relayouts) {
  kvxfer::detail::require(!relayouts.empty(), "expected at least one relayout, got none");
  for (const Relayout& relayout : relayouts) {
    kvxfer::detail::require(relayout.destination() == relayouts.front().destination(),
                            "expected relayouts of one destination rank, got different layouts");
  }
  return relayouts;
}

void require_addresses(const std::vector<std::int64_t>& addresses, const char* side) {
  kvxfer::detail::require(!addresses.empty(), "expected one ", side,
                          " address for each plane, got none");
}

std::shared_ptr<const detail::DevicePlanes> make_planes(std::span<const Relayout> relayouts,
                                                        std::vector<std::int64_t> source,
                                                        std::vector<std::int64_t> destination) {
  return std::make_shared<const detail::DevicePlanes>(relayouts, std::move(source),
                                                      std::move(destination));
}

}  // namespace

PackTables::PackTables(PackBufferLayout layout, std::vector<std::int64_t> source_addresses)
    : layout_(std::move(layout)) {
  require_addresses(source_addresses, "source");
  planes_ = make_planes(layout_.relayouts(), std::move(source_addresses), {});
}

UnpackTables::UnpackTables(std::vector<Relayout> relayouts,
                           std::vector<std::int64_t> destination_addresses)
    : relayouts_(of_one_destination(std::move(relayouts))) {
  require_addresses(destination_addresses, "destination");
  planes_ = make_planes(relayouts_, {}, std::move(destination_addresses));
}

CopyTables::CopyTables(Relayout relayout, std::vector<std::int64_t> source_addresses,
                       std::vector<std::int64_t> destination_addresses)
    : relayout_(std::move(relayout)) {
  require_addresses(source_addresses, "source");
  require_addresses(destination_addresses, "destination");
  planes_ =
      make_planes({&relayout_, 1}, std::move(source_addresses), std::move(destination_addresses));
}

void pack_rows(const PackTables& tables, const PackPlan& plan, const PageTable& source,
               std::span<std::byte> buffer, const Launch& launch) {
  require_launch(launch);
  check_pack(tables.layout(), plan, source, static_cast<std::int64_t>(buffer.size()));
  tables.planes().require_source(source);
  enqueue_all(tables.planes(), plan.regions.size(), launch, [&](std::size_t i) {
    const PackRegion& region = plan.regions[i];
    const auto index = static_cast<std::size_t>(region.index);
    return PairWork{&tables.layout().relayouts()[index],
                    index,
                    plan.segment,
                    address_of(buffer.data()) + region.offset_bytes,
                    &source,
                    nullptr};
  });
}

void unpack_rows(const UnpackTables& tables, std::span<const LandedRegion> regions,
                 const PageTable& destination, const Launch& launch) {
  require_launch(launch);
  const auto count = static_cast<std::int64_t>(tables.relayouts().size());
  for (const LandedRegion& region : regions) {
    kvxfer::detail::require(0 <= region.index && region.index < count,
                            "expected a relayout index in [0, ", count, "), got ", region.index);
    check_unpack(tables.relayouts()[static_cast<std::size_t>(region.index)], region.segment,
                 static_cast<std::int64_t>(region.bytes.size()), destination);
  }
  tables.planes().require_destination(destination);
  enqueue_all(tables.planes(), regions.size(), launch, [&](std::size_t i) {
    const auto index = static_cast<std::size_t>(regions[i].index);
    return PairWork{&tables.relayouts()[index],          index,   regions[i].segment,
                    address_of(regions[i].bytes.data()), nullptr, &destination};
  });
}

void copy_rows(const CopyTables& tables, const Segment& segment, const PageTable& source,
               const PageTable& destination, const Launch& launch) {
  require_launch(launch);
  check_copy(tables.relayout(), segment, source, destination);
  tables.planes().require_source(source);
  tables.planes().require_destination(destination);
  enqueue_all(tables.planes(), 1, launch, [&](std::size_t) {
    return PairWork{&tables.relayout(), 0, segment, 0, &source, &destination};
  });
}

}  // namespace kvxfer::cuda
