// Prices of attention's forward pass in 8 bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/lower/lower.h"
#include "planner/profile/shipped_profiles.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::Not;

CostModel CostWith(const HardwareProfile& profile) {
  absl::StatusOr<CostModel> cost = CostModel::Create(profile);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

// Goal: attention in 8 bits takes the time of its own rows, which price no
// other kind, and that of attention as stored where it has none. Method: a
// table with and without such a row; the row is named as missing.
TEST(Float8AttentionCostTest, HasRowsOfItsOwn) {
  HardwareProfile profile = MakeProfile({});
  const AttentionAttributes attention{.num_sequences = 2,
                                      .sequence_length = 256,
                                      .num_heads = 4,
                                      .num_kv_heads = 2,
                                      .head_dim = 64};
  const auto seconds = [&](OpKind kind) {
    return CostWith(profile).Seconds({}, kind, attention);
  };
  const double stored_s = seconds(OpKind::kAttentionForward);
  EXPECT_EQ(seconds(OpKind::kFloat8AttentionForward), stored_s);
  ModelSpec model = TestModel();
  model.head_dim = 64;
  model.attention_format = AttentionFormat::kFloat8;
  const std::vector<Program> programs = *BuildTrainingPrograms(model, {});
  EXPECT_THAT(CostWith(profile).KindsWithoutRows(programs),
              Contains("float8_attention_forward"));
  profile.attention.push_back({.backward = false,
                               .num_sequences = 2,
                               .sequence_length = 256,
                               .num_heads = 4,
                               .num_kv_heads = 2,
                               .head_dim = 64,
                               .is_float8 = true,
                               .seconds = 0.25});
  EXPECT_NEAR(seconds(OpKind::kFloat8AttentionForward), 0.25, 1e-3);
  EXPECT_EQ(seconds(OpKind::kAttentionForward), stored_s);
  EXPECT_THAT(CostWith(profile).KindsWithoutRows(programs),
              Not(Contains("float8_attention_forward")));
  std::erase_if(profile.attention, [](const AttentionTime& time) {
    return KindOf(time) == OpKind::kAttentionForward;
  });
  EXPECT_FALSE(CostModel::Create(profile).ok());
}

// Goal: attention in 8 bits is faster by what was measured where the device has
// 8 bits, beside a data sheet and beside rows in bf16, and by rows of its own
// where there are some. Method: ratios of both formats.
TEST(Float8AttentionCostTest, GainsWhatWasMeasured) {
  HardwareProfile profile = *LoadNamedProfile("h100-sxm");
  const AttentionAttributes wide{.num_sequences = 1,
                                 .sequence_length = 8192,
                                 .num_heads = 32,
                                 .num_kv_heads = 8,
                                 .head_dim = 128};
  AttentionAttributes narrow = wide;
  narrow.head_dim = 64;
  const auto gain = [&](const AttentionAttributes& attention) {
    const CostModel cost = CostWith(profile);
    return cost.AttentionSeconds(OpKind::kAttentionForward,
                                 GeneralOf(attention)) /
           cost.AttentionSeconds(OpKind::kFloat8AttentionForward,
                                 GeneralOf(attention));
  };
  EXPECT_NEAR(gain(wide), 1.30, 0.01);
  EXPECT_NEAR(gain(narrow), 0.96, 0.01);
  profile.device.fp8_flops_per_s = 0;
  EXPECT_EQ(gain(wide), 1);
}

}  // namespace
}  // namespace millrace
