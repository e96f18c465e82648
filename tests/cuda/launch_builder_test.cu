// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

// The walk of a launch, item by item on the host, against the host loops: whatever the kernel is
// told to move is held to the specification without a device.

#include "copy_kernel.hpp"
#include "launch_builder.hpp"
#include "row_copier.hpp"
#include "row_walk.cuh"

#include <kvxfer/error.hpp>

namespace kvxfer::test {

namespace {

using cuda::detail::Direction;
using cuda::detail::PairWork;
using cuda::detail::PlaneArrays;

/// Runs launches row by row on the host, and counts them.
class HostWalk final : public RowCopier {
 public:
  void pack(const PackBufferLayout& layout, const PackPlan& plan, const Pool& source,
            const Bytes& source_bytes, Bytes& buffer) override {
    const PageTable table = source.table(source_bytes.data());
    const auto arrays =
        cuda::detail::make_plane_arrays(layout.relayouts(), table.plane_addresses(), {});
    std::vector<PairWork> work;
    for (const PackRegion& region : plan.regions) {
      const auto index = static_cast<std::size_t>(region.index);
      work.push_back({&layout.relayouts()[index], index, plan.segment,
                      address(buffer.data()) + region.offset_bytes, &table, nullptr});
    }
    run<Direction::kPack>(work, arrays);
  }

  void unpack(const std::vector<Relayout>& relayouts, const Segment& segment,
              const std::vector<Bytes>& regions, const Pool& destination,
              Bytes& destination_bytes) override {
    const PageTable table = destination.table(destination_bytes.data());
    const auto arrays = cuda::detail::make_plane_arrays(relayouts, {}, table.plane_addresses());
    std::vector<PairWork> work;
    for (std::size_t i = 0; i < relayouts.size(); ++i)
      work.push_back({&relayouts[i], i, segment, address(regions[i].data()), nullptr, &table});
    run<Direction::kUnpack>(work, arrays);
  }

  void copy(const Relayout& relayout, const Segment& segment, const Pool& source,
            const Bytes& source_bytes, const Pool& destination, Bytes& destination_bytes) override {
    const PageTable from = source.table(source_bytes.data());
    const PageTable to = destination.table(destination_bytes.data());
    const auto arrays = cuda::detail::make_plane_arrays({&relayout, 1}, from.plane_addresses(),
                                                        to.plane_addresses());
    run<Direction::kCopy>({{&relayout, 0, segment, 0, &from, &to}}, arrays);
  }

  int launches = 0;

 private:
  static std::int64_t address(const std::byte* data) {
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(data));
  }

  /// Small, so that small plans have many tiles.
  static std::int64_t tile_bytes(std::int64_t /*bytes*/) { return 4096; }

  template <Direction kDirection>
  void run(const std::vector<PairWork>& work, const PlaneArrays& arrays) {
    const cuda::detail::ResidentTables tables{arrays.planes.data(), arrays.cells.data(),
                                              arrays.planes, &arrays.groups};
    constexpr std::size_t kPairsOfOneCall = 16;
    for (std::size_t begin = 0; begin < work.size(); begin += kPairsOfOneCall) {
      const std::size_t count = std::min(kPairsOfOneCall, work.size() - begin);
      cuda::detail::for_each_launch(std::span(work).subspan(begin, count), tables, tile_bytes,
                                    [&](const auto& params, std::int64_t /*bytes*/) {
                                      ++launches;
                                      move_rows<kDirection>(params);
                                    });
    }
  }

  template <class Params>
  static cuda::detail::PlaneEntry plane_of(const Params& params, std::uint32_t plane) {
    if constexpr (Params::kMaxPlanes > 0)
      if (params.header.planes == nullptr) return params.planes[plane];
    return params.header.planes[plane];
  }

  template <Direction kDirection, class Params>
  void move_rows(const Params& params) {
    for (std::uint32_t item = 0; item < params.header.item_count; ++item) {
      const auto tile = cuda::detail::tile_of(params, item);
      const auto plane = plane_of(params, tile.plane);
      for (std::uint32_t row = 0; row < tile.row_count; ++row) {
        const auto [from, to] = addresses<kDirection>(params, tile, plane, row);
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), plane.bytes);
      }
    }
  }

 public:
  struct Addresses {
    std::uint64_t source;
    std::uint64_t destination;
  };

  static cuda::detail::JobRows::Indices job_indices(const cuda::detail::JobRows& rows,
                                                    cuda::detail::Period period,
                                                    std::uint32_t row) {
    using cuda::detail::Period;
    switch (period) {
      case Period::kRow:
        return rows.at<Period::kRow>(row);
      case Period::kCell:
        return rows.at<Period::kCell>(row);
      case Period::kCells:
        return rows.at<Period::kCells>(row);
    }
    return {};
  }

  template <Direction kDirection, class Params>
  static Addresses addresses(const Params& params, const cuda::detail::Tile& tile,
                             const cuda::detail::PlaneEntry& plane, std::uint32_t row) {
    const auto& job = params.jobs[tile.job];
    const auto from = cuda::detail::source_plane(job, plane);
    const auto to = cuda::detail::destination_plane(job, plane);
    const auto rows = cuda::detail::rows_of(job, tile);
    const auto indices = job_indices(rows, cuda::detail::period_of(job), row);
    const auto packed =
        cuda::detail::packed_tile(job, plane, tile) + std::uint64_t{row} * plane.bytes;
    Addresses result{packed, packed};
    if constexpr (kDirection != Direction::kUnpack)
      result.source = cuda::detail::paged_address(
          params, from, cuda::detail::place_of(from.side, indices.period, indices.source));
    if constexpr (kDirection != Direction::kPack)
      result.destination = cuda::detail::paged_address(
          params, to, cuda::detail::place_of(to.side, indices.period, indices.destination));
    return result;
  }
};

