// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/scratch_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kvxfer/error.hpp"
#include "support/random_batch.hpp"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

ScratchSpec spec_of(std::vector<ScratchTensor> tensors, BlockOrder order = BlockOrder::kDense) {
  ScratchSpec spec;
  spec.tensors = std::move(tensors);
  spec.order = order;
  spec.ranks = 4;
  spec.prefix_region_pages = 16;
  spec.chunk_region_pages = 3;
  return spec;
}

// A latent page of 64 rows beside its index keys and scales.
const std::vector<ScratchTensor> kLatentAndIndex{{"kv", 64 * 576}, {"index_k", 64 * 132}};

TEST(ScratchLayout, StartsTensorsAtMultiplesOf4096) {
  ScratchSpec spec;
  spec.tensors = {{"kv", 5000}, {"index_k", 100}};
  spec.slot_count = 1;
  const ScratchLayout layout(spec);
  EXPECT_EQ(layout.view(0, 0).offset_bytes, 0);
  EXPECT_EQ(layout.view(0, 1).offset_bytes, 8192);
  EXPECT_EQ(layout.bytes(), 12288);
}

TEST(ScratchLayout, TakesTheLargestOfAllRanks) {
  ScratchSpec large;
  large.tensors = {{"kv", 5000}, {"index_k", 100}};
  ScratchSpec small = large;
  small.tensors[0].page_bytes = 3000;
  small.tensors[1].page_bytes = 200;
  const std::vector<ScratchSpec> specs{small, large};
  const ScratchSpec agreed = largest_spec(specs);
  EXPECT_THAT(agreed.tensors,
              ElementsAre(ScratchTensor{"kv", 5000}, ScratchTensor{"index_k", 200}));
  EXPECT_EQ(ScratchLayout(agreed).view(0, 1).offset_bytes, 8192);
}

TEST(LargestSpec, TakesTheLargestRegions) {
  ScratchSpec a = spec_of({{"kv", 8}});
  ScratchSpec b = a;
  a.prefix_region_pages = 32;
  b.chunk_region_pages = 9;
  b.slot_count = 4;
  const std::vector<ScratchSpec> specs{a, b};
  const ScratchSpec agreed = largest_spec(specs);
  EXPECT_EQ(agreed.prefix_region_pages, 32);
  EXPECT_EQ(agreed.chunk_region_pages, 9);
  EXPECT_EQ(agreed.slot_count, 4);
}

TEST(LargestSpec, RefusesRanksThatGatherDifferentThings) {
  const ScratchSpec spec = spec_of({{"k", 8}, {"v", 8}});
  ScratchSpec other = spec;
  const auto refuse = [&] { (void)largest_spec(std::vector<ScratchSpec>{spec, other}); };
  other.tensors[1].name = "index_k";
  EXPECT_THAT(refuse, ThrowsMessage<InvalidArgumentError>(HasSubstr("of rank 1 to be \"v\"")));
  other = spec;
  other.tensors.pop_back();
  EXPECT_THROW(refuse(), InvalidArgumentError);
  other = spec;
  other.order = BlockOrder::kJoined;
  EXPECT_THROW(refuse(), InvalidArgumentError);
  other = spec;
  other.ranks = 2;
  EXPECT_THROW(refuse(), InvalidArgumentError);
  EXPECT_THROW((void)largest_spec({}), InvalidArgumentError);
}

TEST(ScratchLayout, ChargesTwoSlotsOfALongContext) {
  ScratchSpec spec;
  spec.tensors = {{"kv", 16 * 32768}};
  spec.ranks = 2;
  spec.prefix_region_pages = 8 * 4096;
  spec.chunk_region_pages = 256;
  EXPECT_EQ(ScratchLayout(spec).bytes(), 2LL * (528384 + 16) * 32768);
}

TEST(ScratchLayout, HasTheViewsOfTheDensePlan) {
  const ScratchLayout layout(spec_of({{"k", 1000}, {"v", 3000}}));
  EXPECT_EQ(layout.view(0, 0), (ScratchView{0, 1000, 20}));
  EXPECT_EQ(layout.view(0, 1), (ScratchView{20480, 3000, 20}));
  EXPECT_EQ(layout.slot_bytes(), 20480 + 61440);
  EXPECT_EQ(layout.view(1, 1).offset_bytes, layout.slot_bytes() + 20480);
}

