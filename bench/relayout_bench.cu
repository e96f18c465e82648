// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

// Pack and unpack against a plain device copy of the same bytes, in one run. Prints one JSON object
// a line; kernel times by events, host to ready by wall clock until a word in page-locked memory
// changes.
//
// relayout_bench [cells | full | few | host]...

#include "relayout_rig.cuh"

#include <kvxfer/copy_rows.hpp>
#include <kvxfer/cuda/completion.hpp>

#include <cstdio>

namespace kvxfer::bench {

namespace {

const Workload kKimi{"kimi-fp8", 576, 7};
const Workload kDeepSeek{"deepseek-v3-bf16", 1152, 61};
const Workload kSparse{"v3.2-fp8", 656, 61};
const Workload kSparseIndex{"v3.2-fp8+index", 656, 61, true};
const Workload kGrouped{"gqa-70b-tp4", 512, 160};

constexpr int kSamples = 60;

/// Everything that one cell moves.
struct Cell {
  Workload workload;
  std::int64_t tokens;
  std::int64_t ranks;
  bool is_shuffled = true;
};

class Rig {
 public:
  explicit Rig(const Cell& cell)
      : cell_(cell),
        payload_(cell.tokens * cell.workload.token_bytes()),
        rotations_(std::clamp<std::int64_t>((512 << 20) / payload_, 2, 40)),
        source_(make_pool(cell.workload, cell.tokens, rotations_, cell.is_shuffled, 1)),
        layout_(make_relayouts(), capacity()),
        packer_(layout_, source_.addresses),
        plan_(layout_.plan(segment())) {
    for (std::int64_t i = 0; i < rotations_; ++i)
      buffers_.emplace_back(layout_.bytes());
    for (const auto& buffer : buffers_)
      cuda_check(cudaMemset(buffer.data(), 0xa5, static_cast<std::size_t>(buffer.bytes())),
                 "cudaMemset");
  }

  [[nodiscard]] std::int64_t payload() const { return payload_; }
  [[nodiscard]] double mib() const { return static_cast<double>(payload_) / (1 << 20); }
  [[nodiscard]] Segment segment() const { return {0, cell_.tokens, true}; }
  [[nodiscard]] const cuda::Stream& stream() const { return stream_; }
  [[nodiscard]] const cuda::PackTables& packer() const { return packer_; }
  [[nodiscard]] const PackPlan& plan() const { return plan_; }
  [[nodiscard]] const PageTable& table(int i) const { return source_.tables[i % rotations_]; }
  [[nodiscard]] const cuda::DeviceBuffer& buffer(int i) const { return buffers_[i % rotations_]; }
  [[nodiscard]] const std::vector<std::int64_t>& addresses() const { return source_.addresses; }

  void pack(int i, std::int64_t max_ctas = 0) const {
    cuda::pack_rows(packer_, plan_, table(i), buffer(i).span(), {stream_.ref(), max_ctas});
  }

  void copy(int i) const {
    cuda_check(cudaMemcpyAsync(buffer(i).data(), buffer(i + 1).data(),
                               static_cast<std::size_t>(std::min(payload_, buffer(0).bytes())),
                               cudaMemcpyDeviceToDevice, stream_.get()),
               "cudaMemcpyAsync");
  }

  double copy_us() const {
    return kernel_us(stream_, kSamples, about_us(), [&](int i) { copy(i); });
  }
  double pack_us(std::int64_t max_ctas = 0) const {
    return kernel_us(stream_, kSamples, about_us(), [&](int i) { pack(i, max_ctas); });
  }
  [[nodiscard]] double about_us() const { return 2.0 * static_cast<double>(payload_) / 4.2e6; }

