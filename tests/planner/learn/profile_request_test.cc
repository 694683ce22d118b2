#include "planner/learn/profile_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cost/op_cost.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

constexpr ModelSpec kModel = {.vocab_size = 128,
                              .hidden = 64,
                              .num_layers = 4,
                              .num_heads = 4,
                              .num_kv_heads = 2,
                              .head_dim = 16,
                              .ffn_hidden = 96,
                              .sequence_length = 32};

ModelSpec ModelWithOptions() {
  ModelSpec model = kModel;
  model.qkv_bias = true;
  model.qk_norm = true;
  model.feed_forward = FeedForward::kGeglu;
  return model;
}

ModelSpec ModelOfGpt2() {
  ModelSpec model = kModel;
  model.learned_positions = model.sequence_length;
  model.norm = NormKind::kLayer;
  model.feed_forward = FeedForward::kGelu;
  return model;
}

// Blocks of 8-bit copies divide its dims.
ModelSpec ModelInBlocks() {
  ModelSpec model = kModel;
  model.hidden = model.head_dim = model.sequence_length = 128;
  model.ffn_hidden = 512;
  return model;
}

TrainingSpec SmallTraining() {
  TrainingSpec training;
  training.num_steps = 1;
  training.global_batch = 8;
  return training;
}

// Goal: what is measured is enough for a cost model, and nothing is measured
// twice. Method: pretend each takes some time and build the cost model.
TEST(ProfileRequestTest, FillsEveryTable) {
  TrainingSpec training = SmallTraining();
  training.gradient_reduction = "bf16";
  for (const int32_t num_ranks : {1, 2, 4}) {
    const auto request =
        BuildProfileRequest(kModel, training, num_ranks, num_ranks);
    ASSERT_TRUE(request.ok()) << request.status();
    HardwareProfile profile;
    profile.provenance.num_ranks = num_ranks;
    std::set<std::string> seen;
    std::set<OpKind> kinds;
    for (const ProfileOp& op : request->ops) {
      EXPECT_FALSE(IsCollective(op.kind) || IsTransfer(op.kind));
      EXPECT_TRUE(seen.insert(absl::StrCat(OpKindName(op.kind), " ",
                                           AttributesToString(op.attributes)))
                      .second)
          << OpKindName(op.kind) << " " << AttributesToString(op.attributes);
      kinds.insert(op.kind);
      RecordOpTime(op, 1e-3, &profile);
    }
    for (const ProfileCommunication& communication : request->communication) {
      EXPECT_GT(communication.bytes, 0);
      EXPECT_GT(communication.group_size, 1);
      EXPECT_EQ(num_ranks % communication.group_size, 0);
      RecordCommunicationTime(communication, 1e-4, &profile);
      kinds.insert(communication.kind);
    }
    const auto cost = CostModel::Create(profile);
    EXPECT_TRUE(cost.ok()) << cost.status();
    // A lone rank has no shards to gather and no peer to send to.
    if (num_ranks > 1) {
      kinds.insert(OpKind::kReceive);  // The other end of a measured send.
      kinds.insert(OpKind::kCastParameters);  // Only bf16 Programs have it.
      // Those that no Llama has.
      for (const ModelSpec& model : {ModelWithOptions(), ModelOfGpt2()}) {
        const auto options =
            BuildProfileRequest(model, training, num_ranks, num_ranks);
        ASSERT_TRUE(options.ok()) << options.status();
        for (const ProfileOp& op : options->ops) kinds.insert(op.kind);
      }
      TrainingSpec of_pairs = training;
      of_pairs.objective = "dpo";
      for (const char* precision : {"fp8", "fp8_blockwise"}) {
        TrainingSpec in_float8 = training;
        in_float8.precision = precision;
        ModelSpec model = ModelInBlocks();
        model.attention_format = AttentionFormat::kFloat8;
        const auto float8 =
            BuildProfileRequest(model, in_float8, num_ranks, num_ranks);
        ASSERT_TRUE(float8.ok()) << float8.status();
        for (const ProfileOp& op : float8->ops) kinds.insert(op.kind);
      }
      const auto pairs =
          BuildProfileRequest(kModel, of_pairs, num_ranks, num_ranks);
      ASSERT_TRUE(pairs.ok()) << pairs.status();
      for (const ProfileOp& op : pairs->ops) kinds.insert(op.kind);
      for (int i = 0; i < kNumExecutedOpKinds; ++i) {
        EXPECT_TRUE(kinds.contains(static_cast<OpKind>(i)))
            << OpKindName(static_cast<OpKind>(i)) << " at " << num_ranks;
      }
    } else {
      EXPECT_TRUE(request->communication.empty());
    }
  }
}

