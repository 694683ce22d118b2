#include "planner/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobSpec MakeJob() {
  JobSpec job;
  job.name = "shown";
  job.model = {.vocab_size = 256,
               .hidden = 64,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = 4,
               .head_dim = 16,
               .ffn_hidden = 192,
               .sequence_length = 64};
  job.training.num_steps = 100;
  job.training.global_batch = 8;
  return job;
}

Plan MakePlan() {
  Plan plan;
  plan.layout = {
      .pipeline = 2, .tensor = 2, .micro_batch = 2, .num_microbatches = 4};
  plan.prediction = {.step_time_s = 0.5,
                     .tokens_per_s = 1024,
                     .mfu_full = 0.25,
                     .mfu_causal = 0.24,
                     .persistent_bytes = 40 << 20,
                     .step_bytes = 24 << 20,
                     .parameter_bytes = 10 << 20,
                     .gradient_bytes = 10 << 20,
                     .optimizer_bytes = 20 << 20,
                     .bubble_fraction = 0.2,
                     .exposed_communication_fraction = 0.1};
  plan.layouts_considered = 3;
  plan.alternatives = {
      {.layout = {.data = 4, .micro_batch = 2},
       .simulated = true,
       .prediction = {.step_time_s = 0.6,
                      .tokens_per_s = 900,
                      .persistent_bytes = 1 << 20},
       .reason = "1.20x slower: bubble 43 % of the step"},
      {.layout = {.tensor = 4, .micro_batch = 8},
       .fits = false,
       .prediction = {.step_time_s = 0.7, .tokens_per_s = 800},
       .reason = "needs 5.10 GiB, 921 MiB more than the device has"}};
  plan.warnings = {"stale profile: measured long ago"};
  return plan;
}

// Goal: a person sees the choice, its cost, the losers and the warnings.
// Method: the figures of a plan made by hand.
TEST(ExplainTest, TellsTheWholeStory) {
  const std::string text = ExplainPlan(MakeJob(), MakeProfile({}), MakePlan());
  for (const char* part :
       {"Plan for shown", "on 4 devices",
        "pipeline 2 x data 1 x tensor 2, 4 micro-batches of 2, ZeRO 0, fp32",
        "sequence-parallel", "500 ms", "1.02 k tokens/s",
        "50.0 s for 100 steps", "64.0 MiB a rank", "parameters 10.0 MiB",
        "optimizer 20.0 MiB", "step 24.0 MiB", "bubble 20.0 %",
        "exposed communication 10.0 %",
        "made up, measured on a machine of round figures, 2026-01-01",
        "3 layouts", "1.20x slower: bubble 43 % of the step",
        "921 MiB more than the device has",
        "warning: stale profile: measured long ago"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// Goal: long tables are cut, and say so. Method: thirty alternatives.
TEST(ExplainTest, CutsLongTables) {
  Plan plan = MakePlan();
  plan.alternatives.resize(30, plan.alternatives[0]);
  EXPECT_THAT(ExplainPlan(MakeJob(), MakeProfile({}), plan),
              HasSubstr("and 20 more; --json lists them all"));
  plan.alternatives.clear();
  EXPECT_THAT(ExplainPlan(MakeJob(), MakeProfile({}), plan),
              Not(HasSubstr("alternative")));
}

// Goal: the machine-readable plan has the documented keys, and leaves out what
// it does not know. Method: parse it back.
TEST(ExplainTest, WritesJson) {
  Plan plan = MakePlan();
  const auto json = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_EQ(json["layout"]["pipeline"], 2);
  EXPECT_EQ(json["layout"]["sequence_parallel"], true);
  EXPECT_EQ(json["layout"]["micro_batch"], 2);
  EXPECT_EQ(json["layout"]["precision"], "fp32");
  EXPECT_EQ(json["layout"]["schedule"], "1f1b");
  EXPECT_EQ(json["predicted"]["step_time_s"], 0.5);
  EXPECT_EQ(json["predicted"]["tokens_per_s_per_device"], 256);
  EXPECT_EQ(json["predicted"]["memory_bytes_per_device"], 64 << 20);
  EXPECT_FALSE(json["predicted"].contains("step_time_low_s"));
  EXPECT_TRUE(json["search"]["optimality_gap"].is_null());
  ASSERT_EQ(json["alternatives"].size(), 2u);
  EXPECT_EQ(json["alternatives"][1]["fits"], false);
  EXPECT_FALSE(
      json["alternatives"][1]["predicted"].contains("memory_bytes_per_device"));
  EXPECT_EQ(json["warnings"][0], "stale profile: measured long ago");
  plan.all_simulated = true;
  EXPECT_EQ(nlohmann::json::parse(PlanToJson(plan))["search"]["optimality_gap"],
            0);
}

}  // namespace
}  // namespace millrace
