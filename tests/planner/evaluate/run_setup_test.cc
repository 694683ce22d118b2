#include "planner/evaluate/run_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/evaluate/known_models.h"
#include "planner/evaluate/published_runs.h"
#include "tests/planner/shipped_rules.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<PublishedRun> CollectedRuns() {
  return LoadPublishedRuns("tests/data/published_runs/published_runs.json")
      .value();
}

const PublishedRun& RunOf(const std::vector<PublishedRun>& runs,
                          const std::string& id) {
  for (const PublishedRun& run : runs) {
    if (run.id == id) return run;
  }
  ADD_FAILURE() << "no row " << id;
  return runs.front();
}

// A run that states everything.
PublishedRun WholeRun() {
  PublishedRun run;
  run.id = "mcore/1";
  run.group = "mcore";
  run.kind = "pretrain";
  run.model = "llama3-8b";
  run.gpu = "H100";
  run.mlp = "swiglu";
  run.layers = 32;
  run.hidden = 4096;
  run.heads = 32;
  run.kv_heads = 8;
  run.ffn = 14336;
  run.vocab = 128256;
  run.sequence = 8192;
  run.num_gpus = 16;
  run.tensor = run.pipeline = run.interleave = 2;
  run.context = run.expert = 1;
  run.data = 4;
  run.micro_batch = 2;
  run.global_batch = 64;
  run.precision = "BF16";
  run.recompute = "none";
  run.zero = "zero1";
  return run;
}

std::string Refusal(const PublishedRun& run) {
  const absl::StatusOr<RunSetup> setup = SetUpRun(run, ShippedRules());
  return setup.ok() ? "not refused" : std::string(setup.status().message());
}

// Goal: a whole row maps onto model and layout, with no assumption but the
// framework's. Method: compare with the row.
TEST(RunSetupTest, MapsAWholeRow) {
  const absl::StatusOr<RunSetup> setup = SetUpRun(WholeRun(), ShippedRules());
  ASSERT_TRUE(setup.ok()) << setup.status();
  EXPECT_TRUE(setup->model.is_llama());
  EXPECT_EQ(setup->model.head_dim, 128);
  EXPECT_EQ(setup->model.sequence_length, 8192);
  EXPECT_EQ(setup->layout, (Layout{.pipeline = 2,
                                   .data = 4,
                                   .tensor = 2,
                                   .interleave = 2,
                                   .micro_batch = 2,
                                   .num_microbatches = 8,
                                   .zero = 1,
                                   .precision = Precision::kBfloat16,
                                   .schedule = Schedule::kInterleaved}));
  EXPECT_EQ(setup->profile, "h100-sxm");
  EXPECT_EQ(setup->assumptions.size(), 1u);
}

