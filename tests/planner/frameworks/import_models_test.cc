// Models that are only planned, from the files of other frameworks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "planner/frameworks/export.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "planner/job/job_file.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kMixtral[] = R"({
  "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
  "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8,
  "intermediate_size": 14336, "num_local_experts": 8,
  "num_experts_per_tok": 2, "max_position_embeddings": 32768,
  "rope_theta": 1000000.0, "rms_norm_eps": 1e-05, "sliding_window": null,
  "router_aux_loss_coef": 0.02, "torch_dtype": "bfloat16"})";

constexpr char kQwen[] = R"({
  "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
  "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
  "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768,
  "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "max_position_embeddings": 40960,
  "tie_word_embeddings": false, "use_sliding_window": false})";

constexpr char kDeepSeek[] = R"({
  "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
  "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
  "num_attention_heads": 128, "num_key_value_heads": 128,
  "intermediate_size": 18432, "moe_intermediate_size": 2048,
  "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
  "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536,
  "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "num_nextn_predict_layers": 1,
  "max_position_embeddings": 163840,
  "rope_scaling": {"type": "yarn", "factor": 40}})";

constexpr char kNemotron[] = R"({
  "model_type": "nemotron", "architectures": ["NemotronForCausalLM"],
  "vocab_size": 256000, "hidden_size": 6144, "num_hidden_layers": 32,
  "num_attention_heads": 48, "num_key_value_heads": 8,
  "intermediate_size": 24576, "hidden_act": "relu2", "norm_eps": 1e-05,
  "partial_rotary_factor": 0.5, "max_position_embeddings": 4096,
  "tie_word_embeddings": false})";

constexpr char kGpt2[] = R"({
  "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
  "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
  "n_positions": 1024, "activation_function": "gelu_new"})";

absl::StatusOr<ImportedJob> ImportModelsText(
    Framework framework, const std::string& text,
    const ImportOptions& options = {}) {
  const absl::StatusOr<Settings> settings =
      framework == MegatronAdapter() ? ReadMegatronSettings(text, "args.txt")
      : framework == HuggingFaceAdapter()
          ? ReadJsonSettings(text, "config.json")
          : ReadOverrideSettings(text, "run.sh");
  if (!settings.ok()) return settings.status();
  return ImportJob(framework, *settings, options);
}

ImportedJob MustImportModels(Framework framework, const std::string& text,
                             const ImportOptions& options = {}) {
  absl::StatusOr<ImportedJob> imported =
      ImportModelsText(framework, text, options);
  EXPECT_TRUE(imported.ok()) << imported.status();
  return imported.ok() ? *std::move(imported) : ImportedJob{};
}

std::string ModelsErrorOf(const char* config, const std::string& from,
                          const std::string& to) {
  const std::string text = absl::StrReplaceAll(config, {{from, to}});
  EXPECT_NE(text, config) << from;
  const absl::StatusOr<ImportedJob> imported =
      ImportModelsText(HuggingFaceAdapter(), text);
  return imported.ok() ? "no error" : std::string(imported.status().message());
}

// Goal: families with experts, latent attention and other feed-forward blocks
// are taken whole. Method: configurations of known models; their parameters are
// those that their makers publish, within what is left out (norms of heads,
// biases, learned positions).
TEST(ImportModelsTest, TakesKnownModels) {
  const struct {
    const char* config;
    double billions;
  } cases[] = {
      {kMixtral, 46.7}, {kQwen, 30.5}, {kDeepSeek, 671.0}, {kNemotron, 15.6}};
  const ImportedJob gpt2 = MustImportModels(HuggingFaceAdapter(), kGpt2);
  EXPECT_EQ(CountParameters(gpt2.job.model).total, 124'439'808);
  for (const auto& [config, billions] : cases) {
    SCOPED_TRACE(config);
    const ImportedJob imported = MustImportModels(HuggingFaceAdapter(), config);
    const auto total =
        static_cast<double>(CountParameters(imported.job.model).total);
    EXPECT_NEAR(total, billions * 1e9, billions * 1e7);
    EXPECT_FALSE(imported.job.model.is_llama());
    EXPECT_THAT(imported.notes,
                Contains(HasSubstr("workers cannot train it yet")));
  }
}

