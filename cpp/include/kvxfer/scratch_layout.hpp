// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Offsets inside one symmetric window: scratch slots, and in each the tensors of a layer. They are
// a pure function of the specification, because a rank writes into its peers at its own offsets.
//
//   dense    | blocks of tensor 0 | chunk 0 | trash 0 | blocks of tensor 1 | chunk 1 | trash 1 |
//   joined   | blocks of rank 0, all tensors | of rank 1 | ... | chunk 0 | trash 0 | chunk 1 | ...
//
// In either order a tensor has one view of pages that reaches its blocks, its chunk region and its
// trash page. In joined order the views of a slot start at the same byte and overlap: each owns the
// pages that its PageMap leads to, and no other.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvxfer/gather_plan.hpp"

namespace kvxfer {

/// One tensor of a layer's gathered prefix, such as "kv" or "index_k".
struct ScratchTensor {
  std::string name;
  std::int64_t page_bytes = 0;

  bool operator==(const ScratchTensor&) const = default;
};

/// How the blocks of a layer's tensors lie in the prefix region.
enum class BlockOrder : std::uint8_t {
  kDense,   ///< each tensor's blocks back to back: a gather for each tensor
  kJoined,  ///< a rank's blocks of all tensors side by side: one gather
};

/// What a window holds; equal on all ranks.
struct ScratchSpec {
  std::vector<ScratchTensor> tensors;  ///< of one layer, in the order that all ranks use
  BlockOrder order = BlockOrder::kDense;
  std::int64_t ranks = 1;
  std::int64_t prefix_region_pages = 0;  ///< of a slot; a multiple of ranks
  std::int64_t chunk_region_pages = 0;   ///< of a slot
  std::int64_t slot_count = 2;

  bool operator==(const ScratchSpec&) const = default;
};

/// The one specification that serves all ranks: the largest page bytes, regions and slot count.
/// @throws InvalidArgumentError for none, or different tensor names, orders or rank counts.
[[nodiscard]] ScratchSpec largest_spec(std::span<const ScratchSpec> of_every_rank);

/// Pages of one tensor in one slot.
struct ScratchView {
  std::int64_t offset_bytes;  ///< of page 0, in the window; a multiple of 4,096
  std::int64_t page_bytes;
  std::int64_t page_count;

  bool operator==(const ScratchView&) const = default;
};

/// Blocks of all ranks that one gather fills: rank r's starts at offset_bytes + r * stride_bytes,
/// which is the in-place form of an allgather of stride_bytes.
struct BlockSpan {
  std::int64_t offset_bytes;  ///< of rank 0's block, in the window
  std::int64_t stride_bytes;  ///< from one rank's block to the next
  std::int64_t bytes;         ///< of one block up to its last row; at most the stride

  bool operator==(const BlockSpan&) const = default;
};

class BlockLayout;

/// Where every slot and tensor lies in the window.
class ScratchLayout {
 public:
  /// Of slots and dense tensors: NCCL_WIN_REQUIRED_ALIGNMENT.
  static constexpr std::int64_t kAlignment = 4096;

  /// @throws InvalidArgumentError for no tensor, two of one name, or sizes out of range.
  explicit ScratchLayout(ScratchSpec spec);

  [[nodiscard]] const ScratchSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::int64_t slot_bytes() const noexcept { return slot_bytes_; }
  /// Size of the window.
  [[nodiscard]] std::int64_t bytes() const noexcept { return slot_bytes_ * spec_.slot_count; }

  /// @throws InvalidArgumentError if the slot or the tensor does not exist.
  [[nodiscard]] ScratchView view(std::int64_t slot, std::int64_t tensor) const;

  /// Hash of every offset and size, to be compared over the ranks before memory is registered.
  [[nodiscard]] std::uint64_t fingerprint() const;

  bool operator==(const ScratchLayout& other) const { return spec_ == other.spec_; }

 private:
  friend class BlockLayout;
  [[nodiscard]] std::size_t checked_tensor(std::int64_t tensor) const;
  void require_slot(std::int64_t slot) const;
  void place_dense();
  void place_joined();

  struct Place {
    std::int64_t offset_bytes;  // of the view, in the slot
    std::int64_t chunk_page;    // of the view
  };
  ScratchSpec spec_;
  std::vector<Place> places_;  // of each tensor
  std::int64_t slot_bytes_ = 0;
};

/// Where the blocks of one batch lie in every slot of a layout.
class BlockLayout {
 public:
  /// `block_pages` pages of each tensor for each rank.
  /// @throws CapacityError if that exceeds a rank's share of the prefix region.
  BlockLayout(const ScratchLayout& scratch, std::int64_t block_pages);

  [[nodiscard]] std::int64_t block_pages() const noexcept { return block_pages_; }

  /// Numbers of the pages in the tensor's view, for GatherPlan::translate().
  [[nodiscard]] PageMap page_map(std::int64_t tensor) const;

  /// The gathers that fill the slot: one for each tensor (kDense), one (kJoined), none without
  /// pages.
  [[nodiscard]] std::vector<BlockSpan> spans(std::int64_t slot) const;

  /// Where `rank` packs its pages of a tensor before the gather. [unit: bytes, in the window]
  [[nodiscard]] std::int64_t block_offset_bytes(std::int64_t slot, std::int64_t tensor,
                                                std::int64_t rank) const;

  /// Bytes from a block to the next that hold no row; 0 when dense.
  [[nodiscard]] std::int64_t padding_bytes() const noexcept { return padding_bytes_; }

 private:
  void place_dense();
  void place_joined();

  ScratchLayout scratch_;
  std::int64_t block_pages_;
  std::vector<PageMap> page_maps_;  // of each tensor
  std::vector<BlockSpan> spans_;    // of slot 0
  std::int64_t padding_bytes_ = 0;
};

}  // namespace kvxfer