// Goal: what a row does not say is named in the refusal. Method: take away or
// spoil one thing each.
TEST(RunSetupTest, RefusesWithTheReason) {
  const PublishedRun whole = WholeRun();
  auto refusal = [&](auto spoil) {
    PublishedRun run = whole;
    spoil(run);
    return Refusal(run);
  };
  EXPECT_THAT(refusal([](auto& r) {
                r.hidden.reset();
                r.model = "ours-8b";
              }),
              HasSubstr("hidden is not stated"));
  EXPECT_THAT(refusal([](auto& r) {
                r.hidden.reset();
                r.kv_heads = 4;
              }),
              HasSubstr("kv_heads is 4, but config.json of Llama 3 8B has 8"));
  EXPECT_THAT(refusal([](auto& r) { r.kv_heads.reset(); }),
              HasSubstr("kv_heads is not stated"));
  EXPECT_THAT(refusal([](auto& r) { r.vocab.reset(); }),
              HasSubstr("vocab is not stated"));
  EXPECT_THAT(refusal([](auto& r) { r.mlp = "maxout"; }),
              AllOf(HasSubstr("maxout"), HasSubstr("swiglu, gelu, relu2")));
  EXPECT_THAT(refusal([](auto& r) { r.micro_batch.reset(); }),
              HasSubstr("micro_batch is not stated"));
  EXPECT_THAT(refusal([](auto& r) { r.global_batch.reset(); }),
              HasSubstr("global_batch is not stated"));
  EXPECT_THAT(refusal([](auto& r) { r.global_batch = 60; }),
              HasSubstr("60 is not divisible by micro_batch 2 x dp 4"));
  EXPECT_THAT(refusal([](auto& r) { r.num_gpus = 24; }),
              HasSubstr("is 16 devices, but n_gpus is 24"));
  EXPECT_THAT(refusal([](auto& r) {
                r.context = 0;
                r.data.reset();
              }),
              HasSubstr("cp is 0; it must be from 1"));
  EXPECT_THAT(refusal([](auto& r) { r.expert = 0; }), HasSubstr("ep is 0"));
  EXPECT_THAT(refusal([](auto& r) { r.interleave = 0; }), HasSubstr("vp is 0"));
  EXPECT_THAT(refusal([](auto& r) { r.context = (1LL << 32) + 1; }),
              HasSubstr("cp is 4294967297"));
  EXPECT_THAT(refusal([](auto& r) {
                r.tensor = r.pipeline = 65536;
                r.data.reset();
              }),
              HasSubstr("tp 65536 x pp 65536 x cp 1 x dp 1 is 4.29497e+09"));
  EXPECT_THAT(refusal([](auto& r) { r.gpu = "MI300X"; }),
              AllOf(HasSubstr("'MI300X' is unknown"), HasSubstr("H100")));
  EXPECT_THAT(refusal([](auto& r) { r.precision = "not stated"; }),
              HasSubstr("precision is not stated"));
  EXPECT_THAT(refusal([](auto& r) { r.precision = "INT8"; }),
              HasSubstr("INT8"));
  EXPECT_THAT(refusal([](auto& r) { r.zero = "zero9"; }), HasSubstr("zero9"));
  EXPECT_THAT(refusal([](auto& r) { r.recompute = "often"; }),
              HasSubstr("often"));
  EXPECT_THAT(refusal([](auto& r) { r.kind = "lora"; }), HasSubstr("lora"));
  EXPECT_THAT(refusal([](auto& r) { r.has_moe = true; }),
              HasSubstr("number of experts is not stated"));
  EXPECT_THAT(refusal([](auto& r) {
                r.zero = "fsdp2";
                r.fsdp_shard = 3;
              }),
              HasSubstr("fsdp_shard 3"));
  EXPECT_THAT(refusal([](auto& r) { r.model = "Nemotron_3_Nano"; }),
              HasSubstr("Mamba"));
}

// Goal: a run that shards inside parts of its data axis is hybrid sharding.
// Method: shards of half the axis, and of all of it.
TEST(RunSetupTest, KnowsHybridSharding) {
  PublishedRun run = WholeRun();
  run.zero = "fsdp2";
  for (const auto& [shard, groups] : {std::pair(2, 2), std::pair(4, 1)}) {
    run.fsdp_shard = shard;
    const auto setup = SetUpRun(run, ShippedRules());
    ASSERT_TRUE(setup.ok()) << setup.status();
    EXPECT_EQ(setup->layout.zero, 3);
    EXPECT_EQ(setup->layout.data_groups, groups);
  }
}