TEST(ScratchLayout, RefusesWhatCannotBe) {
  EXPECT_THROW(ScratchLayout(spec_of({})), InvalidArgumentError);
  EXPECT_THROW(ScratchLayout(spec_of({{"k", 0}})), InvalidArgumentError);
  EXPECT_THAT([] { ScratchLayout(spec_of({{"k", 8}, {"k", 8}})); },
              ThrowsMessage<InvalidArgumentError>(HasSubstr("\"k\" twice")));
  ScratchSpec spec = spec_of({{"k", 8}});
  spec.prefix_region_pages = 15;
  EXPECT_THROW(ScratchLayout{spec}, InvalidArgumentError);
  spec = spec_of({{"k", 8}});
  spec.slot_count = 0;
  EXPECT_THROW(ScratchLayout{spec}, InvalidArgumentError);
  spec.slot_count = 1LL << 31;
  spec.tensors[0].page_bytes = 1LL << 30;
  EXPECT_THROW(ScratchLayout{spec}, InvalidArgumentError);
  // Primes: no common stride of useful size.
  EXPECT_THROW(
      ScratchLayout(spec_of({{"a", 1000003}, {"b", 1000033}, {"c", 1000037}}, BlockOrder::kJoined)),
      InvalidArgumentError);
  const ScratchLayout layout(spec_of({{"k", 8}}));
  EXPECT_THROW((void)layout.view(2, 0), InvalidArgumentError);
  EXPECT_THROW((void)layout.view(0, 1), InvalidArgumentError);
  EXPECT_THROW((void)layout.view(-1, 0), InvalidArgumentError);
}

TEST(ScratchLayout, FingerprintTellsSpecificationsApart) {
  const ScratchSpec spec = spec_of(kLatentAndIndex);
  std::set<std::uint64_t> seen{ScratchLayout(spec).fingerprint()};
  EXPECT_EQ(seen.count(ScratchLayout(spec).fingerprint()), 1U);
  ScratchSpec other = spec;
  other.order = BlockOrder::kJoined;
  seen.insert(ScratchLayout(other).fingerprint());
  other = spec;
  std::swap(other.tensors[0], other.tensors[1]);
  seen.insert(ScratchLayout(other).fingerprint());
  other = spec;
  other.chunk_region_pages += 1;
  seen.insert(ScratchLayout(other).fingerprint());
  other = spec;
  other.tensors[1].name = "index_v";
  seen.insert(ScratchLayout(other).fingerprint());
  EXPECT_EQ(seen.size(), 5U);
}

TEST(BlockLayout, NeedsOneGatherForEachDenseTensor) {
  const ScratchLayout layout(spec_of({{"k", 1000}, {"v", 3000}}));
  const BlockLayout blocks(layout, 3);
  EXPECT_THAT(blocks.spans(1), ElementsAre(BlockSpan{layout.slot_bytes(), 3000, 3000},
                                           BlockSpan{layout.slot_bytes() + 20480, 9000, 9000}));
  EXPECT_EQ(blocks.padding_bytes(), 0);
  EXPECT_EQ(blocks.page_map(1), (PageMap{0, 3, 16, 19}));
}

TEST(BlockLayout, NeedsOneGatherForJoinedTensors) {
  const ScratchLayout layout(spec_of(kLatentAndIndex, BlockOrder::kJoined));
  const BlockLayout blocks(layout, 4);
  // lcm(36864, 8448) = 405504; four pages of both are 181248 bytes, with the second tensor lifted
  // from 147456 to the next multiple of 8448.
  EXPECT_THAT(blocks.spans(0), ElementsAre(BlockSpan{0, 405504, 152064 + 4 * 8448}));
  EXPECT_EQ(blocks.padding_bytes(), 405504 - 4 * (36864 + 8448));
  EXPECT_EQ(blocks.page_map(0).owner_stride_pages, 11);
  EXPECT_EQ(blocks.page_map(1).owner_stride_pages, 48);
  EXPECT_EQ(blocks.page_map(1).first_page, 18);
}

TEST(BlockLayout, JoinsEqualTensorsWithoutPadding) {
  const BlockLayout blocks(ScratchLayout(spec_of({{"k", 4096}, {"v", 4096}}, BlockOrder::kJoined)),
                           3);
  EXPECT_THAT(blocks.spans(0), ElementsAre(BlockSpan{0, 6 * 4096, 6 * 4096}));
  EXPECT_EQ(blocks.padding_bytes(), 0);
}

