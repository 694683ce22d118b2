#include "planner/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr double kOverhead = 1e-6;

CostModel MakeCost(const HardwareProfile& profile) {
  absl::StatusOr<CostModel> cost = CostModel::Create(profile);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

// Goal: measured shapes come back as measured, others at the speed measured
// near them. Method: a table with two speeds.
TEST(CostTest, GemmsFollowTheNearestShapes) {
  HardwareProfile profile = MakeProfile({});
  for (GemmTime& time : profile.gemms) {
    if (time.m == 32) time.seconds *= 4;  // Small GEMMs at a quarter speed.
  }
  const CostModel cost = MakeCost(profile);
  const auto rate = [&](int64_t m, int64_t n, int64_t k, bool trans) {
    const double flops = 2.0 * static_cast<double>(m * n * k);
    return flops /
           (cost.Seconds(
                {}, OpKind::kGemm,
                GemmAttributes{.m = m, .n = n, .k = k, .trans_b = trans}) -
            kOverhead);
  };
  EXPECT_NEAR(rate(32, 32, 32, false) / 0.25e10, 1, 1e-6);
  EXPECT_NEAR(rate(1024, 1024, 1024, true) / 1e10, 1, 1e-6);
  EXPECT_LT(rate(40, 40, 40, false), 0.3e10);
  EXPECT_GT(rate(900, 300, 700, false), 0.9e10);
  EXPECT_NEAR(cost.PeakFlopsPerSecond() / 1e10, 1, 1e-9);
}

// Goal: sizes between measured ones are interpolated in log space, sizes beyond
// scale with the bytes, and messages never beat the smallest measured one.
// Method: a table of two points with different speeds.
TEST(CostTest, SizesAreInterpolated) {
  HardwareProfile profile = MakeProfile({});
  profile.bandwidth = {{OpKind::kAdd, 1200, 1e-6},
                       {OpKind::kAdd, 120000, 1e-5}};
  profile.communication = {{OpKind::kAllReduce, 4, 40000, 1e-3},
                           {OpKind::kAllReduce, 4, 400, 1e-4},
                           {OpKind::kAllReduce, 2, 400, 5e-5}};
  const CostModel cost = MakeCost(profile);
  const auto add = [&](int64_t rows) {  // 12 bytes an element.
    return cost.Seconds({}, OpKind::kAdd,
                        ElementwiseAttributes{.rows = rows, .cols = 1}) -
           kOverhead;
  };
  EXPECT_NEAR(add(100), 1e-6, 1e-12);
  EXPECT_NEAR(add(1000), std::sqrt(1e-11), 1e-12);
  EXPECT_NEAR(add(100000), 1e-4, 1e-10);
  EXPECT_NEAR(add(10), 1e-7, 1e-12);
  const auto all_reduce = [&](Layout layout, int64_t elements) {
    return cost.Seconds(layout, OpKind::kAllReduce,
                        CollectiveAttributes{.group = Group::kData,
                                             .num_elements = elements,
                                             .dtype = DType::kFloat32}) -
           kOverhead;
  };
  EXPECT_NEAR(all_reduce({.data = 4}, 1), 1e-4, 1e-10);
  EXPECT_NEAR(all_reduce({.data = 4}, 1000), std::sqrt(1e-7), 1e-9);
  EXPECT_NEAR(all_reduce({.data = 4}, 100000), 1e-2, 1e-8);
  EXPECT_NEAR(all_reduce({.data = 2}, 100), 5e-5, 1e-10);
  // Not measured: the nearest group, then the nearest kind.
  EXPECT_NEAR(all_reduce({.data = 8}, 100), 1e-4, 1e-10);
  EXPECT_NEAR(cost.Seconds({.pipeline = 2}, OpKind::kReceive,
                           TransferAttributes{.direction = Direction::kToNext,
                                              .num_elements = 100,
                                              .dtype = DType::kFloat32}),
              5e-5 + kOverhead, 1e-10);
}

// Goal: every op kind has a time above zero that grows with its size. Method:
// each kind with the attributes lowering gives it, at one and at four sizes.
TEST(CostTest, EveryKindHasATime) {
  const CostModel cost = MakeCost(MakeProfile({}));
  const Layout layout{.pipeline = 2, .data = 2, .tensor = 2};
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    std::vector<double> seconds;
    for (const int64_t scale : {1, 4}) {
      const int64_t tokens = 4096 * scale;
      const VocabAttributes vocab{
          .num_tokens = tokens, .hidden = 64, .vocab_rows = 128};
      const AttentionAttributes attention{.num_sequences = scale,
                                          .sequence_length = 64,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .head_dim = 16};
      OpAttributes attributes;
      switch (kind) {
        case OpKind::kLoadBatch:
        case OpKind::kEmbeddingForward:
        case OpKind::kEmbeddingBackward:
        case OpKind::kLinearCrossEntropy:
        case OpKind::kCrossEntropyStats:
        case OpKind::kCrossEntropyGradient:
        case OpKind::kCrossEntropyLoss:
          attributes = vocab;
          break;
        case OpKind::kRmsNormForward:
        case OpKind::kResidualRmsNormForward:
        case OpKind::kRmsNormBackward:
          attributes = NormAttributes{.num_tokens = tokens, .hidden = 64};
          break;
        case OpKind::kGemm:
          attributes = GemmAttributes{.m = tokens, .n = 64, .k = 64};
          break;
        case OpKind::kRope:
        case OpKind::kAttentionForward:
        case OpKind::kAttentionBackward:
          attributes = attention;
          break;
        case OpKind::kAdd:
        case OpKind::kSwigluForward:
        case OpKind::kSwigluBackward:
        case OpKind::kZero:
          attributes = ElementwiseAttributes{.rows = tokens, .cols = 8};
          break;
        case OpKind::kAllGather:
        case OpKind::kReduceScatter:
        case OpKind::kAllReduce:
          attributes = CollectiveAttributes{.group = Group::kTensor,
                                            .num_elements = tokens * 64,
                                            .dtype = DType::kFloat32};
          break;
        case OpKind::kSend:
        case OpKind::kReceive:
          attributes = TransferAttributes{.direction = Direction::kToNext,
                                          .num_elements = tokens * 64,
                                          .dtype = DType::kFloat32};
          break;
        case OpKind::kClipFactor:
          attributes = NoAttributes{};
          break;
        case OpKind::kAccumulateGradients:
        case OpKind::kSquaredNorm:
        case OpKind::kAdamW:
        case OpKind::kCastParameters:
          attributes =
              OptimizerAttributes{.num_elements = tokens, .data_sharded = true};
          break;
      }
      EXPECT_GT(WorkOf(layout, kind, attributes).bytes, 0) << OpKindName(kind);
      seconds.push_back(cost.Seconds(layout, kind, attributes));
    }
    EXPECT_GT(seconds[0], kOverhead) << OpKindName(kind);
    // One number for the step, whatever the sizes.
    if (kind == OpKind::kClipFactor) continue;
    EXPECT_GT(seconds[1], seconds[0]) << OpKindName(kind);
    EXPECT_LT(seconds[1], 1.0) << OpKindName(kind);
  }
}

