#include "planner/layout/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Goal: every set has a name that gives it back. Method: all of them.
TEST(RecomputeTest, NamesAreReadAsTheyAreWritten) {
  for (int bits = 0; bits <= static_cast<int>(Recompute::kFull); ++bits) {
    const auto set = static_cast<Recompute>(bits);
    if (Has(set, Recompute::kOutput) && !Has(set, Recompute::kNorm)) continue;
    const auto read = ParseRecompute(RecomputeName(set));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, set);
  }
  EXPECT_EQ(RecomputeName(Recompute::kCheap), "norm+activation");
  EXPECT_EQ(ParseRecompute("activation + norm").value(), Recompute::kCheap);
  EXPECT_EQ(ParseRecompute("selective").value(), Recompute::kCheap);
}

// Goal: what is no op is refused with those there are, and so is output without
// the norm that makes the stream anew. Method: slips of each sort.
TEST(RecomputeTest, RefusesWhatIsNoSet) {
  for (const char* wrong : {"norms", "norm+", "", "norm,qkv+x", "none+norm"}) {
    EXPECT_THAT(CheckRecomputeKey(wrong).message(),
                AllOf(HasSubstr("nothing that can be computed again"),
                      HasSubstr("norm, activation, qkv, gate_up, output, "
                                "attention, dispatch")))
        << wrong;
  }
  EXPECT_THAT(CheckRecomputeKey("none, output+qkv").message(),
              HasSubstr("write norm+output+qkv"));
  for (const char* right :
       {"auto", "selective", "full", "norm+output", "full, selective, none"}) {
    EXPECT_TRUE(CheckRecomputeKey(right).ok()) << right;
  }
}

// Goal: the ladder takes ops by bytes saved a second, from nothing to
// everything, and a smaller one before a large one. Method: prices of a layer;
// ops that save nothing; output cheaper than the norm it needs.
TEST(RecomputeStepsTest, TakesTheCheapestBytesFirst) {
  EXPECT_THAT(
      RecomputeLadder(std::vector<RecomputeCandidate>{
          {.op = Recompute::kNorm, .bytes = 8, .seconds = 2},
          {.op = Recompute::kActivation, .bytes = 14, .seconds = 3},
          {.op = Recompute::kQkv, .bytes = 6, .seconds = 20},
          {.op = Recompute::kGateUp, .bytes = 28, .seconds = 90},
          {.op = Recompute::kAttention, .bytes = 4, .seconds = 30},
          {.op = Recompute::kDispatch, .bytes = 0, .seconds = 0}}),
      ElementsAre(Recompute::kNone, Recompute::kActivation, Recompute::kCheap,
                  Recompute::kCheap | Recompute::kQkv,
                  Recompute::kCheap | Recompute::kGateUp,
                  Recompute::kCheap | Recompute::kGateUp | Recompute::kQkv,
                  Recompute::kFull));
  EXPECT_THAT(
      RecomputeLadder(std::vector<RecomputeCandidate>{
          {.op = Recompute::kActivation, .bytes = 14, .seconds = 3},
          {.op = Recompute::kOutput, .bytes = 14, .seconds = 4},
          {.op = Recompute::kQkv, .bytes = 14, .seconds = 5},
          {.op = Recompute::kNorm, .bytes = 8, .seconds = 20}}),
      ElementsAre(Recompute::kNone, Recompute::kActivation, Recompute::kCheap,
                  Recompute::kCheap | Recompute::kOutput, Recompute::kFull));
}

// Goal: sets of ops in their order cannot be bettered: none that saves as much
// takes less time; and each set of a ladder saves and takes more than the one
// before. Method: all sets of ops with random prices.
TEST(RecomputeStepsTest, NoSetSavesMoreForLess) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<RecomputeCandidate> candidates;
    for (const Recompute op : kRecomputeOps) {
      // The norm first, so that output waits for nothing.
      const bool is_norm = op == Recompute::kNorm;
      candidates.push_back(
          {.op = op,
           .bytes = static_cast<double>(1 + random() % 100),
           .seconds = is_norm ? 1e-3 : static_cast<double>(1 + random() % 50)});
    }
    const auto total = [&](Recompute set) {
      RecomputeCandidate sum{.op = set};
      for (const RecomputeCandidate& candidate : candidates) {
        if (!Has(set, candidate.op)) continue;
        sum.bytes += candidate.bytes;
        sum.seconds += candidate.seconds;
      }
      return sum;
    };
    const std::vector<Recompute> ladder = RecomputeLadder(candidates);
    for (size_t i = 1; i < ladder.size(); ++i) {
      EXPECT_GT(total(ladder[i]).bytes, total(ladder[i - 1]).bytes);
      EXPECT_GT(total(ladder[i]).seconds, total(ladder[i - 1]).seconds);
    }
    Recompute prefix = Recompute::kNone;
    for (const RecomputeCandidate& next : BestFirst(candidates)) {
      prefix = prefix | next.op;
      EXPECT_EQ(std::count(ladder.begin(), ladder.end(), prefix), 1);
      const RecomputeCandidate chosen = total(prefix);
      for (int bits = 0; bits <= static_cast<int>(Recompute::kFull); ++bits) {
        const RecomputeCandidate other = total(static_cast<Recompute>(bits));
        if (other.bytes < chosen.bytes) continue;
        EXPECT_GE(other.seconds, chosen.seconds * (1 - 1e-12))
            << RecomputeName(prefix) << " against " << RecomputeName(other.op);
      }
    }
  }
}

// Goal: a job's key leaves of a ladder what it says. Method: every sort of key.
TEST(AllowedRecomputesTest, LeavesWhatTheKeySays) {
  const std::vector<Recompute> ladder = {Recompute::kNone, Recompute::kNorm,
                                         Recompute::kCheap, Recompute::kFull};
  const auto sets = [&](const char* key) {
    std::vector<Recompute> allowed;
    for (const StageRecomputes& stages : AllowedRecomputes(key, ladder)) {
      EXPECT_TRUE(stages.by_stage.empty());
      allowed.push_back(stages.recompute);
    }
    return allowed;
  };
  EXPECT_EQ(sets("auto"), ladder);
  EXPECT_THAT(sets("selective"),
              ElementsAre(Recompute::kNorm, Recompute::kCheap));
  EXPECT_THAT(sets("qkv+gate_up"),
              ElementsAre(Recompute::kQkv | Recompute::kGateUp));
  const std::vector<Recompute> first = {Recompute::kFull, Recompute::kNorm,
                                        Recompute::kNone};
  const std::vector<Recompute> second = {Recompute::kFull, Recompute::kCheap,
                                         Recompute::kNone};
  EXPECT_THAT(AllowedRecomputes("full, selective,none", ladder),
              ElementsAre(StageRecomputes{Recompute::kFull, first},
                          StageRecomputes{Recompute::kFull, second}));
  const std::vector<Recompute> named = {Recompute::kQkv, Recompute::kNorm};
  EXPECT_THAT(
      AllowedRecomputes("qkv, norm", ladder),
      ElementsAre(StageRecomputes{Recompute::kQkv | Recompute::kNorm, named}));
}

}  // namespace
}  // namespace millrace
