// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The prefix gather on host memory that the ranks share: the specification of the one on devices,
// and what runs where there is none. The caller maps the memory; each rank calls from one thread.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvxfer/gather_handshake.hpp"
#include "kvxfer/scratch_layout.hpp"

namespace kvxfer {

/// Memory of a group as this rank has mapped it.
struct HostGroupMemory {
  std::span<std::byte> boards;                ///< HandshakeBoards::bytes(), at a cache line
  std::vector<std::span<std::byte>> windows;  ///< of every rank, of one size
};

/// One rank's side of the gathers of a group.
class HostAllgather {
 public:
  /// Writes this rank's first words: construct on every rank, then let all ranks meet, then gather.
  /// @throws InvalidArgumentError for a rank that does not exist, boards that are too small or not
  ///         at a multiple of 64 bytes, or not one window of one size for each rank.
  HostAllgather(const HandshakeBoards& boards, std::int64_t rank, HostGroupMemory memory,
                std::uint32_t first_tag = 1);

  /// Tag of the slot's next gather; equal on all ranks that gather alike.
  [[nodiscard]] std::uint32_t next_tag(std::int64_t slot) const;

  /// The slot's rows are no longer read: peers may write its next gather.
  /// @throws InvalidArgumentError if the slot was not gathered since.
  void release(std::int64_t slot);

  /// Copies this rank's blocks of the spans to every peer and waits for theirs; every rank calls it
  /// for the same slots in the same order. `tag` is the caller's own count of the slot's gathers,
  /// from its layers and batches, so that one it left out is seen. Waits twice, each at most
  /// `bound`, and less when a peer is at another gather. After a report that is not complete the
  /// group cannot gather again.
  /// @throws InvalidArgumentError if the tag is not the slot's next, the slot was not released, a
  ///         span leaves the window, or an earlier gather was given up.
  [[nodiscard]] HandshakeReport gather(std::int64_t slot, std::uint32_t tag,
                                       std::span<const BlockSpan> spans,
                                       std::chrono::milliseconds bound);

 private:
  struct Slot {
    std::uint32_t next_tag;
    bool is_released;
  };
  void require_inside(std::span<const BlockSpan> spans) const;
  [[nodiscard]] const Slot& checked(std::int64_t slot) const;
  void write(const HandshakeStep& step) const;
  [[nodiscard]] HandshakeReport wait(std::span<const HandshakeStep> steps,
                                     std::chrono::milliseconds bound) const;
  void copy(std::int64_t peer, std::span<const BlockSpan> spans) const;

  HandshakeBoards boards_;
  std::int64_t rank_;
  HostGroupMemory memory_;
  std::vector<Slot> slots_;
  bool is_given_up_ = false;
};

}  // namespace kvxfer
