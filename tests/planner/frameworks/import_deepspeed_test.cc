// DeepSpeed's configuration beside a model's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "planner/frameworks/export.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kModel[] = R"({
  "model_type": "llama", "vocab_size": 1552, "hidden_size": 192,
  "num_hidden_layers": 9, "num_attention_heads": 16, "num_key_value_heads": 8,
  "head_dim": 12, "intermediate_size": 448, "max_position_embeddings": 512,
  "rope_theta": 70000, "rms_norm_eps": 2e-6, "initializer_range": 0.013})";

absl::StatusOr<ImportedJob> ImportDeepSpeedText(const std::string& config,
                                                ImportOptions options = {}) {
  absl::StatusOr<Settings> model = ReadJsonSettings(kModel, "config.json");
  EXPECT_TRUE(model.ok()) << model.status();
  options.model = *std::move(model);
  const absl::StatusOr<Settings> settings =
      ReadJsonSettings(config, "ds_config.json");
  if (!settings.ok()) return settings.status();
  return ImportJob(DeepSpeedAdapter(), *settings, options);
}

JobSpec MustImportDeepSpeed(const std::string& config,
                            const ImportOptions& options = {}) {
  const absl::StatusOr<ImportedJob> imported =
      ImportDeepSpeedText(config, options);
  EXPECT_TRUE(imported.ok()) << imported.status();
  return imported.ok() ? imported->job : JobSpec{};
}

std::string DeepSpeedErrorOf(const std::string& config,
                             const ImportOptions& options = {}) {
  const absl::StatusOr<ImportedJob> imported =
      ImportDeepSpeedText(config, options);
  return imported.ok() ? "no error" : std::string(imported.status().message());
}

// Goal: what DeepSpeed can express of a layout survives the way there and back.
// Method: every layout without a pipeline of a job with unusual numbers.
TEST(ImportDeepSpeedTest, RoundTrip) {
  JobSpec job = UnusualJob();
  job.training.seed = 0;  // The script's, like the settings of validation.
  job.training.validation_interval_steps = 0;
  job.training.validation_steps = 1;
  job.training.optimizer.min_learning_rate = 0.25 * 1.7e-3;
  int num_layouts = 0;
  for (const Layout& layout : LayoutsOf(job)) {
    if (layout.pipeline > 1) continue;
    ++num_layouts;
    const std::string text = MustExport(job, layout, DeepSpeedAdapter());
    SCOPED_TRACE(text);
    const JobSpec back = MustImportDeepSpeed(
        text, {.sequence_length = job.model.sequence_length});
    EXPECT_EQ(back.model, job.model);
    EXPECT_EQ(back.training, job.training);
    EXPECT_EQ(back.layout.data, layout.data);
    EXPECT_EQ(back.layout.tensor.value_or(1), layout.tensor);
    EXPECT_EQ(back.layout.micro_batch, layout.micro_batch);
    EXPECT_EQ(back.layout.zero, layout.zero);
    if (HasFailure()) return;
  }
  EXPECT_GT(num_layouts, 20);
}

