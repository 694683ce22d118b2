#include "planner/frameworks/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "tests/planner/frameworks/model_folder_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// As the makers publish them, in the spelling of Transformers 4.
constexpr char kLlama31[] = R"({
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.42.3",
  "use_cache": true,
  "vocab_size": 128256
})";

constexpr char kMistral[] = R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral",
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.34.0.dev0", "use_cache": true,
  "vocab_size": 32000})";

constexpr char kQwen25[] = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
  "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768,
  "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_mrope": false, "use_sliding_window": false,
  "vocab_size": 151936})";

constexpr char kGpt2Folder[] = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0,
  "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
  "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12,
  "n_positions": 1024, "reorder_and_upcast_attn": false, "resid_pdrop": 0.0,
  "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
  "summary_activation": null, "summary_first_dropout": 0.1,
  "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "vocab_size": 50257})";

constexpr char kQwen3[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28,
  "num_attention_heads": 16, "num_hidden_layers": 28,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

// A folder of the test's own with a config.json.
// Goal: known models are what their makers say. Method: their config.json, in
// the spellings of Transformers 4 and 5.
TEST(ModelFolderTest, ReadsKnownModels) {
  ModelSpec llama = {.vocab_size = 128256,
                     .hidden = 4096,
                     .num_layers = 32,
                     .num_heads = 32,
                     .num_kv_heads = 8,
                     .head_dim = 128,
                     .ffn_hidden = 14336,
                     .sequence_length = 8192,
                     .rope_theta = 500000,
                     .rope_scaling = {.kind = RopeScalingKind::kLlama3,
                                      .factor = 8,
                                      .low_freq_factor = 1,
                                      .high_freq_factor = 4,
                                      .original_max_position_embeddings = 8192},
                     .norm_epsilon = 1e-5,
                     .init_std = 0.02};
  EXPECT_EQ(ModelOf(kLlama31), llama);
  const std::string of_5 = absl::StrReplaceAll(
      kLlama31, {{"\"rope_scaling\": {",
                  "\"rope_parameters\": {\"rope_theta\": 500000.0,"},
                 {"  \"rope_theta\": 500000.0,\n", ""},
                 {"torch_dtype", "dtype"}});
  EXPECT_EQ(ModelOf(of_5), llama);
  llama.rope_scaling = {};
  llama.ties_embedding = true;
  EXPECT_EQ(
      ModelOf(absl::StrReplaceAll(
          of_5,
          {{"\"llama3\"", "\"default\""},
           {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"},
           {"\"factor\": 8.0,\n", ""},
           {"    \"low_freq_factor\": 1.0,\n", ""},
           {"    \"high_freq_factor\": 4.0,\n", ""},
           {"    \"original_max_position_embeddings\": 8192,\n", ""}})),
      llama);

  const ModelSpec mistral = ModelOf(kMistral);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_FALSE(mistral.qkv_bias);
  EXPECT_EQ(ModelOf(kMistral, 4096).sliding_window, 0);
  EXPECT_EQ(ModelOf(With(kMistral, ": 4096,\n  \"tie", ": null,\n  \"tie"))
                .sliding_window,
            0);
  // The default of Transformers where the key is left out.
  EXPECT_EQ(ModelOf(With(kMistral, "  \"sliding_window\": 4096,\n", ""))
                .sliding_window,
            4096);

  const std::string qwen = kQwen25;
  const ModelSpec qwen25 = ModelOf(qwen);
  EXPECT_TRUE(qwen25.qkv_bias && qwen25.ties_embedding && !qwen25.qk_norm);
  EXPECT_EQ(qwen25.sliding_window, 0);
  EXPECT_EQ(qwen25.head_dim, 64);
  EXPECT_EQ(CountParameters(qwen25).total, 494'032'768);
  const std::string windowed =
      With(qwen, "_window\": false", "_window\": true");
  EXPECT_EQ(ModelOf(windowed).sliding_window, 0);  // From layer 24 on: none.
  const std::string all = absl::StrReplaceAll(
      windowed, {{"\"max_window_layers\": 24", "\"max_window_layers\": 0"},
                 {"\"sliding_window\": 32768", "\"sliding_window\": 512"}});
  EXPECT_EQ(ModelOf(all).sliding_window, 512);

  const ModelSpec qwen3 = ModelOf(kQwen3);
  EXPECT_TRUE(qwen3.qk_norm && qwen3.ties_embedding && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(CountParameters(qwen3).total, 596'049'920);
  EXPECT_EQ(ModelOf(With(kQwen3, " \"head_dim\": 128,", "")).head_dim, 128);
}

// Goal: GPT-2 is taken whole, and what ours computes otherwise is refused by
// its key. Method: its config.json, and one change each.
TEST(ModelFolderTest, TakesGpt2) {
  const ModelSpec gpt2 = ModelOf(kGpt2Folder, 512);
  EXPECT_EQ(gpt2.learned_positions, 1024);
  EXPECT_EQ(gpt2.norm, NormKind::kLayer);
  EXPECT_EQ(gpt2.feed_forward, FeedForward::kGelu);
  EXPECT_TRUE(gpt2.qkv_bias && gpt2.linear_bias && gpt2.ties_embedding);
  EXPECT_EQ(gpt2.ffn_hidden, 3072);
  EXPECT_EQ(CountParameters(gpt2).total, 124'439'808);
  const std::string by_erf = With(kGpt2Folder, "gelu_new", "gelu");
  EXPECT_EQ(ModelOf(by_erf, 512).feed_forward, FeedForward::kGeluErf);
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"gelu_new", "silu", "activation_function: found 'silu'"},
      {"\"resid_pdrop\": 0.0", "\"resid_pdrop\": 0.1",
       "resid_pdrop: found '0.1'"},
      {"\"scale_attn_weights\": true", "\"scale_attn_weights\": false",
       "scale_attn_weights: found 'false'"},
      {"\"scale_attn_by_inverse_layer_idx\": false",
       "\"scale_attn_by_inverse_layer_idx\": true",
       "scale_attn_by_inverse_layer_idx: found 'true'"},
  };
  for (const auto& [from, to, error] : cases) {
    EXPECT_THAT(
        ErrorWith(With(kGpt2Folder, from, to), "  sequence_length: 512\n"),
        HasSubstr(error));
  }
  // More tokens than positions.
  EXPECT_THAT(ErrorWith(kGpt2Folder, "  sequence_length: 2048\n"),
              HasSubstr("n_positions"));
}

// Goal: a key that changes what the model computes, and that ours lacks or does
// not know, is refused by file, line, key and value. Method: one change each.
TEST(ModelFolderTest, RefusesWhatOursIsNot) {
  const std::string qwen = kQwen25;
  const struct {
    std::string config;
    const char* error;
  } cases[] = {
      {With(kLlama31, "LlamaForCausalLM", "LlamaForSequenceClassification"),
       "config.json:2: architectures: found 'LlamaForSequenceClassification'"},
      {With(kLlama31, "\"llama\"", "\"gemma\""),
       "config.json:13: model_type: found 'gemma'"},
      {With(kLlama31, "  \"model_type\": \"llama\",\n", ""),
       "config.json: model_type: missing"},
      {With(kLlama31, "\"attention_bias\": false", "\"attention_bias\": true"),
       "config.json:3: attention_bias: found 'true'; ours has no"},
      {With(kLlama31, "\"mlp_bias\": false", "\"mlp_bias\": true"),
       "config.json:12: mlp_bias: found 'true'"},
      {With(kLlama31, "\"silu\"", "\"gelu\""),
       "config.json:7: hidden_act: found 'gelu'"},
      {With(kLlama31, "\"llama3\"", "\"yarn\""),
       "config.json:24: rope_scaling.rope_type: found 'yarn'"},
      {With(kLlama31, "    \"low_freq_factor\": 1.0,\n", ""),
       "config.json: rope_scaling.low_freq_factor: missing, though "
       "rope_scaling.rope_type on line 23 is llama3"},
      {With(kLlama31, "\"factor\": 8.0,", "\"factor\": 8.0, \"mscale\": 2,"),
       "config.json:20: rope_scaling.mscale: found '2'; ours does not know"},
      {With(kLlama31, "\"attention_dropout\": 0.0",
            "\"attention_dropout\": 0.1"),
       "config.json:4: attention_dropout: found '0.1'; ours has no dropout"},
      {With(kLlama31, "\"pretraining_tp\": 1", "\"logit_scale\": 0.5"),
       "config.json:17: logit_scale: found '0.5'; ours does not know"},
      {With(kLlama31, "\"pretraining_tp\": 1",
            "\"quantization_config\": {\"quant_method\": \"gptq\"}"),
       "quantization_config.quant_method: found 'gptq'; quantized weights"},
      {With(kLlama31, "\"pretraining_tp\": 1",
            "\"partial_rotary_factor\": 0.5"),
       "config.json:17: partial_rotary_factor: found '0.5'"},
      {With(kLlama31, "131072", "4096"),
       "config.json:11: max_position_embeddings: the model has 4096 positions, "
       "but model.sequence_length is 8192"},
      {With(kLlama31, "\"hidden_size\": 4096", "\"hidden_size\": \"big\""),
       "config.json:8: hidden_size: expected an integer"},
      {With(kLlama31, "\"hidden_size\": 4096", "\"hidden_size\": 1e99"),
       "config.json:8: hidden_size: expected an integer"},
      {With(kLlama31, "\"hidden_size\": 4096", "\"hidden_size\": [1, 2]"),
       "config.json:8: hidden_size: expected an integer"},
      {With(kLlama31, "\"hidden_size\": 4096",
            "\"hidden_size\": 9223372036854775808"),
       "config.json:8: hidden_size: expected an integer"},
      {With(kLlama31, "\"vocab_size\": 128256", "\"vocab_size\": null"),
       "config.json: vocab_size: missing"},
      {With(kLlama31, "\"use_cache\": true", "\"hidden_size\": 8"),
       "config.json:30: hidden_size: given twice, first on line 8"},
      {With(qwen, "\"use_mrope\": false", "\"use_mrope\": true"),
       "use_mrope: found 'true'; ours counts positions along one axis"},
      {absl::StrReplaceAll(
           qwen, {{"\"max_window_layers\": 24", "\"max_window_layers\": 12"},
                  {"_window\": false", "_window\": true"}}),
       "max_window_layers: layers from 12 on have a sliding window"},
      {With(kMistral, "\"use_cache\": true",
            "\"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
       "layer_types: found 'full_attention sliding_attention'; expected 32"},
      {"", "config.json:1: not valid JSON"},
      {"[]", "config.json"},
      {"{}", "config.json: model_type: missing"},
      {std::string(100, '['), "nested deeper"},
      {std::string("\xff\xfe"), "config.json"}};
  for (const auto& [config, error] : cases) {
    EXPECT_THAT(ErrorWith(config),
                AllOf(HasSubstr("job.yaml:3: model.from: "), HasSubstr(error)));
  }
}

// Goal: a folder without config.json says what to name instead. Method: no
// folder, an empty one, the hub's cache of a model.
TEST(ModelFolderTest, SaysWhatToNameInstead) {
  const ConfigFolder folder("{}");
  std::filesystem::remove(folder.path + "/config.json");
  EXPECT_THAT(
      std::string(ReadModelFolder(folder.path, 1).status().message()),
      HasSubstr("config.json: missing; name the folder of a Hugging Face"));
  std::filesystem::create_directories(folder.path + "/snapshots/abc");
  EXPECT_THAT(std::string(ReadModelFolder(folder.path, 1).status().message()),
              HasSubstr("name one of the folders in"));
  EXPECT_THAT(std::string(ReadModelFolder("no/such", 1).status().message()),
              HasSubstr("no/such/config.json: the folder is not there"));
  // The cache's snapshots hold links.
  const std::string snapshot = folder.path + "/snapshots/abc";
  ASSERT_TRUE(WriteFileAtomically(folder.path + "/blob", kLlama31).ok());
  std::filesystem::create_symlink("../../blob", snapshot + "/config.json");
  EXPECT_TRUE(ReadModelFolder(snapshot, 1).ok());
}

// Goal: a job says what its folder leaves open, may repeat it, and may not say
// otherwise. Method: one key each.
TEST(ModelFolderTest, JobAndFolderMustAgree) {
  EXPECT_THAT(ErrorWith(kLlama31, ""),
              HasSubstr("job.yaml:2: model.sequence_length: missing"));
  const auto same = ReadWith(kLlama31,
                             "  hidden: 4096\n  qkv_bias: false\n"
                             "  rope_theta: 5e5\n  sequence_length: 64\n");
  EXPECT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(ErrorWith(kLlama31, "  hidden: 2048\n  sequence_length: 64\n"),
              AllOf(HasSubstr("job.yaml:4: model.hidden: found 2048, but "),
                    HasSubstr("config.json:8: hidden_size says 4096")));
  // Settings that config.json leaves out follow from the family.
  EXPECT_THAT(
      ErrorWith(kLlama31, "  sliding_window: 16\n  sequence_length: 64\n"),
      AllOf(HasSubstr("job.yaml:4: model.sliding_window: found 16, but "),
            HasSubstr("config.json:13: model_type says 0")));
  EXPECT_THAT(
      ErrorWith(kLlama31, "  approximates: biases\n  sequence_length: 64\n"),
      HasSubstr("model.approximates: given together with model.from"));
  const std::string without_from = absl::StrReplaceAll(
      JobOf("x", "  fingerprint: abc\n"), {{"  from: x\n", ""}});
  EXPECT_THAT(
      std::string(ParseJob(without_from, "job.yaml").status().message()),
      Not(HasSubstr("unknown key")));
}

// Goal: ids of text are those that the weights know, unless the job names
// another tokenizer. Method: jobs without the key and with it.
TEST(ModelFolderTest, TokenizerIsTheFoldersOwn) {
  const ConfigFolder folder(kLlama31);
  const std::string text = With(JobOf(folder.path, "  sequence_length: 64\n"),
                                "synthetic: true", "text: [a.txt]");
  const auto job = ParseJob(text, "job.yaml", ReadModelFolder);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data.tokenizer, folder.path);
  // A run reads its job again, without the folder.
  const auto again = ParseJob(JobToYaml(*job), "job.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data.tokenizer, folder.path);
  const auto named =
      ParseJob(With(text, "text: [a.txt]", "text: [a.txt], tokenizer: mine"),
               "job.yaml", ReadModelFolder);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->data.tokenizer, "mine");
}

// Goal: the job that a run keeps says all that the folder said, and is read
// back without it. Method: write it, remove the folder, read it.
TEST(ModelFolderTest, ResolvedJobNeedsNoFolder) {
  const auto job = ReadWith(kLlama31);
  ASSERT_TRUE(job.ok()) << job.status();
  const auto again = ParseJob(JobToYaml(*job), "job.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *job);
}

// Goal: a model that came from no folder gets a config.json that means the same
// model. Method: the options of each family, written and read; and a model that
// no family has.
TEST(ModelFolderTest, WritesWhatItReads) {
  const std::string qwen = kQwen25;
  for (const std::string& config :
       {std::string(kLlama31), std::string(kMistral), qwen, std::string(kQwen3),
        std::string(kGpt2Folder), std::string(kGemma2), std::string(kGemma3),
        With(kGpt2Folder, "gelu_new", "gelu")}) {
    for (const int64_t length : {512, 8192}) {
      if (absl::StrContains(config, "gpt2") && length > 1024) continue;
      const ModelSpec model = ModelOf(config, length);
      const auto written = WriteModelConfig(model, "bfloat16");
      ASSERT_TRUE(written.ok()) << written.status();
      EXPECT_EQ(ModelOf(*written, length), model) << *written;
    }
  }
  ModelSpec model = ModelOf(kLlama31);
  model.qkv_bias = model.qk_norm = true;
  EXPECT_EQ(WriteModelConfig(model, "float32").status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Goal: only the type of a config.json changes, in either spelling. Method:
// compare texts.
TEST(ModelFolderTest, ChangesTheTypeAlone) {
  const std::string config =
      "{\n  \"odd\": [\n    1\n  ],\n  \"torch_dtype\": \"bfloat16\",\n"
      "  \"b\": null\n}\n";
  EXPECT_EQ(*ChangeConfigType(config, "c", "float32"),
            With(config, "bfloat16", "float32"));
  const std::string of_5 = With(config, "torch_dtype", "dtype");
  EXPECT_EQ(*ChangeConfigType(of_5, "c", "float32"),
            With(of_5, "bfloat16", "float32"));
  EXPECT_FALSE(ChangeConfigType("[]", "c", "float32").ok());
}

}  // namespace
}  // namespace millrace