TEST(BlockLayout, GathersNothingWithoutPages) {
  for (const BlockOrder order : {BlockOrder::kDense, BlockOrder::kJoined}) {
    EXPECT_THAT(BlockLayout(ScratchLayout(spec_of(kLatentAndIndex, order)), 0).spans(0), IsEmpty());
  }
}

TEST(BlockLayout, RefusesMoreThanARanksShare) {
  const ScratchLayout layout(spec_of({{"k", 8}}));
  EXPECT_NO_THROW(BlockLayout(layout, 4));
  EXPECT_THAT([&] { BlockLayout(layout, 5); },
              ThrowsMessage<CapacityError>(HasSubstr("at most 4 pages")));
  EXPECT_THROW(BlockLayout(layout, -1), InvalidArgumentError);
  EXPECT_THROW((void)BlockLayout(layout, 1).page_map(1), InvalidArgumentError);
  EXPECT_THROW((void)BlockLayout(layout, 1).spans(2), InvalidArgumentError);
  EXPECT_THROW((void)BlockLayout(layout, 1).block_offset_bytes(0, 0, 4), InvalidArgumentError);
}

/// Byte intervals that a batch may touch must not meet; an interval is remembered with its owner.
class Intervals {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    ASSERT_LT(begin, end);
    spans_.emplace_back(begin, end);
  }
  void expect_disjoint_below(std::int64_t bytes) {
    std::sort(spans_.begin(), spans_.end());
    std::int64_t end = 0;
    for (const auto& span : spans_) {
      ASSERT_GE(span.first, end);
      end = span.second;
    }
    ASSERT_LE(end, bytes);
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> spans_;
};

ScratchSpec random_spec(support::BatchMaker& maker, const GatherShape& shape) {
  ScratchSpec spec;
  const std::int64_t tensor_count = maker.between(1, 4);
  for (std::int64_t i = 0; i < tensor_count; ++i) {
    spec.tensors.push_back({std::to_string(i), shape.page_size * maker.between(1, 40)});
  }
  spec.order = maker.between(0, 1) == 0 ? BlockOrder::kDense : BlockOrder::kJoined;
  spec.ranks = shape.ranks;
  spec.prefix_region_pages = shape.prefix_region_pages;
  spec.chunk_region_pages = shape.chunk_region_pages;
  spec.slot_count = maker.between(1, 3);
  return spec;
}

TEST(BlockLayout, PagesOfAllSlotsTensorsAndRegionsAreApart) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    support::BatchMaker maker(seed);
    const GatherShape shape = maker.make().shape;
    const ScratchSpec spec = random_spec(maker, shape);
    const ScratchLayout layout(spec);
    const BlockLayout blocks(layout, maker.between(0, shape.prefix_region_pages / shape.ranks));
    Intervals intervals;
    for (std::int64_t slot = 0; slot < spec.slot_count; ++slot) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(spec.tensors.size()); ++i) {
        const ScratchView view = layout.view(slot, i);
        const PageMap map = blocks.page_map(i);
        ASSERT_EQ(view.offset_bytes % ScratchLayout::kAlignment, 0);
        ASSERT_EQ(view.page_count, map.trash_page + 1);
        const auto add = [&](std::int64_t first, std::int64_t count) {
          for (std::int64_t page = first; page < first + count; ++page) {
            const std::int64_t begin = view.offset_bytes + page * view.page_bytes;
            intervals.add(begin, begin + view.page_bytes);
          }
        };
        for (std::int64_t rank = 0; rank < spec.ranks; ++rank) {
          add(map.first_page + rank * map.owner_stride_pages, blocks.block_pages());
        }
        add(map.chunk_page, spec.chunk_region_pages + 1);
        ASSERT_EQ(map.chunk_page + spec.chunk_region_pages, map.trash_page);
      }
    }
    intervals.expect_disjoint_below(layout.bytes());
  }
}

/// Windows of all ranks as bytes. A page's bytes tell its logical page and its tensor.
class Group {
 public:
  Group(const ScratchLayout& layout, const BlockLayout& blocks)
      : layout_(layout),
        blocks_(blocks),
        windows_(static_cast<std::size_t>(layout.spec().ranks),
                 std::vector<std::int64_t>(static_cast<std::size_t>(layout.bytes()), -1)) {}

