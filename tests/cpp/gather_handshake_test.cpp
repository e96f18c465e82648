// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/gather_handshake.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "kvxfer/error.hpp"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HasReached, IsCyclic) {
  EXPECT_TRUE(has_reached(7, 7));
  EXPECT_TRUE(has_reached(8, 7));
  EXPECT_FALSE(has_reached(6, 7));
  EXPECT_TRUE(has_reached(0, 0xffffffffU));
  EXPECT_FALSE(has_reached(0xffffffffU, 0));
  EXPECT_TRUE(has_reached(3, 0xfffffffeU));
}

TEST(HandshakeBoards, GivesEveryWordACacheLineOfItsOwn) {
  const HandshakeBoards boards(3, 2);
  std::set<std::int64_t> offsets;
  for (std::int64_t board = 0; board < 3; ++board) {
    for (std::int64_t slot = 0; slot < 2; ++slot) {
      for (std::int64_t writer = 0; writer < 3; ++writer) {
        offsets.insert(boards.credit_offset_bytes(board, slot, writer));
        offsets.insert(boards.done_offset_bytes(board, slot, writer));
      }
    }
  }
  EXPECT_EQ(offsets.size(), 36U);
  EXPECT_EQ(*offsets.begin(), 0);
  EXPECT_EQ(*offsets.rbegin(), boards.bytes() - 64);
  for (const std::int64_t offset : offsets)
    EXPECT_EQ(offset % 64, 0);
}

TEST(HandshakeBoards, RefusesWhatDoesNotExist) {
  EXPECT_THROW(HandshakeBoards(0, 2), InvalidArgumentError);
  EXPECT_THROW(HandshakeBoards(2, 0), InvalidArgumentError);
  const HandshakeBoards boards(3, 2);
  EXPECT_THROW((void)boards.done_offset_bytes(3, 0, 0), InvalidArgumentError);
  EXPECT_THROW((void)boards.done_offset_bytes(0, 2, 0), InvalidArgumentError);
  EXPECT_THROW((void)boards.credit_offset_bytes(0, 0, -1), InvalidArgumentError);
  EXPECT_THROW((void)gather_steps(boards, 3, 0, 1), InvalidArgumentError);
}

TEST(GatherSteps, GoRoundFromTheNextRank) {
  const HandshakeBoards boards(3, 2);
  const auto steps = gather_steps(boards, 1, 0, 5);
  ASSERT_EQ(steps.size(), 8U);
  std::vector<std::int64_t> peers;
  std::vector<StepKind> kinds;
  for (const HandshakeStep& step : steps) {
    peers.push_back(step.peer);
    kinds.push_back(step.kind);
    EXPECT_EQ(step.tag, 5U);
  }
  EXPECT_THAT(peers, ElementsAre(2, 0, 2, 0, 2, 0, 2, 0));
  using K = StepKind;
  EXPECT_THAT(kinds, ElementsAre(K::kWait, K::kWait, K::kCopy, K::kCopy, K::kWrite, K::kWrite,
                                 K::kWait, K::kWait));
  EXPECT_EQ(steps[0].word_offset_bytes, boards.credit_offset_bytes(1, 0, 2));
  EXPECT_EQ(steps[4].word_offset_bytes, boards.done_offset_bytes(2, 0, 1));
  EXPECT_EQ(steps[7].word_offset_bytes, boards.done_offset_bytes(1, 0, 0));
}

TEST(GatherSteps, OfOneRankAreNone) {
  EXPECT_THAT(gather_steps(HandshakeBoards(1, 2), 0, 1, 1), IsEmpty());
  EXPECT_THAT(credit_steps(HandshakeBoards(1, 2), 0, 1, 1), IsEmpty());
}

TEST(ReplaySteps, SetBackWhatTheyWaitedFor) {
  const HandshakeBoards boards(3, 2);
  const auto steps = replay_steps(boards, 1, 0);
  using K = StepKind;
  std::vector<StepKind> kinds;
  std::vector<std::uint32_t> tags;
  for (const HandshakeStep& step : steps) {
    kinds.push_back(step.kind);
    tags.push_back(step.tag);
  }
  EXPECT_THAT(kinds, ElementsAre(K::kWait, K::kWait, K::kWrite, K::kWrite, K::kCopy, K::kCopy,
                                 K::kWrite, K::kWrite, K::kWait, K::kWait, K::kWrite, K::kWrite));
  EXPECT_THAT(tags, ElementsAre(1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0));
  // The words of the own board, in the order of the waits.
  for (const std::size_t i : {0U, 1U, 8U, 9U}) {
    EXPECT_EQ(steps[i + 2].word_offset_bytes, steps[i].word_offset_bytes);
  }
  EXPECT_EQ(steps[6].word_offset_bytes, boards.done_offset_bytes(2, 0, 1));
  EXPECT_THAT(replay_steps(HandshakeBoards(1, 2), 0, 1), IsEmpty());
}

