#include "planner/cost/sheet_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

HardwareProfile H100() {
  const auto profile = LoadNamedProfile("h100-sxm");
  EXPECT_TRUE(profile.ok()) << profile.status();
  return *profile;
}

CostModel CostOf(const HardwareProfile& profile) {
  auto cost = CostModel::Create(profile);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

double Constant(const HardwareProfile& profile, const std::string& name) {
  for (const ModelConstant& constant : profile.constants) {
    if (constant.name == name) return constant.value;
  }
  ADD_FAILURE() << name;
  return 0;
}

GroupedGemmAttributes Square(int64_t size,
                             GemmFormat format = GemmFormat::kAsStored) {
  return {.m = size, .n = size, .k = size, .format = format, .trans_b = true};
}

GroupPlacement Group(int64_t size, int64_t stride) {
  return {.inner = {.size = size, .stride = stride}, .outer = {}};
}

// Goal: every shipped profile is whole, and says where each value comes from.
TEST(SheetTimesTest, ShippedProfilesAreWhole) {
  int num_data_sheets = 0;
  for (const std::string& name : ShippedProfileNames()) {
    const auto profile = LoadNamedProfile(name);
    ASSERT_TRUE(profile.ok()) << name << ": " << profile.status();
    if (!profile->device.is_given()) continue;
    ++num_data_sheets;
    EXPECT_TRUE(CostModel::Create(*profile).ok())
        << name << ": " << CostModel::Create(*profile).status();
    EXPECT_FALSE(profile->device.source.empty()) << name;
    for (const NetworkLevel& level : profile->network) {
      EXPECT_FALSE(level.source.empty()) << name << " " << level.name;
    }
    for (const ModelConstant& constant : profile->constants) {
      EXPECT_FALSE(constant.source.empty()) << name << " " << constant.name;
    }
  }
  EXPECT_GE(num_data_sheets, 7);
}

// Goal: what is missing or misspelled is named, with what gives it.
TEST(SheetTimesTest, NamesWhatIsMissing) {
  auto error_of = [](const HardwareProfile& profile) {
    return std::string(CostModel::Create(profile).status().message());
  };
  HardwareProfile profile = H100();
  profile.device = {};
  EXPECT_THAT(error_of(profile),
              AllOf(HasSubstr("device"), HasSubstr("data sheet")));
  profile = H100();
  profile.network.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no network"));
  profile = H100();
  profile.constants.erase(profile.constants.begin());
  EXPECT_THAT(error_of(profile),
              AllOf(HasSubstr("'gemm_share' is missing"), HasSubstr("gives")));
  profile = H100();
  profile.constants.push_back({.name = "gem_share", .value = 1, .source = ""});
  EXPECT_THAT(error_of(profile), HasSubstr("did you mean 'gemm_share'"));
  const auto unknown = LoadNamedProfile("h100-smx");
  EXPECT_THAT(std::string(unknown.status().message()),
              AllOf(HasSubstr("did you mean 'h100-sxm'"),
                    HasSubstr("a100-80gb"), HasSubstr("gb200-nvl72")));
}

// Goal: large products reach gemm_share of the peak, none more; a tile too many
// costs a wave; eight bits are faster, and four are where the device has them.
TEST(SheetTimesTest, GemmsKeepTheRoof) {
  const HardwareProfile profile = H100();
  const CostModel cost = CostOf(profile);
  const double roof =
      Constant(profile, "gemm_share") * profile.device.bf16_flops_per_s;
  auto rate_of = [&](const GroupedGemmAttributes& gemm) {
    const double flops = 2.0 * static_cast<double>(gemm.m * gemm.n * gemm.k);
    return flops / cost.GemmSeconds(gemm);
  };
  EXPECT_GT(rate_of(Square(32768)), 0.95 * roof);
  for (const int64_t size : {64, 100, 256, 1000, 4096, 8192, 16384}) {
    EXPECT_LE(rate_of(Square(size)), roof) << size;
    EXPECT_LT(cost.GemmSeconds(Square(size)),
              cost.GemmSeconds(Square(2 * size)));
  }
  EXPECT_LT(rate_of(Square(512)), 0.5 * roof);
  const auto large = [&](GemmFormat format) {
    return cost.GemmSeconds(Square(16384, format));
  };
  EXPECT_LT(large(GemmFormat::kFloat8), 0.7 * large(GemmFormat::kAsStored));
  // An H100 has no fp4: it computes in fp8.
  EXPECT_EQ(large(GemmFormat::kFloat4), large(GemmFormat::kFloat8));
  // One row moves all of b.
  EXPECT_GT(cost.GemmSeconds({.m = 1, .n = 8192, .k = 8192, .trans_b = true}),
            2.0 * 8192 * 8192 / profile.device.memory_bytes_per_s);
}

// Goal: a share of the peak for each precision and the time of a tile describe
// all products of a device. Method: those of the profile that was measured on
// H200, by formula alone, against its table, both with the launch: those of
// 50 us and more, which the constants were fitted to, and apart from them the
// shorter ones, rows of small models, and those in 8 bits.
TEST(SheetTimesTest, FormulaMatchesMeasuredGemms) {
  const auto measured = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(measured.ok()) << measured.status();
  HardwareProfile formula = *measured;
  formula.gemms.clear();
  const CostModel cost = CostOf(formula);
  std::vector<double> errors, short_errors, float8_errors;
  for (const GemmTime& time : measured->gemms) {
    const double seconds = cost.GemmSeconds(
        {.m = time.m,
         .n = time.n,
         .k = time.k,
         .format = time.is_float8 ? GemmFormat::kFloat8 : GemmFormat::kAsStored,
         .trans_a = time.trans_a,
         .trans_b = time.trans_b});
    (time.is_float8         ? float8_errors
     : time.seconds < 50e-6 ? short_errors
                            : errors)
        .push_back(std::abs(
            seconds / (time.seconds + measured->launch_overhead_s) - 1));
  }
  ASSERT_GT(float8_errors.size(), 50u);
  std::sort(float8_errors.begin(), float8_errors.end());
  EXPECT_LT(float8_errors[float8_errors.size() / 2], 0.05);
  EXPECT_LT(float8_errors[float8_errors.size() * 9 / 10], 0.15);
  ASSERT_GT(errors.size(), 100u);
  ASSERT_GT(short_errors.size(), 30u);
  std::sort(short_errors.begin(), short_errors.end());
  EXPECT_LT(short_errors[short_errors.size() / 2], 0.15);
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.03);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.09);
}

