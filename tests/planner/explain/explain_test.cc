#include "planner/explain/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "planner/explain/explain_json.h"
#include "planner/explain/explain_neighbours.h"
#include "planner/explain/plan_table.h"
#include "planner/fleet/goodput.h"
#include "planner/search/prediction.h"
#include "planner/search/search_budget.h"
#include "planner/text/page.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobSpec MakeJob() {
  JobSpec job = SmallJob();
  job.name = "shown";
  return job;
}

Plan MakePlan() {
  Plan plan;
  plan.layout = {
      .pipeline = 2, .tensor = 2, .micro_batch = 2, .num_microbatches = 4};
  plan.prediction = {.model = PriceModel::kInstructions,
                     .step_time_s = 0.5,
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
       .prediction = {.model = PriceModel::kInstructions,
                      .step_time_s = 0.6,
                      .tokens_per_s = 900,
                      .persistent_bytes = 1 << 20},
       .reason = "1.20x slower: bubble 43 % of the step"},
      {.layout = {.tensor = 4, .micro_batch = 8},
       .fits = false,
       .prediction = {.model = PriceModel::kInstructions,
                      .step_time_s = 0.7,
                      .tokens_per_s = 800},
       .reason = "needs 5.10 GiB, 921 MiB more than the device has"}};
  plan.warnings = {"stale profile: measured long ago"};
  return plan;
}

// A plan of a layout that was priced in closed form, on a data sheet's device.
Plan MakePlannedOnly() {
  Plan plan = MakePlan();
  plan.plan_only = true;
  plan.num_idle_devices = 2;
  plan.layout = {.pipeline = 2,
                 .tensor = 8,
                 .context = 2,
                 .micro_batch = 2,
                 .num_microbatches = 4,
                 .precision = Precision::kBfloat16,
                 .gemm_format = GemmFormat::kFloat8};
  plan.prediction.closed_form = {.time = {.compute_s = 0.3,
                                          .recompute_s = 0.02,
                                          .exposed_tensor_s = 0.03,
                                          .exposed_context_s = 0.04,
                                          .exposed_data_s = 0.01,
                                          .transfer_s = 0.002,
                                          .bubble_s = 0.09,
                                          .optimizer_s = 0.008},
                                 .memory = {.parameters = 10 << 20,
                                            .gradients = 10 << 20,
                                            .optimizer = 20 << 20,
                                            .activations = 16 << 20,
                                            .working = 8 << 20}};
  plan.prediction.step_time_low_s = 0.45;
  plan.prediction.step_time_high_s = 0.6;
  plan.optimality_gap = 0;
  return plan;
}

// `text` as if the page had no end: the lines of a cell are one.
std::string OnWidePage(const std::string& text) {
  std::string wide;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    if (indent > 4 && !wide.empty()) {
      wide.back() = ' ';
    }
    absl::StrAppend(&wide, indent > 4 ? line.substr(indent) : line, "\n");
  }
  return wide;
}

size_t WidestLine(const std::string& text) {
  size_t widest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    widest = std::max(widest, line.size());
  }
  return widest;
}

// Goal: a person sees the choice, its cost, the losers and the warnings on one
// page, and nothing else. Method: the figures of a plan made by hand.
TEST(ExplainTest, SummarizesInOneTable) {
  const std::string text =
      SummarizePlan(MakeJob(), MakeProfile({}), MakePlan());
  EXPECT_THAT(text, HasSubstr("Plan for shown"));
  EXPECT_THAT(text, HasSubstr("on 4 devices (made up)"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "  layout         step    memory     MFU  why not\n"
          "  pp2 tp2 mb2  500 ms  64.0 MiB  24.0 %  chosen\n"
          "  dp4 mb2      600 ms  1.00 MiB       -  1.20x slower: bubble 43 % "
          "of the step\n"
          "  tp4 mb8      700 ms         -       -  needs 5.10 GiB, 921 MiB "
          "more than the device has\n"));
  EXPECT_THAT(text, HasSubstr("warning: stale profile: measured long ago"));
  for (const char* detail : {"ZeRO", "training", "parameters 10.0", "search",
                             "why others lost", "plan only"}) {
    EXPECT_THAT(text, Not(HasSubstr(detail)));
  }
}

