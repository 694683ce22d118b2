#include "planner/frameworks/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "nlohmann/json.hpp"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "planner/frameworks/torchtitan.h"
#include "tests/planner/frameworks/framework_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Goal: what Megatron-LM can express survives the way there and back. Method:
// every layout of a job with unusual numbers; model, layout and training must
// come back equal.
TEST(ExportTest, MegatronRoundTrip) {
  JobSpec job = UnusualJob();
  job.model.head_dim = 20;  // Not hidden / heads.
  const std::vector<Layout> layouts = LayoutsOf(job);
  ASSERT_GT(layouts.size(), 300u);
  for (const Layout& layout : Sampled(layouts, 7)) {
    SCOPED_TRACE(LayoutToString(layout));
    const std::string text = MustExport(job, layout, MegatronAdapter());
    const JobSpec back =
        MustImport(MegatronAdapter(), ReadMegatronSettings(text, "args.txt"));
    EXPECT_EQ(back.model, job.model);
    EXPECT_EQ(back.training, job.training);
    EXPECT_EQ(back.layout, Pinned(layout));
    EXPECT_EQ(back.checkpoint.interval_steps, 55);
    if (HasFailure()) return;
  }
}

// Goal: the same for the frameworks on its core, whose keys are overrides of a
// recipe. Method: the same layouts; what each has no key for is as they say.
TEST(ExportTest, RecipeRoundTrip) {
  JobSpec job = UnusualJob();
  job.model.head_dim = 20;
  for (const Framework framework : {MegatronBridgeAdapter(), NemoAdapter()}) {
    job.training.precision = framework == NemoAdapter() ? "bf16" : "fp32";
    for (const Layout& layout : Sampled(LayoutsOf(job), 7)) {
      SCOPED_TRACE(LayoutToString(layout));
      const std::string text = MustExport(job, layout, framework);
      const JobSpec back = MustImport(framework, ReadBack(framework, text));
      EXPECT_EQ(back.model, job.model);
      EXPECT_EQ(back.layout, Pinned(layout));
      TrainingSpec training = job.training;
      if (framework == NemoAdapter()) training.seed = back.training.seed;
      EXPECT_EQ(back.training, training);
      EXPECT_EQ(back.checkpoint.interval_steps, 55);
      if (HasFailure()) return;
    }
  }
}

// Goal: what differs between stages and has no words is said. Method: recompute
// by stage; each framework takes the most of any stage, and says so.
TEST(ExportTest, SaysThatStagesCannotDiffer) {
  JobSpec job = UnusualJob();
  job.model.num_layers = 8;
  Layout layout{.pipeline = 2, .micro_batch = 2, .num_microbatches = 48};
  SetRecompute("full, none", &layout);
  job.training.global_batch = layout.global_batch();
  for (const Framework framework :
       {MegatronAdapter(), MegatronBridgeAdapter(), TorchtitanAdapter()}) {
    EXPECT_THAT(MustExport(job, layout, framework),
                HasSubstr("recompute by stage (full, none): one setting holds "
                          "for all stages, so all do the most of any, full"));
  }
}