TEST(LaunchBuilder, MovesWhatTheHostLoopsMoveOnRandomPlans) {
  HostWalk walk;
  for (std::uint64_t seed = 1; seed <= 60; ++seed)
    expect_all_equal(walk, random_description(seed));
}

class LaunchBuilderBoundary : public ::testing::TestWithParam<NamedDescription> {};

TEST_P(LaunchBuilderBoundary, MovesWhatTheHostLoopsMove) {
  HostWalk walk;
  expect_all_equal(walk, GetParam().description);
}

INSTANTIATE_TEST_SUITE_P(Cases, LaunchBuilderBoundary, ::testing::ValuesIn(boundary_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LaunchBuilder, PacksAllPlanesOfAllRanksInOneLaunch) {
  HostWalk walk;
  const Scenario scenario({.destination = {.ranks = 8}, .layers = 61, .end = 8192});
  expect_pack_equal(walk, scenario);
  EXPECT_EQ(walk.launches, 1);
}

TEST(LaunchBuilder, ManyPagesTakeSeveralLaunches) {
  HostWalk walk;
  const Scenario scenario({.source = {.page_size = 1},
                           .destination = {.ranks = 2, .page_size = 1},
                           .planes = {{PlaneKind::kLatent, 16}},
                           .end = 13000});
  expect_pack_equal(walk, scenario);
  EXPECT_EQ(walk.launches, 4);
}

std::int64_t any_tile_bytes(std::int64_t /*bytes*/) {
  return 16384;
}

TEST(LaunchBuilder, RowOffsetsPassTwoGibibytes) {
  auto layout = std::make_shared<const PoolLayout>(
      PoolLayout::Spec{.page_size = 1, .page_count = 3'728'272, .planes = {{.row_bytes = 576}}});
  const Relayout relayout(layout, layout);
  const PageTable table(layout, {3'728'270, 3'728'271}, 0, {1024});
  const auto arrays = cuda::detail::make_plane_arrays({&relayout, 1}, table.plane_addresses(), {});
  const std::vector<PairWork> work{{&relayout, 0, {0, 2, true}, 4096, &table, nullptr}};
  std::vector<std::uint64_t> offsets;
  cuda::detail::for_each_launch(
      std::span(work), {arrays.planes.data(), arrays.cells.data(), arrays.planes, &arrays.groups},
      any_tile_bytes, [&](const auto& params, std::int64_t /*bytes*/) {
        const auto tile = cuda::detail::tile_of(params, 0);
        for (std::uint32_t row = 0; row < 2; ++row) {
          const auto addresses =
              HostWalk::addresses<Direction::kPack>(params, tile, arrays.planes[0], row);
          offsets.push_back(addresses.source - 1024);
        }
      });
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{2'147'483'520, 2'147'484'096}));
}

TEST(LaunchBuilder, RefusesMoreRowsThanALaunchNumbers) {
  constexpr std::int64_t kPageSize = std::int64_t{1} << 20;
  auto layout = std::make_shared<const PoolLayout>(
      PoolLayout::Spec{.page_size = kPageSize, .page_count = 4096, .planes = {{.row_bytes = 1}}});
  const Relayout relayout(layout, layout);
  std::vector<std::int64_t> pages(4096);
  std::iota(pages.begin(), pages.end(), 0);
  const PageTable table(layout, pages, 0, {1024});
  const auto arrays = cuda::detail::make_plane_arrays({&relayout, 1}, table.plane_addresses(), {});
  const std::vector<PairWork> work{
      {&relayout, 0, {0, 4096 * kPageSize, true}, 4096, &table, nullptr}};
  EXPECT_THROW(cuda::detail::for_each_launch(
                   std::span(work),
                   {arrays.planes.data(), arrays.cells.data(), arrays.planes, &arrays.groups},
                   any_tile_bytes, [](const auto&, std::int64_t) {}),
               UnsupportedError);
}

}  // namespace

}  // namespace kvxfer::test