// Goal: each key goes where it belongs. Method: DeepSeek-V3 and Mixtral by
// hand.
TEST(ImportModelsTest, TakesExpertsAndLatentAttention) {
  const ModelSpec deepseek =
      MustImportModels(HuggingFaceAdapter(), kDeepSeek).job.model;
  EXPECT_EQ(deepseek.moe, (MixtureOfExperts{.num_experts = 256,
                                            .experts_per_token = 8,
                                            .expert_hidden = 2048,
                                            .num_shared_experts = 1,
                                            .num_dense_layers = 3}));
  EXPECT_EQ(deepseek.mla, (LatentAttention{.kv_rank = 512,
                                           .query_rank = 1536,
                                           .nope_head_dim = 128,
                                           .rope_head_dim = 64,
                                           .value_head_dim = 128}));
  EXPECT_EQ(deepseek.head_dim, 192);
  // DeepSeek-V2 and V3 have other numbers where the keys are left out.
  for (const char* key : {"n_shared_experts", "first_k_dense_replace"}) {
    EXPECT_EQ(ModelsErrorOf(kDeepSeek, key, "other"),
              absl::StrCat("config.json: ", key,
                           ": missing; expected a whole number"));
  }
  EXPECT_EQ(deepseek.num_kv_heads, 128);
  const ImportedJob mixtral = MustImportModels(HuggingFaceAdapter(), kMixtral);
  EXPECT_EQ(mixtral.job.model.moe, (MixtureOfExperts{.num_experts = 8,
                                                     .experts_per_token = 2,
                                                     .expert_hidden = 14336}));
  EXPECT_EQ(mixtral.job.training.precision, "bf16");
  // Its defaults are not the other families'.
  EXPECT_EQ(
      MustImportModels(
          HuggingFaceAdapter(),
          absl::StrReplaceAll(
              kMixtral,
              {{"\"rope_theta\": 1000000.0, \"rms_norm_eps\": 1e-05, ", ""}}))
          .job.model,
      mixtral.job.model);
  const ModelSpec gpt2 =
      MustImportModels(HuggingFaceAdapter(), kGpt2).job.model;
  EXPECT_EQ(gpt2.feed_forward, FeedForward::kGelu);
  EXPECT_EQ(gpt2.norm, NormKind::kLayer);
  EXPECT_EQ(gpt2.learned_positions, 1024);
  EXPECT_TRUE(gpt2.ties_embedding && gpt2.qkv_bias && gpt2.linear_bias);
}

// Goal: what ModelSpec cannot say is refused by its key, what changes little is
// noted. Method: one change each.
TEST(ImportModelsTest, RefusesWhatItCannotSay) {
  EXPECT_THAT(ModelsErrorOf(kQwen, "\"decoder_sparse_step\": 1",
                            "\"decoder_sparse_step\": 2"),
              HasSubstr("decoder_sparse_step: found '2'"));
  EXPECT_THAT(ModelsErrorOf(kDeepSeek, "\"moe_layer_freq\": 1",
                            "\"moe_layer_freq\": 2"),
              HasSubstr("moe_layer_freq: found '2'"));
  EXPECT_THAT(ModelsErrorOf(kDeepSeek, "\"kv_lora_rank\": 512,", ""),
              HasSubstr("config.json: kv_lora_rank: missing"));
  EXPECT_THAT(ModelsErrorOf(kGpt2, "gelu_new", "relu"),
              HasSubstr("activation_function: found 'relu'"));
  EXPECT_THAT(MustImportModels(HuggingFaceAdapter(), kDeepSeek).notes,
              testing::AllOf(Contains(HasSubstr("rope_scaling.type")),
                             Contains(HasSubstr("num_nextn_predict_layers"))));
  EXPECT_TRUE(MustImportModels(HuggingFaceAdapter(), kQwen).job.model.qk_norm);
}

