// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_handshake.hpp"

#include "kvxfer/error.hpp"

namespace kvxfer {

namespace {

constexpr std::int64_t kMost = 4096;
constexpr std::int64_t kCredit = 0;
constexpr std::int64_t kDone = 1;

void require_below(std::int64_t value, std::int64_t end, const char* name) {
  detail::require(value >= 0 && value < end, "expected ", name, " in [0, ", end, "), got ", value);
}

/// Peers of a rank, from the next one round, so that no two ranks begin with the same.
template <class Action>
void for_each_peer(std::int64_t rank, std::int64_t ranks, Action action) {
  for (std::int64_t step = 1; step < ranks; ++step)
    action((rank + step) % ranks);
}

}  // namespace

HandshakeBoards::HandshakeBoards(std::int64_t ranks, std::int64_t slot_count)
    : ranks_(ranks), slot_count_(slot_count) {
  detail::require(ranks >= 1 && ranks <= kMost, "expected ranks in [1, ", kMost, "], got ", ranks);
  detail::require(slot_count >= 1 && slot_count <= kMost, "expected slot_count in [1, ", kMost,
                  "], got ", slot_count);
}

std::int64_t HandshakeBoards::word(std::int64_t board, std::int64_t slot, std::int64_t writer,
                                   std::int64_t kind) const {
  require_below(board, ranks_, "board");
  require_below(slot, slot_count_, "slot");
  require_below(writer, ranks_, "writer");
  return (((board * slot_count_ + slot) * 2 + kind) * ranks_ + writer) * kWordStride;
}

std::int64_t HandshakeBoards::credit_offset_bytes(std::int64_t board, std::int64_t slot,
                                                  std::int64_t writer) const {
  return word(board, slot, writer, kCredit);
}

std::int64_t HandshakeBoards::done_offset_bytes(std::int64_t board, std::int64_t slot,
                                                std::int64_t writer) const {
  return word(board, slot, writer, kDone);
}

std::vector<HandshakeStep> credit_steps(const HandshakeBoards& boards, std::int64_t rank,
                                        std::int64_t slot, std::uint32_t tag) {
  require_below(rank, boards.ranks(), "rank");
  std::vector<HandshakeStep> steps;
  for_each_peer(rank, boards.ranks(), [&](std::int64_t peer) {
    steps.push_back({StepKind::kWrite, peer, boards.credit_offset_bytes(peer, slot, rank), tag});
  });
  return steps;
}

std::vector<HandshakeStep> gather_steps(const HandshakeBoards& boards, std::int64_t rank,
                                        std::int64_t slot, std::uint32_t tag) {
  require_below(rank, boards.ranks(), "rank");
  std::vector<HandshakeStep> steps;
  const auto add = [&](StepKind kind, auto offset_of) {
    for_each_peer(rank, boards.ranks(),
                  [&](std::int64_t peer) { steps.push_back({kind, peer, offset_of(peer), tag}); });
  };
  add(StepKind::kWait,
      [&](std::int64_t peer) { return boards.credit_offset_bytes(rank, slot, peer); });
  add(StepKind::kCopy, [](std::int64_t) { return std::int64_t{0}; });
  add(StepKind::kWrite,
      [&](std::int64_t peer) { return boards.done_offset_bytes(peer, slot, rank); });
  add(StepKind::kWait,
      [&](std::int64_t peer) { return boards.done_offset_bytes(rank, slot, peer); });
  return steps;
}

std::vector<HandshakeStep> replay_steps(const HandshakeBoards& boards, std::int64_t rank,
                                        std::int64_t slot) {
  std::vector<HandshakeStep> steps;
  std::vector<HandshakeStep> waited;
  for (const HandshakeStep& step : gather_steps(boards, rank, slot, 1)) {
    if (step.kind == StepKind::kCopy) {
      steps.insert(steps.end(), waited.begin(), waited.end());
      waited.clear();
    }
    steps.push_back(step);
    if (step.kind == StepKind::kWait) {
      waited.push_back({StepKind::kWrite, step.peer, step.word_offset_bytes, 0});
    }
  }
  steps.insert(steps.end(), waited.begin(), waited.end());
  return steps;
}

HandshakeReport judge(std::span<const ReadWord> words, std::uint32_t tag) {
  HandshakeReport report;
  for (const ReadWord& word : words) {
    if (word.value == tag) continue;
    auto& ranks = word.value == tag - 1 ? report.missing_ranks : report.skipped_ranks;
    ranks.push_back(word.peer);
  }
  return report;
}

}  // namespace kvxfer