TEST(Judge, TellsMissingFromSkipped) {
  const std::vector<ReadWord> words{{0, 6}, {2, 7}, {3, 8}, {4, 4}};
  const HandshakeReport report = judge(words, 7);
  EXPECT_THAT(report.missing_ranks, ElementsAre(0));
  EXPECT_THAT(report.skipped_ranks, ElementsAre(3, 4));
  EXPECT_FALSE(report.is_complete());
  EXPECT_TRUE(judge(std::vector<ReadWord>{{0, 0}}, 0).is_complete());
  EXPECT_THAT(judge(std::vector<ReadWord>{{5, 0xffffffffU}}, 0).missing_ranks, ElementsAre(5));
}

// Ranks that carry out the steps in a random order of their own. What a rank writes to a peer
// arrives later, in the order of the sender; nothing else is promised.
class Model {
 public:
  Model(std::uint64_t seed, std::int64_t ranks, std::uint32_t first_tag)
      : boards_(ranks, 2), engine_(seed), ranks_(ranks), first_tag_(first_tag) {
    members_.resize(static_cast<std::size_t>(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (std::int64_t slot = 0; slot < 2; ++slot) {
        member(rank).is_reading[slot] = false;
        for (std::int64_t q = 0; q < ranks; ++q) {
          words_[boards_.credit_offset_bytes(rank, slot, q)] = first_tag;
          words_[boards_.done_offset_bytes(rank, slot, q)] = first_tag - 1;
        }
      }
    }
  }

  void drop(StepKind kind, bool is_credit) {
    drops_ = true;
    dropped_kind_ = kind;
    drops_credit_ = is_credit;
  }
  void stop(std::int64_t rank, std::int64_t after_layers) {
    member(rank).layer_limit = after_layers;
  }

  /// Layers 0..layer_count-1 in alternating slots; whether all ranks came to the end.
  bool run(std::int64_t layer_count) {
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      Member& mine = member(rank);
      mine.layer_count = std::min(layer_count, mine.layer_limit);
      begin_gather(rank);
    }
    std::int64_t idle_count = 0;
    while (idle_count < 2000 && fault_.empty()) {
      idle_count = turn() ? 0 : idle_count + 1;
    }
    return std::all_of(members_.begin(), members_.end(),
                       [&](const Member& each) { return each.read_count == layer_count; });
  }

  [[nodiscard]] const std::string& fault() const { return fault_; }
  /// Peers that keep a rank waiting.
  [[nodiscard]] HandshakeReport report_of(std::int64_t rank) {
    std::vector<ReadWord> words;
    std::uint32_t tag = 0;
    for (const HandshakeStep& step : member(rank).steps) {
      if (step.kind != StepKind::kWait) break;
      words.push_back({step.peer, words_[step.word_offset_bytes]});
      tag = step.tag;
    }
    return judge(words, tag);
  }

 private:
  struct Delivery {
    std::int64_t from, slot, word_offset_bytes;  // word_offset_bytes < 0: a block
    std::uint32_t tag;
  };
  struct Member {
    std::deque<HandshakeStep> steps;
    std::int64_t gathered_count = 0, read_count = 0, layer_count = 0;
    std::int64_t layer_limit = 1 << 30;
    bool is_gathering = false, has_begun_to_read = false;
    std::map<std::int64_t, bool> is_reading;
    std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> blocks;  // (slot, owner) -> tag
    std::map<std::int64_t, std::deque<Delivery>> inbox;                     // by sender
  };

