// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/host_allgather.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "kvxfer/error.hpp"

namespace kvxfer {

namespace {

constexpr int kSpins = 200;
constexpr std::chrono::microseconds kPause{50};

std::atomic_ref<std::uint32_t> word_at(std::span<std::byte> boards, std::int64_t offset_bytes) {
  // The boards are raw shared memory; a word is four bytes at the start of its cache line.
  auto* word = reinterpret_cast<std::uint32_t*>(boards.data() + offset_bytes);
  return std::atomic_ref<std::uint32_t>(*word);
}

}  // namespace

HostAllgather::HostAllgather(const HandshakeBoards& boards, std::int64_t rank,
                             HostGroupMemory memory, std::uint32_t first_tag)
    : boards_(boards), rank_(rank), memory_(std::move(memory)) {
  detail::require(rank >= 0 && rank < boards.ranks(), "expected rank in [0, ", boards.ranks(),
                  "), got ", rank);
  detail::require(
      static_cast<std::int64_t>(memory_.boards.size()) >= boards.bytes() &&
          reinterpret_cast<std::uintptr_t>(memory_.boards.data()) % HandshakeBoards::kWordStride ==
              0,
      "expected ", boards.bytes(), " bytes of boards at a multiple of ",
      HandshakeBoards::kWordStride, ", got ", memory_.boards.size(), " bytes at ",
      static_cast<const void*>(memory_.boards.data()));
  const bool is_equal = std::all_of(memory_.windows.begin(), memory_.windows.end(), [&](auto w) {
    return w.size() == memory_.windows.front().size();
  });
  detail::require(static_cast<std::int64_t>(memory_.windows.size()) == boards.ranks() && is_equal,
                  "expected ", boards.ranks(), " windows of one size, got ", memory_.windows.size(),
                  is_equal ? "" : " of different sizes");
  slots_.assign(static_cast<std::size_t>(boards.slot_count()), {first_tag, true});
  for (std::int64_t slot = 0; slot < boards.slot_count(); ++slot) {
    for (HandshakeStep step : credit_steps(boards_, rank_, slot, first_tag)) {
      write(step);
      step.word_offset_bytes = boards_.done_offset_bytes(step.peer, slot, rank_);
      step.tag = first_tag - 1;
      write(step);
    }
  }
}

const HostAllgather::Slot& HostAllgather::checked(std::int64_t slot) const {
  detail::require(slot >= 0 && slot < boards_.slot_count(), "expected slot in [0, ",
                  boards_.slot_count(), "), got ", slot);
  return slots_[static_cast<std::size_t>(slot)];
}

std::uint32_t HostAllgather::next_tag(std::int64_t slot) const {
  return checked(slot).next_tag;
}

void HostAllgather::release(std::int64_t slot) {
  detail::require(!checked(slot).is_released, "expected slot ", slot,
                  " to be gathered before it is released, got a second release");
  Slot& mine = slots_[static_cast<std::size_t>(slot)];
  mine.is_released = true;
  for (const HandshakeStep& step : credit_steps(boards_, rank_, slot, mine.next_tag))
    write(step);
}

HandshakeReport HostAllgather::gather(std::int64_t slot, std::uint32_t tag,
                                      std::span<const BlockSpan> spans,
                                      std::chrono::milliseconds bound) {
  detail::require(!is_given_up_, "expected a group whose gathers all ended, got one that gave up");
  detail::require(checked(slot).is_released, "expected slot ", slot,
                  " to be released before its next gather");
  detail::require(checked(slot).next_tag == tag, "expected gather ", checked(slot).next_tag,
                  " of slot ", slot, ", got ", tag, ": one was left out or done twice");
  require_inside(spans);
  Slot& mine = slots_[static_cast<std::size_t>(slot)];
  const std::vector<HandshakeStep> steps = gather_steps(boards_, rank_, slot, tag);
  for (std::size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
    const StepKind kind = steps[begin].kind;
    while (end < steps.size() && steps[end].kind == kind)
      ++end;
    const auto alike = std::span(steps).subspan(begin, end - begin);
    switch (kind) {
      case StepKind::kWait:
        if (HandshakeReport report = wait(alike, bound); !report.is_complete()) {
          is_given_up_ = true;
          return report;
        }
        break;
      case StepKind::kCopy:
        for (const HandshakeStep& step : alike)
          copy(step.peer, spans);
        break;
      case StepKind::kWrite:
        for (const HandshakeStep& step : alike)
          write(step);
        break;
    }
  }
  mine = {tag + 1, false};
  return {};
}

void HostAllgather::require_inside(std::span<const BlockSpan> spans) const {
  const auto limit = static_cast<std::int64_t>(memory_.windows.front().size());
  for (const BlockSpan& span : spans) {
    const std::int64_t last = boards_.ranks() - 1;
    const bool is_inside =
        span.offset_bytes >= 0 && span.bytes >= 0 && span.bytes <= span.stride_bytes &&
        span.offset_bytes <= limit - span.bytes &&
        (last == 0 || span.stride_bytes <= (limit - span.bytes - span.offset_bytes) / last);
    detail::require(is_inside, "expected blocks inside a window of ", limit, " bytes, got ",
                    boards_.ranks(), " of ", span.bytes, " bytes at ", span.offset_bytes,
                    " with stride ", span.stride_bytes);
  }
}

void HostAllgather::write(const HandshakeStep& step) const {
  word_at(memory_.boards, step.word_offset_bytes).store(step.tag, std::memory_order_release);
}

HandshakeReport HostAllgather::wait(std::span<const HandshakeStep> steps,
                                    std::chrono::milliseconds bound) const {
  const auto deadline = std::chrono::steady_clock::now() + bound;
  std::vector<ReadWord> words(steps.size());
  for (std::int64_t turn = 0;; ++turn) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      words[i] = {
          steps[i].peer,
          word_at(memory_.boards, steps[i].word_offset_bytes).load(std::memory_order_acquire)};
    }
    HandshakeReport report = judge(words, steps.front().tag);
    const bool is_late = std::chrono::steady_clock::now() >= deadline;
    if (report.missing_ranks.empty() || !report.skipped_ranks.empty() || is_late) return report;
    if (turn < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

void HostAllgather::copy(std::int64_t peer, std::span<const BlockSpan> spans) const {
  for (const BlockSpan& span : spans) {
    const auto offset = static_cast<std::size_t>(span.offset_bytes + rank_ * span.stride_bytes);
    std::memcpy(memory_.windows[static_cast<std::size_t>(peer)].data() + offset,
                memory_.windows[static_cast<std::size_t>(rank_)].data() + offset,
                static_cast<std::size_t>(span.bytes));
  }
}

}  // namespace kvxfer