// Goal: --explain tells the whole story. Method: the same plan.
TEST(ExplainTest, TellsTheWholeStory) {
  const std::string text =
      OnWidePage(ExplainPlan(MakeJob(), MakeProfile({}), MakePlan()));
  for (const char* part :
       {"Plan for shown",
        "on 4 devices",
        "pp2 tp2 mb2  500 ms",
        "pipeline 2 x data 1 x tensor 2, 4 micro-batches of 2, ZeRO 0, fp32",
        "sequence-parallel",
        "500 ms",
        "1.02 k tokens/s",
        "50.0 s for 100 steps",
        "64.0 MiB a rank",
        "parameters 10.0 MiB",
        "optimizer 20.0 MiB",
        "step 24.0 MiB",
        "bubble 20.0 %",
        "exposed communication 10.0 %",
        "made up, measured on a machine of round figures, 2026-01-01",
        "3 layouts",
        "why others lost",
        "pipeline 1 x data 4 x tensor 1",
        "1.20x slower: bubble 43 % of the step",
        "921 MiB more than the device has",
        "warning: stale profile: measured long ago"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// Goal: step times by another model than the choice's are marked, and the mark
// is explained. Method: an alternative by each model.
TEST(ExplainTest, MarksStepTimesOfOtherModels) {
  Plan plan = MakePlan();
  plan.alternatives[1].prediction.model = PriceModel::kInstructions;
  plan.alternatives[0].prediction.model = PriceModel::kClosedForm;
  plan.prediction.closed_form = {.time = {.compute_s = 0.52}};
  const std::string one = PlanTable(plan);
  EXPECT_THAT(one, HasSubstr("  ~600 ms"));
  EXPECT_THAT(one, HasSubstr("  ~ step time by the closed form: the chosen "
                             "layout's is 520 ms\n"));
  EXPECT_THAT(one, Not(HasSubstr("passes")));
  plan.alternatives[1].prediction.model = PriceModel::kPasses;
  plan.by_passes = {.model = PriceModel::kPasses, .step_time_s = 0.51};
  const std::string two = PlanTable(plan);
  EXPECT_THAT(two, HasSubstr("  *700 ms"));
  EXPECT_THAT(two, HasSubstr("  * step time by passes: the chosen layout's is "
                             "510 ms\n"));
}

// Goal: no line is wider than the page, whatever a plan says. Method: long
// names, reasons and warnings in the summary and in the whole story.
TEST(ExplainTest, FitsThePage) {
  Plan plan = MakePlannedOnly();
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  plan.warnings.push_back(words);
  plan.alternatives[0].brief_reason = words;
  plan.alternatives[0].reason = words;
  Layout& wide = plan.alternatives[1].layout;
  wide.pipeline = 1024;
  wide.data = 1024;
  wide.context = 16;
  wide.zero = 3;
  wide.interleave = 12;
  SetRecompute("norm+activation+gate_up+qkv+attention", &wide);
  const auto parts = PartsOf(plan);
  ASSERT_TRUE(parts.ok()) << parts.status();
  const PlanAnswers answers = {.devices_from = words,
                               .parts = *parts,
                               .next_step = {{.key = "device.flops",
                                              .factor = 1.25,
                                              .kept_step_time_s = 0.4}},
                               .comparisons = {{.asked = "tp=4",
                                                .plan = plan,
                                                .fits = true,
                                                .parts = *parts,
                                                .verdict = words}}};
  const HardwareProfile profile = MakeProfile({});
  for (const std::string& text :
       {SummarizePlan(MakeJob(), profile, plan, answers),
        ExplainPlan(MakeJob(), profile, plan, answers)}) {
    EXPECT_LE(WidestLine(text), kPageColumns) << text;
    EXPECT_THAT(text, HasSubstr("what binds   compute 60.0 % of the step"));
    EXPECT_THAT(text, HasSubstr("next lever   device.flops +25 % saves 20.0 % "
                                "of the step\n"));
  }
}

// Goal: what the job leaves no choice of is told beside the choice. Method: a
// job with two pins, and one with none.
TEST(ExplainTest, TellsWhatTheJobPins) {
  JobSpec job = MakeJob();
  EXPECT_THAT(ExplainPlan(job, MakeProfile({}), MakePlan()),
              Not(HasSubstr("pinned")));
  job.layout.tensor = 2;
  job.layout.recompute = "none";
  EXPECT_THAT(ExplainPlan(job, MakeProfile({}), MakePlan()),
              HasSubstr("pinned       by the job: tensor 2, recompute none\n"));
}

// Goal: the memory line says how moments are stored where it is not fp32.
// Method: a plan in either.
TEST(ExplainTest, SaysHowMomentsAreStored) {
  Plan plan = MakePlan();
  EXPECT_THAT(ExplainPlan(MakeJob(), MakeProfile({}), plan),
              Not(HasSubstr("moments")));
  plan.layout.moments = MomentFormat::kBlocks8;
  EXPECT_THAT(OnWidePage(ExplainPlan(MakeJob(), MakeProfile({}), plan)),
              HasSubstr("optimizer 20.0 MiB (moments in 8bit), step"));
}

// Goal: long tables are cut, and say so. Method: thirty alternatives.
TEST(ExplainTest, CutsLongTables) {
  Plan plan = MakePlan();
  plan.alternatives.resize(30, plan.alternatives[0]);
  for (size_t i = 0; i < plan.alternatives.size(); ++i) {
    plan.alternatives[i].layout.num_microbatches = static_cast<int32_t>(i + 1);
  }
  EXPECT_THAT(ExplainPlan(MakeJob(), MakeProfile({}), plan),
              HasSubstr("and 20 more; --json lists them all"));
  plan.alternatives.clear();
  const std::string alone = ExplainPlan(MakeJob(), MakeProfile({}), plan);
  EXPECT_THAT(alone, Not(HasSubstr("more; --json")));
  EXPECT_THAT(alone, Not(HasSubstr("why others lost")));
}

// Goal: a reader knows why the neighbours of a choice are missing, and how to
// see one. Method: a plan of a long search.
TEST(ExplainTest, SaysThatNeighboursAreLeftOut) {
  Plan plan = MakePlan();
  plan.layouts_considered = kSearchBudget.most_priced_for_neighbours + 1;
  EXPECT_THAT(ExplainPlan(MakeJob(), MakeProfile({}), plan),
              Not(HasSubstr("skipped")));
  const std::string text = OnWidePage(ExplainPlan(
      MakeJob(), MakeProfile({}), plan, {.leaves_out_neighbours = true}));
  EXPECT_THAT(text, HasSubstr("skipped      neighbouring layouts (15 more "
                              "searches; automatic up to 50000 layouts, here "
                              "50001)"));
  EXPECT_THAT(text, HasSubstr("--compare"));
}

// Goal: a reader knows how many runs taught the profile, and how it did last.
// Method: none, one and two.
TEST(ExplainTest, SaysHowManyRunsCalibratedTheProfile) {
  HardwareProfile profile = MakeProfile({});
  EXPECT_THAT(ExplainPlan(MakeJob(), profile, MakePlan()),
              Not(HasSubstr("calibrated")));
  EXPECT_FALSE(nlohmann::json::parse(PlanToJson(MakePlan()))
                   .contains("num_calibration_runs"));
  profile.learnt_runs.push_back({.run = "first.000",
                                 .date = "2026-01-02T03:04:05Z",
                                 .layout = "",
                                 .num_steps = 5,
                                 .measured_s = 0.5,
                                 .predicted_s = 0.4});
  EXPECT_THAT(ExplainPlan(MakeJob(), profile, MakePlan()),
              HasSubstr("calibrated by 1 run, the last first.000"));
  profile.learnt_runs.push_back(profile.learnt_runs.front());
  EXPECT_THAT(OnWidePage(ExplainPlan(MakeJob(), profile, MakePlan())),
              HasSubstr("calibrated by 2 runs, the last first.000 on "
                        "2026-01-02T03:04:05Z: it predicted 400 ms, measured "
                        "500 ms"));
  const auto json =
      nlohmann::json::parse(PlanToJson(MakePlan(), {.num_learnt_runs = 2}));
  EXPECT_EQ(json["num_calibration_runs"], 2);
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
  EXPECT_EQ(json["alternatives"][0]["chosen_step_time_s"], 0.5);
  EXPECT_EQ(json["alternatives"][1]["fits"], false);
  EXPECT_FALSE(
      json["alternatives"][1]["predicted"].contains("memory_bytes_per_device"));
  EXPECT_EQ(json["warnings"][0], "stale profile: measured long ago");
  EXPECT_EQ(json["plan_only"], false);
  for (const char* answer :
       {"binds", "what_if", "compare", "sensitivity", "goodput"}) {
    EXPECT_FALSE(json.contains(answer)) << answer;
  }
  plan.optimality_gap = 0.004;
  plan.prediction.step_time_low_s = 0.45;
  plan.prediction.step_time_high_s = 0.6;
  const auto known = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_EQ(known["search"]["optimality_gap"], 0.004);
  EXPECT_EQ(known["predicted"]["step_time_low_s"], 0.45);
  EXPECT_EQ(known["predicted"]["step_time_high_s"], 0.6);
}

// Goal: a plan that no worker can execute says so, names what its figures rest
// on, and tells which link binds. Method: parts made by hand on a profile of
// two levels.
TEST(ExplainTest, TellsOfPlansThatCannotRunYet) {
  const Plan plan = MakePlannedOnly();
  HardwareProfile profile = MakeProfile({});
  profile.gemms.clear();
  profile.network = {{.name = "nvlink", .devices = 8, .bytes_per_s = 4e11},
                     {.name = "fabric", .devices = 0, .bytes_per_s = 5e10}};
  const auto parts = PartsOf(plan);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_TRUE(parts->ops.empty());
  const std::string text =
      OnWidePage(ExplainPlan(MakeJob(), profile, plan, {.parts = *parts}));
  for (const char* part :
       {"plan only", "2 are left idle", "500 ms (450 ms to 600 ms)",
        "of the bf16 FLOP/s that the data sheet says", "from data sheets",
        "none is faster by the closed form", "fp8",
        "what binds   compute 60.0 % of the step, bubble 18.0 %, context "
        "communication over fabric 8.0 %\n",
        "time         compute 60.0 %, bubble 18.0 %, exposed context "
        "communication over fabric 8.0 %, exposed tensor communication over "
        "nvlink 6.0 %, recompute 4.0 %, exposed data communication over fabric "
        "2.0 %, optimizer 1.6 %\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto json = nlohmann::json::parse(PlanToJson(plan, {.parts = *parts}));
  EXPECT_EQ(json["plan_only"], true);
  EXPECT_EQ(json["layout"]["precision"], "fp8");
  EXPECT_EQ(json["layout"]["context"], 2);
  EXPECT_NEAR(json["binds"]["step_s"]["bubble"].get<double>(), 0.09, 1e-12);
  EXPECT_EQ(json["binds"]["memory_bytes"]["activations"], 16 << 20);
  EXPECT_EQ(json["search"]["optimality_gap"], 0);
}

// Goal: failures and prices are told where the job gives them. Method: a job
// with both, and one with neither.
TEST(ExplainTest, TellsWhatFailuresCost) {
  JobSpec job = MakeJob();
  const Plan plan = MakePlan();
  EXPECT_THAT(ExplainPlan(job, MakeProfile({}), plan),
              Not(HasSubstr("goodput")));
  job.goodput.mean_time_between_failures_hours = 50'000;
  job.goodput.checkpoint_seconds = 30;
  job.goodput.price_per_device_hour = 2;
  const GoodputReport goodput =
      PredictGoodput(job.goodput, {.step_time_s = plan.prediction.step_time_s,
                                   .tokens_per_step = 512,
                                   .num_devices = 4});
  const std::string text = OnWidePage(
      SummarizePlan(job, MakeProfile({}), plan, {.goodput = goodput}));
  EXPECT_THAT(text, HasSubstr("goodput      99."));
  EXPECT_THAT(text, HasSubstr(" %, missing nodes "));
  EXPECT_THAT(text, HasSubstr("tokens for each unit of money"));
  const auto json =
      nlohmann::json::parse(PlanToJson(plan, {.goodput = goodput}));
  EXPECT_GT(json["goodput"]["checkpoint_interval_steps"], 0);
  EXPECT_LT(json["goodput"]["tokens_per_s"], plan.prediction.tokens_per_s);
}

}  // namespace
}  // namespace millrace
