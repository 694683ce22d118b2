#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "planner/job/job_file.h"
#include "tests/planner/job/job_file_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: GPT-2's options are read, written and checked. Method: all of them,
// read back; then one slip each.
TEST(JobOptionsTest, ReadsOptionsOfGpt2) {
  const std::string options =
      Changed("  ffn_hidden: 96",
              "  ffn_hidden: 96\n  feed_forward: gelu\n  norm: layer\n"
              "  learned_positions: 64\n  qkv_bias: true\n"
              "  linear_bias: true\n  ties_embedding: true");
  const absl::StatusOr<JobSpec> job = ParseJob(options, "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.feed_forward, FeedForward::kGelu);
  EXPECT_EQ(job->model.norm, NormKind::kLayer);
  EXPECT_EQ(job->model.learned_positions, 64);
  EXPECT_TRUE(job->model.linear_bias);
  EXPECT_FALSE(job->model.is_llama());
  const absl::StatusOr<JobSpec> read = ParseJob(JobToYaml(*job), "job.yaml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *job);
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } slips[] = {
      {"learned_positions: 64", "learned_positions: 3",
       "model.learned_positions is 3; it must be at least"},
      {"norm: layer", "norm: batch", "model.norm: expected rms or layer"},
      {"ties_embedding: true", "qk_norm: true",
       "model.qk_norm is given, and so is model.learned_positions"},
      {"feed_forward: gelu",
       "moe: {num_experts: 8, experts_per_token: 2, expert_hidden: 24}",
       "model.linear_bias is true, and model.moe is given"},
  };
  for (const auto& [from, to, error] : slips) {
    EXPECT_THAT(ErrorOf(absl::StrReplaceAll(options, {{from, to}})),
                HasSubstr(error));
  }
}

// Goal: the options of Gemma and Phi-4-mini are read, written and checked.
// Method: all of a family in one model, read back; then one slip each.
TEST(JobOptionsTest, ReadsOptionsOfGemmaAndPhi) {
  const std::string gemma =
      Changed("  ffn_hidden: 96",
              "  ffn_hidden: 96\n  feed_forward: geglu\n  norm_adds_one: true\n"
              "  output_norms: true\n  scales_embedding: true\n"
              "  sliding_window: 8\n  global_layer_period: 2\n"
              "  sliding_rope_theta: 100\n  query_pre_attn_scalar: 24\n"
              "  attention_softcap: 50\n  logit_softcap: 30\n"
              "  rope_scaling: {kind: linear, factor: 8}");
  const std::string phi =
      Changed("  ffn_hidden: 96",
              "  ffn_hidden: 96\n  rotary_dim: 4\n  rope_factors: [1, 2.625]\n"
              "  rope_scaling: {kind: longrope, attention_factor: 1.25}");
  for (const std::string& text : {gemma, phi}) {
    const absl::StatusOr<JobSpec> job = ParseJob(text, "job.yaml");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_FALSE(job->model.is_llama());
    const absl::StatusOr<JobSpec> read = ParseJob(JobToYaml(*job), "job.yaml");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, *job);
  }
  const struct {
    const std::string& text;
    const char* from;
    const char* to;
    const char* error;
  } slips[] = {
      {gemma, "layer_period: 2", "layer_period: 1",
       "model.global_layer_period is 1, and model.sliding_window 8; it must"},
      {gemma, "  sliding_window: 8\n", "",
       "model.global_layer_period is 2, and model.sliding_window 0; it must"},
      {gemma, "  global_layer_period: 2\n", "",
       "model.sliding_rope_theta is 100, but model.global_layer_period is 0"},
      {gemma, "norm_adds_one: true", "norm_adds_one: true\n  norm: layer",
       "model.norm_adds_one is true, but model.norm is layer"},
      {gemma, "factor: 8", "factor: 0.5", "model.rope_scaling.factor is 0.5"},
      {gemma, "softcap: 50", "softcap: -1", "model.attention_softcap"},
      {phi, "rotary_dim: 4", "rotary_dim: 5", "model.rotary_dim is 5; it must"},
      {phi, "rotary_dim: 4", "rotary_dim: 4\n  qk_norm: true",
       "model.rotary_dim is given, and so is model.qk_norm"},
      {phi, "[1, 2.625]", "[1]",
       "model.rope_factors has 1 numbers; longrope needs 2"},
      {phi, "[1, 2.625]", "[1, much]",
       "model.rope_factors: expected a list of numbers"},
      {phi, "kind: longrope, ", "", "model.rope_scaling.attention_factor"},
  };
  for (const auto& [text, from, to, error] : slips) {
    EXPECT_THAT(ErrorOf(absl::StrReplaceAll(text, {{from, to}})),
                HasSubstr(error));
  }
}

// Goal: the options of other families are read, written and checked. Method:
// all of them in one model, read back; then one slip each.
TEST(JobOptionsTest, ReadsOptionsOfFamilies) {
  const std::string options =
      Changed("  ffn_hidden: 96",
              "  ffn_hidden: 96\n  qkv_bias: true\n  qk_norm: true\n"
              "  sliding_window: 8\n  rope_scaling: {kind: llama3, factor: 8,"
              " low_freq_factor: 1, high_freq_factor: 4,"
              " original_max_position_embeddings: 8192}");
  const absl::StatusOr<JobSpec> job = ParseJob(options, "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->model.qkv_bias);
  EXPECT_TRUE(job->model.qk_norm);
  EXPECT_EQ(job->model.sliding_window, 8);
  EXPECT_EQ(job->model.rope_scaling,
            (RopeScaling{.kind = RopeScalingKind::kLlama3,
                         .factor = 8,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_max_position_embeddings = 8192}));
  EXPECT_FALSE(job->model.is_llama());
  const absl::StatusOr<JobSpec> read = ParseJob(JobToYaml(*job), "job.yaml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *job);
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } slips[] = {
      {"kind: llama3", "kind: yarn",
       "model.rope_scaling.kind: expected none, llama3, linear or longrope, "
       "found 'yarn'"},
      {"kind: llama3, ", "",
       "model.rope_scaling.factor is given, but model.rope_scaling.kind is "
       "none"},
      {"factor: 8,", "factor: 0.5,", "model.rope_scaling.factor is 0.5"},
      {"high_freq_factor: 4", "high_freq_factor: 1",
       "model.rope_scaling.high_freq_factor is 1; it must be above"},
      {"sliding_window: 8", "sliding_window: -1", "model.sliding_window"},
  };
  for (const auto& [from, to, message] : slips) {
    EXPECT_THAT(ErrorOf(absl::StrReplaceAll(options, {{from, to}})),
                HasSubstr(message));
  }
}

}  // namespace
}  // namespace millrace
