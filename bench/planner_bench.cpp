// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

// What planning a request costs on the host: prefill on one rank, pages of 64 tokens, rows of 576
// bytes, segments of 8,192 tokens to one of four decode ranks. The time of one emitted run stands
// in the counter s/run.

#include <kvxfer/pack_plan.hpp>
#include <kvxfer/page_table.hpp>
#include <kvxfer/relayout.hpp>
#include <kvxfer/segment.hpp>
#include <kvxfer/write_list.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace {

using kvxfer::PackBufferLayout;
using kvxfer::PageTable;
using kvxfer::PoolLayout;
using kvxfer::Relayout;
using kvxfer::Segment;
using kvxfer::Sharding;

constexpr std::int64_t kPageSize = 64;
constexpr std::int64_t kRowBytes = 576;
constexpr std::int64_t kDecodeRanks = 4;
constexpr std::int64_t kCapacityTokens = 8192;
constexpr std::int64_t kRequestTokens = 163840;
constexpr std::int64_t kPoolPages = 4096;
constexpr std::int64_t kRegionAddress = std::int64_t{1} << 40;

std::shared_ptr<const PoolLayout> pool(std::int64_t plane_count, const Sharding& sharding) {
  std::vector<kvxfer::Plane> planes(static_cast<std::size_t>(plane_count));
  for (std::size_t layer = 0; layer < planes.size(); ++layer) {
    planes[layer].layer = static_cast<std::int64_t>(layer);
    planes[layer].row_bytes = kRowBytes;
  }
  return std::make_shared<PoolLayout>(
      PoolLayout::Spec{kPageSize, kPoolPages, std::move(planes), sharding, std::nullopt});
}

/// The page table of a whole request; planes of a pool lie one after another.
PageTable table(const std::shared_ptr<const PoolLayout>& layout, bool is_shuffled) {
  std::vector<std::int64_t> pages(static_cast<std::size_t>(kPoolPages));
  std::iota(pages.begin(), pages.end(), 0);
  if (is_shuffled) std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  pages.resize(static_cast<std::size_t>(kRequestTokens / layout->widened_page_tokens()));
  std::vector<std::int64_t> addresses;
  for (std::size_t plane = 0; plane < layout->planes().size(); ++plane) {
    addresses.push_back(kRegionAddress +
                        static_cast<std::int64_t>(plane + 1) * layout->plane_bytes(plane));
  }
  return {layout, std::move(pages), 0, std::move(addresses)};
}

/// One request on its way from the prefill rank to the first decode rank.
struct Request {
  Request(std::int64_t plane_count, bool is_shuffled)
      : source_layout(pool(plane_count, Sharding{})),
        destination_layout(pool(plane_count, Sharding(kDecodeRanks, 0))),
        relayout(source_layout, destination_layout),
        source(table(source_layout, is_shuffled)),
        destination(table(destination_layout, is_shuffled)) {}

  [[nodiscard]] static std::vector<Segment> segments() {
    return kvxfer::split_segments({0, kRequestTokens, 0, true}, kPageSize,
                                  kCapacityTokens);
  }

  std::shared_ptr<const PoolLayout> source_layout;
  std::shared_ptr<const PoolLayout> destination_layout;
  Relayout relayout;
  PageTable source;
  PageTable destination;
};

void count_runs(benchmark::State& state, std::size_t runs) {
  state.counters["runs"] = static_cast<double>(runs);
  state.counters["s/run"] = benchmark::Counter(
      static_cast<double>(runs),
      static_cast<benchmark::Counter::Flags>(benchmark::Counter::kIsIterationInvariantRate |
                                             benchmark::Counter::kInvert));
}

void split_request(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(Request::segments());
  state.counters["segments"] = static_cast<double>(Request::segments().size());
}
BENCHMARK(split_request);

void pack_plan_segment(benchmark::State& state) {
  const auto source = pool(state.range(0), Sharding{});
  std::vector<Relayout> relayouts;
  for (std::int64_t rank = 0; rank < kDecodeRanks; ++rank)
    relayouts.emplace_back(source, pool(state.range(0), Sharding(kDecodeRanks, rank)));
  const PackBufferLayout layout(relayouts, kCapacityTokens);
  const Segment segment{kCapacityTokens, 2 * kCapacityTokens, false};
  for (auto _ : state)
    benchmark::DoNotOptimize(layout.plan(segment));
}
BENCHMARK(pack_plan_segment)->ArgName("planes")->Arg(7)->Arg(61);

void packed_writes_segment(benchmark::State& state) {
  const Request request(state.range(0), state.range(1) != 0);
  const Segment segment{kCapacityTokens, 2 * kCapacityTokens, false};
  std::size_t runs = 0;
  for (auto _ : state) {
    const auto list = kvxfer::packed_writes(request.relayout, std::span(&segment, 1),
                                            kRegionAddress, request.destination);
    benchmark::DoNotOptimize(list.runs.data());
    runs = list.runs.size();
  }
  count_runs(state, runs);
}
BENCHMARK(packed_writes_segment)->ArgNames({"planes", "shuffled"})->ArgsProduct({{7, 61}, {0, 1}});

void packed_writes_request(benchmark::State& state) {
  const Request request(state.range(0), state.range(1) != 0);
  std::size_t runs = 0;
  for (auto _ : state) {
    const auto list = kvxfer::packed_writes(request.relayout, Request::segments(), kRegionAddress,
                                            request.destination);
    benchmark::DoNotOptimize(list.runs.data());
    runs = list.runs.size();
  }
  count_runs(state, runs);
}
BENCHMARK(packed_writes_request)->ArgNames({"planes", "shuffled"})->ArgsProduct({{7, 61}, {0, 1}});

void landing_write_request(benchmark::State& state) {
  const Request request(state.range(0), true);
  const auto segments = Request::segments();
  for (auto _ : state) {
    for (const Segment& segment : segments) {
      benchmark::DoNotOptimize(
          kvxfer::landing_write(request.relayout, segment, kRegionAddress, kRegionAddress));
    }
  }
  count_runs(state, segments.size());
}
BENCHMARK(landing_write_request)->ArgName("planes")->Arg(7)->Arg(61);

/// The baseline that packing replaces: one run a row.
void direct_writes_segment(benchmark::State& state) {
  const Request request(state.range(0), true);
  const Segment segment{kCapacityTokens, 2 * kCapacityTokens, false};
  std::size_t runs = 0;
  for (auto _ : state) {
    const auto list = kvxfer::direct_writes(request.relayout, std::span(&segment, 1),
                                            request.source, request.destination);
    benchmark::DoNotOptimize(list.runs.data());
    runs = list.runs.size();
  }
  count_runs(state, runs);
}
BENCHMARK(direct_writes_segment)->ArgName("planes")->Arg(7)->Arg(61);

/// What a request costs once, when it arrives: its pages are copied and checked.
void check_page_table(benchmark::State& state) {
  const auto layout = pool(state.range(0), Sharding(kDecodeRanks, 0));
  for (auto _ : state)
    benchmark::DoNotOptimize(table(layout, false));
}
BENCHMARK(check_page_table)->ArgName("planes")->Arg(7);

}  // namespace