  /// Bytes of the packed buffer `i` that differ from the source rows.
  unsigned long long pack_differences(int i) const {
    unsigned long long* const count = counter();
    std::vector<cuda::DeviceBuffer> keep;
    for (const PackRegion& region : plan_.regions) {
      const Relayout& relayout = layout_.relayouts()[static_cast<std::size_t>(region.index)];
      const auto rows = upload(relayout.source_rows(0, cell_.tokens, table(i)), keep);
      std::vector<std::int64_t> dense(static_cast<std::size_t>(region.row_count));
      std::iota(dense.begin(), dense.end(), 0);
      const auto packed_rows = upload(dense, keep);
      std::int64_t offset = region.offset_bytes;
      for (const PlanePair& pair : relayout.groups().front().planes) {
        if (region.row_count > 0 && !cell_.workload.has_index_pages) {
          count_differences<<<static_cast<unsigned>(region.row_count), 128>>>(
              reinterpret_cast<const std::uint8_t*>(
                  source_.addresses[static_cast<std::size_t>(pair.source_plane)]),
              rows, reinterpret_cast<const std::uint8_t*>(buffer(i).data()) + offset, packed_rows,
              pair.bytes, count);
        }
        offset += pair.bytes * region.row_count;
      }
    }
    return read_counter();
  }

