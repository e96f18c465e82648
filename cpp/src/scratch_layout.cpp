// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/scratch_layout.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "kvxfer/error.hpp"

namespace kvxfer {

namespace {

constexpr std::int64_t kMaxPages = std::int64_t{1} << 31;
constexpr std::int64_t kMaxPageBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxTensors = 64;
// Of one slot: a tensor's regions stay below it by the bounds above, and sums below 2^63.
constexpr std::int64_t kMaxSlotBytes = std::int64_t{1} << 56;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void require_slot_size(std::int64_t slot_bytes, std::int64_t slot_count) {
  detail::require(slot_bytes <= kMaxSlotBytes / slot_count, "expected a window of at most ",
                  kMaxSlotBytes, " bytes, got ", slot_count, " slots of ", slot_bytes,
                  " bytes or more");
}

void require_region(std::int64_t pages, const char* region) {
  detail::require(pages >= 0 && pages <= kMaxPages, "expected ", region, "_region_pages in [0, ",
                  kMaxPages, "], got ", pages);
}

void require_spec(const ScratchSpec& spec) {
  const auto tensor_count = static_cast<std::int64_t>(spec.tensors.size());
  detail::require(tensor_count >= 1 && tensor_count <= kMaxTensors, "expected 1 to ", kMaxTensors,
                  " tensors, got ", tensor_count);
  detail::require(spec.ranks >= 1 && spec.ranks <= kMaxPages, "expected ranks >= 1, got ",
                  spec.ranks);
  require_region(spec.prefix_region_pages, "prefix");
  require_region(spec.chunk_region_pages, "chunk");
  detail::require(spec.prefix_region_pages % spec.ranks == 0,
                  "expected prefix_region_pages to be a multiple of ranks ", spec.ranks, ", got ",
                  spec.prefix_region_pages);
  detail::require(spec.slot_count >= 1 && spec.slot_count <= kMaxPages,
                  "expected slot_count >= 1, got ", spec.slot_count);
  std::set<std::string> names;
  for (const ScratchTensor& tensor : spec.tensors) {
    detail::require(names.insert(tensor.name).second, "expected tensors of different names, got \"",
                    tensor.name, "\" twice");
    detail::require(tensor.page_bytes >= 1 && tensor.page_bytes <= kMaxPageBytes, "tensor \"",
                    tensor.name, "\": expected page_bytes in [1, ", kMaxPageBytes, "], got ",
                    tensor.page_bytes);
    const std::int64_t pages = spec.prefix_region_pages + spec.chunk_region_pages + 1;
    detail::require(pages <= kMaxSlotBytes / kMaxTensors / tensor.page_bytes, "tensor \"",
                    tensor.name, "\": expected at most ", kMaxSlotBytes / kMaxTensors,
                    " bytes in a slot, got ", pages, " pages of ", tensor.page_bytes, " bytes");
  }
}

/// A rank's blocks of all tensors side by side. Every tensor starts at a multiple of its page bytes
/// and the stride is a multiple of all of them, so that each page has a number in its tensor's
/// view.
struct JoinedBlock {
  std::vector<std::int64_t> offsets_bytes;  // of each tensor
  std::int64_t bytes = 0;                   // up to the last row
  std::int64_t used_bytes = 0;              // in rows
  std::int64_t stride_bytes = 0;
};

JoinedBlock joined_block(const ScratchSpec& spec, std::int64_t block_pages) {
  JoinedBlock block;
  std::int64_t unit_bytes = 1;
  for (const ScratchTensor& tensor : spec.tensors) {
    const std::int64_t factor = tensor.page_bytes / std::gcd(unit_bytes, tensor.page_bytes);
    detail::require(unit_bytes <= kMaxSlotBytes / factor / spec.ranks,
                    "expected page bytes with a small common multiple for joined blocks, got one "
                    "beyond ",
                    kMaxSlotBytes / spec.ranks, " bytes at tensor \"", tensor.name, "\"");
    unit_bytes *= factor;
    block.offsets_bytes.push_back(round_up(block.bytes, tensor.page_bytes));
    block.bytes = block.offsets_bytes.back() + block_pages * tensor.page_bytes;
    block.used_bytes += block_pages * tensor.page_bytes;
  }
  if (block_pages == 0) return {block.offsets_bytes, 0, 0, 0};
  block.stride_bytes = round_up(block.bytes, unit_bytes);
  return block;
}

class Fingerprint {
 public:
  void add(std::int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> shift));
    }
  }
  void add(const std::string& text) {
    add(static_cast<std::int64_t>(text.size()));
    for (const char letter : text)
      add_byte(static_cast<std::uint8_t>(letter));
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  // FNV-1a: the same on every machine, unlike std::hash.
  void add_byte(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3U; }
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

}  // namespace

