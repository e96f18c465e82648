// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/error.hpp>
#include <kvxfer/sharding.hpp>

#include <algorithm>

namespace kvxfer {

namespace {

/// Tokens of `sharding`'s rank in [0, end).
std::int64_t local_count_before(const Sharding& sharding, std::int64_t end) {
  const std::int64_t interleave = sharding.interleave();
  const std::int64_t full = end / sharding.period_tokens();
  const std::int64_t rest = end % sharding.period_tokens();
  const std::int64_t partial = rest - sharding.rank() * interleave;
  return full * interleave + std::clamp<std::int64_t>(partial, 0, interleave);
}

void require_position(std::int64_t position) {
  detail::require(position >= 0, "expected a position >= 0, got ", position);
}

}  // namespace

Sharding::Sharding(std::int64_t ranks, std::int64_t rank, std::int64_t interleave)
    : ranks_(ranks), rank_(rank), interleave_(ranks == 1 ? 1 : interleave) {
  detail::require(ranks >= 1, "expected ranks >= 1, got ", ranks);
  detail::require(rank >= 0 && rank < ranks, "expected rank in [0, ", ranks, "), got ", rank);
  detail::require(interleave >= 1, "expected interleave >= 1 tokens, got ", interleave);
  detail::require(interleave_ <= kMaxTokens / ranks_, "expected ranks * interleave <= ", kMaxTokens,
                  " tokens, got ", ranks, " * ", interleave);
}

std::int64_t Sharding::owner(std::int64_t position) const {
  require_position(position);
  return position / interleave_ % ranks_;
}

std::int64_t Sharding::local_index(std::int64_t position) const {
  require_position(position);
  return position / period_tokens() * interleave_ + position % interleave_;
}

std::int64_t Sharding::position(std::int64_t local_index) const {
  const std::int64_t period = local_index / interleave_;
  const std::int64_t in_period = rank_ * interleave_ + local_index % interleave_;
  detail::require(local_index >= 0 && period <= (kMaxTokens - in_period) / period_tokens(),
                  "expected a local index >= 0 whose position is within ", kMaxTokens,
                  " tokens, got ", local_index);
  return period * period_tokens() + in_period;
}

std::int64_t Sharding::local_count(std::int64_t begin, std::int64_t end) const {
  detail::require(0 <= begin && begin <= end, "expected 0 <= begin <= end, got [", begin, ", ", end,
                  ")");
  return local_count_before(*this, end) - local_count_before(*this, begin);
}

HeadSharding::HeadSharding(std::int64_t total_heads, std::int64_t ranks, std::int64_t rank)
    : total_heads_(total_heads), ranks_(ranks), rank_(rank) {
  detail::require(total_heads >= 1, "expected total_heads >= 1, got ", total_heads);
  detail::require(ranks >= 1, "expected ranks >= 1, got ", ranks);
  detail::require(rank >= 0 && rank < ranks, "expected rank in [0, ", ranks, "), got ", rank);
  detail::require(total_heads % ranks == 0 || ranks % total_heads == 0,
                  "expected total_heads and ranks of which one divides the other, got ",
                  total_heads, " heads over ", ranks, " ranks");
}

std::int64_t HeadSharding::head_count() const noexcept {
  return std::max<std::int64_t>(1, total_heads_ / ranks_);
}

std::int64_t HeadSharding::replica_count() const noexcept {
  return std::max<std::int64_t>(1, ranks_ / total_heads_);
}

std::int64_t HeadSharding::first_head() const noexcept {
  return rank_ / replica_count() * head_count();
}

std::int64_t HeadSharding::replica() const noexcept {
  return rank_ % replica_count();
}

std::optional<HeadSlice> shared_heads(const HeadSharding& source, const HeadSharding& destination) {
  detail::require(source.total_heads() == destination.total_heads(),
                  "expected the same total_heads on both sides, got source ", source.total_heads(),
                  " and destination ", destination.total_heads());
  if (destination.replica() % source.replica_count() != source.replica()) return std::nullopt;
  const std::int64_t first = std::max(source.first_head(), destination.first_head());
  const std::int64_t last = std::min(source.first_head() + source.head_count(),
                                     destination.first_head() + destination.head_count());
  if (first >= last) return std::nullopt;
  return HeadSlice{first - source.first_head(), first - destination.first_head(), last - first};
}

}  // namespace kvxfer
