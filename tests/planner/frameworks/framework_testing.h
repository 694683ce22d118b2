// A job whose numbers are all unlike the frameworks' defaults, so that none can
// come back right by luck, and the ways there and back.

#ifndef MILLRACE_TESTS_PLANNER_FRAMEWORKS_FRAMEWORK_TESTING_H_
#define MILLRACE_TESTS_PLANNER_FRAMEWORKS_FRAMEWORK_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "planner/frameworks/export.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

inline JobSpec UnusualJob() {
  JobSpec job;
  job.name = "unusual";
  job.model = {.vocab_size = 1552,
               .hidden = 192,
               .num_layers = 9,
               .num_heads = 16,
               .num_kv_heads = 8,
               .head_dim = 12,
               .ffn_hidden = 448,
               .sequence_length = 96,
               .rope_theta = 70000,
               .norm_epsilon = 2e-6,
               .init_std = 0.013};
  job.data.text = {"data/**"};
  job.training.num_steps = 777;
  job.training.global_batch = 96;
  job.training.seed = 42;
  job.training.gradient_clip_norm = 0.7;
  job.training.validation_interval_steps = 111;
  job.training.validation_steps = 3;
  job.training.optimizer = {.learning_rate = 1.7e-3,
                            .min_learning_rate = 1.3e-4,
                            .warmup_steps = 33,
                            .decay = LearningRateDecay::kCosine,
                            .beta1 = 0.88,
                            .beta2 = 0.97,
                            .epsilon = 3e-9,
                            .weight_decay = 0.07};
  job.checkpoint.interval_steps = 55;
  return job;
}

// Every layout of the job up to 8 stages, 8 replicas and 8 shards.
inline std::vector<Layout> LayoutsOf(const JobSpec& job) {
  std::vector<Layout> layouts;
  for (int32_t pipeline = 1; pipeline <= 8; ++pipeline) {
    for (const int32_t data : {1, 2, 3, 8}) {
      for (const int32_t tensor : {1, 2, 4, 8}) {
        for (const int32_t micro_batch : {1, 2, 3, 4}) {
          for (const int32_t zero : {0, 1}) {
            Layout layout{.pipeline = pipeline,
                          .data = data,
                          .tensor = tensor,
                          .micro_batch = micro_batch,
                          .zero = zero};
            layout.num_microbatches =
                static_cast<int32_t>(job.training.global_batch) /
                (data * micro_batch);
            if (ValidateLayout(job.model, layout, job.training.global_batch)
                    .ok()) {
              layouts.push_back(layout);
            }
          }
        }
      }
    }
  }
  return layouts;
}

// The constraints that pin the layout, where a job file can.
inline LayoutConstraints Pinned(const Layout& layout) {
  return {.pipeline = layout.pipeline,
          .data = layout.data,
          .tensor = layout.tensor,
          .micro_batch = layout.micro_batch,
          .zero = layout.zero,
          .context = layout.context,
          .expert = layout.expert,
          .expert_tensor = layout.expert_tensor};
}

// The model of UnusualJob(), which torchtitan has no name for.
inline absl::StatusOr<Settings> UnusualModel() {
  return ReadJsonSettings(
      "{\"model_type\": \"llama\", \"vocab_size\": 1552, \"hidden_size\": 192, "
      "\"num_hidden_layers\": 9, \"num_attention_heads\": 16, "
      "\"num_key_value_heads\": 8, \"intermediate_size\": 448, "
      "\"rope_theta\": 70000.0, \"rms_norm_eps\": 2e-06, "
      "\"max_position_embeddings\": 4096}",
      "config.json");
}

inline std::string MustExport(const JobSpec& job, const Layout& layout,
                              Framework framework) {
  const absl::StatusOr<std::string> text = ExportLayout(job, layout, framework);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

inline JobSpec MustImport(Framework framework,
                          const absl::StatusOr<Settings>& settings,
                          const ImportOptions& options = {}) {
  EXPECT_TRUE(settings.ok()) << settings.status();
  if (!settings.ok()) return {};
  const absl::StatusOr<ImportedJob> imported =
      ImportJob(framework, *settings, options);
  EXPECT_TRUE(imported.ok()) << imported.status();
  return imported.ok() ? imported->job : JobSpec{};
}

// The settings that a framework's reader makes of an export.
inline absl::StatusOr<Settings> ReadBack(Framework framework,
                                         const std::string& text) {
  const bool is_toml = framework == TorchtitanAdapter();
  return framework->read(text, is_toml ? "job.toml" : "run.sh");
}

// A small file of torchtitan.
inline constexpr char kToml[] = R"([model]
name = "llama3"
flavor = "debugmodel"
[training]
local_batch_size = 4
global_batch_size = 32
seq_len = 512
steps = 1_000
[lr_scheduler]
warmup_steps = 2
[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
)";

// A model's config.json of Hugging Face.
inline constexpr char kHuggingFaceConfig[] = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 32000,
  "hidden_size": 4096,
  "num_hidden_layers": 32,
  "num_attention_heads": 32,
  "num_key_value_heads": 8,
  "intermediate_size": 11008,
  "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "hidden_act": "silu",
  "tie_word_embeddings": false,
  "torch_dtype": "float32",
  "use_cache": true
}
)";

// `text` with something else instead of `from`, which must be in it.
inline std::string Changed(const std::string& text, const std::string& from,
                           const std::string& to) {
  const std::string changed = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(changed, text) << from;
  return changed;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_FRAMEWORKS_FRAMEWORK_TESTING_H_
