// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A prefix gather of our own: every rank copies its block into its peers' windows under one
// handshake for all tensors of a layer, on a stream, without a kernel and without the host. The
// windows may be NCCL's (SymmetricWindow::peer_data) or mapped in another way. Needs no CUDA
// header: what it enqueues goes through a table, which a test fills with its own.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvxfer/cuda/nccl_api.hpp"
#include "kvxfer/gather_handshake.hpp"
#include "kvxfer/scratch_layout.hpp"

namespace kvxfer::cuda {

/// A copy of device memory, from this rank's window into a peer's.
struct PeerCopy {
  std::byte* destination;
  const std::byte* source;
  std::int64_t size_bytes;

  bool operator==(const PeerCopy&) const = default;
};

/// What a stream does with a word of a board.
struct WordOperation {
  bool is_wait;  ///< until the word has_reached() the value; else the value is written
  std::uint32_t* word;
  std::uint32_t value;

  bool operator==(const WordOperation&) const = default;
};

/// What a gather enqueues on a stream. None of it waits on the host.
struct StreamCalls {
  /// Copies in any order, after what the stream holds.
  std::function<void(std::span<const PeerCopy>, CudaStream)> copy;
  /// One after the other. A write is seen after everything before it on the stream.
  std::function<void(std::span<const WordOperation>, CudaStream)> operate;
  std::function<bool(CudaStream)> is_capturing;
};

/// Memory of a group as this rank has mapped it.
struct PeerMemory {
  std::span<std::byte> boards;      ///< on the host, reached by devices: HandshakeBoards::bytes()
  std::vector<std::byte*> windows;  ///< on the devices, of every rank, as this rank reaches them
  std::int64_t window_bytes = 0;
};

/// How gathers of a slot are told apart.
enum class GatherTags : std::uint8_t {
  kGrowing,   ///< by their number: one that a rank left out is seen. Not for captured graphs
  kConstant,  ///< not at all: words go from 0 to 1 and back, so a captured gather can be replayed
};

struct TagOptions {
  GatherTags kind = GatherTags::kGrowing;
  std::uint32_t first = 1;  ///< equal on all ranks; constant tags are 1
};

/// One rank's side of the gathers of a group. One thread at a time.
class CopyEngineGather {
 public:
  /// Copies are cut at this size: one of 256 MiB has been seen to hang an engine
  /// (rocm-systems#9927).
  static constexpr std::int64_t kMostCopyBytes = std::int64_t{64} << 20;
  /// Word operations in one call; the driver takes less than 256.
  static constexpr std::size_t kMostOperations = 255;

  /// Writes this rank's first words: construct on every rank, then let all ranks meet, then gather.
  /// @throws InvalidArgumentError for an empty call, a rank that does not exist, boards that are
  ///         too small or not at a multiple of 64 bytes, or not one window for each rank.
  CopyEngineGather(const HandshakeBoards& boards, std::int64_t rank, PeerMemory memory,
                   StreamCalls calls, const TagOptions& tags = {});

  /// Tag of the slot's next gather: always 1 for constant tags.
  [[nodiscard]] std::uint32_t next_tag(std::int64_t slot) const;

  /// Enqueues that peers may write the slot's next gather, after what `stream` reads of it now.
  /// @throws InvalidArgumentError if the slot was not gathered since.
  void release(std::int64_t slot, CudaStream stream);

  /// Enqueues the gather of the spans: wait for the peers' releases, one batch of copies, tell the
  /// peers, wait for theirs. The own block is packed before on `stream`, the same for all gathers
  /// of the slot; what follows on it may read the slot.
  /// @throws InvalidArgumentError if the tag is not the slot's next, the slot was not released, a
  ///         span leaves the window, the group gave up, the stream is the default one, or it
  ///         captures a graph with growing tags.
  void gather(std::int64_t slot, std::uint32_t tag, std::span<const BlockSpan> spans,
              CudaStream stream);

  /// Waits on the host until `is_ready` says that the slot's last gather has run: an event after
  /// it, queried. After `bound` every wait of this rank's streams is let go, so that they run on;
  /// what they copy then is of no use, and the group cannot gather again.
  /// @throws DeadlineError naming the ranks that did not come; none if the stream itself is late.
  /// @throws GroupError naming ranks that are at another gather.
  void wait(std::int64_t slot, const std::function<bool()>& is_ready,
            std::chrono::milliseconds bound);

 private:
  struct Slot {
    std::uint32_t next_tag;
    bool is_released;
  };
  [[nodiscard]] const Slot& checked(std::int64_t slot) const;
  void require_inside(std::span<const BlockSpan> spans) const;
  void enqueue(std::span<const HandshakeStep> steps, std::span<const BlockSpan> spans,
               CudaStream stream) const;
  [[nodiscard]] std::uint32_t* word_at(std::int64_t offset_bytes) const;
  void append_copies(std::int64_t peer, std::span<const BlockSpan> spans,
                     std::vector<PeerCopy>& copies) const;
  /// What the slot's last gather waits for.
  [[nodiscard]] std::uint32_t awaited_tag(std::int64_t slot) const;
  [[nodiscard]] HandshakeReport stuck_at(std::int64_t slot) const;
  void let_go() const;

  HandshakeBoards boards_;
  std::int64_t rank_;
  PeerMemory memory_;
  StreamCalls calls_;
  bool has_constant_tags_;
  std::vector<Slot> slots_;
  bool is_given_up_ = false;
};

}  // namespace kvxfer::cuda
