#include "planner/cost/layer_time.h"

#include <gtest/gtest.h>

#include "planner/profile/shipped_profiles.h"
#include "tests/planner/known_models.h"

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

// Goal: where collectives add to what the host launches, a layer that waits for
// the host takes them besides. Method: a small layer on eight tensor ranks,
// whose kernels are all shorter than their launches.
TEST(TimeOfLayerTest, AddsCollectivesToLaunches) {
  ModelSpec model = Gpt3_175B();
  model.hidden = 1024;
  model.num_heads = model.num_kv_heads = 16;
  model.head_dim = 64;
  model.ffn_hidden = 4096;
  model.sequence_length = 512;
  const Layout layout{.tensor = 8};
  Implementation implementation{.sequence_parallel = false,
                                .overlaps_tensor = false,
                                .launches_from_host = true};
  const absl::StatusOr<HardwareProfile> profile = LoadNamedProfile("a100-80gb");
  ASSERT_TRUE(profile.ok()) << profile.status();
  const CostModel cost = CostModel::Create(*profile).value();
  const auto forward = [&] {
    const LayerGraph graph =
        GraphOfLayer(model, layout, LayerKind::kDense, implementation);
    return TimeOfLayer(PriceLayer(graph, layout, implementation, cost), layout,
                       implementation, cost)
        .forward;
  };
  const PassTime hidden = forward();
  EXPECT_GT(hidden.tensor, 0);
  implementation.adds_tensor_to_launches = true;
  const PassTime added = forward();
  EXPECT_GT(added.tensor, hidden.tensor);  // Short ones reach less, too.
  // Two all-reduces are not launched.
  EXPECT_NEAR(added.compute,
              hidden.total() - 2 * cost.constants().host_launch_s, 1e-9);
}

}  // namespace
}  // namespace millrace
