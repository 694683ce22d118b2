#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/evaluate/known_models.h"
#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_setup.h"
#include "tests/planner/shipped_rules.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

PublishedRun RunOf(const std::string& gpu, const std::string& precision,
                   const std::string& container) {
  PublishedRun run;
  run.group = "mbridge_perf";
  run.kind = "pretrain";
  run.source = "NVIDIA-NeMo/Megatron-Bridge@0:docs/performance-summary.md [" +
               container + " NeMo Container]";
  run.model = "Kimi_K2";
  run.gpu = gpu;
  run.precision = precision;
  run.sequence = 4096;
  run.num_gpus = run.data = run.expert = 8;
  run.tensor = run.pipeline = run.micro_batch = 1;
  run.global_batch = 64;
  return run;
}

Implementation ImplementationOf(const std::string& model,
                                const std::string& gpu,
                                const std::string& precision,
                                const std::string& container) {
  PublishedRun run = RunOf(gpu, precision, container);
  RunSetup setup =
      SetUpRun(run, ShippedRules()).value();  // A model with known dims.
  setup.implementation = {};
  run.model = model;
  ApplyRecipe(*FrameworkOf(ShippedRules().frameworks, run).rule, run, &setup);
  return setup.implementation;
}

// Goal: the recipe of the release counts, later ones for later containers, and
// what they do for 8 bits is not done for bf16. Method: one model across
// releases.
TEST(BridgeRecipesTest, FollowsTheRelease) {
  const Implementation before =
      ImplementationOf("qwen3-30b-a3b", "DGX-GB300", "MXFP8", "26.04.01");
  EXPECT_TRUE(before.graphs_router);
  EXPECT_TRUE(before.launches_from_host);
  EXPECT_FALSE(before.fuses_experts);
  EXPECT_FALSE(before.overlaps_experts);
  for (const char* container : {"26.06", "26.06.01", "26.08"}) {
    const Implementation after =
        ImplementationOf("qwen3-30b-a3b", "DGX-GB300", "MXFP8", container);
    EXPECT_FALSE(after.launches_from_host) << container;
    EXPECT_TRUE(after.fuses_experts) << container;
    EXPECT_TRUE(after.overlaps_experts) << container;
  }
  EXPECT_TRUE(ImplementationOf("qwen3-30b-a3b", "DGX-GB300", "BF16", "26.06")
                  .launches_from_host);
}

// Goal: a machine's recipe is not another's whose name holds its own. Method:
// B200 and GB200, on which tokens are sent differently.
TEST(BridgeRecipesTest, TellsMachinesApart) {
  EXPECT_FALSE(ImplementationOf("qwen3-235b-a22b", "DGX-B200", "MXFP8", "26.02")
                   .sends_tokens_once);
  EXPECT_TRUE(ImplementationOf("qwen3-235b-a22b", "DGX-GB200", "MXFP8", "26.02")
                  .sends_tokens_once);
}

// Goal: biases of experts are added where the model has them and no kernel does
// it. Method: gpt-oss before and after its experts are one kernel; a model
// without biases.
TEST(BridgeRecipesTest, AddsTheBiasesOfExperts) {
  EXPECT_TRUE(ImplementationOf("GPT OSS 120B", "DGX-GB200", "BF16", "26.04")
                  .adds_expert_biases);
  EXPECT_FALSE(ImplementationOf("GPT OSS 120B", "DGX-GB200", "MXFP8", "26.06")
                   .adds_expert_biases);
  EXPECT_FALSE(ImplementationOf("qwen3-30b-a3b", "DGX-GB200", "BF16", "26.04")
                   .adds_expert_biases);
}

// Goal: recompute follows the recipe where the row does not say, aloud, and the
// row where it does. Method: a model whose recipe computes projections again.
TEST(BridgeRecipesTest, ComputesAgainWhatTheRecipeDoes) {
  PublishedRun run = RunOf("DGX-GB300", "MXFP8", "26.04");
  const RunSetup unstated = SetUpRun(run, ShippedRules()).value();
  EXPECT_EQ(unstated.layout.recompute, Recompute::kPolicy);
  EXPECT_TRUE(unstated.implementation.selective.latent_projections);
  EXPECT_FALSE(unstated.implementation.selective.norms);
  EXPECT_THAT(unstated.assumptions,
              Contains(HasSubstr("recompute as in that recipe")));
  run.recompute = "none";
  EXPECT_EQ(SetUpRun(run, ShippedRules()).value().layout.recompute,
            Recompute::kNone);
}

// Goal: what no recipe is for stays as its framework computes. Method: a dense
// model, and another framework's run.
TEST(BridgeRecipesTest, LeavesOthersAlone) {
  EXPECT_TRUE(ImplementationOf("llama3-70b", "DGX-GB300", "MXFP8", "26.08")
                  .fuses_experts);
  PublishedRun run = RunOf("DGX-GB300", "MXFP8", "26.08");
  run.group = "nemo";
  EXPECT_TRUE(
      SetUpRun(run, ShippedRules()).value().implementation.launches_from_host);
  EXPECT_FALSE(
      SetUpRun(run, ShippedRules()).value().implementation.sends_tokens_once);
}

}  // namespace
}  // namespace millrace