// Goal: batch sizes that are left out follow as DeepSpeed lets them. Method:
// each pair of the three, on 8 devices of which tensor ranks take two.
TEST(ImportDeepSpeedTest, FillsBatchSizes) {
  const std::string tensor = "\"tensor_parallel\": {\"autotp_size\": 2}}";
  const ImportOptions devices{.num_devices = 8};
  const std::string micro = "\"train_micro_batch_size_per_gpu\": 3, ";
  const std::string steps = "\"gradient_accumulation_steps\": 5, ";
  const std::string batch = "\"train_batch_size\": 60, ";
  for (const std::string& pair : {micro + steps, micro + batch}) {
    const JobSpec job = MustImportDeepSpeed("{" + pair + tensor, devices);
    EXPECT_EQ(job.training.global_batch, 60);
    EXPECT_EQ(job.layout.micro_batch, 3);
    EXPECT_EQ(job.layout.data, 4);
    EXPECT_EQ(job.layout.tensor, 2);
  }
  // A file that states all three needs no number of devices.
  EXPECT_EQ(
      MustImportDeepSpeed("{" + micro + steps + batch + tensor).layout.data, 4);
  EXPECT_EQ(
      MustImportDeepSpeed("{" + micro + tensor, devices).training.global_batch,
      12);
  const JobSpec open = MustImportDeepSpeed("{" + batch + tensor);
  EXPECT_EQ(open.training.global_batch, 60);
  EXPECT_FALSE(open.layout.data.has_value());
  EXPECT_FALSE(open.layout.micro_batch.has_value());

  EXPECT_THAT(DeepSpeedErrorOf("{" + micro + steps + tensor),
              AllOf(HasSubstr("train_batch_size: missing"),
                    HasSubstr("give --devices")));
  EXPECT_THAT(
      DeepSpeedErrorOf("{" + micro + steps + "\"train_batch_size\": 61}"),
      HasSubstr("61 is no multiple of micro-batches of 3 x"));
  EXPECT_THAT(DeepSpeedErrorOf("{" + micro + tensor, {.num_devices = 7}),
              HasSubstr("7 devices are no multiple of the 2"));
}

// Goal: values that a trainer fills in later are left open, what is not there
// has DeepSpeed's default, and what ours cannot do is refused or said. Method:
// a configuration as trainers take it, and one change each.
TEST(ImportDeepSpeedTest, TakesWhatIsSaid) {
  const absl::StatusOr<ImportedJob> imported = ImportDeepSpeedText(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
          "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
          "zero_optimization": {"stage": 3,
                                "offload_optimizer": {"device": "cpu"}},
          "optimizer": {"type": "Adam",
                        "params": {"lr": "auto", "betas": "auto"}}})");
  ASSERT_TRUE(imported.ok()) << imported.status();
  const JobSpec& job = imported->job;
  EXPECT_EQ(job.layout.zero, 3);
  EXPECT_FALSE(job.layout.micro_batch.has_value());
  EXPECT_EQ(job.training.precision, "bf16");
  EXPECT_EQ(job.training.gradient_clip_norm, 1);  // Ours.
  EXPECT_EQ(job.training.optimizer.weight_decay, 0);
  EXPECT_EQ(job.training.optimizer.decay, LearningRateDecay::kNone);
  EXPECT_THAT(imported->remarks.at("training.global_batch"),
              HasSubstr("assumed"));
  EXPECT_THAT(imported->notes,
              AllOf(Contains(HasSubstr("offload_optimizer.device")),
                    Contains(HasSubstr("scheduler: there is none"))));
  EXPECT_EQ(MustImportDeepSpeed("{}").training.gradient_clip_norm, 0);
  EXPECT_EQ(
      MustImportDeepSpeed("{\"fp16\": {\"enabled\": true}}").training.precision,
      "bf16");

  EXPECT_THAT(DeepSpeedErrorOf(R"({"optimizer": {"type": "Lamb"}})"),
              HasSubstr("ds_config.json:1: optimizer.type: found 'Lamb'"));
  EXPECT_THAT(DeepSpeedErrorOf(R"({"scheduler": {"type": "OneCycle"}})"),
              HasSubstr("scheduler.type: found 'OneCycle'"));
  EXPECT_THAT(
      DeepSpeedErrorOf(R"({"optimizer": {"params": {"betas": [0.9]}}})"),
      HasSubstr("expected a list of two"));
  EXPECT_THAT(DeepSpeedErrorOf(R"({"zero_optimization": {"stage": 4}})"),
              HasSubstr("zero_optimization.stage: expected"));
  EXPECT_THAT(
      ImportJob(DeepSpeedAdapter(), {.file_name = "ds.json"}, {})
          .status()
          .message(),
      AllOf(HasSubstr("has no model"), HasSubstr("--model config.json")));
}

}  // namespace
}  // namespace millrace
