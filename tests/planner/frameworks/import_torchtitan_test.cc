// Jobs from torchtitan's files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ImportedJob> ImportTorchtitanText(
    const std::string& text, const ImportOptions& options = {}) {
  const absl::StatusOr<Settings> settings = ReadTomlSettings(text, "job.toml");
  if (!settings.ok()) return settings.status();
  return ImportJob(TorchtitanAdapter(), *settings, options);
}

std::string TorchtitanErrorOf(const std::string& text,
                              const ImportOptions& options = {}) {
  const absl::StatusOr<ImportedJob> imported =
      ImportTorchtitanText(text, options);
  return imported.ok() ? "no error" : std::string(imported.status().message());
}

// Goal: text that the TOML library would read by deep recursion, or end with an
// exception of another kind, is refused by file and line. Method: lists, tables
// and dotted keys 80,000 deep; a number beyond every type; bytes that end
// early.
TEST(ImportTorchtitanTest, RefusesHostileToml) {
  const auto repeated = [](const char* text) {
    std::string all;
    for (int i = 0; i < 80'000; ++i) all += text;
    return all;
  };
  for (const std::string& deep : {absl::StrCat("a = ", repeated("[")),
                                  absl::StrCat("a = ", repeated("{b=")),
                                  absl::StrCat("[", repeated("a."), "a]"),
                                  absl::StrCat(repeated("a."), "a = 1")}) {
    EXPECT_THAT(TorchtitanErrorOf(absl::StrCat("\n", deep, "\n")),
                HasSubstr("job.toml:2: nested deeper than 32 levels"));
  }
  EXPECT_THAT(TorchtitanErrorOf(repeated("# much\n")), HasSubstr("at most"));
  for (const char* wrong : {"a = 99999999999999999999", "a = 1e99999", "a = \"",
                            "a = [1,", "a = 2024-99-99", "[a", "= 1", "a = ''",
                            "a = \"\\uD800\"", "a = {", "a.b.c", "\x01 = 1"}) {
    EXPECT_THAT(TorchtitanErrorOf(wrong), HasSubstr("job.toml")) << wrong;
  }
}

// Goal: torchtitan's tables are read with its defaults, and refused where they
// contradict. Method: a small file by hand, then one change each.
TEST(ImportTorchtitanTest, TakesTorchtitanTables) {
  const absl::StatusOr<ImportedJob> imported = ImportTorchtitanText(kToml);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->job.model.ffn_hidden, 768);
  EXPECT_EQ(imported->job.model.sequence_length, 512);
  EXPECT_EQ(imported->job.training.num_steps, 1000);
  EXPECT_EQ(imported->job.layout, (LayoutConstraints{.pipeline = 1,
                                                     .data = 4,
                                                     .tensor = 2,
                                                     .micro_batch = 4,
                                                     .zero = 3,
                                                     .context = 1,
                                                     .expert = 1,
                                                     .expert_tensor = 1}));
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"\"llama3\"", "\"llama4\"", "job.toml:2: model.name: found 'llama4'"},
      {"\"llama3\"", "\"deepseek_v3\"",
       "job.toml:2: model.name: the flavors of deepseek_v3 are not known here"},
      {"debugmodel", "9B",
       "job.toml:3: model.flavor: '9B' is none of debugmodel, 8B, 70B, 405B"},
      {"tensor_parallel_degree = 2", "tensor_parallel_degree = 3",
       "job.toml:13: parallelism.tensor_parallel_degree: 3 equal shards cannot "
       "be cut from model.heads 16"},
      {"global_batch_size = 32", "global_batch_size = 30",
       "job.toml:6: training.global_batch_size: 30 sequences"},
      {"warmup_steps = 2", "decay_type = \"sqrt\"",
       "job.toml:10: lr_scheduler.decay_type: found 'sqrt'"},
      {"warmup_steps = 2", "decay_ratio = 0.5",
       "job.toml:10: lr_scheduler.decay_ratio: found '0.5'"},
      {"steps = 1_000", "steps = ", "job.toml:8: not valid TOML"},
      {"steps = 1_000", "steps = 0",
       "job.toml:8: training.steps: expected an integer of at least 1"},
  };
  for (const auto& [from, to, error] : cases) {
    EXPECT_THAT(TorchtitanErrorOf(Changed(kToml, from, to)), HasSubstr(error));
  }
}