// Goal: a model that differs from ours by little work is taken where that is
// asked for, and then said; else it is refused by its key. Method: a Llama with
// one change each, the families that have such parts, and Megatron-LM's flags.
TEST(ImportModelsTest, ApproximatesWhereAsked) {
  const std::string llama = R"({
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "rope_scaling": null})";
  const std::string flags =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
      "--max-position-embeddings 64 --micro-batch-size 1 --swiglu "
      "--untie-embeddings-and-output-weights --vocab-size 128 --train-iters 9 "
      "--lr 1e-4 --normalization RMSNorm --position-embedding-type rope "
      "--disable-bias-linear";
  const struct {
    Framework framework;
    std::string text;
    const char* key;
  } cases[] = {
      {HuggingFaceAdapter(),
       absl::StrReplaceAll(llama, {{"null", "{\"rope_type\": \"yarn\"}"}}),
       "rope_scaling.rope_type"},
      {HuggingFaceAdapter(),
       absl::StrReplaceAll(llama, {{"null", "null, \"attention_bias\": true"}}),
       "attention_bias"},
      {MegatronAdapter(), flags + " --use-rope-scaling", "use-rope-scaling"},
      {MegatronAdapter(), flags + " --rotary-percent 0.5", "rotary-percent"}};
  for (const auto& [framework, text, key] : cases) {
    SCOPED_TRACE(text);
    const absl::StatusOr<ImportedJob> refused =
        ImportModelsText(framework, text);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(),
                testing::AllOf(HasSubstr(absl::StrCat(key, ": found '")),
                               HasSubstr("--approximate")));
    const ImportedJob taken =
        MustImportModels(framework, text, {.approximates = true});
    const ImportedJob plain = MustImportModels(
        framework, framework == MegatronAdapter() ? flags : llama);
    EXPECT_EQ(taken.job.model, plain.job.model);
    EXPECT_EQ(plain.job.model_approximates, "");
    EXPECT_THAT(taken.job.model_approximates, HasSubstr(key));
    const absl::StatusOr<JobSpec> read_back = ParseJob(
        ImportedJobToYaml(taken, framework, "a file"), "the imported job");
    ASSERT_TRUE(read_back.ok()) << read_back.status();
    EXPECT_EQ(read_back->model_approximates, taken.job.model_approximates);
    EXPECT_THAT(taken.notes,
                testing::AllOf(Contains(HasSubstr(key)),
                               Contains(HasSubstr("another model"))));
  }
  EXPECT_EQ(
      MustImportModels(HuggingFaceAdapter(),
                       absl::StrReplaceAll(llama, {{"\"llama\"", "\"phi3\""}}))
          .job.model,
      MustImportModels(HuggingFaceAdapter(), llama).job.model);
}

// Goal: options of a model that a framework has words for go there and back;
// the others are refused by their key. Method: Megatron-LM's switches, and a
// job with each of the other options.
TEST(ImportModelsTest, OptionsHaveWordsOrAreRefused) {
  JobSpec job = UnusualJob();
  job.model.qk_norm = job.model.qkv_bias = true;
  const Layout layout{.data = 4, .micro_batch = 1, .num_microbatches = 24};
  const auto text = ExportLayout(job, layout, MegatronAdapter());
  ASSERT_TRUE(text.ok()) << text.status();
  const ModelSpec read = MustImportModels(MegatronAdapter(), *text).job.model;
  EXPECT_TRUE(read.qk_norm && read.qkv_bias);
  EXPECT_THAT(
      std::string(
          ExportLayout(job, layout, TorchtitanAdapter()).status().message()),
      HasSubstr("model.qkv_bias: true is an option"));
  job.model.qk_norm = job.model.qkv_bias = false;
  job.model.sliding_window = 7;
  for (const Framework framework : {MegatronAdapter(), MegatronBridgeAdapter(),
                                    NemoAdapter(), TorchtitanAdapter()}) {
    EXPECT_THAT(
        std::string(ExportLayout(job, layout, framework).status().message()),
        HasSubstr("model.sliding_window: 7 is an option"));
  }
}

