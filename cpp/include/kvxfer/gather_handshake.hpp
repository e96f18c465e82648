// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The protocol of our own prefix gather: which words the ranks write to each other and in which
// order, so that a rank never writes into a slot that a peer still reads, and never reads before
// every peer's block is there. Steps are values: a stream, host memory and a model carry out the
// same list. No memory is touched here.
//
// A slot's gathers are numbered by a tag that starts at 1. The word credit(q) on a rank's board
// says that rank q may be written up to that tag; done(q) says that q's block of that tag is here.
// When a slot is no longer read, its next credit goes out: long before the next gather, so that
// gather seldom waits for it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvxfer {

/// Whether `word` has come to `tag`. Cyclic: half of the numbers lie ahead of any tag.
[[nodiscard]] constexpr bool has_reached(std::uint32_t word, std::uint32_t tag) {
  return static_cast<std::int32_t>(word - tag) >= 0;
}

/// Where the words of a group lie, in memory that all ranks map: a board for each rank, a cache
/// line for each word.
class HandshakeBoards {
 public:
  static constexpr std::int64_t kWordStride = 64;

  /// @throws InvalidArgumentError unless 1 <= ranks <= 4096 and 1 <= slot_count <= 4096.
  HandshakeBoards(std::int64_t ranks, std::int64_t slot_count);

  [[nodiscard]] std::int64_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::int64_t slot_count() const noexcept { return slot_count_; }
  [[nodiscard]] std::int64_t bytes() const noexcept {
    return 2 * ranks_ * slot_count_ * ranks_ * kWordStride;
  }

  /// Offset of what `writer` writes on the board of `board` for a slot.
  /// @throws InvalidArgumentError for a rank or slot that does not exist.
  [[nodiscard]] std::int64_t credit_offset_bytes(std::int64_t board, std::int64_t slot,
                                                 std::int64_t writer) const;
  [[nodiscard]] std::int64_t done_offset_bytes(std::int64_t board, std::int64_t slot,
                                               std::int64_t writer) const;

  bool operator==(const HandshakeBoards&) const = default;

 private:
  [[nodiscard]] std::int64_t word(std::int64_t board, std::int64_t slot, std::int64_t writer,
                                  std::int64_t kind) const;

  std::int64_t ranks_;
  std::int64_t slot_count_;
};

enum class StepKind : std::uint8_t {
  kWrite,  ///< the tag into the word
  kWait,   ///< until the word has reached the tag
  kCopy,   ///< the own block of every span to the peer
};

struct HandshakeStep {
  StepKind kind;
  std::int64_t peer;
  std::int64_t word_offset_bytes;  ///< in the boards; 0 for a copy
  std::uint32_t tag;

  bool operator==(const HandshakeStep&) const = default;
};

/// What a rank does once gather `tag` of a slot may overwrite it: a credit for every peer.
[[nodiscard]] std::vector<HandshakeStep> credit_steps(const HandshakeBoards& boards,
                                                      std::int64_t rank, std::int64_t slot,
                                                      std::uint32_t tag);

/// What a rank does for gather `tag` of a slot, after its own block is packed: wait for every
/// peer's credit, copy to the peers from the next rank round, tell them, wait for them. Copies do
/// not depend on each other; a peer is told after its copy.
[[nodiscard]] std::vector<HandshakeStep> gather_steps(const HandshakeBoards& boards,
                                                      std::int64_t rank, std::int64_t slot,
                                                      std::uint32_t tag);

/// The same gather with words that are 0 or 1, so that a captured graph can be replayed: a rank
/// sets what it waited for back to 0 before it tells its peers that it has come further, and no
/// peer writes the word again before it was told. A gather that was left out cannot be seen.
[[nodiscard]] std::vector<HandshakeStep> replay_steps(const HandshakeBoards& boards,
                                                      std::int64_t rank, std::int64_t slot);

/// Peers that keep a rank from going on.
struct HandshakeReport {
  std::vector<std::int64_t> missing_ranks;  ///< not there yet
  std::vector<std::int64_t> skipped_ranks;  ///< beyond the tag: they left a gather out, or we did

  [[nodiscard]] bool is_complete() const noexcept {
    return missing_ranks.empty() && skipped_ranks.empty();
  }
  bool operator==(const HandshakeReport&) const = default;
};

/// One word that a rank waits for, as it was read.
struct ReadWord {
  std::int64_t peer;
  std::uint32_t value;
};

/// Judges what was read while waiting for `tag`. While all ranks gather alike, a word that they
/// wait for holds the tag or the one before.
[[nodiscard]] HandshakeReport judge(std::span<const ReadWord> words, std::uint32_t tag);

}  // namespace kvxfer