  Member& member(std::int64_t rank) { return members_[static_cast<std::size_t>(rank)]; }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(end));
  }
  [[nodiscard]] std::uint32_t tag_of(std::int64_t layer) const {
    return first_tag_ + static_cast<std::uint32_t>(layer / 2);
  }

  void begin_gather(std::int64_t rank) {
    Member& mine = member(rank);
    if (mine.gathered_count >= mine.layer_count) return;
    mine.is_gathering = true;
    const std::int64_t slot = mine.gathered_count % 2;
    const std::uint32_t tag = tag_of(mine.gathered_count);
    mine.blocks[{slot, rank}] = tag;
    for (const HandshakeStep& step : gather_steps(boards_, rank, slot, tag)) {
      const bool is_credit =
          step.word_offset_bytes == boards_.credit_offset_bytes(rank, slot, step.peer);
      if (drops_ && step.kind == dropped_kind_ && is_credit == drops_credit_) continue;
      mine.steps.push_back(step);
    }
  }

  /// One thing that somebody can do; false if the one that was drawn cannot.
  bool turn() {
    const std::int64_t rank = below(ranks_);
    switch (below(3)) {
      case 0:
        return deliver(rank, below(ranks_));
      case 1:
        return advance_gather(rank);
      default:
        return advance_reader(rank);
    }
  }

  bool deliver(std::int64_t rank, std::int64_t from) {
    auto& queue = member(rank).inbox[from];
    if (queue.empty()) return false;
    const Delivery delivery = queue.front();
    queue.pop_front();
    if (delivery.word_offset_bytes >= 0) {
      words_[delivery.word_offset_bytes] = delivery.tag;
      return true;
    }
    if (member(rank).is_reading[delivery.slot]) fault_ = "a slot was written while it was read";
    member(rank).blocks[{delivery.slot, from}] = delivery.tag;
    return true;
  }

  bool advance_gather(std::int64_t rank) {
    Member& mine = member(rank);
    if (!mine.is_gathering) return false;
    const std::int64_t slot = mine.gathered_count % 2;
    if (mine.steps.empty()) {
      mine.is_gathering = false;
      ++mine.gathered_count;
      mine.is_reading[slot] = true;
      return true;
    }
    const HandshakeStep step = mine.steps.front();
    if (step.kind == StepKind::kWait && !has_reached(words_[step.word_offset_bytes], step.tag)) {
      return false;
    }
    mine.steps.pop_front();
    if (step.kind == StepKind::kCopy) {
      member(step.peer).inbox[rank].push_back({rank, slot, -1, step.tag});
    } else if (step.kind == StepKind::kWrite) {
      member(step.peer).inbox[rank].push_back({rank, slot, step.word_offset_bytes, step.tag});
    }
    return true;
  }

  bool advance_reader(std::int64_t rank) {
    Member& mine = member(rank);
    if (mine.gathered_count == mine.read_count) return false;
    const std::int64_t layer = mine.read_count;
    // The gather of the next layer begins with the read of this one.
    if (!mine.has_begun_to_read) begin_gather(rank);
    mine.has_begun_to_read = true;
    for (std::int64_t owner = 0; owner < ranks_; ++owner) {
      if (mine.blocks[{layer % 2, owner}] != tag_of(layer)) fault_ = "a block was read too early";
    }
    if (below(20) != 0) return true;  // still reading
    ++mine.read_count;
    mine.has_begun_to_read = false;
    mine.is_reading[layer % 2] = false;
    for (const HandshakeStep& step : credit_steps(boards_, rank, layer % 2, tag_of(layer + 2))) {
      member(step.peer).inbox[rank].push_back({rank, layer % 2, step.word_offset_bytes, step.tag});
    }
    return true;
  }

  HandshakeBoards boards_;
  std::mt19937_64 engine_;
  std::int64_t ranks_;
  std::uint32_t first_tag_;
  std::vector<Member> members_;
  std::map<std::int64_t, std::uint32_t> words_;
  std::string fault_;
  bool drops_ = false;
  StepKind dropped_kind_ = StepKind::kCopy;
  bool drops_credit_ = false;
};

TEST(HandshakeModel, KeepsItsPromisesInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto ranks = static_cast<std::int64_t>(1 + seed % 8);
    Model model(seed, ranks, 1);
    EXPECT_TRUE(model.run(20)) << "seed " << seed;
    EXPECT_EQ(model.fault(), "") << "seed " << seed;
  }
}

TEST(HandshakeModel, GoesOnWhenTheTagWraps) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Model model(seed, 3, 0xfffffffcU);
    EXPECT_TRUE(model.run(20)) << "seed " << seed;
    EXPECT_EQ(model.fault(), "") << "seed " << seed;
  }
}

TEST(HandshakeModel, NeedsEveryWait) {
  for (const bool is_credit : {true, false}) {
    std::int64_t fault_count = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      Model model(seed, 4, 1);
      model.drop(StepKind::kWait, is_credit);
      (void)model.run(20);
      fault_count += model.fault().empty() ? 0 : 1;
    }
    EXPECT_GT(fault_count, 30) << (is_credit ? "credits" : "ends");
  }
}

TEST(HandshakeModel, TellsWhichRankStopped) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Model model(seed, 4, 1);
    model.stop(2, 7);
    EXPECT_FALSE(model.run(20));
    EXPECT_EQ(model.fault(), "");
    for (const std::int64_t rank : {0, 1, 3}) {
      EXPECT_THAT(model.report_of(rank).missing_ranks, ElementsAre(2)) << "seed " << seed;
      EXPECT_THAT(model.report_of(rank).skipped_ranks, IsEmpty());
    }
  }
}

}  // namespace
}  // namespace kvxfer