// Goal: one thing under several names is understood, and a device that only
// shares letters with a known one, or is a lesser one of its name, is refused.
// Method: names as sources spell them.
TEST(RunSetupTest, KnowsNamesApart) {
  const auto set_up = [](auto change) {
    PublishedRun run = WholeRun();
    change(run);
    return SetUpRun(run, ShippedRules());
  };
  for (const char* zero :
       {"ZeRO-1", "zero_1", "ZeRO 1", "Distributed optimizer"}) {
    const auto setup = set_up([&](auto& r) { r.zero = zero; });
    ASSERT_TRUE(setup.ok()) << setup.status();
    EXPECT_EQ(setup->layout.zero, 1) << zero;
  }
  for (const char* mlp : {"SwiGLU", "GeGLU"}) {
    const auto setup = set_up([&](auto& r) { r.mlp = mlp; });
    ASSERT_TRUE(setup.ok()) << setup.status();
    EXPECT_EQ(setup->model.feed_forward, FeedForward::kSwiglu) << mlp;
  }
  const auto relu = set_up([](auto& r) { r.mlp = "ReLU"; });
  ASSERT_TRUE(relu.ok()) << relu.status();
  EXPECT_THAT(relu->assumptions, Contains(HasSubstr("planned as GELU")));
  EXPECT_TRUE(set_up([](auto& r) { r.precision = "bfloat16"; }).ok());

  const std::map<std::string, std::string> profiles = {
      {"NVIDIA H100 80GB HBM3", "h100-sxm"},   {"DGXH100", "h100-sxm"},
      {"GB200, NVL72, 4x CX7", "gb200-nvl72"}, {"DGX-B200", "b200-hgx"},
      {"A100-SXM4-80GB", "a100-80gb"},         {"H200-141GB", "h200-cluster"}};
  for (const auto& [gpu, profile] : profiles) {
    const auto setup = set_up([&, name = gpu](auto& r) { r.gpu = name; });
    ASSERT_TRUE(setup.ok()) << setup.status();
    EXPECT_EQ(setup->profile, profile) << gpu;
  }
  for (const char* gpu : {"GH200", "RTX A1000", "H20", "H100 PCIe", "H100 NVL",
                          "H100 NVL 94GB", "A100-40GB", "A100 PCIe 80GB"}) {
    PublishedRun run = WholeRun();
    run.gpu = gpu;
    EXPECT_THAT(Refusal(run), HasSubstr(gpu));
  }
}

// Goal: a model known by name is the one that rows describe. Method: rows that
// state dims of such a model, with and without them.
TEST(RunSetupTest, NamedModelsAreThoseOfRowsWithDims) {
  std::set<std::string> compared;
  for (const PublishedRun& run : CollectedRuns()) {
    const KnownModel* known = FindKnownModel(ShippedRules().models, run.model);
    if (known == nullptr || !run.hidden || !run.layers ||
        *run.layers != known->model.num_layers) {
      continue;
    }
    PublishedRun bare = run;
    bare.hidden.reset();
    const auto stated = SetUpRun(run, ShippedRules()),
               named = SetUpRun(bare, ShippedRules());
    if (!stated.ok()) continue;  // For another reason.
    ASSERT_TRUE(named.ok()) << run.id << ": " << named.status();
    EXPECT_EQ(stated->model, named->model) << run.id;
    compared.insert(known->prefix);
  }
  EXPECT_THAT(compared, IsSupersetOf({"llama38b", "llama370b", "llama31405b",
                                      "qwen330b", "qwen3235b"}));
}

// Goal: each collected row is set up or refused with a reason, and refusals are
// those that the data calls for. Method: count by group.
TEST(RunSetupTest, SetsUpOrRefusesEveryCollectedRow) {
  std::map<std::string, int> set_up, refused;
  for (const PublishedRun& run : CollectedRuns()) {
    const absl::StatusOr<RunSetup> setup = SetUpRun(run, ShippedRules());
    if (setup.ok()) {
      ++set_up[run.group];
      EXPECT_THAT(setup->assumptions, Not(IsEmpty())) << run.id;
      EXPECT_EQ(setup->layout.num_ranks(), *run.num_gpus) << run.id;
      EXPECT_EQ(setup->layout.global_batch(), *run.global_batch) << run.id;
    } else {
      ++refused[run.group];
      EXPECT_THAT(setup.status().message(), Not(IsEmpty())) << run.id;
    }
  }
  EXPECT_EQ(set_up, (std::map<std::string, int>{{"dgxc", 64},
                                                {"mbridge_perf", 107},
                                                {"mbridge_recompute", 4},
                                                {"mlperf", 16},
                                                {"nemo_24.07", 7},
                                                {"sc21_table1", 10},
                                                {"seqsel_fig1_memory", 8},
                                                {"seqsel_table5", 5},
                                                {"torchtitan", 19},
                                                {"vtrain_multi", 65}}));
  // Micro-batch not stated; Mamba or sparse attention in Megatron-Bridge.
  EXPECT_EQ(refused, (std::map<std::string, int>{{"deepseek_v3_paper", 1},
                                                 {"llama3_paper", 3},
                                                 {"mbridge_perf", 38},
                                                 {"mbridge_recompute", 1},
                                                 {"mcore_h100", 5},
                                                 {"megascale", 19}}));
}