ScratchSpec largest_spec(std::span<const ScratchSpec> of_every_rank) {
  detail::require(!of_every_rank.empty(), "expected one specification for each rank, got none");
  ScratchSpec largest = of_every_rank.front();
  for (std::size_t rank = 0; rank < of_every_rank.size(); ++rank) {
    const ScratchSpec& spec = of_every_rank[rank];
    detail::require(spec.tensors.size() == largest.tensors.size() && spec.order == largest.order &&
                        spec.ranks == largest.ranks,
                    "expected rank ", rank, " to ask for the tensors, order and ranks of rank 0 (",
                    largest.tensors.size(), " tensors, ", largest.ranks, " ranks), got ",
                    spec.tensors.size(), " tensors, ", spec.ranks, " ranks",
                    spec.order == largest.order ? "" : " in the other order");
    for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
      ScratchTensor& tensor = largest.tensors[i];
      detail::require(tensor.name == spec.tensors[i].name, "expected tensor ", i, " of rank ", rank,
                      " to be \"", tensor.name, "\" as on rank 0, got \"", spec.tensors[i].name,
                      "\"");
      tensor.page_bytes = std::max(tensor.page_bytes, spec.tensors[i].page_bytes);
    }
    largest.prefix_region_pages = std::max(largest.prefix_region_pages, spec.prefix_region_pages);
    largest.chunk_region_pages = std::max(largest.chunk_region_pages, spec.chunk_region_pages);
    largest.slot_count = std::max(largest.slot_count, spec.slot_count);
  }
  return largest;
}

ScratchLayout::ScratchLayout(ScratchSpec spec) : spec_(std::move(spec)) {
  require_spec(spec_);
  switch (spec_.order) {
    case BlockOrder::kDense:
      place_dense();
      break;
    case BlockOrder::kJoined:
      place_joined();
      break;
  }
  require_slot_size(slot_bytes_, spec_.slot_count);
}

void ScratchLayout::place_dense() {
  const std::int64_t page_count = spec_.prefix_region_pages + spec_.chunk_region_pages + 1;
  for (const ScratchTensor& tensor : spec_.tensors) {
    places_.push_back({slot_bytes_, spec_.prefix_region_pages});
    slot_bytes_ += round_up(page_count * tensor.page_bytes, kAlignment);
  }
}

void ScratchLayout::place_joined() {
  const JoinedBlock largest = joined_block(spec_, spec_.prefix_region_pages / spec_.ranks);
  require_slot_size(largest.stride_bytes, spec_.ranks);
  std::int64_t end = spec_.ranks * largest.stride_bytes;
  for (const ScratchTensor& tensor : spec_.tensors) {
    end = round_up(end, tensor.page_bytes);
    places_.push_back({0, end / tensor.page_bytes});
    end += (spec_.chunk_region_pages + 1) * tensor.page_bytes;
  }
  slot_bytes_ = round_up(end, kAlignment);
}

void ScratchLayout::require_slot(std::int64_t slot) const {
  detail::require(slot >= 0 && slot < spec_.slot_count, "expected a slot in [0, ", spec_.slot_count,
                  "), got ", slot);
}

std::size_t ScratchLayout::checked_tensor(std::int64_t tensor) const {
  detail::require(tensor >= 0 && tensor < static_cast<std::int64_t>(spec_.tensors.size()),
                  "expected a tensor index in [0, ", spec_.tensors.size(), "), got ", tensor);
  return static_cast<std::size_t>(tensor);
}

