// Tests that an export writes nothing that frameworks refuse to start with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/frameworks/export.h"
#include "planner/frameworks/settings.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Goal: stages of unequal size are said as Megatron-LM can. Method: 9 layers
// over 2, 3, 4, 5 and 6 stages, against the stages of layout.h by hand.
TEST(ExportLimitsTest, MegatronSaysStageSizes) {
  const JobSpec job = UnusualJob();
  auto text = [&](int32_t pipeline) {
    return MustExport(job, {.pipeline = pipeline, .num_microbatches = 96},
                      MegatronAdapter());
  };
  // 5, 4.
  EXPECT_THAT(text(2),
              AllOf(HasSubstr("--decoder-last-pipeline-num-layers 4"),
                    Not(HasSubstr("--decoder-first-pipeline-num-layers"))));
  EXPECT_THAT(text(3), Not(HasSubstr("num-layers 3")));  // 3, 3, 3.
  // 2, 2, 3, 2.
  EXPECT_THAT(text(4), HasSubstr("'Ett|tt|ttt|ttL'"));
  // 2, 2, 2, 2, 1.
  EXPECT_THAT(text(5),
              AllOf(HasSubstr("--decoder-first-pipeline-num-layers 2"),
                    HasSubstr("--decoder-last-pipeline-num-layers 1")));
  // 1, 1, 2, 2, 2, 1.
  EXPECT_THAT(text(6), HasSubstr("'Et|t|tt|tt|tt|tL'"));
}

// Goal: chunks of unequal size come back, though Megatron-LM takes either their
// number or their sizes. Method: 9 layers in 4 chunks, there and back.
TEST(ExportLimitsTest, MegatronSaysChunksOnce) {
  JobSpec job = UnusualJob();
  const Layout layout{.pipeline = 2,
                      .interleave = 2,
                      .num_microbatches = 96,
                      .schedule = Schedule::kInterleaved};
  for (const Framework framework :
       {MegatronAdapter(), MegatronBridgeAdapter(), NemoAdapter()}) {
    job.training.precision = framework == NemoAdapter() ? "bf16" : "fp32";
    const std::string text = MustExport(job, layout, framework);
    EXPECT_THAT(text, HasSubstr("Ett|tt|ttt|ttL'"));
    EXPECT_THAT(text, Not(HasSubstr("--num-virtual-stages")));
    const JobSpec back = MustImport(framework, ReadBack(framework, text));
    EXPECT_EQ(back.layout.interleave, 2);
    EXPECT_EQ(back.layout.schedule, "interleaved");
  }
}

// Goal: the plan's order of ranks is asked for only where Megatron Core takes
// it: experts must leave as many data ranks as the layers do. Method: layouts
// on both sides of that rule.
TEST(ExportLimitsTest, MegatronAsksForRankOrderItTakes) {
  JobSpec job = UnusualJob();
  job.training.precision = "bf16";
  Layout layout{.pipeline = 2, .data = 2, .tensor = 2, .num_microbatches = 48};
  const std::string order = "--use-tp-pp-dp-mapping";
  const std::string dense = MustExport(job, layout, MegatronAdapter());
  EXPECT_THAT(dense, AllOf(HasSubstr(order), Not(HasSubstr("rank order"))));
  // One less than tensor would count data ranks of experts that are not there.
  EXPECT_THAT(dense, Not(HasSubstr("--expert-tensor-parallel-size")));
  EXPECT_THAT(MustExport(job, layout, MegatronBridgeAdapter()),
              HasSubstr("model.expert_tensor_parallel_size=null"));
  layout.context = 2;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(Not(HasSubstr(order)), HasSubstr("rank order")));
  layout.context = 1;
  job.model.moe = {
      .num_experts = 8, .experts_per_token = 2, .expert_hidden = 96};
  layout.expert = 2;
  EXPECT_THAT(
      MustExport(job, layout, MegatronAdapter()),
      AllOf(HasSubstr(order), HasSubstr("--expert-tensor-parallel-size 1")));
  layout.expert = 4;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(Not(HasSubstr(order)), HasSubstr("rank order")));
  layout.data = 1;
  layout.expert = 2;
  layout.num_microbatches = 96;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(Not(HasSubstr(order)), Not(HasSubstr("rank order"))));
}

