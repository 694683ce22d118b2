#include "worker/cuda/nccl/nccl_rendezvous.h"

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/communicate/memory_rendezvous_store.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::atomic<bool> kNeverAborted = false;

NcclPatience Patience(absl::Duration timeout,
                      const std::atomic<bool>& aborted = kNeverAborted) {
  return {.deadline = MonotonicNow() + timeout,
          .timeout = timeout,
          .abort_requested = aborted};
}

std::vector<Layout> LayoutsUpTo(int32_t num_ranks) {
  std::vector<Layout> layouts;
  for (int32_t pipeline = 1; pipeline <= 4; ++pipeline) {
    for (int32_t data = 1; data <= 4; ++data) {
      for (int32_t tensor = 1; tensor <= 4; ++tensor) {
        const Layout layout{
            .pipeline = pipeline, .data = data, .tensor = tensor};
        if (layout.num_ranks() <= num_ranks) layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

// Goal: whoever is in a communicator agrees with the others on its key, name,
// members and order, no two communicators have one key, and each of a
// transfer's two ends uses the lane that matches the other's. Method: every
// small layout, memberships of all ranks laid beside each other.
TEST(MembershipTest, AgreesBetweenMembers) {
  for (const Layout& layout : LayoutsUpTo(16)) {
    SCOPED_TRACE(LayoutToString(layout));
    std::map<std::string, std::vector<Membership>> by_key;
    for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
      std::set<std::string> own_keys;
      for (const Membership& membership : MembershipsOf(layout, Rank{rank})) {
        EXPECT_GT(membership.members.size(), 1u);
        ASSERT_EQ(membership.members[membership.index], Rank{rank});
        EXPECT_TRUE(own_keys.insert(membership.Key()).second);
        by_key[membership.Key()].push_back(membership);
      }
    }
    for (const auto& [key, ends] : by_key) {
      ASSERT_EQ(ends.size(), ends[0].members.size()) << key;
      std::set<int32_t> indices;
      for (const Membership& end : ends) {
        EXPECT_EQ(end.members, ends[0].members) << key;
        EXPECT_EQ(end.group, ends[0].group) << key;
        EXPECT_EQ(end.Name(), ends[0].Name()) << key;
        indices.insert(end.index);
      }
      EXPECT_EQ(indices.size(), ends.size()) << key;
      if (ends[0].group != Group::kPipeline) continue;
      const bool to_next = ends[0].transfer_lane == Lane::kSendNext;
      EXPECT_EQ(ends[0].transfer_lane,
                to_next ? Lane::kSendNext : Lane::kReceiveNext);
      EXPECT_EQ(ends[1].transfer_lane,
                to_next ? Lane::kReceivePrevious : Lane::kSendPrevious);
      EXPECT_NE(ends[0].sends(), ends[1].sends());
    }
  }
}

// Goal: collectives of every group that has other members find a communicator
// of exactly those; the world's use the data group's where both are the same.
TEST(MembershipTest, ServesEveryGroup) {
  for (const Layout& layout : LayoutsUpTo(16)) {
    SCOPED_TRACE(LayoutToString(layout));
    for (const Group group : {Group::kTensor, Group::kData, Group::kWorld}) {
      std::vector<std::vector<Rank>> serving;
      for (const Membership& membership : MembershipsOf(layout, Rank{0})) {
        if (membership.group == ServingGroup(layout, group)) {
          serving.push_back(membership.members);
        }
      }
      if (GroupSize(layout, group) == 1) {
        EXPECT_TRUE(serving.empty());
      } else {
        EXPECT_THAT(serving, ElementsAre(GroupMembers(layout, group, Rank{0})));
      }
    }
  }
  const Layout data_only{.data = 4};
  EXPECT_EQ(MembershipsOf(data_only, Rank{1}).size(), 1u);
}

TEST(MembershipTest, ReadsWell) {
  const Layout layout{.pipeline = 2, .data = 2, .tensor = 2};
  const std::vector<Membership> memberships = MembershipsOf(layout, Rank{3});
  std::vector<std::string> names;
  for (const Membership& membership : memberships) {
    names.push_back(membership.Name());
  }
  EXPECT_THAT(
      names, ElementsAre("tensor group (ranks 2, 3)", "data group (ranks 3, 7)",
                         "world group (ranks 0, 1, 2, 3, 4, 5, 6, 7)",
                         "transfers to the next stage (ranks 1, 3)",
                         "transfers to the previous stage (ranks 1, 3)"));
}

// Goal: all ranks of a layout meet and share one id for each communicator, each
// made once. Method: ranks as threads that arrive one after the other.
TEST(NcclRendezvousTest, SharesOneIdForEachCommunicator) {
  const Layout layout{.pipeline = 2, .data = 2, .tensor = 2};
  MemoryRendezvousStore store;
  std::atomic<int> num_made = 0;
  std::vector<std::map<std::string, std::string>> ids(layout.num_ranks());
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    threads.emplace_back([&, i] {
      absl::SleepFor(absl::Milliseconds(20) * i);
      const NcclPatience patience = Patience(absl::Seconds(20));
      const auto memberships = MembershipsOf(layout, Rank{i});
      const absl::Status met =
          MeetMembers(memberships, Rank{i}, store, patience);
      ASSERT_TRUE(met.ok()) << met;
      for (const bool makes : {true, false}) {
        for (const Membership& membership : memberships) {
          if ((membership.index == 0) != makes) continue;
          const auto id = ShareId(
              membership,
              [&]() -> absl::StatusOr<std::string> {
                // Any bytes must come through.
                return std::string("\0\xff id ", 6) +
                       std::to_string(num_made++);
              },
              store, patience);
          ASSERT_TRUE(id.ok()) << id.status();
          ids[i][membership.Key()] = *id;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, std::string> all;
  std::set<std::string> distinct;
  for (const auto& of_rank : ids) {
    for (const auto& [key, id] : of_rank) {
      EXPECT_EQ(all.emplace(key, id).first->second, id) << key;
      distinct.insert(id);
    }
  }
  EXPECT_EQ(num_made, static_cast<int>(all.size()));
  EXPECT_EQ(distinct.size(), all.size());
}

// Goal: those who did not come are named, and nobody who did. Method: of eight
// ranks two stay away; every other one must name those of them it waits for.
TEST(NcclRendezvousTest, NamesWhoDidNotCome) {
  const Layout layout{.pipeline = 2, .data = 2, .tensor = 2};
  const std::set<int32_t> absent = {2, 5};
  MemoryRendezvousStore store;
  std::vector<absl::Status> statuses(layout.num_ranks());
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    if (absent.contains(i)) continue;
    threads.emplace_back([&, i] {
      statuses[i] = MeetMembers(MembershipsOf(layout, Rank{i}), Rank{i}, store,
                                Patience(absl::Milliseconds(300)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    if (absent.contains(i)) continue;
    const std::string message(statuses[i].message());
    EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[i])) << statuses[i];
    // The first communicator with someone missing: rank 3 shares the tensor
    // group with rank 2, rank 4 with 5, rank 1 the data group with 5, rank 6
    // with 2; ranks 0 and 7 only the world with both.
    const std::map<int32_t, std::string> expected = {
        {0,
         "world group (ranks 0, 1, 2, 3, 4, 5, 6, 7): rank 0 waited 300ms "
         "for ranks 2, 5 to join"},
        {1, "data group (ranks 1, 5): rank 1 waited 300ms for rank 5 to join"},
        {3,
         "tensor group (ranks 2, 3): rank 3 waited 300ms for rank 2 to join"},
        {4,
         "tensor group (ranks 4, 5): rank 4 waited 300ms for rank 5 to join"},
        {6, "data group (ranks 2, 6): rank 6 waited 300ms for rank 2 to join"},
        {7,
         "world group (ranks 0, 1, 2, 3, 4, 5, 6, 7): rank 7 waited 300ms "
         "for ranks 2, 5 to join"}};
    EXPECT_THAT(message, HasSubstr(expected.at(i)));
  }
}

// Goal: a wait ends soon after it is given up.
TEST(NcclRendezvousTest, EndsWhenGivenUp) {
  MemoryRendezvousStore store;
  std::atomic<bool> aborted = false;
  const Layout layout{.data = 2};
  const absl::Time start = MonotonicNow();
  absl::Status met;
  std::thread waiter([&] {
    met = MeetMembers(MembershipsOf(layout, Rank{0}), Rank{0}, store,
                      Patience(absl::Seconds(30), aborted));
  });
  absl::SleepFor(absl::Milliseconds(50));
  aborted = true;
  waiter.join();
  EXPECT_TRUE(absl::IsAborted(met)) << met;
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(5));
}

}  // namespace
}  // namespace millrace
