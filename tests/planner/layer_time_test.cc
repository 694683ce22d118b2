#include "planner/layer_time.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: experts and their replicas together are the ranks of a stage that
// experts may lie over, each once. Method: every layout of a sweep in which
// experts divide these ranks, also where neither they nor the near axes divide
// one another.
TEST(ExpertGroupTest, CoversTheRanksOfAStage) {
  for (const int32_t tensor : {1, 2, 3, 8}) {
    for (const int32_t context : {1, 2}) {
      for (const int32_t data : {1, 2, 3, 4, 12}) {
        for (const int32_t expert_tensor : {1, tensor}) {
          const int32_t ranks = tensor * context * data / expert_tensor;
          for (int32_t expert = 1; expert <= ranks; ++expert) {
            if (ranks % expert != 0) continue;
            const Layout layout{.pipeline = 2,
                                .data = data,
                                .tensor = tensor,
                                .context = context,
                                .expert = expert,
                                .expert_tensor = expert_tensor};
            const GroupPlacement experts = ExpertGroup(layout, {});
            EXPECT_EQ(experts.size(), expert) << LayoutToString(layout);
            EXPECT_EQ(ExpertReplicaGroup(layout, {}).size(),
                      NumExpertReplicas(layout))
                << LayoutToString(layout);
          }
        }
      }
    }
  }
}

// Goal: replicas of experts that lie inside a node reduce over its links.
// Method: two expert ranks among eight tensor ranks leave replicas at every
// second rank of the node.
TEST(ExpertGroupTest, FindsReplicasInsideTheNode) {
  const Layout layout{.pipeline = 4, .data = 2, .tensor = 8, .expert = 2};
  const GroupPlacement replicas = ExpertReplicaGroup(layout, {});
  EXPECT_EQ(replicas.inner.size, 4);
  EXPECT_EQ(replicas.inner.stride, 2);
  EXPECT_EQ(replicas.outer.size, 2);
  EXPECT_EQ(replicas.outer.stride, 32);
}

}  // namespace
}  // namespace millrace