// Goal: experts in fp32 are not asked for what is in bf16 only. Method: one
// layout, both precisions.
TEST(ExportLimitsTest, MegatronGroupsExpertsInBf16) {
  JobSpec job = UnusualJob();
  job.model.moe = {
      .num_experts = 8, .experts_per_token = 2, .expert_hidden = 96};
  Layout layout{.num_microbatches = 96};
  layout.recompute = Recompute::kCheap;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(Not(HasSubstr("--moe-grouped-gemm")),
                    Not(HasSubstr("moe_act")), HasSubstr("experts in fp32")));
  job.training.precision = "bf16";
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(HasSubstr("--moe-grouped-gemm"),
                    HasSubstr("--recompute-modules layernorm moe_act"),
                    Not(HasSubstr("recompute norm+activation: "))));
}

// Goal: the embedding has the job's rows whether or not the null tokenizer adds
// one, as it does before core 0.18. Method: Megatron-LM's padding by hand.
TEST(ExportLimitsTest, MegatronPadsToTheVocabulary) {
  const JobSpec job = UnusualJob();
  for (const int32_t tensor : {1, 2, 8}) {
    const Settings flags =
        ReadMegatronSettings(
            MustExport(job, {.tensor = tensor, .num_microbatches = 96},
                       MegatronAdapter()),
            "args.txt")
            .value();
    const int64_t given = std::stoll(flags.Find("vocab-size")->value);
    const int64_t multiple =
        tensor * std::stoll(flags.Find("make-vocab-size-divisible-by")->value);
    for (const int64_t rows : {given, given + 1}) {
      EXPECT_EQ((rows + multiple - 1) / multiple * multiple, 1552);
    }
  }
}

// Goal: what a framework refuses to start with is not written. Method: each
// demand of theirs by one job.
TEST(ExportLimitsTest, KeepsToWhatFrameworksTake) {
  JobSpec job = UnusualJob();
  // Megatron Core: the decay ends after the warmup.
  job.training.optimizer.warmup_steps = 777;
  EXPECT_THAT(MustExport(job, {.num_microbatches = 96}, MegatronAdapter()),
              HasSubstr("--lr-decay-iters 778 "));
  // DeepSpeed: a warmup of two steps at least.
  job.training.optimizer.warmup_steps = 0;
  EXPECT_THAT(MustExport(job, {.num_microbatches = 96}, DeepSpeedAdapter()),
              AllOf(HasSubstr("\"warmup_num_steps\": 2"),
                    HasSubstr("training.optimizer.warmup_steps 0")));
  // DeepSpeed: a pipeline beside ZeRO 0 or 1.
  EXPECT_THAT(
      MustExport(job,
                 {.pipeline = 2, .data = 2, .num_microbatches = 48, .zero = 3},
                 DeepSpeedAdapter()),
      AllOf(HasSubstr("\"stage\": 1"),
            HasSubstr("ZeRO 3: PipelineModule takes")));
  // DeepSpeed: ZeRO 3 beside a tensor axis since 0.19.4.
  EXPECT_THAT(
      MustExport(job,
                 {.data = 2, .tensor = 2, .num_microbatches = 48, .zero = 3},
                 DeepSpeedAdapter()),
      AllOf(HasSubstr("\"stage\": 3"), HasSubstr("0.19.4 or later")));
  // torchtitan: embedding and head of one tensor stand on one stage.
  job.model.ties_embedding = true;
  EXPECT_THAT(
      ExportLayout(job, {.pipeline = 2, .num_microbatches = 96},
                   TorchtitanAdapter())
          .status()
          .message(),
      AllOf(HasSubstr("model.ties_embedding"), HasSubstr("layout.pipeline")));
  // torchtitan: replicas only where the data axis is alone.
  job.model.ties_embedding = false;
  EXPECT_THAT(MustExport(job, {.data = 2, .tensor = 2, .num_microbatches = 48},
                         TorchtitanAdapter()),
              AllOf(HasSubstr("data_parallel_replicate_degree = 1\n"),
                    HasSubstr("data_parallel_shard_degree = 2\n"),
                    HasSubstr("fsdp_reshard_after_forward = \"never\""),
                    HasSubstr("ZeRO 0 beside other axes")));
  // Megatron Core: selective recomputation without a recipe's number of layers.
  Layout selective{.num_microbatches = 96};
  selective.recompute = Recompute::kCheap;
  EXPECT_THAT(MustExport(job, selective, MegatronBridgeAdapter()),
              AllOf(HasSubstr("model.recompute_granularity=selective"),
                    HasSubstr("model.recompute_method=null"),
                    HasSubstr("model.recompute_num_layers=null")));
}

}  // namespace
}  // namespace millrace
