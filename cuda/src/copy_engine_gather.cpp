// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/copy_engine_gather.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "kvxfer/cuda/rank_group.hpp"

namespace kvxfer::cuda {

namespace {

constexpr std::chrono::microseconds kPause{50};

void store(std::uint32_t* word, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_release);
}

std::uint32_t load(std::uint32_t* word) {
  return std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire);
}

bool waits_until(const std::function<bool()>& is_ready, std::chrono::milliseconds bound,
                 const std::function<void()>& between) {
  const auto deadline = std::chrono::steady_clock::now() + bound;
  while (!is_ready()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    between();
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

std::string named(const std::vector<std::int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

CopyEngineGather::CopyEngineGather(const HandshakeBoards& boards, std::int64_t rank,
                                   PeerMemory memory, StreamCalls calls, const TagOptions& tags)
    : boards_(boards),
      rank_(rank),
      memory_(std::move(memory)),
      calls_(std::move(calls)),
      has_constant_tags_(tags.kind == GatherTags::kConstant),
      slots_(static_cast<std::size_t>(boards.slot_count()), Slot{tags.first, true}) {
  detail::require(!has_constant_tags_ || tags.first == 1, "expected constant tags to be 1, got ",
                  tags.first);
  detail::require(calls_.copy && calls_.operate && calls_.is_capturing,
                  "expected all stream calls of a gather, got an empty one");
  detail::require(rank >= 0 && rank < boards.ranks(), "expected rank in [0, ", boards.ranks(),
                  "), got ", rank);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.boards.data());
  detail::require(static_cast<std::int64_t>(memory_.boards.size()) >= boards.bytes() &&
                      address % HandshakeBoards::kWordStride == 0,
                  "expected ", boards.bytes(), " bytes of boards at a multiple of ",
                  HandshakeBoards::kWordStride, ", got ", memory_.boards.size(), " bytes at ",
                  static_cast<const void*>(memory_.boards.data()));
  const auto& windows = memory_.windows;
  const bool is_mapped = std::none_of(windows.begin(), windows.end(),
                                      [](const std::byte* window) { return window == nullptr; });
  detail::require(static_cast<std::int64_t>(windows.size()) == boards.ranks() && is_mapped,
                  "expected the windows of ", boards.ranks(), " ranks, got ", windows.size(),
                  is_mapped ? "" : " of which some cannot be reached");
  for (std::int64_t slot = 0; slot < boards.slot_count(); ++slot) {
    for (const HandshakeStep& step : credit_steps(boards_, rank_, slot, tags.first)) {
      store(word_at(step.word_offset_bytes), step.tag);
      store(word_at(boards_.done_offset_bytes(step.peer, slot, rank_)), step.tag - 1);
    }
  }
}

std::uint32_t* CopyEngineGather::word_at(std::int64_t offset_bytes) const {
  // The boards are raw shared memory; a word is four bytes at the start of its cache line.
  return reinterpret_cast<std::uint32_t*>(memory_.boards.data() + offset_bytes);
}

const CopyEngineGather::Slot& CopyEngineGather::checked(std::int64_t slot) const {
  detail::require(slot >= 0 && slot < boards_.slot_count(), "expected slot in [0, ",
                  boards_.slot_count(), "), got ", slot);
  return slots_[static_cast<std::size_t>(slot)];
}

std::uint32_t CopyEngineGather::next_tag(std::int64_t slot) const {
  return checked(slot).next_tag;
}

void CopyEngineGather::release(std::int64_t slot, CudaStream stream) {
  detail::require(!checked(slot).is_released, "expected slot ", slot,
                  " to be gathered before it is released, got a second release");
  Slot& mine = slots_[static_cast<std::size_t>(slot)];
  enqueue(credit_steps(boards_, rank_, slot, mine.next_tag), {}, stream);
  mine.is_released = true;
}

void CopyEngineGather::gather(std::int64_t slot, std::uint32_t tag,
                              std::span<const BlockSpan> spans, CudaStream stream) {
  const Slot& mine = checked(slot);
  detail::require(!is_given_up_, "expected a group whose gathers all ended, got one that gave up");
  detail::require(mine.is_released, "expected slot ", slot,
                  " to be released before its next gather");
  detail::require(mine.next_tag == tag, "expected gather ", mine.next_tag, " of slot ", slot,
                  ", got ", tag, ": one was left out or done twice");
  require_inside(spans);
  detail::require(stream != nullptr, "expected a stream of its own for a gather, got the default");
  detail::require(has_constant_tags_ || !calls_.is_capturing(stream),
                  "expected constant tags on a stream that captures a graph, got growing ones");
  enqueue(has_constant_tags_ ? replay_steps(boards_, rank_, slot)
                             : gather_steps(boards_, rank_, slot, tag),
          spans, stream);
  slots_[static_cast<std::size_t>(slot)] = {has_constant_tags_ ? tag : tag + 1, false};
}

void CopyEngineGather::require_inside(std::span<const BlockSpan> spans) const {
  const std::int64_t limit = memory_.window_bytes;
  const std::int64_t last = boards_.ranks() - 1;
  for (const BlockSpan& span : spans) {
    const bool is_inside =
        span.offset_bytes >= 0 && span.bytes >= 0 && span.bytes <= span.stride_bytes &&
        span.offset_bytes <= limit - span.bytes &&
        (last == 0 || span.stride_bytes <= (limit - span.bytes - span.offset_bytes) / last);
    detail::require(is_inside, "expected blocks inside a window of ", limit, " bytes, got ",
                    boards_.ranks(), " of ", span.bytes, " bytes at ", span.offset_bytes,
                    " with stride ", span.stride_bytes);
  }
}

void CopyEngineGather::append_copies(std::int64_t peer, std::span<const BlockSpan> spans,
                                     std::vector<PeerCopy>& copies) const {
  std::byte* destination = memory_.windows[static_cast<std::size_t>(peer)];
  const std::byte* source = memory_.windows[static_cast<std::size_t>(rank_)];
  for (const BlockSpan& span : spans) {
    const std::int64_t begin = span.offset_bytes + rank_ * span.stride_bytes;
    for (std::int64_t done = 0; done < span.bytes; done += kMostCopyBytes) {
      copies.push_back({destination + begin + done, source + begin + done,
                        std::min(kMostCopyBytes, span.bytes - done)});
    }
  }
}

void CopyEngineGather::enqueue(std::span<const HandshakeStep> steps,
                               std::span<const BlockSpan> spans, CudaStream stream) const {
  std::vector<WordOperation> operations;
  std::vector<PeerCopy> copies;
  const auto flush_copies = [&] {
    if (!copies.empty()) calls_.copy(copies, stream);
    copies.clear();
  };
  const auto flush_operations = [&] {
    if (!operations.empty()) calls_.operate(operations, stream);
    operations.clear();
  };
  for (const HandshakeStep& step : steps) {
    if (step.kind == StepKind::kCopy) {
      flush_operations();
      append_copies(step.peer, spans, copies);
      continue;
    }
    flush_copies();
    operations.push_back({step.kind == StepKind::kWait, word_at(step.word_offset_bytes), step.tag});
    if (operations.size() == kMostOperations) flush_operations();
  }
  flush_operations();
}

std::uint32_t CopyEngineGather::awaited_tag(std::int64_t slot) const {
  return has_constant_tags_ ? 1 : next_tag(slot) - 1;
}

HandshakeReport CopyEngineGather::stuck_at(std::int64_t slot) const {
  std::vector<ReadWord> credits;
  std::vector<ReadWord> ends;
  for (std::int64_t peer = 0; peer < boards_.ranks(); ++peer) {
    if (peer == rank_) continue;
    credits.push_back({peer, load(word_at(boards_.credit_offset_bytes(rank_, slot, peer)))});
    ends.push_back({peer, load(word_at(boards_.done_offset_bytes(rank_, slot, peer)))});
    // A credit that was used is 0 again, so a peer has come if either word says so.
    if (has_constant_tags_ && ends.back().value == 1) credits.back().value = 1;
  }
  HandshakeReport report = judge(credits, awaited_tag(slot));
  return has_constant_tags_ || !report.is_complete() ? report : judge(ends, awaited_tag(slot));
}

void CopyEngineGather::let_go() const {
  for (std::int64_t slot = 0; slot < boards_.slot_count(); ++slot) {
    const std::uint32_t tag = awaited_tag(slot);
    for (std::int64_t peer = 0; peer < boards_.ranks(); ++peer) {
      if (peer == rank_) continue;
      store(word_at(boards_.credit_offset_bytes(rank_, slot, peer)), tag);
      store(word_at(boards_.done_offset_bytes(rank_, slot, peer)), tag);
    }
  }
}

void CopyEngineGather::wait(std::int64_t slot, const std::function<bool()>& is_ready,
                            std::chrono::milliseconds bound) {
  static_cast<void>(checked(slot));
  if (waits_until(is_ready, bound, [] {})) return;
  const HandshakeReport report = stuck_at(slot);
  is_given_up_ = true;
  // Again and again, because a stream may hold several gathers and set words back between them.
  static_cast<void>(waits_until(is_ready, bound, [this] { let_go(); }));
  const std::string where = detail::message("the last gather of slot ", slot);
  if (!report.skipped_ranks.empty()) {
    throw GroupError(detail::message("expected ", named(report.skipped_ranks), " to be at ", where,
                                     ", got another: one was left out"),
                     report.skipped_ranks);
  }
  const std::string who =
      report.missing_ranks.empty() ? std::string("the stream") : named(report.missing_ranks);
  throw DeadlineError(
      detail::message("expected ", who, " at ", where, " within ", bound.count(), " ms"),
      report.missing_ranks);
}

}  // namespace kvxfer::cuda
