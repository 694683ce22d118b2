#include "fault/replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace millrace {
namespace {

HeldReplica Held(int32_t holder, int64_t generation, int64_t step, int32_t rank,
                 int32_t num_ranks, ReplicaKind kind = ReplicaKind::kOwn) {
  return {.holder = WorkerIdx{holder},
          .part = {{Generation{generation}, step}, Rank{rank}},
          .num_ranks = num_ranks,
          .kind = kind,
          .bytes = 100};
}

// Goal: the newest whole set is chosen, whichever parts are there. Method:
// every subset of the parts of three sets of two ranks, each part at up to two
// holders, beside a search that tries the sets one by one.
TEST(ReplicasTest, ChoosesTheNewestWholeSetInAllSmallCases) {
  const std::vector<HeldReplica> all = {
      Held(0, 1, 10, 0, 2),
      Held(1, 1, 10, 1, 2),
      Held(1, 1, 10, 0, 2, ReplicaKind::kCopy),
      Held(0, 1, 10, 1, 2, ReplicaKind::kCopy),
      Held(0, 1, 12, 0, 2, ReplicaKind::kLive),
      Held(1, 1, 12, 1, 2),
      Held(0, 2, 12, 0, 2),
      Held(1, 2, 12, 1, 2, ReplicaKind::kCopy)};
  const std::vector<ReplicaSet> newest_first = {
      {Generation{2}, 12}, {Generation{1}, 12}, {Generation{1}, 10}};
  for (uint32_t subset = 0; subset < 1u << all.size(); ++subset) {
    SCOPED_TRACE(subset);
    std::vector<HeldReplica> held;
    for (size_t i = 0; i < all.size(); ++i) {
      if ((subset >> i & 1u) != 0) held.push_back(all[i]);
    }
    std::optional<ReplicaSet> expected;
    for (const ReplicaSet& set : newest_first) {
      std::set<Rank> ranks;
      for (const HeldReplica& replica : held) {
        if (replica.part.set == set) ranks.insert(replica.part.rank);
      }
      if (ranks.size() == 2 && !expected.has_value()) expected = set;
    }
    const auto choice = ChooseReplicas(held, 0, {});
    ASSERT_EQ(choice.has_value(), expected.has_value());
    if (!choice.has_value()) continue;
    EXPECT_EQ(choice->set, *expected);
    ASSERT_EQ(choice->parts.size(), 2u);
    for (int32_t rank = 0; rank < 2; ++rank) {
      const HeldReplica& chosen = choice->parts[rank];
      EXPECT_EQ(chosen.part.rank, Rank{rank});
      EXPECT_EQ(chosen.part.set, *expected);
      for (const HeldReplica& other : held) {
        if (other.part == chosen.part) {
          EXPECT_LE(chosen.kind, other.kind);
        }
      }
    }
    // A step that the disk has too is still taken from memory, an older one is
    // not, and neither is a set that was refused.
    EXPECT_TRUE(ChooseReplicas(held, expected->step, {}).has_value());
    EXPECT_FALSE(ChooseReplicas(held, expected->step + 1, {}).has_value());
    const auto other = ChooseReplicas(held, 0, {*expected});
    if (other.has_value()) {
      EXPECT_NE(other->set, *expected);
    }
  }
}

// Goal: parts that were taken under another layout than they say, or that no
// rank of it could have, make no set. Method: contradictory numbers.
TEST(ReplicasTest, RefusesPartsThatContradictEachOther) {
  EXPECT_FALSE(
      ChooseReplicas({Held(0, 1, 5, 0, 2), Held(1, 1, 5, 1, 3)}, 0, {}));
  EXPECT_FALSE(ChooseReplicas({Held(0, 1, 5, 0, 1), Held(1, 1, 5, 1, 1)}, 0, {})
                   .has_value());
  EXPECT_FALSE(ChooseReplicas({Held(0, 1, 5, -1, 1)}, 0, {}).has_value());
  EXPECT_FALSE(ChooseReplicas({}, 0, {}).has_value());
}

TEST(ReplicasTest, SaysWhatIsMissing) {
  const std::vector<HeldReplica> held = {
      Held(0, 1, 4, 0, 1), Held(0, 1, 8, 0, 4), Held(2, 1, 8, 2, 4)};
  EXPECT_EQ(ReasonAgainstReplicas(held, 5, {}),
            "of step 8, nobody has the state of ranks 1, 3");
  EXPECT_EQ(ReasonAgainstReplicas(held, 9, {}), "");
  EXPECT_EQ(ReasonAgainstReplicas({Held(0, 1, 4, 0, 1)}, 0, {}), "");
}

// Goal: every rank has a partner on another host wherever there is one, no rank
// keeps two copies while that can be avoided. Method: all splits of up to nine
// ranks over up to four hosts.
TEST(ReplicasTest, PartnersAreOnOtherHosts) {
  for (int a = 1; a <= 4; ++a) {
    for (int b = 0; b <= 4; ++b) {
      for (int c = 0; c <= 1; ++c) {
        const std::vector<int> counts = {a, b, c};
        SCOPED_TRACE(testing::Message() << a << " " << b << " " << c);
        std::vector<std::string> hosts;
        int num_hosts = 0;
        int most = 0;
        for (size_t host = 0; host < counts.size(); ++host) {
          num_hosts += counts[host] > 0;
          most = std::max(most, counts[host]);
          for (int i = 0; i < counts[host]; ++i) {
            hosts.push_back(std::string(1, static_cast<char>('a' + host)));
          }
        }
        const auto partners = ReplicaPartners(hosts);
        ASSERT_EQ(partners.size(), hosts.size());
        std::map<Rank, int> kept;
        for (size_t rank = 0; rank < hosts.size(); ++rank) {
          ASSERT_EQ(partners[rank].has_value(), hosts.size() > 1);
          if (!partners[rank].has_value()) continue;
          const auto partner = static_cast<size_t>(ToInt(*partners[rank]));
          EXPECT_NE(partner, rank);
          EXPECT_EQ(hosts[partner] == hosts[rank], num_hosts == 1);
          ++kept[*partners[rank]];
        }
        if (num_hosts == 1 || 2 * most <= static_cast<int>(hosts.size())) {
          for (const auto& [rank, count] : kept) EXPECT_EQ(count, 1);
        }
      }
    }
  }
}

// Goal: new copies are asked for exactly where a part would gain a holder.
// Method: by hand, on one host and on two; holders outside of the job do not
// count.
TEST(ReplicasTest, KnowsWhereCopiesAreFew) {
  const ReplicaSet set = {Generation{3}, 20};
  const std::map<WorkerIdx, std::string> one_host = {{WorkerIdx{0}, "a"},
                                                     {WorkerIdx{1}, "a"}};
  const std::map<WorkerIdx, std::string> two_hosts = {
      {WorkerIdx{0}, "a"}, {WorkerIdx{1}, "a"}, {WorkerIdx{2}, "b"}};
  std::vector<HeldReplica> held = {Held(0, 3, 20, 0, 2), Held(1, 3, 20, 1, 2),
                                   Held(1, 3, 20, 0, 2, ReplicaKind::kCopy),
                                   Held(0, 3, 10, 1, 2)};
  EXPECT_TRUE(NeedsNewCopies(held, set, one_host));  // Of rank 1's part.
  held.push_back(Held(7, 3, 20, 1, 2, ReplicaKind::kCopy));
  EXPECT_TRUE(NeedsNewCopies(held, set, one_host));
  held.push_back(Held(0, 3, 20, 1, 2, ReplicaKind::kCopy));
  EXPECT_FALSE(NeedsNewCopies(held, set, one_host));
  EXPECT_TRUE(NeedsNewCopies(held, set, two_hosts));
  held.push_back(Held(2, 3, 20, 0, 2, ReplicaKind::kCopy));
  held.push_back(Held(2, 3, 20, 1, 2, ReplicaKind::kCopy));
  EXPECT_FALSE(NeedsNewCopies(held, set, two_hosts));
  // A single worker has nobody to give a copy to.
  EXPECT_FALSE(
      NeedsNewCopies({Held(0, 3, 20, 0, 1)}, set, {{WorkerIdx{0}, "a"}}));
}

// Goal: a layout whose ranks hold each other's state anyway is known, and one
// that would lose state with a host is not taken for it.
TEST(ReplicasTest, KnowsLiveReplicas) {
  Layout layout;
  layout.data = 4;
  const std::vector<std::string> one(4, "a");
  const std::vector<std::string> two = {"a", "a", "b", "b"};
  EXPECT_TRUE(HasLiveReplicas(layout, one));
  EXPECT_TRUE(HasLiveReplicas(layout, two));
  layout.zero = 1;
  EXPECT_FALSE(HasLiveReplicas(layout, one));
  layout.data_groups = 2;  // Ranks 0 and 2 hold the same, and 1 and 3.
  EXPECT_TRUE(HasLiveReplicas(layout, one));
  EXPECT_TRUE(HasLiveReplicas(layout, two));
  EXPECT_FALSE(HasLiveReplicas(layout, {"a", "b", "a", "b"}));
  layout = {};
  layout.pipeline = 2;
  layout.data = 2;
  EXPECT_TRUE(HasLiveReplicas(layout, one));
  // All ranks of a stage on one host.
  std::vector<std::string> by_stage(4);
  std::vector<std::string> by_replica(4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
    by_stage[rank] = at.pipeline == 0 ? "a" : "b";
    by_replica[rank] = at.data == 0 ? "a" : "b";
  }
  EXPECT_FALSE(HasLiveReplicas(layout, by_stage));
  EXPECT_TRUE(HasLiveReplicas(layout, by_replica));
  layout = {};
  layout.tensor = 4;
  EXPECT_FALSE(HasLiveReplicas(layout, one));
}

// Goal: `auto` keeps to half a percent of the steps, and never takes a copy
// before the one before is sent.
TEST(ReplicasTest, IntervalFollowsFromCost) {
  const ReplicaCost gpu = {.step_s = 1,
                           .part_bytes = int64_t{12} << 30,
                           .copy_bytes_per_s = 4e9,
                           .send_bytes_per_s = 1e9};
  const int64_t interval = ReplicaInterval(gpu);
  // 16.1 s of keeping, 12.9 s of sending, and the step of the next copy.
  EXPECT_EQ(interval, 30);
  // Without a partner the copy is kept all the same.
  ReplicaCost alone = gpu;
  alone.send_bytes_per_s = 0;
  EXPECT_EQ(ReplicaInterval(alone), 18);
  alone.step_s = 40;
  EXPECT_EQ(ReplicaInterval(alone), 1);
  ReplicaCost cpu = gpu;
  cpu.part_bytes = int64_t{1} << 30;
  cpu.shares_processors = true;
  EXPECT_LE(ReplicaSeconds(cpu),
            0.005 * static_cast<double>(ReplicaInterval(cpu)));
  EXPECT_GT(ReplicaSeconds(cpu),
            0.005 * static_cast<double>(ReplicaInterval(cpu) - 1));
  EXPECT_EQ(ReplicaInterval({.step_s = 10, .part_bytes = 1000}), 1);
  // 1.25 s of keeping and 1 s of sending go on beside a step of 5 s.
  ReplicaCost beside = gpu;
  beside.part_bytes = 1'000'000'000;
  beside.step_s = 5;
  EXPECT_EQ(ReplicaInterval(beside), 1);
  beside.step_s = 4;
  EXPECT_EQ(ReplicaInterval(beside), 2);
  EXPECT_EQ(ReplicaInterval({.step_s = 0}), 1);
}

}  // namespace
}  // namespace millrace