// Goal: the axes that are only planned survive the way there and back.
// Method: context, interleaving and 8-bit products in each framework's words.
TEST(ExportTest, PlannedAxesRoundTrip) {
  JobSpec job = UnusualJob();
  job.model.num_layers = 8;
  job.training.precision = "bf16";
  Layout layout{.pipeline = 2,
                .data = 2,
                .tensor = 2,
                .context = 3,
                .interleave = 2,
                .micro_batch = 2,
                .num_microbatches = 24,
                .zero = 1};
  layout.schedule = Schedule::kInterleaved;
  layout.gemm_format = GemmFormat::kFloat8;
  layout.recompute = Recompute::kCheap;
  for (const Framework framework :
       {MegatronAdapter(), MegatronBridgeAdapter(), NemoAdapter()}) {
    const std::string text = MustExport(job, layout, framework);
    SCOPED_TRACE(text);
    LayoutConstraints expected = Pinned(layout);
    expected.interleave = 2;
    expected.schedule = "interleaved";
    expected.recompute = "norm";  // Activations have no word.
    EXPECT_EQ(MustImport(framework, ReadBack(framework, text)).layout,
              expected);
  }
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(HasSubstr("--nproc-per-node 24 "),
                    HasSubstr("--context-parallel-size 3"),
                    HasSubstr("--num-virtual-stages-per-pipeline-rank 2"),
                    HasSubstr("--fp8-format hybrid"),
                    HasSubstr("--recompute-modules layernorm")));
  EXPECT_THAT(
      MustExport(job, layout, MegatronBridgeAdapter()),
      AllOf(HasSubstr("model.virtual_pipeline_model_parallel_size=2"),
            HasSubstr("mixed_precision=bf16_with_fp8_current_scaling_mixed"),
            HasSubstr("'model.recompute_modules=[\"layernorm\"]'")));
  EXPECT_THAT(MustExport(job, layout, NemoAdapter()),
              AllOf(HasSubstr("trainer.strategy.context_parallel_size=3"),
                    HasSubstr("trainer.plugins.fp8=hybrid"),
                    HasSubstr("--factory llama3_8b")));
  EXPECT_THAT(MustExport(job, layout, TorchtitanAdapter()),
              AllOf(HasSubstr("context_parallel_degree = 3"),
                    HasSubstr("pipeline_parallel_schedule = "
                              "\"Interleaved1F1B\""),
                    HasSubstr("[\"layers.6\", \"layers.7\", \"norm\""),
                    HasSubstr("converters = [\"quantize.linear.float8\"]")));
  EXPECT_THAT(MustExport(job, layout, DeepSpeedAdapter()),
              AllOf(HasSubstr("the context axis of 3"),
                    HasSubstr("the schedule interleaved with 2 chunks"),
                    HasSubstr("fp8: ")));
  // Experts and context aside, torchtitan's chunks come back too, given the
  // model that its flavor names.
  Layout chunks = layout;
  chunks.context = 1;
  const absl::StatusOr<Settings> model = UnusualModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const JobSpec titan =
      MustImport(TorchtitanAdapter(),
                 ReadBack(TorchtitanAdapter(),
                          MustExport(job, chunks, TorchtitanAdapter())),
                 {.model = *model});
  EXPECT_EQ(titan.layout.interleave, 2);
  EXPECT_EQ(titan.layout.schedule, "interleaved");
  EXPECT_EQ(titan.layout.pipeline, 2);
  layout.gemm_format = GemmFormat::kFloat4;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              HasSubstr("--fp4-format e2m1"));
  for (const Framework framework : {NemoAdapter(), TorchtitanAdapter()}) {
    EXPECT_THAT(MustExport(job, layout, framework),
                HasSubstr("no 4-bit products"));
  }
}