// Goal: what can only be planned is in a precision that can be planned. Method:
// models whose files say none, or 16 bits of another kind.
TEST(ImportModelsTest, PlansInBfloat16) {
  const JobSpec nemotron =
      MustImportModels(HuggingFaceAdapter(), kNemotron).job;
  EXPECT_EQ(nemotron.training.precision, "bf16");
  EXPECT_EQ(
      nemotron.resources.backend,
      MustImportModels(HuggingFaceAdapter(), kMixtral).job.resources.backend);
  const ImportedJob half = MustImportModels(
      HuggingFaceAdapter(),
      absl::StrReplaceAll(kMixtral, {{"bfloat16", "float16"}}));
  EXPECT_EQ(half.job.training.precision, "bf16");
  EXPECT_THAT(half.notes, Contains(HasSubstr("asks for fp16")));
}

// Goal: such models survive the way to Megatron-LM, Megatron-Bridge and NeMo
// and back. Method: known ones in layouts with experts over ranks.
TEST(ImportModelsTest, ModelsRoundTrip) {
  for (const char* config : {kMixtral, kQwen, kDeepSeek, kNemotron, kGpt2}) {
    JobSpec job = UnusualJob();
    job.training.precision = "bf16";
    job.model = MustImportModels(HuggingFaceAdapter(), config,
                                 {.sequence_length = 1024})
                    .job.model;
    if (job.model.moe.num_experts > 0 && job.model.moe.num_dense_layers == 0) {
      job.model.ffn_hidden = job.model.moe.expert_hidden;  // Unused.
    }
    Layout layout{.data = 4, .micro_batch = 1, .num_microbatches = 24};
    if (job.model.moe.num_experts > 0) layout.expert = 4;
    for (const Framework framework :
         {MegatronAdapter(), MegatronBridgeAdapter(), NemoAdapter()}) {
      const absl::StatusOr<std::string> text =
          ExportLayout(job, layout, framework);
      ASSERT_TRUE(text.ok()) << text.status();
      SCOPED_TRACE(*text);
      const JobSpec back = MustImportModels(framework, *text).job;
      EXPECT_EQ(back.model, job.model);
      EXPECT_EQ(back.layout.expert, layout.expert);
      EXPECT_EQ(back.layout.data, 4);
      if (HasFailure()) return;
    }
  }
}

// Goal: torchtitan's families with experts take their model from a config.json.
// Method: a small file beside DeepSeek-V3's.
TEST(ImportModelsTest, TorchtitanTakesTheModelBesideIt) {
  const absl::StatusOr<Settings> config =
      ReadJsonSettings(kDeepSeek, "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<Settings> toml = ReadTomlSettings(
      "[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"\n"
      "converters = [\"quantize.linear.float8\"]\n"
      "[training]\nlocal_batch_size = 16\nglobal_batch_size = 64\n"
      "seq_len = 4096\n[parallelism]\ndata_parallel_shard_degree = 4\n"
      "pipeline_parallel_degree = 4\nexpert_parallel_degree = 2\n"
      "pipeline_parallel_schedule = \"Interleaved1F1B\"\n"
      "[lr_scheduler]\nwarmup_steps = 2\n",
      "job.toml");
  ASSERT_TRUE(toml.ok()) << toml.status();
  const absl::StatusOr<ImportedJob> imported =
      ImportJob(TorchtitanAdapter(), *toml, {.model = *config});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->job.model.moe.num_experts, 256);
  EXPECT_EQ(imported->job.model.mla.kv_rank, 512);
  EXPECT_EQ(imported->job.model.sequence_length, 4096);
  EXPECT_EQ(imported->job.layout.expert, 2);
  EXPECT_EQ(imported->job.layout.interleave, 2);
  EXPECT_EQ(imported->job.layout.schedule, "interleaved");
}

