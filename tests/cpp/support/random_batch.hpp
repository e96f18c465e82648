// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Seeded random batches of a page-sharded pool: requests whose pages go round the ranks, some of
// which continue the prefix of another. The same seed gives the same batch on every platform.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "kvxfer/gather_plan.hpp"

namespace kvxfer::support {

struct RandomBatch {
  GatherShape shape;
  std::vector<std::vector<std::int64_t>> prefix_pages;
  std::vector<std::int64_t> chunk_pages;
};

class BatchMaker {
 public:
  explicit BatchMaker(std::uint64_t seed) : engine_(seed) {}

  RandomBatch make() {
    const std::int64_t ranks = between(1, 8);
    const std::int64_t local_pages = between(12, 40);
    free_.assign(static_cast<std::size_t>(ranks), {});
    for (std::int64_t page = ranks; page < ranks * local_pages; ++page) {
      free_[static_cast<std::size_t>(page % ranks)].push_back(page);
    }
    for (auto& pages : free_)
      shuffle(pages);
    RandomBatch batch;
    std::int64_t block_pages = 0;
    for (std::int64_t left = between(0, 4); left > 0; --left) {
      batch.prefix_pages.push_back(request(ranks, batch.prefix_pages));
      const auto page_count = static_cast<std::int64_t>(batch.prefix_pages.back().size());
      block_pages += (page_count + ranks - 1) / ranks;
    }
    batch.chunk_pages = chain(ranks, between(0, 3 * ranks));
    batch.shape = {ranks, between(1, 4) * 4, ranks * local_pages,
                   ranks * (block_pages + between(0, 3)),
                   static_cast<std::int64_t>(batch.chunk_pages.size()) + between(0, 2)};
    return batch;
  }

  /// Whole number in [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::vector<std::int64_t> request(std::int64_t ranks,
                                    const std::vector<std::vector<std::int64_t>>& earlier) {
    std::vector<std::int64_t> pages;
    if (!earlier.empty() && between(0, 1) == 1) {
      pages = earlier[static_cast<std::size_t>(
          between(0, static_cast<std::int64_t>(earlier.size()) - 1))];
      pages.resize(static_cast<std::size_t>(between(0, static_cast<std::int64_t>(pages.size()))));
    }
    const std::int64_t owner = pages.empty() ? between(0, ranks - 1) : (pages.back() + 1) % ranks;
    for (const std::int64_t page : chain(ranks, between(0, 2 * ranks), owner)) {
      pages.push_back(page);
    }
    return pages;
  }

  /// Free pages whose owners go round from `owner` on, until one owner has none left.
  std::vector<std::int64_t> chain(std::int64_t ranks, std::int64_t count, std::int64_t owner = 0) {
    std::vector<std::int64_t> pages;
    for (std::int64_t k = 0; k < count; ++k) {
      auto& own = free_[static_cast<std::size_t>((owner + k) % ranks)];
      if (own.empty()) break;
      pages.push_back(own.back());
      own.pop_back();
    }
    return pages;
  }

  void shuffle(std::vector<std::int64_t>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(engine_() % i)]);
    }
  }

  std::mt19937_64 engine_;
  std::vector<std::vector<std::int64_t>> free_;  // of each owner
};

}  // namespace kvxfer::support