// Goal: models that are only planned come out in each framework's words, or are
// refused by the job's key. Method: experts behind latent attention, experts
// alone, other feed-forward blocks.
TEST(ExportTest, SaysPlannedModels) {
  JobSpec job = UnusualJob();
  job.training.precision = "bf16";
  job.model.num_heads = 8;
  job.model.num_kv_heads = 8;
  job.model.head_dim = 24;
  job.model.moe = {.num_experts = 8,
                   .experts_per_token = 2,
                   .expert_hidden = 96,
                   .num_shared_experts = 2};
  const Layout layout{
      .data = 4, .expert = 4, .micro_batch = 1, .num_microbatches = 24};
  EXPECT_THAT(
      MustExport(job, layout, MegatronAdapter()),
      AllOf(HasSubstr("--num-experts 8"), HasSubstr("--moe-router-topk 2"),
            HasSubstr("--moe-ffn-hidden-size 96"),
            HasSubstr("--moe-shared-expert-intermediate-size 192"),
            HasSubstr("--expert-model-parallel-size 4"),
            Not(HasSubstr("--moe-layer-freq"))));
  EXPECT_THAT(MustExport(job, layout, NemoAdapter()),
              AllOf(HasSubstr("--factory mixtral_8x7b"),
                    HasSubstr("model.config.moe_router_topk=2"),
                    HasSubstr("model.config.moe_layer_freq=1")));
  EXPECT_THAT(MustExport(job, layout, TorchtitanAdapter()),
              AllOf(HasSubstr("name = \"qwen3\""),
                    HasSubstr("MoEArgs(num_experts=8, num_shared_experts=2, "
                              "top_k=2"),
                    HasSubstr("expert_parallel_degree = 4"),
                    HasSubstr("data_parallel_shard_degree = 4"),
                    HasSubstr("ZeRO 0 with experts")));
  EXPECT_THAT(MustExport(job, layout, DeepSpeedAdapter()),
              HasSubstr("MoE(num_experts=8, ep_size=4, k=2)"));

  job.model.moe.num_dense_layers = 3;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              HasSubstr("--moe-layer-freq '([0]*3+[1]*6)'"));
  EXPECT_THAT(ExportLayout(job, layout, TorchtitanAdapter()).status().message(),
              HasSubstr("model.moe.num_dense_layers"));
  job.model.mla = {.kv_rank = 64,
                   .query_rank = 0,
                   .nope_head_dim = 16,
                   .rope_head_dim = 8,
                   .value_head_dim = 16};
  EXPECT_THAT(
      MustExport(job, layout, MegatronAdapter()),
      AllOf(HasSubstr("--multi-latent-attention"),
            HasSubstr("--kv-lora-rank 64"), HasSubstr("--qk-head-dim 16"),
            HasSubstr("--qk-pos-emb-head-dim 8"), HasSubstr("--v-head-dim 16"),
            Not(HasSubstr("--q-lora-rank")), Not(HasSubstr("--kv-channels"))));
  EXPECT_THAT(MustExport(job, layout, MegatronBridgeAdapter()),
              AllOf(HasSubstr("--recipe deepseek_v2_lite_pretrain_config"),
                    HasSubstr("'model.moe_layer_freq=[0,0,0,1,1,1,1,1,1]'"),
                    HasSubstr("model.q_lora_rank=null")));
  EXPECT_THAT(
      MustExport(job, layout, TorchtitanAdapter()),
      AllOf(HasSubstr("name = \"deepseek_v3\""), HasSubstr("n_dense_layers=3"),
            HasSubstr("kv_lora_rank=64")));

  job.model = UnusualJob().model;
  job.model.feed_forward = FeedForward::kSquaredRelu;
  job.model.ties_embedding = true;
  const Layout plain{.num_microbatches = 96};
  EXPECT_THAT(MustExport(job, plain, MegatronAdapter()),
              AllOf(HasSubstr("--squared-relu"), Not(HasSubstr("--swiglu")),
                    Not(HasSubstr("--untie"))));
  EXPECT_THAT(MustExport(job, plain, MegatronBridgeAdapter()),
              AllOf(HasSubstr("model.activation_func=squared_relu"),
                    HasSubstr("model.gated_linear_unit=false"),
                    HasSubstr("share_embeddings_and_output_weights=true")));
  EXPECT_THAT(MustExport(job, plain, NemoAdapter()),
              HasSubstr("--factory nemotron4_15b"));
  EXPECT_THAT(ExportLayout(job, plain, TorchtitanAdapter()).status().message(),
              HasSubstr("model.feed_forward"));
}

// Goal: ZeRO-2, ZeRO-3 and recompute come out in each framework's words, and
// what it cannot say is said. Method: one layout of each kind.
TEST(ExportTest, SaysWhatShardsAndWhatIsComputedAgain) {
  const JobSpec job = UnusualJob();
  Layout layout{.data = 8, .micro_batch = 1, .num_microbatches = 12};
  layout.zero = 3;
  layout.recompute = Recompute::kFull;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(HasSubstr("--use-distributed-optimizer"),
                    HasSubstr("--recompute-granularity full"),
                    HasSubstr("ZeRO 3: Megatron-LM's")));
  EXPECT_THAT(MustExport(job, layout, TorchtitanAdapter()),
              AllOf(HasSubstr("fsdp_reshard_after_forward = \"always\""),
                    HasSubstr("mode = \"full\"")));
  EXPECT_THAT(MustExport(job, layout, DeepSpeedAdapter()),
              AllOf(HasSubstr("\"stage\": 3"), HasSubstr("recompute full")));
  layout.zero = 2;
  layout.recompute = Recompute::kCheap;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(HasSubstr("recompute norm+activation: "),
                    HasSubstr("--recompute-modules layernorm")));
  EXPECT_THAT(MustExport(job, layout, TorchtitanAdapter()),
              AllOf(HasSubstr("fsdp_reshard_after_forward = \"never\""),
                    HasSubstr("selective_ac_option = \"op\""),
                    Not(HasSubstr("ZeRO 1"))));
}