// Goal: chunks a stage follow from the layers of one as torchtitan counts them,
// embedding and head as a layer each. Method: its 8B over 2 stages.
TEST(ImportModelsTest, CountsTorchtitanChunks) {
  const std::string toml =
      "[model]\nflavor = \"8B\"\n[training]\nglobal_batch_size = 64\n"
      "[parallelism]\npipeline_parallel_degree = 2\n"
      "data_parallel_shard_degree = 2\n"
      "pipeline_parallel_schedule = \"Interleaved1F1B\"\n"
      "pipeline_parallel_layers_per_stage = ";
  auto import = [&](const std::string& rest) {
    return ImportJob(TorchtitanAdapter(),
                     ReadTomlSettings(toml + rest, "job.toml").value(), {});
  };
  // 34 / 9 makes 4 chunks.
  const absl::StatusOr<ImportedJob> four = import("9\n");
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ(four->job.layout.interleave, 2);
  // 34 / 8 makes 5, 32 / 8 would make 4.
  EXPECT_THAT(import("8\n").status().message(),
              HasSubstr("job.toml:9: "
                        "parallelism.pipeline_parallel_layers_per_stage: 8 "
                        "layers a chunk make 5 chunks of 32 layers and 2"));
  const absl::StatusOr<ImportedJob> bare = import(
      "8\npipeline_parallel_first_stage_less_layers = 0\n"
      "pipeline_parallel_last_stage_less_layers = 0\n");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->job.layout.interleave, 2);
}

// Goal: a pipeline layout says how many chunks a stage has, in all its
// spellings. Method: 8 layers over 2 stages.
TEST(ImportModelsTest, CountsChunksOfPipelineLayouts) {
  const std::string flags =
      "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 8 "
      "--hidden-size 64 --num-attention-heads 4 --seq-length 64 "
      "--max-position-embeddings 64 --micro-batch-size 1 --swiglu "
      "--untie-embeddings-and-output-weights --vocab-size 128 --train-iters 9 "
      "--lr 1e-4 --normalization RMSNorm --position-embedding-type rope "
      "--disable-bias-linear --pipeline-model-parallel-size 2 "
      "--pipeline-model-parallel-layout ";
  const std::pair<const char*, int32_t> taken[] = {{"'Et*2|(tt|)*2,t*2,L'", 2},
                                                   {"'Ett|tt|tt|ttL'", 2},
                                                   {"'E(t|)*7tL'", 4},
                                                   {"'E|t*2|t*2|t|t*3|L'", 3}};
  for (const auto& [layout, chunks] : taken) {
    EXPECT_EQ(MustImportModels(MegatronAdapter(), flags + layout)
                  .job.layout.interleave,
              chunks)
        << layout;
  }
  EXPECT_EQ(MustImportModels(MegatronAdapter(), flags + "Etttt|ttttL")
                .job.layout.interleave,
            std::nullopt);
  const absl::StatusOr<ImportedJob> odd =
      ImportModelsText(MegatronAdapter(), flags + "'Et|t*6|tL'");
  EXPECT_THAT(odd.status().message(),
              HasSubstr("pipeline-model-parallel-layout: has 3 parts"));
}

// Goal: patterns of dense layers are read in all their spellings, and refused
// where ours cannot be so. Method: a small command line.
TEST(ImportModelsTest, ReadsLayerPatterns) {
  const std::string flags =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
      "--max-position-embeddings 64 --micro-batch-size 1 --swiglu "
      "--untie-embeddings-and-output-weights --vocab-size 128 --train-iters 9 "
      "--lr 1e-4 --num-experts 8 --moe-ffn-hidden-size 32 "
      "--moe-shared-expert-intermediate-size 64 --moe-layer-freq ";
  const std::pair<const char*, int64_t> taken[] = {{"1", 0},
                                                   {"'([0]*2+[1]*2)'", 2},
                                                   {"'([0]+[1]*3)'", 1},
                                                   {"'[0,1,1,1]'", 1}};
  for (const auto& [pattern, num_dense] : taken) {
    const ModelSpec model =
        MustImportModels(MegatronAdapter(), flags + pattern).job.model;
    EXPECT_EQ(model.moe.num_dense_layers, num_dense) << pattern;
    EXPECT_EQ(model.moe.num_shared_experts, 2);
    EXPECT_EQ(model.moe.experts_per_token, 2);
  }
  for (const char* pattern : {"2", "'([1]*2+[0]*2)'", "'([0]*2+[1]*3)'", "x"}) {
    const absl::StatusOr<ImportedJob> imported =
        ImportModelsText(MegatronAdapter(), flags + pattern);
    ASSERT_FALSE(imported.ok()) << pattern;
    EXPECT_THAT(imported.status().message(),
                HasSubstr("moe-layer-freq: found '"));
  }
}

}  // namespace
}  // namespace millrace
