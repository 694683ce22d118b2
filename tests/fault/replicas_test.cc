#include "fault/replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"

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

// Goal: a rank and its partners are on as many hosts as there are or as they
// need, and no rank keeps more copies than it has partners while that can be
// avoided. Method: all splits of ranks over up to four hosts, one to three
// partners.
TEST(ReplicasTest, PartnersAreOnOtherHosts) {
  for (int32_t split = 0; split < 4 * 5 * 5 * 3; ++split) {
    const std::vector<int32_t> counts = {1 + split % 4, split / 4 % 5,
                                         split / 20 % 5, split / 100};
    std::vector<std::string> hosts;
    for (size_t host = 0; host < counts.size(); ++host) {
      hosts.insert(hosts.end(), static_cast<size_t>(counts[host]),
                   std::string(1, static_cast<char>('a' + host)));
    }
    const auto num_hosts = static_cast<int32_t>(
        std::set<std::string>(hosts.begin(), hosts.end()).size());
    const auto num_ranks = static_cast<int32_t>(hosts.size());
    const int32_t most = *std::max_element(counts.begin(), counts.end());
    for (int32_t num_partners = 1; num_partners <= 3; ++num_partners) {
      SCOPED_TRACE(testing::Message() << absl::StrJoin(counts, " ") << ", "
                                      << num_partners << " partners");
      const auto partners = ReplicaPartners(hosts, num_partners);
      ASSERT_EQ(partners.size(), hosts.size());
      std::map<Rank, int32_t> kept;
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        std::set<Rank> holders = {Rank{rank}};
        std::set<std::string> holders_hosts = {hosts[rank]};
        for (const Rank partner : partners[rank]) {
          ASSERT_LT(ToInt(partner), num_ranks);
          holders.insert(partner);
          holders_hosts.insert(hosts[ToInt(partner)]);
          ++kept[partner];
        }
        EXPECT_EQ(holders.size(), 1 + partners[rank].size());
        EXPECT_EQ(static_cast<int32_t>(holders.size()),
                  std::min(num_ranks, 1 + num_partners));
        EXPECT_EQ(static_cast<int32_t>(holders_hosts.size()),
                  std::min(num_hosts, 1 + num_partners));
      }
      const bool is_even = num_hosts == 1 ||
                           (1 + num_partners) * most <= num_ranks ||
                           num_hosts * most == num_ranks;
      if (!is_even) continue;
      for (const auto& [rank, count] : kept) {
        EXPECT_EQ(count, std::min(num_partners, num_ranks - 1));
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
  EXPECT_TRUE(NeedsNewCopies(held, set, one_host, 1));  // Of rank 1's part.
  held.push_back(Held(7, 3, 20, 1, 2, ReplicaKind::kCopy));
  EXPECT_TRUE(NeedsNewCopies(held, set, one_host, 1));
  held.push_back(Held(0, 3, 20, 1, 2, ReplicaKind::kCopy));
  EXPECT_FALSE(NeedsNewCopies(held, set, one_host, 1));
  EXPECT_TRUE(NeedsNewCopies(held, set, two_hosts, 1));
  held.push_back(Held(2, 3, 20, 0, 2, ReplicaKind::kCopy));
  held.push_back(Held(2, 3, 20, 1, 2, ReplicaKind::kCopy));
  EXPECT_FALSE(NeedsNewCopies(held, set, two_hosts, 1));
  // Two partners are two more holders, on three hosts where there are as many.
  EXPECT_FALSE(NeedsNewCopies(held, set, one_host, 2));
  EXPECT_FALSE(NeedsNewCopies(held, set, two_hosts, 2));
  std::map<WorkerIdx, std::string> more_hosts = two_hosts;
  more_hosts[WorkerIdx{3}] = "b";
  EXPECT_FALSE(NeedsNewCopies(held, set, more_hosts, 2));
  more_hosts[WorkerIdx{3}] = "c";
  EXPECT_FALSE(NeedsNewCopies(held, set, more_hosts, 1));
  EXPECT_TRUE(NeedsNewCopies(held, set, more_hosts, 2));
  more_hosts[WorkerIdx{1}] = "d";
  EXPECT_FALSE(NeedsNewCopies(held, set, more_hosts, 2));
  held.pop_back();
  EXPECT_FALSE(NeedsNewCopies(held, set, more_hosts, 1));
  EXPECT_TRUE(NeedsNewCopies(held, set, more_hosts, 2));  // Of rank 1's part.
  // A single worker has nobody to give a copy to.
  for (const int32_t num_partners : {1, 2}) {
    EXPECT_FALSE(NeedsNewCopies({Held(0, 3, 20, 0, 1)}, set,
                                {{WorkerIdx{0}, "a"}}, num_partners));
  }
}

// Goal: a layout whose ranks hold each other's state anyway is known, and one
// that would lose state with a host is not taken for it.
TEST(ReplicasTest, KnowsLiveReplicas) {
  Layout layout;
  layout.data = 4;
  const std::vector<std::string> one(4, "a");
  const std::vector<std::string> two = {"a", "a", "b", "b"};
  EXPECT_TRUE(HasLiveReplicas(layout, one, 1));
  EXPECT_TRUE(HasLiveReplicas(layout, two, 1));
  // Two partners ask for three holders, on three hosts where there are as many.
  EXPECT_TRUE(HasLiveReplicas(layout, one, 2));
  EXPECT_TRUE(HasLiveReplicas(layout, two, 2));
  EXPECT_TRUE(HasLiveReplicas(layout, {"a", "a", "b", "c"}, 2));
  layout.zero = 1;
  EXPECT_FALSE(HasLiveReplicas(layout, one, 1));
  layout.data_groups = 2;  // Ranks 0 and 2 hold the same, and 1 and 3.
  EXPECT_TRUE(HasLiveReplicas(layout, one, 1));
  EXPECT_TRUE(HasLiveReplicas(layout, two, 1));
  EXPECT_FALSE(HasLiveReplicas(layout, two, 2));
  EXPECT_FALSE(HasLiveReplicas(layout, {"a", "b", "a", "b"}, 1));
  layout = {};
  layout.pipeline = 2;
  layout.data = 2;
  EXPECT_TRUE(HasLiveReplicas(layout, one, 1));
  // All ranks of a stage on one host.
  std::vector<std::string> by_stage(4);
  std::vector<std::string> by_replica(4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
    by_stage[rank] = at.pipeline == 0 ? "a" : "b";
    by_replica[rank] = at.data == 0 ? "a" : "b";
  }
  EXPECT_FALSE(HasLiveReplicas(layout, by_stage, 1));
  EXPECT_TRUE(HasLiveReplicas(layout, by_replica, 1));
  layout = {};
  layout.tensor = 4;
  EXPECT_FALSE(HasLiveReplicas(layout, one, 1));
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
  // A second partner: 22.5 s of keeping, 25.8 s of sending, and the step.
  ReplicaCost to_two = gpu;
  to_two.num_partners = 2;
  EXPECT_EQ(ReplicaInterval(to_two), 50);
  to_two.shares_processors = true;
  cpu.part_bytes = to_two.part_bytes;
  EXPECT_NEAR(ReplicaSeconds(to_two) / ReplicaSeconds(cpu), 1.4, 1e-3);
}

}  // namespace
}  // namespace millrace