// Goal: how many chunks a stage holds is read where torchtitan names each one's
// modules. Method: four chunks of two stages; three are refused.
TEST(ImportTorchtitanTest, CountsTorchtitanChunks) {
  const auto with_chunks = [](const std::string& chunks) {
    return Changed(kToml, "tensor_parallel_degree = 2",
                   "pipeline_parallel_degree = 2\n"
                   "pipeline_parallel_schedule = \"Interleaved1F1B\"\n"
                   "module_fqns_per_model_part = " +
                       chunks);
  };
  const absl::StatusOr<ImportedJob> imported = ImportTorchtitanText(
      with_chunks("[[\"tok_embeddings\", \"layers.0\"], [\"layers.1\"], "
                  "[\"layers.2\", \"layers.3\"], [\"layers.4\", "
                  "\"layers.5\", \"norm\", \"output\"]]"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->job.layout.interleave, 2);
  EXPECT_EQ(imported->job.layout.schedule, "interleaved");
  EXPECT_THAT(
      TorchtitanErrorOf(
          with_chunks("[[\"layers.0\"], [\"layers.1\"], [\"norm\"]]")),
      HasSubstr("module_fqns_per_model_part: names the modules of 3 chunks, "
                "which 2 stages cannot hold in equal numbers of two or more"));
}

// Goal: -1, torchtitan's way to say "whatever is left", is auto here.
TEST(ImportTorchtitanTest, LeavesTorchtitanRemainderToThePlanner) {
  const absl::StatusOr<ImportedJob> imported = ImportTorchtitanText(
      Changed(kToml, "data_parallel_shard_degree = 4", ""));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_FALSE(imported->job.layout.data.has_value());
  EXPECT_EQ(imported->job.layout.zero, 3);
  EXPECT_THAT(TorchtitanErrorOf(
                  Changed(kToml, "data_parallel_shard_degree = 4\n", "#") +
                  "pipeline_parallel_degree = 2\n"
                  "pipeline_parallel_microbatch_size = 3\n"),
              HasSubstr("training.local_batch_size: 4 is not divisible"));
}

// Goal: torchtitan's own files, which say neither the global batch nor the data
// axis, are taken with the number of devices. Method: tensor 2 on 8 devices, by
// hand; numbers that contradict the file.
TEST(ImportTorchtitanTest, TakesTheDevicesOfAWholeJob) {
  const std::string both =
      Changed(kToml, "data_parallel_shard_degree = 4\n", "");
  const std::string left = Changed(both, "global_batch_size = 32\n", "");
  EXPECT_THAT(TorchtitanErrorOf(left), HasSubstr("--devices"));
  const absl::StatusOr<ImportedJob> imported =
      ImportTorchtitanText(left, {.num_devices = 8});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->job.layout.data, 4);
  EXPECT_EQ(imported->job.training.global_batch, 16);  // 4 replicas of 4.
  EXPECT_THAT(TorchtitanErrorOf(left, {.num_devices = 7}),
              HasSubstr("multiples of 2 devices, but --devices "
                        "is 7"));
  EXPECT_THAT(TorchtitanErrorOf(kToml, {.num_devices = 16}),
              HasSubstr("take 8 devices, but --devices is 16"));
}

// Goal: which parameters FSDP keeps decides the stage of ZeRO. Method: its
// three policies, with and without a pipeline.
TEST(ImportTorchtitanTest, TakesWhatFsdpShards) {
  const auto zero = [](const std::string& rest) {
    const absl::StatusOr<ImportedJob> imported =
        ImportTorchtitanText(kToml + rest);
    EXPECT_TRUE(imported.ok()) << imported.status();
    return imported.ok() ? imported->job.layout.zero.value_or(-1) : -1;
  };
  EXPECT_EQ(zero("fsdp_reshard_after_forward = \"always\"\n"), 3);
  EXPECT_EQ(zero("fsdp_reshard_after_forward = \"default\"\n"), 3);
  EXPECT_EQ(zero("fsdp_reshard_after_forward = \"never\"\n"), 1);
  EXPECT_EQ(zero("pipeline_parallel_degree = 2\n"), 1);
}

}  // namespace
}  // namespace millrace
