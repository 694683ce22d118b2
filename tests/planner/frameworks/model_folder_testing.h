// Folders with a config.json each, and the models that jobs take from them.

#ifndef MILLRACE_TESTS_PLANNER_FRAMEWORKS_MODEL_FOLDER_TESTING_H_
#define MILLRACE_TESTS_PLANNER_FRAMEWORKS_MODEL_FOLDER_TESTING_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"

namespace millrace {

inline constexpr char kGemma2[] = R"({
  "architectures": ["Gemma2ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0,
  "bos_token_id": 2,
  "cache_implementation": "hybrid",
  "eos_token_id": 1,
  "final_logit_softcapping": 30.0,
  "head_dim": 256,
  "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 3584,
  "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 8192,
  "model_type": "gemma2",
  "num_attention_heads": 16,
  "num_hidden_layers": 42,
  "num_key_value_heads": 8,
  "pad_token_id": 0,
  "query_pre_attn_scalar": 256,
  "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0,
  "sliding_window": 4096,
  "torch_dtype": "float32",
  "use_cache": true,
  "vocab_size": 256000
})";
inline constexpr char kGemma3[] = R"({
  "architectures": ["Gemma3ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "attn_logit_softcapping": null,
  "cache_implementation": "hybrid",
  "final_logit_softcapping": null,
  "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 1152,
  "initializer_range": 0.02,
  "intermediate_size": 6912,
  "max_position_embeddings": 32768,
  "model_type": "gemma3_text",
  "num_attention_heads": 4,
  "num_hidden_layers": 26,
  "num_key_value_heads": 1,
  "query_pre_attn_scalar": 256,
  "rms_norm_eps": 1e-06,
  "rope_local_base_freq": 10000,
  "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
  "rope_theta": 1000000,
  "sliding_window": 512,
  "sliding_window_pattern": 6,
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "vocab_size": 262144
})";
inline constexpr char kPhi4Mini[] = R"({
  "architectures": ["Phi3ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "embd_pdrop": 0.0,
  "hidden_act": "silu",
  "hidden_size": 24,
  "initializer_range": 0.02,
  "intermediate_size": 64,
  "max_position_embeddings": 131072,
  "model_type": "phi3",
  "num_attention_heads": 3,
  "num_hidden_layers": 2,
  "num_key_value_heads": 3,
  "original_max_position_embeddings": 4096,
  "partial_rotary_factor": 0.75,
  "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "long_factor": [1.0, 4.25, 60.0],
    "short_factor": [1.0, 1.5, 2.0],
    "type": "longrope"
  },
  "rope_theta": 10000.0,
  "sliding_window": 262144,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "vocab_size": 96
})";
struct ConfigFolder {
  explicit ConfigFolder(const std::string& config) {
    path = absl::StrCat(testing::TempDir(), "/model_folder_test.", getpid());
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    EXPECT_TRUE(WriteFileAtomically(path + "/config.json", config).ok());
  }
  ~ConfigFolder() { std::filesystem::remove_all(path); }
  ConfigFolder(const ConfigFolder&) = delete;
  std::string path;
};

inline std::string JobOf(const std::string& folder,
                         const std::string& model_keys) {
  return absl::StrCat("name: a\nmodel:\n  from: ", folder, "\n", model_keys,
                      "data: {synthetic: true}\n"
                      "training:\n  steps: 1\n  global_batch: 1\n"
                      "  optimizer: {learning_rate: 1e-3}\n");
}

inline absl::StatusOr<JobSpec> ReadWith(
    const std::string& config,
    const std::string& model_keys = "  sequence_length: 8192\n") {
  const ConfigFolder folder(config);
  return ParseJob(JobOf(folder.path, model_keys), "job.yaml", ReadModelFolder);
}

inline ModelSpec ModelOf(const std::string& config, int64_t length = 8192) {
  const auto job =
      ReadWith(config, absl::StrCat("  sequence_length: ", length, "\n"));
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? job->model : ModelSpec{};
}

inline std::string ErrorWith(
    const std::string& config,
    const std::string& model_keys = "  sequence_length: 8192\n") {
  const auto job = ReadWith(config, model_keys);
  if (job.ok()) return "no error";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

inline std::string With(const std::string& config, const std::string& from,
                        const std::string& to) {
  const std::string changed = absl::StrReplaceAll(config, {{from, to}});
  EXPECT_NE(changed, config) << from;
  return changed;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_FRAMEWORKS_MODEL_FOLDER_TESTING_H_