// Goal: a rank's share of a bucket costs its share of the time. Method: the
// same bucket sharded over four replicas and not.
TEST(CostTest, ShardedOptimizerMovesLess) {
  const OptimizerAttributes whole{.num_elements = 4096, .data_sharded = false};
  const OptimizerAttributes slice{.num_elements = 4096, .data_sharded = true};
  const Layout layout{.data = 4, .zero = 1};
  EXPECT_EQ(WorkOf(layout, OpKind::kAdamW, whole).bytes,
            4 * WorkOf(layout, OpKind::kAdamW, slice).bytes);
  EXPECT_EQ(WorkOf(layout, OpKind::kAdamW, whole).bytes, 28 * 4096);
}

// Goal: a profile that lacks a table is refused with its name. Method: empty
// one at a time.
TEST(CostTest, RefusesIncompleteProfiles) {
  const auto error_of = [](HardwareProfile profile) {
    return CostModel::Create(std::move(profile)).status().ToString();
  };
  HardwareProfile profile = MakeProfile({});
  profile.gemms.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no gemms table"));
  profile = MakeProfile({});
  profile.attention.pop_back();
  EXPECT_THAT(error_of(profile), HasSubstr("no backward rows in attention"));
  profile = MakeProfile({});
  profile.cross_entropy.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("millrace profile JOB"));
  profile = MakeProfile({});
  profile.bandwidth.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no bandwidth table"));
  profile = MakeProfile({});
  profile.communication.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no communication table"));
  profile = MakeProfile({.num_ranks = 1});
  EXPECT_FALSE(MakeCost(profile).HasCommunication());
  profile.gemms[0].seconds = 0;
  EXPECT_THAT(error_of(profile), HasSubstr("takes no time"));
}

}  // namespace
}  // namespace millrace