  /// The host loops over a copy of the pool, byte by byte.
  unsigned long long host_differences(int i) const {
    std::vector<std::byte> pool(static_cast<std::size_t>(source_.memory.bytes()));
    std::vector<std::byte> got(static_cast<std::size_t>(buffer(i).bytes()));
    std::vector<std::byte> expected(got.size(), std::byte{0xa5});
    cuda_check(cudaMemcpy(pool.data(), source_.memory.data(), pool.size(), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    cuda_check(cudaMemcpy(got.data(), buffer(i).data(), got.size(), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    std::vector<std::int64_t> addresses = source_.addresses;
    const std::int64_t shift = reinterpret_cast<std::intptr_t>(pool.data()) -
                               reinterpret_cast<std::intptr_t>(source_.memory.data());
    for (auto& address : addresses)
      address += shift;
    const auto pages = table(i).pages();
    const PageTable host(source_.layout, {pages.begin(), pages.end()}, 0, addresses);
    pack_rows(layout_, plan_, host, expected);
    unsigned long long differences = 0;
    for (std::size_t b = 0; b < got.size(); ++b)
      differences += got[b] != expected[b];
    return differences;
  }

  void poison() const {
    for (const auto& buffer : buffers_)
      cuda_check(cudaMemset(buffer.data(), 0xa5, static_cast<std::size_t>(buffer.bytes())),
                 "cudaMemset");
  }

  unsigned long long check(int i) const {
    return cell_.tokens <= 8192 ? host_differences(i) : pack_differences(i);
  }

  /// Unpacks what was packed into a second pool: one destination rank, `ranks` source ranks.
  struct Unpacked {
    double us;
    unsigned long long differences;
  };
  Unpacked unpack() const {
    const DevicePool target =
        make_pool(cell_.workload, cell_.tokens, rotations_, cell_.is_shuffled, 2);
    std::vector<Relayout> relayouts;
    for (std::int64_t rank = 0; rank < cell_.ranks; ++rank)
      relayouts.emplace_back(
          layout_of(cell_.workload, source_.layout->page_count(), Sharding(cell_.ranks, rank)),
          target.layout);
    const cuda::UnpackTables tables(relayouts, target.addresses);
    const auto unpack_one = [&](int i) {
      std::vector<cuda::LandedRegion> landed;
      for (const PackRegion& region : plan_.regions)
        landed.push_back({region.index, segment(),
                          buffer(i).span().subspan(static_cast<std::size_t>(region.offset_bytes),
                                                   static_cast<std::size_t>(region.bytes))});
      cuda::unpack_rows(tables, landed, target.tables[i % rotations_], {stream_.ref()});
    };
    const double us = kernel_us(stream_, kSamples, about_us(), unpack_one);
    for (int i = 0; i < rotations_; ++i)
      pack(i);
    for (int i = 0; i < rotations_; ++i)
      unpack_one(i);
    stream_.ref().synchronize();
    return {us, pool_differences(target, 1)};
  }

 private:
  std::vector<Relayout> make_relayouts() const {
    std::vector<Relayout> relayouts;
    for (std::int64_t rank = 0; rank < cell_.ranks; ++rank)
      relayouts.emplace_back(source_.layout, layout_of(cell_.workload, source_.layout->page_count(),
                                                       Sharding(cell_.ranks, rank)));
    return relayouts;
  }

  [[nodiscard]] std::int64_t capacity() const {
    return (cell_.tokens + kPageSize - 1) / kPageSize * kPageSize;
  }

  unsigned long long pool_differences(const DevicePool& target, int i) const {
    unsigned long long* const count = counter();
    if (cell_.workload.has_index_pages) return read_counter();
    std::vector<cuda::DeviceBuffer> keep;
    const Relayout whole(source_.layout, target.layout);
    const auto from = upload(whole.source_rows(0, cell_.tokens, table(i)), keep);
    const auto to =
        upload(whole.destination_rows(0, cell_.tokens, target.tables[i % rotations_]), keep);
    for (std::size_t p = 0; p < source_.addresses.size(); ++p) {
      count_differences<<<static_cast<unsigned>(cell_.tokens), 128>>>(
          reinterpret_cast<const std::uint8_t*>(source_.addresses[p]), from,
          reinterpret_cast<const std::uint8_t*>(target.addresses[p]), to, cell_.workload.row_bytes,
          count);
    }
    return read_counter();
  }

  unsigned long long* counter() const {
    cuda_check(cudaMemset(counter_.data(), 0, 8), "cudaMemset");
    return reinterpret_cast<unsigned long long*>(counter_.data());
  }
  unsigned long long read_counter() const {
    unsigned long long value = 0;
    cuda_check(cudaMemcpy(&value, counter_.data(), 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return value;
  }
  static const std::int64_t* upload(const std::vector<std::int64_t>& rows,
                                    std::vector<cuda::DeviceBuffer>& keep) {
    keep.emplace_back(static_cast<std::int64_t>(rows.size() * 8 + 8));
    cuda_check(cudaMemcpy(keep.back().data(), rows.data(), rows.size() * 8, cudaMemcpyHostToDevice),
               "cudaMemcpy");
    return reinterpret_cast<const std::int64_t*>(keep.back().data());
  }

  Cell cell_;
  std::int64_t payload_;
  std::int64_t rotations_;
  DevicePool source_;
  PackBufferLayout layout_;
  cuda::PackTables packer_;
  PackPlan plan_;
  std::vector<cuda::DeviceBuffer> buffers_;
  cuda::DeviceBuffer counter_{8};
  cuda::Stream stream_;
};

double gigabytes_per_second(std::int64_t payload, double us) {
  return 2.0 * static_cast<double>(payload) / us * 1e-3;
}

void run_cell(const Cell& cell) {
  const Rig rig(cell);
  const double copy = rig.copy_us();
  rig.poison();
  const double pack = rig.pack_us();
  rig.stream().ref().synchronize();
  const auto differences = rig.check(1);
  const double warm = kernel_us(rig.stream(), kSamples, rig.about_us(), [&](int) { rig.pack(0); });
  const double warm_copy =
      kernel_us(rig.stream(), kSamples, rig.about_us(), [&](int) { rig.copy(0); });
  const auto unpack = rig.unpack();
  std::printf(
      "{\"cell\": \"%s\", \"tokens\": %ld, \"ranks\": %ld, \"pages\": \"%s\", \"mib\": %.1f, "
      "\"copy_us\": %.2f, \"pack_us\": %.2f, \"pack_percent\": %.1f, \"unpack_us\": %.2f, "
      "\"unpack_percent\": %.1f, \"gb_per_s\": %.0f, \"warm_copy_us\": %.2f, "
      "\"warm_pack_us\": %.2f, \"differing_bytes\": %llu, \"unpack_differing_bytes\": %llu}\n",
      cell.workload.name.c_str(), cell.tokens, cell.ranks,
      cell.is_shuffled ? "shuffled" : "contiguous", rig.mib(), copy, pack, 100.0 * copy / pack,
      unpack.us, 100.0 * copy / unpack.us, gigabytes_per_second(rig.payload(), pack), warm_copy,
      warm, differences, unpack.differences);
  std::fflush(stdout);
}

void run_cells(bool is_full) {
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    run_cell({kKimi, 8192, ranks});
    if (is_full || ranks == 4) run_cell({kKimi, 1024, ranks});
    if (is_full || ranks == 4) run_cell({kKimi, 83264, ranks});
  }
  run_cell({kKimi, 163840, 4});
  run_cell({kKimi, 8192, 4, false});
  run_cell({kDeepSeek, 8192, 8});
  run_cell({kSparse, 8192, 4});
  run_cell({kSparseIndex, 8192, 4});
  run_cell({kGrouped, 8192, 4});
  if (!is_full) return;
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    for (const Workload& workload : {kDeepSeek, kSparse, kSparseIndex, kGrouped}) {
      run_cell({workload, 1024, ranks});
      run_cell({workload, 8192, ranks});
      run_cell({workload, 32768, ranks});
    }
    run_cell({kKimi, 163840, ranks});
    run_cell({kKimi, 83264, ranks, false});
  }
}

void run_few() {
  const Cell cell{kKimi, 32768, 4};
  const Rig rig(cell);
  for (const std::int64_t ctas : {1, 2, 4, 8, 16, 32, 66, 132}) {
    const auto copy_kernel = [&](int i) {
      plain_copy<<<static_cast<unsigned>(ctas), 1024, 0, rig.stream().get()>>>(
          reinterpret_cast<const uint4*>(rig.buffer(i + 1).data()),
          reinterpret_cast<uint4*>(rig.buffer(i).data()), rig.payload() / 16);
    };
    const int samples = ctas < 8 ? 12 : 50;
    const double copy = kernel_us(rig.stream(), samples, 1e3, copy_kernel);
    const double pack = kernel_us(rig.stream(), samples, 1e3, [&](int i) { rig.pack(i, ctas); });
    std::printf(
        "{\"few\": \"%s\", \"tokens\": %ld, \"ctas\": %ld, \"copy_kernel_gb_per_s\": %.1f, "
        "\"pack_gb_per_s\": %.1f}\n",
        cell.workload.name.c_str(), cell.tokens, ctas, gigabytes_per_second(rig.payload(), copy),
        gigabytes_per_second(rig.payload(), pack));
    std::fflush(stdout);
  }
  std::printf("{\"few\": \"check\", \"differing_bytes\": %llu}\n", rig.check(1));
}

/// Wall clock from the call until the data may be sent, by each way of learning it.
void run_host(const Cell& cell, bool is_one_rank) {
  const Rig rig(cell);
  PackPlan plan = rig.plan();
  if (is_one_rank) plan.regions.resize(1);
  const cuda::CompletionWords words(1);
  std::uint32_t value = 0;
  std::vector<double> call;
  std::vector<double> by_word;
  std::vector<double> by_event;
  std::vector<double> by_synchronize;
  const cuda::Event event;
  for (int i = 0; i < 300; ++i) {
    const auto enqueue = [&] {
      cuda::pack_rows(rig.packer(), plan, rig.table(i), rig.buffer(i).span(), {rig.stream().ref()});
    };
    double begin = now_us();
    enqueue();
    call.push_back(now_us() - begin);
    words.write(0, ++value, rig.stream().ref());
    while (words.read(0) != value) {
    }
    by_word.push_back(now_us() - begin);
    rig.stream().ref().synchronize();
    begin = now_us();
    enqueue();
    event.record(rig.stream().ref());
    while (cudaEventQuery(event.get()) == cudaErrorNotReady) {
    }
    by_event.push_back(now_us() - begin);
    begin = now_us();
    enqueue();
    rig.stream().ref().synchronize();
    by_synchronize.push_back(now_us() - begin);
  }
  std::printf(
      "{\"host\": \"%s\", \"tokens\": %ld, \"ranks\": \"%s\", \"call_us\": %.2f, "
      "\"ready_by_word_us\": %.2f, \"ready_by_event_us\": %.2f, "
      "\"ready_by_synchronize_us\": %.2f}\n",
      cell.workload.name.c_str(), cell.tokens,
      is_one_rank ? "one" : std::to_string(cell.ranks).c_str(), median(call), median(by_word),
      median(by_event), median(by_synchronize));
  std::fflush(stdout);
}

/// What an empty kernel takes by the same ways: the part of the figures that is not the copy.
void run_floor() {
  const cuda::Stream stream;
  const cuda::CompletionWords words(1);
  std::uint32_t value = 0;
  std::vector<double> call;
  std::vector<double> by_word;
  std::vector<double> by_synchronize;
  for (int i = 0; i < 300; ++i) {
    double begin = now_us();
    hold<<<1, 1, 0, stream.get()>>>(0);
    call.push_back(now_us() - begin);
    words.write(0, ++value, stream.ref());
    while (words.read(0) != value) {
    }
    by_word.push_back(now_us() - begin);
    stream.ref().synchronize();
    begin = now_us();
    hold<<<1, 1, 0, stream.get()>>>(0);
    stream.ref().synchronize();
    by_synchronize.push_back(now_us() - begin);
  }
  std::printf(
      "{\"floor\": \"empty kernel\", \"call_us\": %.2f, \"ready_by_word_us\": %.2f, "
      "\"ready_by_synchronize_us\": %.2f}\n",
      median(call), median(by_word), median(by_synchronize));
}

/// Split, plan and enqueue a whole request through a ring of two buffers.
void run_request(std::int64_t ranks) {
  constexpr std::int64_t kTokens = 163840 + 6720;
  const Rig rig({kKimi, kTokens, ranks});
  const PackBufferLayout layout(rig.packer().layout().relayouts(), 8192);
  const cuda::PackTables packer(layout, rig.addresses());
  const cuda::DeviceBuffer ring[] = {cuda::DeviceBuffer(layout.bytes()),
                                     cuda::DeviceBuffer(layout.bytes())};
  const cuda::CompletionWords words(1);
  std::vector<double> times;
  std::vector<double> with_words;
  for (int i = 0; i < 60; ++i) {
    for (const bool has_words : {false, true}) {
      hold<<<1, 1, 0, rig.stream().get()>>>(400'000);
      const double begin = now_us();
      const auto segments = split_segments({0, kTokens, 0, true}, kPageSize, 8192);
      std::uint32_t k = 0;
      for (const Segment& segment : segments) {
        cuda::pack_rows(packer, layout.plan(segment), rig.table(0), ring[k++ % 2].span(),
                        {rig.stream().ref()});
        if (has_words) words.write(0, k, rig.stream().ref());
      }
      (has_words ? with_words : times).push_back(now_us() - begin);
      rig.stream().ref().synchronize();
    }
  }
  std::printf(
      "{\"request\": \"kimi-fp8\", \"tokens\": %ld, \"ranks\": %ld, \"segments\": 21, "
      "\"enqueue_us\": %.1f, \"enqueue_with_words_us\": %.1f}\n",
      kTokens, ranks, median(times), median(with_words));
  std::fflush(stdout);
}

}  // namespace

}  // namespace kvxfer::bench

int main(int argc, char** argv) {
  using namespace kvxfer::bench;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "cells" || word == "full") {
      run_cells(word == "full");
    } else if (word == "few") {
      run_few();
    } else if (word == "host") {
      run_floor();
      run_host({kKimi, 8192, 4}, true);
      run_host({kKimi, 8192, 4}, false);
      run_host({kKimi, 83264, 4}, false);
      run_host({kDeepSeek, 8192, 8}, false);
      run_request(1);
      run_request(4);
    } else {
      std::fprintf(stderr, "expected cells, full, few or host, got %s\n", word.c_str());
      return 2;
    }
  }
  return 0;
}