// Goal: rules complete a row aloud. Method: rows of each source that lack
// something, and what they must become.
TEST(RunSetupTest, CompletesRowsAloud) {
  const std::vector<PublishedRun> runs = CollectedRuns();
  {
    const RunSetup setup =
        SetUpRun(RunOf(runs, "dgxc/0289"), ShippedRules()).value();
    EXPECT_EQ(setup.model.vocab_size, 51200);
    EXPECT_EQ(setup.model.feed_forward, FeedForward::kGelu);
    EXPECT_EQ(setup.layout.zero, 1);
    EXPECT_EQ(setup.layout.gemm_format, GemmFormat::kFloat8);
    EXPECT_THAT(setup.assumptions, Contains(HasSubstr("vocab not stated")));
    EXPECT_THAT(setup.assumptions, Contains(HasSubstr("ZeRO not stated")));
    EXPECT_THAT(setup.assumptions, Contains(HasSubstr("recompute not stated")));
  }
  {
    // 32 sequences a replica in as many micro-batches as stages, two chunks.
    const RunSetup setup =
        SetUpRun(RunOf(runs, "torchtitan/0447"), ShippedRules()).value();
    EXPECT_EQ(setup.layout.num_microbatches, 8);
    EXPECT_EQ(setup.layout.micro_batch, 4);
    EXPECT_EQ(setup.layout.interleave, 2);
    EXPECT_EQ(setup.layout.recompute, Recompute::kFull);
    EXPECT_EQ(setup.layout.zero, 3);
    EXPECT_EQ(setup.profile, "h100-500w");
  }
  {
    const RunSetup setup =
        SetUpRun(RunOf(runs, "vtrain_multi/0487"), ShippedRules()).value();
    EXPECT_EQ(setup.profile, "a100-80gb-100g");
    EXPECT_FALSE(setup.implementation.flash_attention);
    EXPECT_EQ(setup.layout.recompute, Recompute::kFull);
  }
  {
    // Sums of traces, not steps: docs/evaluate.md says how that shows.
    PublishedRun run = RunOf(runs, "vtrain_multi/0487");
    run.group = "vtrain_single_node";
    run.recompute.clear();
    const RunSetup setup = SetUpRun(run, ShippedRules()).value();
    EXPECT_EQ(setup.profile, "a100-80gb-vtrain-node");
    EXPECT_EQ(setup.layout.recompute, Recompute::kNone);
    EXPECT_EQ(setup.model.vocab_size, 50257);
    run.tensor = 8;
    run.data = 8;
    EXPECT_EQ(SetUpRun(run, ShippedRules()).value().model.vocab_size, 50256);
  }
  {
    const RunSetup setup =
        SetUpRun(RunOf(runs, "mbridge_perf/0052"), ShippedRules()).value();
    EXPECT_EQ(setup.model.moe.num_experts, 384);
    EXPECT_EQ(setup.model.mla.kv_rank, 512);
    EXPECT_THAT(setup.assumptions, Contains(HasSubstr("Kimi K2")));
  }
  {
    const RunSetup setup =
        SetUpRun(RunOf(runs, "mbridge_perf/0063"), ShippedRules()).value();
    EXPECT_EQ(setup.layout.zero, 3);
  }
  EXPECT_FALSE(SetUpRun(RunOf(runs, "mlperf/0366"), ShippedRules())
                   .value()
                   .implementation.overlaps_tensor);
  EXPECT_TRUE(SetUpRun(RunOf(runs, "torchtitan/0457"), ShippedRules())
                  .value()
                  .implementation.overlaps_tensor);
}

}  // namespace
}  // namespace millrace