ScratchView ScratchLayout::view(std::int64_t slot, std::int64_t tensor) const {
  require_slot(slot);
  const std::size_t i = checked_tensor(tensor);
  return {slot * slot_bytes_ + places_[i].offset_bytes, spec_.tensors[i].page_bytes,
          places_[i].chunk_page + spec_.chunk_region_pages + 1};
}

std::uint64_t ScratchLayout::fingerprint() const {
  Fingerprint hash;
  hash.add(spec_.ranks);
  hash.add(static_cast<std::int64_t>(spec_.order));
  hash.add(spec_.prefix_region_pages);
  hash.add(spec_.chunk_region_pages);
  hash.add(spec_.slot_count);
  hash.add(slot_bytes_);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    hash.add(spec_.tensors[i].name);
    hash.add(spec_.tensors[i].page_bytes);
    hash.add(places_[i].offset_bytes);
    hash.add(places_[i].chunk_page);
  }
  return hash.value();
}

BlockLayout::BlockLayout(const ScratchLayout& scratch, std::int64_t block_pages)
    : scratch_(scratch), block_pages_(block_pages) {
  const ScratchSpec& spec = scratch_.spec();
  detail::require(block_pages >= 0, "expected block_pages >= 0, got ", block_pages);
  if (block_pages > spec.prefix_region_pages / spec.ranks) {
    throw CapacityError(detail::message("expected blocks of at most ",
                                        spec.prefix_region_pages / spec.ranks,
                                        " pages in the prefix region, got ", block_pages));
  }
  switch (spec.order) {
    case BlockOrder::kDense:
      place_dense();
      break;
    case BlockOrder::kJoined:
      place_joined();
      break;
  }
  if (block_pages_ == 0) spans_.clear();
}

void BlockLayout::place_dense() {
  const ScratchSpec& spec = scratch_.spec();
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    const ScratchLayout::Place& place = scratch_.places_[i];
    const std::int64_t bytes = block_pages_ * spec.tensors[i].page_bytes;
    spans_.push_back({place.offset_bytes, bytes, bytes});
    page_maps_.push_back(
        {0, block_pages_, place.chunk_page, place.chunk_page + spec.chunk_region_pages});
  }
}

void BlockLayout::place_joined() {
  const ScratchSpec& spec = scratch_.spec();
  const JoinedBlock block = joined_block(spec, block_pages_);
  spans_.push_back({0, block.stride_bytes, block.bytes});
  padding_bytes_ = block.stride_bytes - block.used_bytes;
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    const std::int64_t page_bytes = spec.tensors[i].page_bytes;
    const std::int64_t chunk_page = scratch_.places_[i].chunk_page;
    page_maps_.push_back({block.offsets_bytes[i] / page_bytes, block.stride_bytes / page_bytes,
                          chunk_page, chunk_page + spec.chunk_region_pages});
  }
}

PageMap BlockLayout::page_map(std::int64_t tensor) const {
  return page_maps_[scratch_.checked_tensor(tensor)];
}

std::vector<BlockSpan> BlockLayout::spans(std::int64_t slot) const {
  scratch_.require_slot(slot);
  std::vector<BlockSpan> spans = spans_;
  for (BlockSpan& span : spans)
    span.offset_bytes += slot * scratch_.slot_bytes();
  return spans;
}

std::int64_t BlockLayout::block_offset_bytes(std::int64_t slot, std::int64_t tensor,
                                             std::int64_t rank) const {
  const ScratchSpec& spec = scratch_.spec();
  detail::require(rank >= 0 && rank < spec.ranks, "expected rank in [0, ", spec.ranks, "), got ",
                  rank);
  const ScratchView view = scratch_.view(slot, tensor);
  const PageMap map = page_map(tensor);
  return view.offset_bytes + (map.first_page + rank * map.owner_stride_pages) * view.page_bytes;
}

}  // namespace kvxfer