// Goal: over several hosts, groups inside a host and across hosts are measured
// apart, and each group lies as it says. Method: 8 ranks, 4 on a host; every
// row's members by hand.
TEST(ProfileRequestTest, MeasuresEachLevelOfTheNetwork) {
  const auto request = BuildProfileRequest(kModel, SmallTraining(), 8, 4);
  ASSERT_TRUE(request.ok()) << request.status();
  HardwareProfile profile;
  profile.ranks_per_host = 4;
  std::set<std::tuple<OpKind, int32_t, int64_t, int64_t>> rows;
  for (const ProfileCommunication& what : request->communication) {
    EXPECT_TRUE(CheckGroups(what, 8).ok());
    RecordCommunicationTime(what, 1e-4, &profile);
    const CommunicationTime& row = profile.communication.back();
    rows.insert({row.kind, row.group_size, row.hosts, row.pairs});
    int32_t num_busy = 0;
    for (int32_t rank = 0; rank < 8; ++rank) {
      const std::vector<Rank> members = MembersOf(what, Rank{rank}, 8);
      if (members.empty()) continue;
      ++num_busy;
      std::set<int32_t> hosts;
      for (const Rank member : members) hosts.insert(ToInt(member) / 4);
      EXPECT_EQ(static_cast<int64_t>(hosts.size()), row.hosts);
      EXPECT_THAT(members, testing::Contains(Rank{rank}));
    }
    EXPECT_EQ(NumBusyRanks(what, 8), num_busy);
    // Transfers between hosts have as many senders as they say, all others all
    // ranks.
    EXPECT_EQ(num_busy,
              row.kind == OpKind::kSend && row.hosts > 1 ? 2 * row.pairs : 8);
  }
  // Four stages of two tensor ranks each leave a host in the middle.
  EXPECT_TRUE(rows.contains({OpKind::kSend, 2, 2, 2}));
  EXPECT_TRUE(rows.contains({OpKind::kSend, 2, 1, 1}));
  EXPECT_TRUE(rows.contains({OpKind::kReduceScatter, 2, 1, 1}));
  EXPECT_TRUE(rows.contains({OpKind::kReduceScatter, 2, 2, 1}));
  EXPECT_TRUE(rows.contains({OpKind::kReduceScatter, 4, 2, 1}));
  EXPECT_TRUE(rows.contains({OpKind::kReduceScatter, 8, 2, 1}));

  // Two ranks at the end of a host send to the first two of the next.
  const ProfileCommunication across = {.kind = OpKind::kSend,
                                       .group_size = 2,
                                       .stride = 2,
                                       .from_host_of = 4,
                                       .bytes = 64};
  EXPECT_EQ(MembersOf(across, Rank{3}, 8), (std::vector{Rank{3}, Rank{5}}));
  EXPECT_EQ(MembersOf(across, Rank{4}, 8), (std::vector{Rank{2}, Rank{4}}));
  EXPECT_TRUE(MembersOf(across, Rank{1}, 8).empty());
  EXPECT_TRUE(MembersOf(across, Rank{6}, 8).empty());
  // The last of three hosts has none to send to.
  EXPECT_EQ(NumBusyRanks(across, 12), 4);
}

// Goal: copy engines are measured where a budget says so, at what they can
// carry, into a table of their own. Method: with and without, four ranks.
TEST(ProfileRequestTest, AsksForCopyEngines) {
  ProfileBudget budget = kCpuProfileBudget;
  const auto without =
      BuildProfileRequest(kModel, SmallTraining(), 4, 4, budget);
  budget.copy_engines = true;
  const auto with = BuildProfileRequest(kModel, SmallTraining(), 4, 4, budget);
  ASSERT_TRUE(without.ok() && with.ok());
  HardwareProfile profile;
  std::set<std::pair<OpKind, int32_t>> found;
  for (const ProfileCommunication& what : with->communication) {
    RecordCommunicationTime(what, 1e-4, &profile);
    if (what.by_copy_engines) found.insert({what.kind, what.group_size});
  }
  EXPECT_EQ(profile.communication.size(), without->communication.size());
  EXPECT_EQ(profile.copy_engines.size(),
            with->communication.size() - without->communication.size());
  using Found = std::pair<OpKind, int32_t>;
  EXPECT_EQ(found, (std::set<Found>{{OpKind::kSend, 2},
                                    {OpKind::kAllGather, 2},
                                    {OpKind::kAllGather, 4},
                                    {OpKind::kReduceScatter, 2}}));
}

