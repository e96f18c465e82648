// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

// What planning a request costs on the host. The counter s/run is the time of one emitted run.

#include "support/planner_request.hpp"

#include <kvxfer/write_list.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

using kvxfer::bench::kRegionAddress;
using kvxfer::bench::kSegment;
using kvxfer::bench::Request;

/// A process that has served requests for a while keeps the memory of a freed list; a fresh one
/// gives it back and pays for every page again, which would hide what planning costs.
bool keep_freed_memory() {
  constexpr std::size_t kMaxMmapThreshold = std::size_t{32} << 20;
  void* block = std::malloc(kMaxMmapThreshold - 4096);
  benchmark::DoNotOptimize(block);
  std::free(block);
  return true;
}

const bool kKeepsFreedMemory = keep_freed_memory();

void count_runs(benchmark::State& state, std::size_t run_count) {
  const auto runs = static_cast<double>(run_count);
  state.counters["runs"] = runs;
  state.counters["s/run"] = benchmark::Counter(
      runs, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Times `plan()`, which returns a WriteList.
template <class Plan>
void time_plan(benchmark::State& state, Plan plan) {
  std::size_t run_count = 0;
  for (auto _ : state) {
    const auto list = plan();
    benchmark::DoNotOptimize(list.runs.data());
    run_count = list.runs.size();
  }
  count_runs(state, run_count);
}

Request latent_request(const benchmark::State& state) {
  return {kvxfer::bench::latent_planes(state.range(0)), state.range(1) != 0};
}

void split_request(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(Request::segments());
  state.counters["segments"] = static_cast<double>(Request::segments().size());
}
BENCHMARK(split_request);

void pack_plan_segment(benchmark::State& state) {
  const auto layout = kvxfer::bench::make_pack_buffer(kvxfer::bench::latent_planes(state.range(0)));
  for (auto _ : state)
    benchmark::DoNotOptimize(layout.plan(kSegment));
  state.counters["regions"] = static_cast<double>(layout.plan(kSegment).regions.size());
}
BENCHMARK(pack_plan_segment)->ArgName("planes")->Arg(7)->Arg(61);

void packed_writes_segment(benchmark::State& state) {
  const Request request = latent_request(state);
  time_plan(state, [&] {
    return kvxfer::packed_writes(request.relayout, std::span(&kSegment, 1), kRegionAddress,
                                 request.destination);
  });
}
BENCHMARK(packed_writes_segment)->ArgNames({"planes", "shuffled"})->ArgsProduct({{7, 61}, {0, 1}});

void packed_writes_index_segment(benchmark::State& state) {
  const Request request(kvxfer::bench::index_planes(state.range(0)), state.range(1) != 0);
  time_plan(state, [&] {
    return kvxfer::packed_writes(request.relayout, std::span(&kSegment, 1), kRegionAddress,
                                 request.destination);
  });
}
BENCHMARK(packed_writes_index_segment)->ArgNames({"planes", "shuffled"})->ArgsProduct({{122}, {1}});

/// Everything that one destination rank needs of a whole request: 20 segments and their writes.
void packed_writes_request(benchmark::State& state) {
  const Request request = latent_request(state);
  time_plan(state, [&] {
    return kvxfer::packed_writes(request.relayout, Request::segments(), kRegionAddress,
                                 request.destination);
  });
}
BENCHMARK(packed_writes_request)->ArgNames({"planes", "shuffled"})->ArgsProduct({{7, 61}, {0, 1}});

void landing_write_segment(benchmark::State& state) {
  const Request request = latent_request(state);
  time_plan(state, [&] {
    return kvxfer::landing_write(request.relayout, kSegment, kRegionAddress, kRegionAddress);
  });
}
BENCHMARK(landing_write_segment)->ArgNames({"planes", "shuffled"})->ArgsProduct({{7, 61}, {1}});

/// The baseline that packing replaces: one run a row.
void direct_writes_segment(benchmark::State& state) {
  const Request request = latent_request(state);
  time_plan(state, [&] {
    return kvxfer::direct_writes(request.relayout, std::span(&kSegment, 1), request.source,
                                 request.destination);
  });
}
BENCHMARK(direct_writes_segment)->ArgNames({"planes", "shuffled"})->ArgsProduct({{7, 61}, {1}});

/// What a request costs once, when its pages arrive: they are copied and checked.
void page_table_request(benchmark::State& state) {
  const auto layout = kvxfer::bench::make_pool(kvxfer::bench::latent_planes(7),
                                               kvxfer::Sharding(kvxfer::bench::kDecodeRanks, 0));
  const auto table = kvxfer::bench::make_table(layout, true);
  const auto pages = table.pages();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        kvxfer::PageTable(layout, std::vector<std::int64_t>(pages.begin(), pages.end())));
  }
  state.counters["pages"] = static_cast<double>(pages.size());
}
BENCHMARK(page_table_request);

}  // namespace
