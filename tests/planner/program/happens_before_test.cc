#include "planner/program/happens_before.h"

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Goal: what a lane's order or an earlier wait implies is not waited for again.
// Method: a diamond over three lanes, by hand.
TEST(HappensBeforeTest, KeepsOnlyNeededWaits) {
  HappensBefore order;
  order.Append(Lane::kCompute, {});                                // 0
  order.Append(Lane::kTensorComm, std::vector<InstructionId>{0});  // 1
  order.Append(Lane::kDataComm, std::vector<InstructionId>{1});    // 2
  EXPECT_THAT(order.NeededWaits(Lane::kHost, {0, 1, 2}), ElementsAre(2));
  EXPECT_THAT(order.NeededWaits(Lane::kHost, {1, 0, 1}), ElementsAre(1));
  EXPECT_THAT(order.NeededWaits(Lane::kDataComm, {0, 1, 2}), IsEmpty());
  EXPECT_THAT(order.NeededWaits(Lane::kCompute, {0, 1}), ElementsAre(1));
  EXPECT_TRUE(order.FinishedBefore(0, 2));
  EXPECT_FALSE(order.FinishedBefore(2, 0));
}

// Goal: clocks are exactly the transitive closure of lanes and waits, and
// needed waits imply every dependency with none to spare. Method: random
// programs against reachability by search.
TEST(HappensBeforeTest, AgreesWithReachability) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    constexpr int kSize = 40;
    HappensBefore order;
    std::vector<std::vector<bool>> before(kSize, std::vector<bool>(kSize));
    auto add_edge = [&](int from, int to) {
      before[from][to] = true;
      for (int i = 0; i < from; ++i) {
        if (before[i][from]) before[i][to] = true;
      }
    };
    for (int id = 0; id < kSize; ++id) {
      const Lane lane = static_cast<Lane>(random() % 4);
      for (int i = id - 1; i >= 0; --i) {
        if (order.lane(i) == lane) {
          add_edge(i, id);
          break;
        }
      }
      Dependencies dependencies;
      for (int i = 0; i < id; ++i) {
        if (random() % 8 == 0) dependencies.push_back(i);
      }
      const Waits waits = order.NeededWaits(lane, dependencies);
      for (InstructionId wait : waits) {
        EXPECT_FALSE(before[wait][id]) << wait << " is on the lane anyway";
        for (InstructionId other : waits) EXPECT_FALSE(before[wait][other]);
      }
      for (InstructionId wait : waits) add_edge(wait, id);
      for (InstructionId dependency : dependencies) {
        EXPECT_TRUE(before[dependency][id]);
      }
      order.Append(lane, waits);
    }
    for (int a = 0; a < kSize; ++a) {
      for (int b = 0; b < kSize; ++b) {
        EXPECT_EQ(order.FinishedBefore(a, b), before[a][b]) << a << ", " << b;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