// Goal: batches and ZeRO of a DeepSpeed configuration agree as DeepSpeed
// demands. Method: parse the JSON of every layout; train_batch_size must be
// micro-batch x accumulation x replicas.
TEST(ExportTest, DeepSpeedBatchesAgree) {
  const JobSpec job = UnusualJob();
  for (const Layout& layout : LayoutsOf(job)) {
    SCOPED_TRACE(LayoutToString(layout));
    const nlohmann::json json =
        nlohmann::json::parse(MustExport(job, layout, DeepSpeedAdapter()));
    EXPECT_EQ(json["train_batch_size"], 96);
    EXPECT_EQ(json["train_micro_batch_size_per_gpu"].get<int>() *
                  json["gradient_accumulation_steps"].get<int>() * layout.data,
              96);
    EXPECT_EQ(json["zero_optimization"]["stage"], layout.zero);
    EXPECT_EQ(json["optimizer"]["params"]["lr"], 1.7e-3);
    EXPECT_EQ(json["scheduler"]["type"], "WarmupCosineLR");
    EXPECT_EQ(json.contains("tensor_parallel"),
              layout.tensor > 1 && layout.pipeline == 1);
    EXPECT_EQ(absl::StrContains(json["_comment"].dump(), "PipelineModule"),
              layout.pipeline > 1);
    if (HasFailure()) return;
  }
}

// Goal: what has no words there is refused by the job's key, or said aloud.
TEST(ExportTest, RefusesWhatHasNoWords) {
  const Layout layout{.num_microbatches = 96};
  JobSpec job = UnusualJob();
  job.model.rope_theta = 70000.5;
  EXPECT_THAT(ExportLayout(job, layout, MegatronAdapter()).status().message(),
              AllOf(HasSubstr("model.rope_theta"), HasSubstr("70000.5")));
  job = UnusualJob();
  job.model.head_dim = 20;
  EXPECT_THAT(ExportLayout(job, layout, TorchtitanAdapter()).status().message(),
              HasSubstr("model.head_dim"));
  job = UnusualJob();
  job.training.precision = "int4";
  EXPECT_THAT(ExportLayout(job, layout, MegatronAdapter()).status().message(),
              HasSubstr("training.precision"));
  EXPECT_THAT(
      ExportLayout(UnusualJob(), {.num_microbatches = 5}, MegatronAdapter())
          .status()
          .message(),
      HasSubstr("training.global_batch is 96"));
  EXPECT_FALSE(ExportLayout(UnusualJob(), layout, HuggingFaceAdapter()).ok());
  Layout uneven{.data = 7, .micro_batch = 1};
  uneven.ShareBatch(96);
  for (const Framework framework :
       {MegatronAdapter(), TorchtitanAdapter(), DeepSpeedAdapter()}) {
    EXPECT_THAT(
        ExportLayout(UnusualJob(), uneven, framework).status().message(),
        AllOf(HasSubstr("14 micro-batches on 5 of 7 data replicas and "
                        "13 on the others"),
              HasSubstr(framework->name), HasSubstr("for example 6")));
  }
  EXPECT_THAT(MustExport(UnusualJob(), layout, MegatronAdapter()),
              AllOf(HasSubstr("# What it cannot express"),
                    HasSubstr("replace --mock-data by --data-path")));
}

// Goal: docs/frameworks.md tells the tables of the code. Method: look for each
// row.
TEST(ExportTest, DocumentationHasTheTables) {
  const absl::StatusOr<std::string> page = ReadFile("docs/frameworks.md");
  ASSERT_TRUE(page.ok()) << page.status();
  for (const Framework framework : Adapters()) {
    for (const FrameworkKey& key : framework->keys) {
      // The two frameworks on Megatron Core share a table.
      if (framework == NemoAdapter()) {
        EXPECT_THAT(*page, ContainsRegex(absl::StrCat("\n\\| `", key.job_path,
                                                      "` \\| [^|]* \\| `",
                                                      key.name, "` \\|\n")));
        continue;
      }
      EXPECT_THAT(*page,
                  HasSubstr(absl::StrCat(
                      "| `", key.job_path, "` | `",
                      framework == MegatronAdapter() ? "--" : "", key.name,
                      "` |", framework == DeepSpeedAdapter() ? "" : " ",
                      key.default_text == nullptr ? "" : key.default_text)));
    }
    EXPECT_THAT(*page, HasSubstr(absl::StrCat("| ", framework->title, " | ",
                                              framework->version)));
  }
}

