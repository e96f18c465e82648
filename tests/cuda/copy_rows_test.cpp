// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/cuda/copy_rows.hpp>
#include <kvxfer/error.hpp>

#include "device.hpp"
#include "row_copier.hpp"

namespace kvxfer::test {

namespace {

/// The kernels, over device copies of the arrays.
class DeviceCopier final : public RowCopier {
 public:
  explicit DeviceCopier(std::int64_t max_ctas) : max_ctas_(max_ctas) {}

  void pack(const PackBufferLayout& layout, const PackPlan& plan, const Pool& source,
            const Bytes& source_bytes, Bytes& buffer) override {
    const auto pool = to_device(source_bytes);
    const auto packed = to_device(buffer);
    const cuda::PackTables tables(layout, source.addresses(pool.data()));
    cuda::pack_rows(tables, plan, source.table(pool.data()), packed.span(), launch());
    stream_.ref().synchronize();
    to_host(packed, buffer);
  }

  void unpack(const std::vector<Relayout>& relayouts, const Segment& segment,
              const std::vector<Bytes>& regions, const Pool& destination,
              Bytes& destination_bytes) override {
    const auto pool = to_device(destination_bytes);
    const cuda::UnpackTables tables(relayouts, destination.addresses(pool.data()));
    std::vector<cuda::DeviceBuffer> memory;
    std::vector<cuda::LandedRegion> landed;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      memory.push_back(to_device(regions[i]));
      landed.push_back({static_cast<std::int64_t>(i), segment, memory.back().span()});
    }
    cuda::unpack_rows(tables, landed, destination.table(pool.data()), launch());
    stream_.ref().synchronize();
    to_host(pool, destination_bytes);
  }

  void copy(const Relayout& relayout, const Segment& segment, const Pool& source,
            const Bytes& source_bytes, const Pool& destination, Bytes& destination_bytes) override {
    const auto from = to_device(source_bytes);
    const auto to = to_device(destination_bytes);
    const cuda::CopyTables tables(relayout, source.addresses(from.data()),
                                  destination.addresses(to.data()));
    cuda::copy_rows(tables, segment, source.table(from.data()), destination.table(to.data()),
                    launch());
    stream_.ref().synchronize();
    to_host(to, destination_bytes);
  }

 private:
  [[nodiscard]] cuda::Launch launch() const { return {stream_.ref(), max_ctas_}; }