// Goal: time of attention grows with the square of the sequence, and its
// backward pass is the longer.
TEST(SheetTimesTest, AttentionIsQuadratic) {
  const CostModel cost = CostOf(H100());
  const auto seconds = [&](OpKind kind, int64_t tokens) {
    return cost.AttentionSeconds(kind, GeneralOf({.num_sequences = 1,
                                                  .sequence_length = tokens,
                                                  .num_heads = 32,
                                                  .num_kv_heads = 8,
                                                  .head_dim = 128}));
  };
  const double once = seconds(OpKind::kAttentionForward, 8192);
  EXPECT_NEAR(seconds(OpKind::kAttentionForward, 16384) / once, 4, 0.2);
  EXPECT_GT(seconds(OpKind::kAttentionBackward, 16384), 2 * 4 * once);
}

// Goal: collectives take what their slowest level takes. Method: whole groups
// inside a node; one member a node; two members a node, which share two links.
TEST(SheetTimesTest, CollectivesFollowPlacement) {
  const HardwareProfile profile = H100();
  const CostModel cost = CostOf(profile);
  constexpr double kBytes = 1e9;
  const double link =
      Constant(profile, "link_share") * profile.network[0].bytes_per_s;
  const double fabric =
      Constant(profile, "fabric_share") * profile.network[1].bytes_per_s;
  auto gather = [&](const GroupPlacement& group) {
    return cost.CollectiveSeconds(OpKind::kAllGather, kBytes, group);
  };
  EXPECT_NEAR(gather(Group(8, 1)), kBytes * 7 / 8 / link, 5e-5);
  EXPECT_NEAR(gather(Group(4, 8)), kBytes * 3 / 4 / fabric, 1e-4);
  EXPECT_NEAR(gather(Group(8, 4)), kBytes * 7 / 8 / (2 * fabric), 1e-4);
  EXPECT_NEAR(gather({.inner = {.size = 2, .stride = 4},
                      .outer = {.size = 4, .stride = 64}}),
              kBytes * 7 / 8 / (2 * fabric), 1e-4);
  EXPECT_EQ(gather(Group(1, 1)), 0);
  EXPECT_NEAR(cost.CollectiveSeconds(OpKind::kAllReduce, kBytes, Group(8, 1)),
              2 * gather(Group(8, 1)), 1e-4);
  // Three quarters of an exchange over 32 leave the node.
  EXPECT_NEAR(
      cost.CollectiveSeconds(OpKind::kExpertExchange, kBytes, Group(32, 1)),
      kBytes * 24 / 32 / fabric, 1e-4);
  // With eight experts among 32, each of the three other nodes that has any of
  // them gets a row. Nearly always all three have.
  const double met = 3 * (1 - std::pow(3.0 / 4, 8));
  EXPECT_NEAR(
      cost.CollectiveSeconds(OpKind::kExpertExchange, kBytes, Group(32, 1), 8),
      kBytes * met / 8 / fabric, 1e-4);
  // In one rack of GB200s nothing leaves it.
  const CostModel rack = CostOf(*LoadNamedProfile("gb200-nvl72"));
  EXPECT_LT(
      rack.CollectiveSeconds(OpKind::kAllGather, kBytes, Group(64, 1)) * 10,
      gather(Group(64, 1)) * 8);
  EXPECT_LT(cost.TransferSeconds(kBytes, 1, 8),
            cost.TransferSeconds(kBytes, 8, 2));
}