// Goal: hosts share the devices equally, tensor groups whole where they can be,
// and each framework's launcher is told so. Method: 24 devices on hosts of
// several sizes, and the way back.
TEST(ExportTest, SpreadsDevicesOverHosts) {
  JobSpec job = UnusualJob();
  job.training.precision = "bf16";
  const Layout layout{
      .pipeline = 3, .data = 2, .tensor = 4, .num_microbatches = 48};
  const auto text = [&](Framework framework, int32_t devices_per_host) {
    return ExportLayout(job, layout, framework, devices_per_host).value_or("");
  };
  const std::string megatron = text(MegatronAdapter(), 8);
  EXPECT_THAT(megatron,
              AllOf(HasSubstr("torchrun --nnodes 3 --nproc-per-node 8 "
                              "--rdzv-backend c10d --rdzv-endpoint HOST:29500 "
                              "pretrain_gpt.py"),
                    HasSubstr("3 hosts, 8 devices of each; "),
                    Not(HasSubstr("one host holds all"))));
  EXPECT_EQ(
      MustImport(MegatronAdapter(), ReadMegatronSettings(megatron, "args.txt"))
          .layout.data,
      2);
  // Six would divide too, but not hold whole tensor groups.
  EXPECT_THAT(text(MegatronAdapter(), 7),
              AllOf(HasSubstr("--nnodes 6 --nproc-per-node 4 "),
                    HasSubstr("4 devices of each, since 7 cannot share")));
  EXPECT_THAT(text(MegatronAdapter(), 24),
              AllOf(HasSubstr("torchrun --nnodes 1 --nproc-per-node 24 pre"),
                    Not(HasSubstr("host"))));
  EXPECT_THAT(text(MegatronBridgeAdapter(), 8),
              HasSubstr("--nnodes 3 --nproc-per-node 8 "));
  EXPECT_THAT(text(NemoAdapter(), 8), AllOf(HasSubstr("trainer.num_nodes=3"),
                                            HasSubstr("trainer.devices=8")));
  EXPECT_THAT(text(TorchtitanAdapter(), 8),
              HasSubstr("# Start: torchrun --nnodes 3 --nproc-per-node 8 "));
  EXPECT_THAT(text(DeepSpeedAdapter(), 8),
              HasSubstr("deepspeed --hostfile HOSTS --num_nodes 3 --num_gpus 8 "
                        "TRAIN.py"));
}

// Goal: edges of the schedule. Method: no clipping, no decay, seed 0 and no
// validation, there and back.
TEST(ExportTest, KeepsWhatIsOff) {
  JobSpec job = UnusualJob();
  job.training.gradient_clip_norm = 0;
  job.training.optimizer.decay = LearningRateDecay::kNone;
  job.training.validation_interval_steps = 0;
  job.training.validation_steps = 1;
  job.checkpoint.interval_steps = 0;
  const Layout layout{.num_microbatches = 96};
  const std::string flags = MustExport(job, layout, MegatronAdapter());
  const JobSpec back =
      MustImport(MegatronAdapter(), ReadMegatronSettings(flags, "args.txt"));
  EXPECT_EQ(back.training, job.training);
  EXPECT_EQ(back.checkpoint, job.checkpoint);

  job.model = TorchtitanFlavors()[0].model;
  job.model.sequence_length = 32;
  const JobSpec titan = MustImport(
      TorchtitanAdapter(),
      ReadTomlSettings(MustExport(job, layout, TorchtitanAdapter()), "t"));
  EXPECT_EQ(titan.training.gradient_clip_norm, 0);
  EXPECT_EQ(titan.training.optimizer.decay, LearningRateDecay::kNone);
  EXPECT_EQ(titan.checkpoint, job.checkpoint);

  job.training.seed = 0;
  EXPECT_THAT(MustExport(job, layout, MegatronAdapter()),
              AllOf(Not(HasSubstr("--seed")), HasSubstr("training.seed 0")));
}

}  // namespace
}  // namespace millrace