  static std::int64_t mark(std::int64_t page, std::int64_t tensor) { return page * 16 + tensor; }

  void pack(const GatherPlan& plan, std::int64_t slot) {
    for (std::int64_t rank = 0; rank < layout_.spec().ranks; ++rank) {
      for (std::int64_t i = 0; i < tensor_count(); ++i) {
        std::int64_t offset = blocks_.block_offset_bytes(slot, i, rank);
        for (const std::int64_t local : plan.send_pages(rank)) {
          const std::int64_t bytes = layout_.view(slot, i).page_bytes;
          std::fill_n(at(rank, offset), bytes, mark(local * layout_.spec().ranks + rank, i));
          offset += bytes;
        }
      }
    }
  }

  void gather(std::int64_t slot) {
    for (const BlockSpan& span : blocks_.spans(slot)) {
      for (std::int64_t from = 0; from < layout_.spec().ranks; ++from) {
        const std::int64_t offset = span.offset_bytes + from * span.stride_bytes;
        for (std::int64_t to = 0; to < layout_.spec().ranks; ++to) {
          if (to != from) std::copy_n(at(from, offset), span.bytes, at(to, offset));
        }
      }
    }
  }

  bool page_holds(std::int64_t rank, const ScratchView& view, std::int64_t page,
                  std::int64_t value) {
    const auto* bytes = at(rank, view.offset_bytes + page * view.page_bytes);
    return std::all_of(bytes, bytes + view.page_bytes, [&](auto byte) { return byte == value; });
  }

  [[nodiscard]] std::int64_t tensor_count() const {
    return static_cast<std::int64_t>(layout_.spec().tensors.size());
  }

 private:
  std::int64_t* at(std::int64_t rank, std::int64_t offset) {
    return windows_[static_cast<std::size_t>(rank)].data() + offset;
  }

  const ScratchLayout& layout_;
  const BlockLayout& blocks_;
  std::vector<std::vector<std::int64_t>> windows_;
};

TEST(BlockLayout, EveryRankFindsEveryPageAfterTheGather) {
  std::int64_t page_count = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    support::BatchMaker maker(seed);
    const support::RandomBatch batch = maker.make();
    const GatherPlan plan(batch.shape, batch.prefix_pages, batch.chunk_pages);
    const ScratchLayout layout(random_spec(maker, batch.shape));
    const BlockLayout blocks(layout, plan.block_pages());
    Group group(layout, blocks);
    const std::int64_t slot = maker.between(0, layout.spec().slot_count - 1);
    group.pack(plan, slot);
    group.gather(slot);
    for (std::int64_t i = 0; i < group.tensor_count(); ++i) {
      const ScratchView view = layout.view(slot, i);
      const std::vector<std::int64_t> places = plan.scratch_pages(blocks.page_map(i));
      for (const GatheredPage& gathered : plan.gathered_pages()) {
        const std::int64_t place = places[static_cast<std::size_t>(gathered.page)];
        for (std::int64_t rank = 0; rank < batch.shape.ranks; ++rank) {
          ASSERT_TRUE(group.page_holds(rank, view, place, Group::mark(gathered.page, i)));
          ++page_count;
        }
      }
      for (const std::int64_t page : batch.chunk_pages) {
        const std::int64_t place = places[static_cast<std::size_t>(page)];
        ASSERT_TRUE(group.page_holds(0, view, place, -1)) << "the gather reached a chunk page";
      }
      ASSERT_TRUE(group.page_holds(0, view, blocks.page_map(i).trash_page, -1));
    }
  }
  EXPECT_GT(page_count, 1000);
}

TEST(BlockLayout, DenseMapIsThePlansOwn) {
  const support::RandomBatch batch = support::BatchMaker(3).make();
  const GatherPlan plan(batch.shape, batch.prefix_pages, batch.chunk_pages);
  ScratchSpec spec;
  spec.tensors = {{"kv", 576}};
  spec.ranks = batch.shape.ranks;
  spec.prefix_region_pages = batch.shape.prefix_region_pages;
  spec.chunk_region_pages = batch.shape.chunk_region_pages;
  EXPECT_EQ(BlockLayout(ScratchLayout(spec), plan.block_pages()).page_map(0), plan.page_map());
}

}  // namespace
}  // namespace kvxfer