// Goal: rings that enter and leave nodes at different devices are slow where
// nothing relays between ports, others are not. Method: some, one and all of a
// node's devices, with and without relays.
TEST(SheetTimesTest, RingsOfSomeOfANodeNeedRelays) {
  const CostModel cost = CostOf(H100());
  constexpr double kBytes = 1e9;
  const auto slower = [&](GroupPlacement group) {
    const double relayed =
        cost.CollectiveSeconds(OpKind::kAllReduce, kBytes, group);
    group.relays_to_ports = false;
    return cost.CollectiveSeconds(OpKind::kAllReduce, kBytes, group) / relayed;
  };
  EXPECT_GT(slower(Group(8, 4)), 2);   // Two of each node.
  EXPECT_GT(slower(Group(16, 2)), 2);  // Four.
  EXPECT_EQ(slower(Group(8, 8)), 1);
  EXPECT_EQ(slower(Group(32, 1)), 1);
  EXPECT_EQ(slower(Group(4, 2)), 1);  // Inside one node.
}

// Goal: products whose rows of weights or results do not start at 16 bytes are
// slower, whatever the tokens. Method: GPT-2's 50,257 entries, and divisible.
TEST(SheetTimesTest, CutRowsAreSlow) {
  const CostModel cost = CostOf(H100());
  const auto head = [&](Phase phase, int64_t vocab, int64_t tokens) {
    GroupedGemmAttributes gemm{
        .m = tokens, .n = vocab, .k = 4096, .trans_b = true};
    if (phase == Phase::kInputGradient) {
      gemm = {.m = tokens, .n = 4096, .k = vocab};
    }
    if (phase == Phase::kWeightGradient) {
      gemm = {.m = vocab, .n = 4096, .k = tokens, .trans_a = true};
    }
    return cost.GemmSeconds(gemm);
  };
  for (const Phase phase :
       {Phase::kForward, Phase::kInputGradient, Phase::kWeightGradient}) {
    const double whole = head(phase, 50304, 4096);
    EXPECT_GT(head(phase, 50257, 4096), 2 * whole);
    EXPECT_GT(head(phase, 50300, 4096), 1.3 * whole);
    EXPECT_LT(head(phase, 50300, 4096), head(phase, 50257, 4096));
    EXPECT_LT(head(phase, 50304, 4097), 1.05 * whole);
  }
}

// Goal: measured tables win over formulas near what was measured, and only
// there. Method: a table that says a product takes a second.
TEST(SheetTimesTest, MeasuredTablesWin) {
  HardwareProfile profile = H100();
  profile.launch_overhead_s = 0;
  profile.gemms = {{.m = 4096,
                    .n = 4096,
                    .k = 4096,
                    .trans_a = false,
                    .trans_b = true,
                    .seconds = 1}};
  for (const bool backward : {false, true}) {
    profile.attention.push_back({.backward = backward,
                                 .num_sequences = 1,
                                 .sequence_length = 4096,
                                 .num_heads = 8,
                                 .num_kv_heads = 8,
                                 .head_dim = 128,
                                 .seconds = 2});
  }
  profile.cross_entropy = {{.kind = OpKind::kLinearCrossEntropy,
                            .num_tokens = 1,
                            .hidden = 1,
                            .vocab_rows = 1,
                            .seconds = 1}};
  profile.bandwidth = {{.kind = OpKind::kAdd, .bytes = 1, .seconds = 1}};
  const CostModel cost = CostOf(profile);
  EXPECT_NEAR(cost.GemmSeconds(Square(4096)), 1, 1e-9);
  EXPECT_LT(cost.GemmSeconds(Square(16384)), 0.1);
  EXPECT_LT(cost.GemmSeconds(Square(4096, GemmFormat::kFloat8)), 0.1);
  EXPECT_NEAR(cost.AttentionSeconds(OpKind::kAttentionForward,
                                    GeneralOf({.num_sequences = 1,
                                               .sequence_length = 4096,
                                               .num_heads = 8,
                                               .num_kv_heads = 8,
                                               .head_dim = 128})),
              2, 1e-9);
}

}  // namespace
}  // namespace millrace