// Goal: measuring the quickstart fits in its time. Method: the floating-point
// work asked for, against what a slow core does in twenty seconds.
TEST(ProfileRequestTest, StaysSmallForLargeModels) {
  ModelSpec model = kModel;
  model.vocab_size = 4096;
  model.hidden = 256;
  model.num_heads = 8;
  model.num_kv_heads = 4;
  model.head_dim = 32;
  model.ffn_hidden = 704;
  model.sequence_length = 256;
  TrainingSpec training = SmallTraining();
  training.global_batch = 16;
  const auto request = BuildProfileRequest(model, training, 4, 4);
  ASSERT_TRUE(request.ok()) << request.status();
  double flops = 0, bytes = 0;
  for (const ProfileOp& op : request->ops) {
    const OpWork work = WorkOf({}, op.kind, op.attributes);
    flops += work.flops;
    bytes += work.bytes;
  }
  RecordProperty("gflops", static_cast<int>(flops / 1e9));
  RecordProperty("ops", static_cast<int>(request->ops.size()));
  EXPECT_LT(flops, 60e9);
  EXPECT_LT(bytes, 10e9);
  EXPECT_LT(request->ops.size(), 250u);
  EXPECT_LT(request->communication.size(), 60u);
}

// Goal: a bf16 profile is measured at bf16 sizes and cached apart from an fp32
// one. Method: the same job in both; bytes recorded for a norm, and the keys.
TEST(ProfileRequestTest, FollowsThePrecision) {
  TrainingSpec training = SmallTraining();
  const auto fp32 = BuildProfileRequest(kModel, training, 2, 2);
  const std::string fp32_key = ProfileShapeKey(kModel, training);
  training.precision = "bf16";
  const auto bf16 = BuildProfileRequest(kModel, training, 2, 2);
  ASSERT_TRUE(fp32.ok() && bf16.ok());
  EXPECT_EQ(ProfileShapeKey(kModel, training), fp32_key + "-bf16");
  const auto record = [](const ProfileRequest& request, Precision precision) {
    HardwareProfile profile;
    profile.precision = precision;
    for (const ProfileOp& op : request.ops) RecordOpTime(op, 1e-3, &profile);
    return profile;
  };
  const HardwareProfile wide = record(*fp32, Precision::kFloat32);
  const HardwareProfile narrow = record(*bf16, Precision::kBfloat16);
  const auto largest = [](const HardwareProfile& profile, OpKind kind) {
    int64_t bytes = 0;
    for (const BandwidthTime& time : profile.bandwidth) {
      if (time.kind == kind) bytes = std::max(bytes, time.bytes);
    }
    return bytes;
  };
  EXPECT_EQ(largest(wide, OpKind::kRmsNormForward),
            2 * largest(narrow, OpKind::kRmsNormForward));
  // Seven fp32 buffers; master weights add the bf16 copy.
  EXPECT_EQ(largest(wide, OpKind::kAdamW) / 28,
            largest(narrow, OpKind::kAdamW) / 30);
  EXPECT_TRUE(CostModel::Create(narrow).ok());
}

// Goal: ops that others are timed among are short, whether they compute or move
// bytes; among 1 M tokens an activation's FLOPs are few and its time is long.
// Method: Llama 3 1B, 128 sequences of 8,192 a step.
TEST(ProfileRequestTest, TheLargestWithinALimitIsShort) {
  const ModelSpec model = {.vocab_size = 128256,
                           .hidden = 2048,
                           .num_layers = 16,
                           .num_heads = 32,
                           .num_kv_heads = 8,
                           .head_dim = 64,
                           .ffn_hidden = 8192,
                           .sequence_length = 8192};
  TrainingSpec training;
  training.num_steps = 1;
  training.global_batch = 128;
  training.precision = "bf16";
  const auto request =
      BuildProfileRequest(model, training, 1, 1, kGpuProfileBudget);
  ASSERT_TRUE(request.ok()) << request.status();
  const Layout bf16 = {.precision = Precision::kBfloat16};
  for (const OpKind kind : {OpKind::kGemm, OpKind::kSwigluBackward}) {
    const ProfileOp* op = LargestWithin(*request, kind, 5e11);
    ASSERT_NE(op, nullptr);
    const OpWork work = WorkOf(bf16, op->kind, op->attributes);
    EXPECT_LE(work.flops, 5e11) << OpKindName(kind);
    EXPECT_LE(work.bytes, 4e9) << OpKindName(kind);
    EXPECT_GE(std::max(work.flops / 5e11, work.bytes / 4e9), 0.1)
        << OpKindName(kind);
    // None is within so little: the smallest.
    const ProfileOp* least = LargestWithin(*request, kind, 1);
    ASSERT_NE(least, nullptr);
    EXPECT_LT(WorkOf(bf16, kind, least->attributes).bytes, work.bytes);
  }
  EXPECT_EQ(LargestWithin(*request, OpKind::kAllReduce, 5e11), nullptr);
}

TEST(ProfileRequestTest, RefusesImpossibleRankCounts) {
  EXPECT_FALSE(BuildProfileRequest(kModel, SmallTraining(), 11, 11).ok());
}

}  // namespace
}  // namespace millrace