  std::int64_t max_ctas_;
  cuda::Stream stream_;
};

using CudaCopyRows = DeviceTest;

TEST_F(CudaCopyRows, EqualsTheHostLoopsOnRandomPlans) {
  DeviceCopier copier(0);
  for (std::uint64_t seed = 1; seed <= 60; ++seed)
    expect_all_equal(copier, random_description(seed));
}

TEST_F(CudaCopyRows, EqualsTheHostLoopsOnFewMultiprocessors) {
  DeviceCopier copier(1);
  for (std::uint64_t seed = 1001; seed <= 1012; ++seed)
    expect_all_equal(copier, random_description(seed));
}

class CudaCopyRowsBoundary : public DeviceTest,
                             public ::testing::WithParamInterface<NamedDescription> {};

TEST_P(CudaCopyRowsBoundary, EqualsTheHostLoops) {
  DeviceCopier whole(0);
  expect_all_equal(whole, GetParam().description);
  DeviceCopier few(2);
  expect_all_equal(few, GetParam().description);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaCopyRowsBoundary, ::testing::ValuesIn(boundary_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_F(CudaCopyRows, ReadsAndWritesBeyondFourGibibytes) {
  constexpr std::int64_t kPageCount = 120'000;  // of 36,864 bytes: 4.1 GiB
  auto source = std::make_shared<const PoolLayout>(
      PoolLayout::Spec{.page_size = 64, .page_count = kPageCount, .planes = {{.row_bytes = 576}}});
  auto target = std::make_shared<const PoolLayout>(PoolLayout::Spec{.page_size = 64,
                                                                    .page_count = kPageCount,
                                                                    .planes = {{.row_bytes = 576}},
                                                                    .sharding = Sharding(2, 1)});
  const cuda::DeviceBuffer pool(source->plane_bytes(0));
  const cuda::DeviceBuffer landing(64 * 576);
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(pool.data()));
  const PageTable from(source, {kPageCount - 1, 58'254}, 0, {address});
  const Bytes rows = random_bytes(2 * 64 * 576, 3);
  constexpr std::int64_t kPageBytes = 64 * 576;
  for (std::size_t page = 0; page < 2; ++page) {
    cuda::cuda_check(
        cudaMemcpy(pool.data() + from.pages()[page] * kPageBytes, rows.data() + page * kPageBytes,
                   kPageBytes, cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }
  const cuda::Stream stream;
  const PackBufferLayout layout({Relayout(source, target)}, 128);
  const cuda::PackTables packer(layout, {address});
  cuda::pack_rows(packer, layout.plan({0, 128, true}), from, landing.span(), {stream.ref()});
  stream.ref().synchronize();
  Bytes packed(64 * 576);
  to_host(landing, packed);
  for (std::size_t row = 0; row < 64; ++row) {
    ASSERT_EQ(std::memcmp(packed.data() + row * 576, rows.data() + (2 * row + 1) * 576, 576), 0)
        << "row " << row;
  }

  const PageTable to(target, {kPageCount - 2}, 0, {address});
  const cuda::UnpackTables unpacker({Relayout(source, target)}, {address});
  const cuda::LandedRegion landed{0, {0, 128, true}, landing.span()};
  cuda::unpack_rows(unpacker, {&landed, 1}, to, {stream.ref()});
  stream.ref().synchronize();
  Bytes page(kPageBytes);
  cuda::cuda_check(cudaMemcpy(page.data(), pool.data() + (kPageCount - 2) * kPageBytes, kPageBytes,
                              cudaMemcpyDeviceToHost),
                   "cudaMemcpy");
  EXPECT_TRUE(same_bytes(page, packed));
}

/// A registered source of one plane and a plan of two ranks.
class CudaBadPlan : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    stream_.emplace();
    memory_ = to_device(bytes_);
    buffer_ = to_device(random_bytes(layout_.bytes(), 5));
    tables_.emplace(layout_, pool().addresses(memory_.data()));
  }

  void pack(const PackPlan& plan, const PageTable& source, std::span<std::byte> buffer,
            std::int64_t max_ctas = 0) {
    cuda::pack_rows(*tables_, plan, source, buffer, {stream_->ref(), max_ctas});
  }

  void expect_usable() {
    pack(plan(), source(), buffer_.span());
    stream_->ref().synchronize();
    Bytes expected = random_bytes(layout_.bytes(), 5);
    Bytes got = expected;
    pack_rows(layout_, plan(), pool().table(bytes_.data()), expected);
    to_host(buffer_, got);
    EXPECT_TRUE(same_bytes(got, expected));
  }

  [[nodiscard]] const Pool& pool() const { return scenario_.sources()[0]; }
  [[nodiscard]] PageTable source() const { return pool().table(memory_.data()); }
  [[nodiscard]] PackPlan plan() const { return layout_.plan({0, 128, true}); }

  Scenario scenario_{{.destination = {.ranks = 2}, .end = 128}};
  PackBufferLayout layout_ = scenario_.pack_layout(0);
  Bytes bytes_ = random_bytes(scenario_.sources()[0].bytes, 4);
  cuda::DeviceBuffer memory_;
  cuda::DeviceBuffer buffer_;
  std::optional<cuda::Stream> stream_;
  std::optional<cuda::PackTables> tables_;
};

TEST_F(CudaBadPlan, RegionThatDoesNotFitRaises) {
  PackPlan shifted = plan();
  shifted.regions[1].offset_bytes -= 576;
  EXPECT_THROW(pack(plan(), source(), buffer_.span().first(100)), CapacityError);
  EXPECT_THROW(pack(shifted, source(), buffer_.span()), InvalidArgumentError);
  EXPECT_THROW(static_cast<void>(layout_.plan({0, 256, true})), CapacityError);
  expect_usable();
}

TEST_F(CudaBadPlan, PagesThatDoNotCoverTheSegmentRaise) {
  Pool fewer = pool();
  fewer.pages.pop_back();
  EXPECT_THROW(pack(plan(), fewer.table(memory_.data()), buffer_.span()), InvalidArgumentError);
  expect_usable();
}

TEST_F(CudaBadPlan, AddressesThatWereNotRegisteredRaise) {
  EXPECT_THROW(pack(plan(), pool().table(memory_.data() + 16), buffer_.span()),
               InvalidArgumentError);
  EXPECT_THROW(pack(plan(), source(), buffer_.span(), -1), InvalidArgumentError);
  expect_usable();
}

TEST_F(CudaCopyRows, WaitsForTheEventOfTheForwardPass) {
  const Scenario scenario({.destination = {.ranks = 2}, .layers = 4, .end = 4096});
  const Pool& pool = scenario.sources()[0];
  const Bytes bytes = random_bytes(pool.bytes, 4);
  const cuda::DeviceBuffer memory(pool.bytes);
  cuda::cuda_check(cudaMemset(memory.data(), 0, bytes.size()), "cudaMemset");
  const cuda::PinnedBuffer staging(pool.bytes);
  std::memcpy(staging.data(), bytes.data(), bytes.size());
  const PackBufferLayout layout = scenario.pack_layout(0);
  const cuda::PackTables tables(layout, pool.addresses(memory.data()));
  const auto buffer = to_device(random_bytes(layout.bytes(), 5));
  Bytes expected = random_bytes(layout.bytes(), 5);
  pack_rows(layout, layout.plan(scenario.segment()), pool.table(bytes.data()), expected);

  const cuda::Stream forward;
  const cuda::Stream side;
  const cuda::Event written;
  for (int i = 0; i < 20; ++i) {
    cuda::cuda_check(cudaMemcpyAsync(memory.data(), staging.data(), bytes.size(),
                                     cudaMemcpyHostToDevice, forward.get()),
                     "cudaMemcpyAsync");
  }
  written.record(forward.ref());
  cuda::pack_rows(tables, layout.plan(scenario.segment()), pool.table(memory.data()), buffer.span(),
                  {side.ref(), 0, written.get()});
  side.ref().synchronize();
  Bytes got(expected.size());
  to_host(buffer, got);
  EXPECT_TRUE(same_bytes(got, expected));
}

}  // namespace

}  // namespace kvxfer::test
