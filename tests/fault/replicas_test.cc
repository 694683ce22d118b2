#include "fault/replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
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

// The holders' hashes of part 0 of a set of one rank, by holder.
std::vector<HeldReplica> HeldWithHashes(const std::vector<uint64_t>& hashes,
                                        int64_t step) {
  std::vector<HeldReplica> held;
  for (size_t i = 0; i < hashes.size(); ++i) {
    held.push_back(Held(static_cast<int32_t>(i), 1, step, 0, 1));
    held.back().hash = hashes[i];
  }
  return held;
}

TEST(ReplicasTest, TheMajorityOfHoldersSaysWhoDiffers) {
  EXPECT_FALSE(CompareHolders({}).has_value());
  EXPECT_FALSE(CompareHolders(HeldWithHashes({7}, 3)).has_value());
  EXPECT_FALSE(CompareHolders(HeldWithHashes({7, 7, 7}, 3)).has_value());
  const auto outvoted = CompareHolders(HeldWithHashes({7, 8, 7}, 3));
  ASSERT_TRUE(outvoted.has_value());
  EXPECT_EQ(outvoted->set, (ReplicaSet{Generation{1}, 3}));
  EXPECT_EQ(outvoted->minority, (std::set<WorkerIdx>{WorkerIdx{1}}));
  EXPECT_TRUE(outvoted->undecided.empty());
  const auto undecided = CompareHolders(HeldWithHashes({7, 8}, 3));
  ASSERT_TRUE(undecided.has_value());
  EXPECT_TRUE(undecided->minority.empty());
  EXPECT_EQ(undecided->undecided.size(), 2u);
  // A partner's copy of the state that flipped does not vote for it.
  std::vector<HeldReplica> with_copy = HeldWithHashes({7, 8, 8}, 3);
  with_copy[2].kind = ReplicaKind::kCopy;
  const auto copied = CompareHolders(with_copy);
  ASSERT_TRUE(copied.has_value());
  EXPECT_TRUE(copied->minority.empty());
  EXPECT_EQ(copied->undecided,
            (std::set<WorkerIdx>{WorkerIdx{0}, WorkerIdx{1}}));
  // One that differs from all that is live is noticed.
  with_copy = HeldWithHashes({7, 7, 8}, 3);
  with_copy[2].kind = ReplicaKind::kCopy;
  EXPECT_EQ(CompareHolders(with_copy)->minority,
            (std::set<WorkerIdx>{WorkerIdx{2}}));
  // The newest set that differs is named; parts that agree are not.
  std::vector<HeldReplica> held = HeldWithHashes({7, 8, 7}, 3);
  for (const HeldReplica& replica : HeldWithHashes({1, 2}, 5)) {
    held.push_back(replica);
  }
  held.push_back(Held(2, 2, 6, 0, 1));
  held.push_back(Held(1, 2, 6, 0, 1));
  EXPECT_EQ(CompareHolders(held)->set, (ReplicaSet{Generation{1}, 5}));
}

// Goal: after one bit has flipped in one replica and other replicas have been
// killed, no recovery takes the flipped part, unless its holder is the only one
// that is left, and nobody is suspected who holds what most do. Method: random
// numbers of replicas that hold all parts, or their own and a partner's.
TEST(ReplicasTest, FlippedPartIsNotTakenAfterAKill) {
  std::mt19937 random(1);
  const auto any = [&](int32_t count) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(count));
  };
  int num_outvoted = 0, num_undecided = 0, num_alone = 0;
  for (int i = 0; i < 5000; ++i) {
    SCOPED_TRACE(i);
    const int32_t num_ranks = 2 + any(5);
    const bool keeps_all = any(2) == 0;
    const int32_t flipped = any(num_ranks);
    const int32_t flipped_part =
        keeps_all ? any(num_ranks) : (flipped + any(2)) % num_ranks;
    std::set<int32_t> killed;
    for (int32_t kills = 1 + any(num_ranks - 1); kills > 0; --kills) {
      const int32_t rank = any(num_ranks);
      if (rank != flipped) killed.insert(rank);
    }
    std::vector<HeldReplica> held;
    std::map<int32_t, int32_t> num_holders;
    for (int32_t holder = 0; holder < num_ranks; ++holder) {
      if (killed.contains(holder)) continue;
      for (int32_t part = 0; part < num_ranks; ++part) {
        const bool keeps =
            keeps_all || part == holder || part == (holder + 1) % num_ranks;
        if (!keeps) continue;
        held.push_back(Held(holder, 1, 9, part, num_ranks, ReplicaKind::kLive));
        held.back().hash = static_cast<uint64_t>(part) + 100;
        if (holder == flipped && part == flipped_part) held.back().hash ^= 8;
        ++num_holders[part];
      }
    }
    const auto differ = CompareHolders(held);
    const int32_t others = num_holders[flipped_part] - 1;
    ASSERT_EQ(differ.has_value(), others > 0);
    if (!differ.has_value()) {
      ++num_alone;
      continue;
    }
    if (others > 1) {
      EXPECT_EQ(differ->minority, (std::set<WorkerIdx>{WorkerIdx{flipped}}));
      EXPECT_TRUE(differ->undecided.empty());
      ++num_outvoted;
    } else {
      EXPECT_TRUE(differ->minority.empty());
      EXPECT_EQ(differ->undecided.size(), 2u);
      EXPECT_TRUE(differ->undecided.contains(WorkerIdx{flipped}));
      ++num_undecided;
    }
  }
  EXPECT_GT(num_outvoted, 500);
  EXPECT_GT(num_undecided, 500);
  EXPECT_GT(num_alone, 500);
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
