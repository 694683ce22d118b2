#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "planner/cost/closed_form.h"
#include "planner/job/executable.h"
#include "planner/search/layout_tree.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/search/tree_layouts.h"
#include "tests/planner/shipped.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

bool IsPlanOnly(const Layout& layout) { return !PlanOnlyKeys(layout).empty(); }

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<Plan> PlanAll(const JobSpec& job, int32_t num_devices,
                             const HardwareProfile& profile) {
  const CostModel cost = CostOf(profile);
  return FindPlan(
      {.job = job, .num_devices = num_devices, .allows_plan_only = true}, cost);
}

std::string ErrorOf(const absl::StatusOr<Plan>& plan) {
  return plan.ok() ? "no error" : std::string(plan.status().message());
}

// Goal: a data sheet's profile plans, and the plan says what it is. Method:
// plan a dense model, and look at every field that says so.
TEST(PlanOnlyTest, PlansFromADataSheet) {
  const JobSpec job = Llama8B(128);
  const HardwareProfile profile = Shipped("h100-sxm");
  EXPECT_TRUE(IsPlanOnPaper(job, 64, profile));
  const auto plan = PlanAll(job, 64, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->optimality_gap, 0);
  EXPECT_GT(plan->layouts_considered, 100);
  EXPECT_EQ(plan->plan_only,
            IsPlanOnly(plan->layout) || plan->pipeline_outermost);
  EXPECT_TRUE(plan->program_hashes.empty());
  EXPECT_EQ(plan->num_idle_devices, 64 - plan->layout.num_ranks());
  ASSERT_TRUE(plan->prediction.closed_form.has_value());
  // Simulated, which should not be far from the closed form.
  EXPECT_NEAR(plan->prediction.step_time_s,
              plan->prediction.closed_form->time.step_time_s(),
              0.1 * plan->prediction.step_time_s);
  EXPECT_EQ(plan->prediction.memory_bytes(),
            plan->prediction.closed_form->memory.total());
  EXPECT_LE(plan->prediction.memory_bytes(), profile.device_memory_bytes);
  EXPECT_GT(plan->prediction.mfu_full, 0.1);
  EXPECT_LT(plan->prediction.mfu_full, 1);
  ASSERT_FALSE(plan->alternatives.empty());
  EXPECT_EQ(plan->alternatives.front().prediction.model, PriceModel::kPasses);
  for (const Alternative& alternative : plan->alternatives) {
    EXPECT_TRUE(alternative.prediction.model == PriceModel::kClosedForm ||
                alternative.prediction.step_time_s >=
                    plan->prediction.step_time_s);
    EXPECT_FALSE(alternative.reason.empty());
  }
  // The closed form alone, where time is short.
  const CostModel cost = CostOf(profile);
  const auto quick = FindPlan({.job = job,
                               .num_devices = 64,
                               .allows_plan_only = true,
                               .simulates = false},
                              cost);
  ASSERT_TRUE(quick.ok()) << quick.status();
  EXPECT_EQ(quick->prediction.step_time_s,
            quick->prediction.closed_form->time.step_time_s());
  EXPECT_LE(quick->prediction.step_time_s,
            plan->prediction.closed_form->time.step_time_s());
  // Whoever wants to start today finds how.
  EXPECT_TRUE(!plan->plan_only ||
              std::any_of(plan->alternatives.begin(), plan->alternatives.end(),
                          [](const Alternative& alternative) {
                            return !IsPlanOnly(alternative.layout) &&
                                   !alternative.pipeline_outermost;
                          }));
}

// Goal: among layouts whose Programs can be lowered instructions have the last
// word, and no neighbour that workers can execute is faster by them than the
// choice. Method: 8B on 16 devices of a measured profile; each axis pinned
// otherwise, all by instructions.
TEST(PlanOnlyTest, NoExecutableNeighbourIsFaster) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  constexpr int32_t kDevices = 16;
  const HardwareProfile profile = Shipped("h200-sxm");
  const CostModel cost = CostOf(profile);
  const JobSpec job = Llama8B(128);
  const auto plan = PlanAll(job, kDevices, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->program_hashes.empty());
  ASSERT_TRUE(plan->by_passes.has_value());
  const double chosen_s = plan->prediction.step_time_s;
  // The two models are not far apart.
  EXPECT_NEAR(plan->by_passes->step_time_s / chosen_s, 1, 0.1);
  int num_by_instructions = 0;
  for (const Alternative& alternative : plan->alternatives) {
    const Prediction& prediction = alternative.prediction;
    if (!alternative.fits) continue;
    if (IsPlanOnly(alternative.layout) || alternative.pipeline_outermost) {
      EXPECT_NE(prediction.model, PriceModel::kInstructions);
      EXPECT_GE(prediction.step_time_s,
                PredictionBy(prediction.model, *plan)->step_time_s);
      continue;
    }
    if (prediction.model != PriceModel::kInstructions) continue;
    EXPECT_GE(prediction.step_time_s, chosen_s);
    ++num_by_instructions;
    Timeline timeline;
    const auto exact =
        PredictLayout(job.model, alternative.layout, cost, &timeline);
    ASSERT_TRUE(exact.ok()) << exact.status();
    EXPECT_EQ(prediction.step_time_s, exact->step_time_s);
  }
  EXPECT_GE(num_by_instructions, 3);
  const auto neighbours =
      Sampled<LayoutConstraints>({{.tensor = 2},
                                  {.pipeline = 2},
                                  {.zero = 0},
                                  {.zero = 2},
                                  {.zero = 3},
                                  {.tensor = 4},
                                  {.pipeline = 4},
                                  {.micro_batch = 2},
                                  {.recompute = "selective"}},
                                 7);
  int num_neighbours = 0;
  for (const LayoutConstraints& pinned : neighbours) {
    JobSpec turned = job;
    turned.layout = pinned;
    turned.layout.context = turned.layout.interleave = 1;
    const auto neighbour = PlanAll(turned, kDevices, profile);
    ASSERT_TRUE(neighbour.ok()) << neighbour.status();
    ++num_neighbours;
    if (!neighbour->plan_only) {
      EXPECT_GE(neighbour->prediction.step_time_s, chosen_s * (1 - 1e-12))
          << LayoutToString(neighbour->layout) << " against "
          << LayoutToString(plan->layout);
      continue;
    }
    // Outermost pipelines are planned only.
    for (const Alternative& alternative : neighbour->alternatives) {
      if (alternative.prediction.model != PriceModel::kInstructions ||
          !alternative.fits) {
        continue;
      }
      EXPECT_GE(alternative.prediction.step_time_s, chosen_s * (1 - 1e-12))
          << LayoutToString(alternative.layout) << " against "
          << LayoutToString(plan->layout);
    }
  }
  EXPECT_EQ(num_neighbours, static_cast<int>(std::size(neighbours)));
}

// Goal: a layout that cannot be lowered is held to the choice by passes alone.
// Method: measured norms and the like at a twentieth of the speed, which
// Programs are priced by and passes are not: a plan-only layout must not win by
// that.
TEST(PlanOnlyTest, ComparesLikeWithLike) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  HardwareProfile profile = Shipped("h200-sxm");
  const JobSpec job = Llama8B(128);
  for (BandwidthTime& time : profile.bandwidth) time.seconds *= 20;
  const auto plan = PlanAll(job, 64, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->by_passes.has_value());
  EXPECT_GT(plan->prediction.step_time_s, plan->by_passes->step_time_s);
  int num_by_passes = 0;
  for (const Alternative& alternative : plan->alternatives) {
    if (!alternative.fits ||
        alternative.prediction.model != PriceModel::kPasses) {
      continue;
    }
    ++num_by_passes;
    EXPECT_THAT(alternative.reason, HasSubstr("by passes (choice "));
    EXPECT_GE(alternative.prediction.step_time_s, plan->by_passes->step_time_s);
  }
  EXPECT_GT(num_by_passes, 0);
}

// Goal: where Programs hold more than the closed form says, and than there is,
// the search goes on to layouts that fit. Method: a layout whose Programs do,
// on a device with a byte less than they need; with everything pinned the job
// is refused with what the Programs need.
TEST(PlanOnlyTest, TakesOnlyProgramsThatFit) {
  JobSpec job = Llama8B(16);
  job.layout = {.pipeline = 2,
                .data = 2,
                .tensor = 1,
                .micro_batch = 2,
                .zero = 1,
                .context = 1,
                .interleave = 1,
                .recompute = "none",
                .schedule = "zero_bubble"};
  const HardwareProfile profile = Shipped("h200-sxm");
  const auto plan = PlanAll(job, 4, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t need = plan->prediction.memory_bytes();
  EXPECT_FALSE(plan->program_hashes.empty());
  job.resources.memory_per_device_bytes = need - 1;
  ASSERT_LE(plan->prediction.closed_form->memory.total(), need - 1);
  EXPECT_THAT(
      ErrorOf(PlanAll(job, 4, profile)),
      AllOf(HasSubstr("1 B more"),
            HasSubstr(absl::StrCat("raise resources.memory_per_device to ",
                                   (need + kMiB - 1) / kMiB, " MiB"))));
  // Where recompute may be chosen, it is.
  job.layout.recompute = "auto";
  const auto again = PlanAll(job, 4, profile);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_LT(again->prediction.memory_bytes(), need);
  EXPECT_FALSE(again->program_hashes.empty());
  EXPECT_NE(again->layout.recompute, Recompute::kNone);
}

// Goal: the order of the mesh axes is chosen too. Method: a pinned pipeline
// whose stages fill a node, with replicas on slow links inside or around it:
// under either order, what is chosen is no slower than the other.
TEST(PlanOnlyTest, PlacesAxesOnTheNetwork) {
  JobSpec job = Llama8B(128);
  job.layout = {.pipeline = 8, .data = 8, .tensor = 1, .context = 1};
  job.training.global_batch = 64;
  HardwareProfile profile = Shipped("h100-sxm");
  // A network on which replicas inside nodes pay.
  profile.network.back().bytes_per_s /= 50;
  const auto plan = PlanAll(job, 64, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  double fastest[2] = {1e9, 1e9};
  for (const bool outermost : {false, true}) {
    auto model = StepModel::Create(job.model, profile,
                                   {.pipeline_outermost = outermost});
    ASSERT_TRUE(model.ok());
    const LayoutTree space(LayoutSpaceOf(job, 64));
    for (const Layout& layout : LayoutsOf(space)) {
      const StepPrediction step = model->Predict(layout);
      if (step.memory.total() > profile.device_memory_bytes) continue;
      fastest[outermost] =
          std::min(fastest[outermost], step.time.step_time_s());
    }
  }
  EXPECT_LT(fastest[1], fastest[0]);
  EXPECT_TRUE(plan->pipeline_outermost);
  EXPECT_TRUE(plan->plan_only);
  EXPECT_EQ(plan->optimality_gap, 0);
}

// Goal: where the job leaves the choice, gradients cross hosts in bf16 on a
// slow network and stay in fp32 on a fast one; they are never rounded unasked.
// Method: replicas on four hosts, whose network is made slow and fast; the same
// job with fp32.
TEST(PlanOnlyTest, RoundsWhatCrossesASlowNetwork) {
  JobSpec job = Llama8B(64);
  job.training.global_batch = 64;
  job.layout.tensor = job.layout.pipeline = job.layout.context = 1;
  const auto plan_with = [&](const char* reduction, double speed) {
    job.training.gradient_reduction = reduction;
    HardwareProfile profile = Shipped("h100-sxm");
    profile.network.back().bytes_per_s *= speed;
    const auto plan = PlanAll(job, 32, profile);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : Plan{};
  };
  const Plan slow = plan_with("auto", 0.05);
  EXPECT_EQ(slow.layout.gradient_reduction, GradientReduction::kBfloat16Across)
      << LayoutToString(slow.layout);
  EXPECT_EQ(slow.layout.data_groups, 4);
  EXPECT_EQ(slow.optimality_gap, 0);
  const Plan fast = plan_with("auto", 1000);
  EXPECT_EQ(fast.layout.gradient_reduction, GradientReduction::kFloat32)
      << LayoutToString(fast.layout);
  const Plan unasked = plan_with("fp32", 0.05);
  EXPECT_EQ(unasked.layout.gradient_reduction, GradientReduction::kFloat32);
  EXPECT_LT(slow.prediction.step_time_s, unasked.prediction.step_time_s);
}

// Goal: where the job asks for list scheduling, the plan is what that orders,
// faster than the order it starts from, and states no gap, since the closed
// form does not price such orders. Method: a pipeline with each.
TEST(PlanOnlyTest, ListsPassesWhereAskedTo) {
  JobSpec job = Llama8B(64);
  job.layout = {.pipeline = 4, .data = 2, .tensor = 1, .micro_batch = 1};
  job.layout.schedule = "1f1b";
  const HardwareProfile profile = Shipped("h100-sxm");
  const auto plain = PlanAll(job, 8, profile);
  ASSERT_TRUE(plain.ok()) << plain.status();
  job.layout.schedule = "list";
  const auto listed = PlanAll(job, 8, profile);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->listed_bytes.size(), 4u);
  EXPECT_TRUE(listed->plan_only);
  EXPECT_FALSE(listed->optimality_gap.has_value());
  EXPECT_LT(listed->prediction.step_time_s, plain->prediction.step_time_s);
  EXPECT_LE(listed->prediction.memory_bytes(), profile.device_memory_bytes);
  for (const Alternative& alternative : listed->alternatives) {
    EXPECT_FALSE(alternative.listed_bytes.empty());
  }
}

// Goal: a mixture of experts is planned, only planned, and its keys pin.
// Method: plan one as is, and with pinned axes.
TEST(PlanOnlyTest, PlansMixturesOfExperts) {
  JobSpec job = Llama8B(128);
  job.model.moe = {.num_experts = 64,
                   .experts_per_token = 4,
                   .expert_hidden = 2048,
                   .num_dense_layers = 1};
  const HardwareProfile profile = Shipped("h100-sxm");
  EXPECT_TRUE(IsPlanOnPaper(job, 8, profile));
  const auto plan = PlanAll(job, 64, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->plan_only);
  // Replicas that share experts share the batch evenly.
  job.layout.devices = 64;
  const auto all = PlanAll(job, 64, profile);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_GT(all->layout.expert, 1);
  EXPECT_FALSE(all->layout.is_uneven());
  EXPECT_GE(all->prediction.step_time_s, plan->prediction.step_time_s);
  job.layout = {.tensor = 2, .context = 2, .expert = 8, .interleave = 2};
  const auto pinned = PlanAll(job, 64, profile);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->layout.tensor, 2);
  EXPECT_EQ(pinned->layout.context, 2);
  EXPECT_EQ(pinned->layout.expert, 8);
  EXPECT_EQ(pinned->layout.interleave, 2);
  EXPECT_GE(pinned->prediction.step_time_s, plan->prediction.step_time_s);
}

// Goal: a step of very many micro-batches is planned in bounded time and
// memory, and the plan says by what. Method: sixteen million passes, pinned;
// few beside.
TEST(PlanOnlyTest, DoesNotSimulateEndlessSteps) {
  JobSpec job = Llama8B(4'000'000);
  job.layout = {.pipeline = 4, .data = 2, .micro_batch = 1};
  const auto plan = PlanAll(job, 8, Shipped("h100-sxm"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->prediction.model, PriceModel::kClosedForm);
  EXPECT_EQ(plan->prediction.step_time_s,
            plan->prediction.closed_form->time.step_time_s());
  job.training.global_batch = 128;
  EXPECT_EQ(PlanAll(job, 8, Shipped("h100-sxm"))->prediction.model,
            PriceModel::kPasses);
}

// Goal: devices that do not divide are left idle where that pays, and not where
// the job forbids it. Method: a number with a large prime.
TEST(PlanOnlyTest, LeavesDevicesIdle) {
  JobSpec job = Llama8B(128);
  const HardwareProfile profile = Shipped("h100-sxm");
  const auto plan = PlanAll(job, 67, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->num_idle_devices, 0);
  EXPECT_EQ(plan->layout.num_ranks() + plan->num_idle_devices, 67);
  // 67 replicas take all devices: 61 run two micro-batches and 6 run one.
  job.layout.devices = 67;
  const auto all = PlanAll(job, 67, profile);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->layout.num_ranks(), 67);
  EXPECT_TRUE(all->layout.is_uneven());
  EXPECT_GE(all->prediction.step_time_s, plan->prediction.step_time_s);
  job.layout.zero = 2;
  EXPECT_THAT(ErrorOf(PlanAll(job, 67, profile)),
              AllOf(HasSubstr("no sizes make a layout of 67 devices "
                              "(layout.devices) and a global batch of 128"),
                    HasSubstr("set layout.devices to 64 instead of 67"),
                    HasSubstr("set training.global_batch to 134")));
}

// Goal: gathers and reductions of every micro-batch count as communication.
// Method: ZeRO 3 on two hosts, whose data axis cannot hide all of them.
TEST(PlanOnlyTest, CountsWhatEveryMicroBatchGathers) {
  JobSpec job = Llama8B(128);
  job.layout = {.pipeline = 1, .data = 16, .tensor = 1, .zero = 3};
  const auto plan = PlanAll(job, 16, Shipped("h100-sxm"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->prediction.model, PriceModel::kPasses);
  const StepTime& time = plan->prediction.closed_form->time;
  EXPECT_GT(time.exposed_data_s, 0.01 * time.step_time_s());
  EXPECT_NEAR(plan->prediction.exposed_communication_fraction,
              time.exposed_data_s / plan->prediction.step_time_s, 1e-9);
}

// Goal: products are planned in formats that the devices have. Method: formats
// and devices of three generations.
TEST(PlanOnlyTest, RefusesFormatsThatDevicesLack) {
  JobSpec job = Llama8B(128);
  job.training.precision = "fp4";
  EXPECT_THAT(ErrorOf(PlanAll(job, 64, Shipped("h100-sxm"))),
              AllOf(HasSubstr("H100-SXM5-80GB has no 4-bit products"),
                    HasSubstr("set training.precision to bf16 or fp8")));
  EXPECT_TRUE(PlanAll(job, 64, Shipped("b200-hgx")).ok());
  job.training.precision = "fp8";
  EXPECT_TRUE(PlanAll(job, 64, Shipped("h100-sxm")).ok());
  EXPECT_THAT(ErrorOf(PlanAll(job, 64, Shipped("a100-80gb"))),
              AllOf(HasSubstr("has no 8-bit products"),
                    HasSubstr("set training.precision to bf16, or")));
}

// Goal: what cannot work is refused with the way out. Method: memory, keys that
// contradict each other, and profiles without what is asked of them.
TEST(PlanOnlyTest, RefusesWithAWayOut) {
  JobSpec job = Llama8B(128);
  const HardwareProfile profile = Shipped("h100-sxm");
  job.resources.memory_per_device_bytes = 6 * kGiB;
  EXPECT_THAT(ErrorOf(PlanAll(job, 8, profile)),
              AllOf(HasSubstr("no layout on 8 devices fits into 6.00 GiB"),
                    HasSubstr("the smallest, pipeline"),
                    HasSubstr("raise resources.memory_per_device to 1"),
                    HasSubstr("or use ")));
  // However many more it takes.
  job.resources.memory_per_device_bytes.reset();
  JobSpec large = job;
  large.model.num_layers = 3000;
  EXPECT_THAT(ErrorOf(PlanAll(large, 1, profile)),
              HasSubstr("smallest change: use 256 devices"));
  job.training.precision = "fp32";
  EXPECT_THAT(ErrorOf(PlanAll(job, 8, profile)),
              HasSubstr("set training.precision to bf16, fp8 or fp4"));
  job.training.precision = "bf16";
  // A micro-batch of one has a token for half a rank.
  job.model.sequence_length = 100;
  job.layout = {.tensor = 8};
  job.resources.memory_per_device_bytes = 1 * kGiB;
  EXPECT_THAT(ErrorOf(PlanAll(job, 8, profile)),
              AllOf(HasSubstr("the smallest, pipeline 1 x data 1 x tensor 8"),
                    HasSubstr("micro-batches of 2")));
  job = Llama8B(128);
  job.layout = {.tensor = 8, .context = 4};
  EXPECT_THAT(
      ErrorOf(PlanAll(job, 16, profile)),
      AllOf(HasSubstr("layout.tensor 8 x layout.context 4 takes 32 devices"),
            HasSubstr("set layout.context to 2 instead of 4")));
  job = Llama8B(128);
  job.layout = {.pipeline = 1, .schedule = "list"};
  EXPECT_THAT(ErrorOf(PlanAll(job, 16, profile)),
              AllOf(HasSubstr("layout.schedule is list with layout.pipeline 1"),
                    HasSubstr("set layout.pipeline to 2 instead of 1"),
                    HasSubstr("set layout.schedule to auto instead of list")));
  job = Llama8B(128);
  EXPECT_THAT(ErrorOf(PlanAll(job, 16, MakeProfile({}))),
              AllOf(HasSubstr("training.precision is bf16, but hardware "
                              "profile"),
                    HasSubstr("set training.precision to fp32")));
  job = Llama8B(128);
  // A run cannot take what only a data sheet says.
  const CostModel cost = CostOf(profile);
  EXPECT_THAT(
      ErrorOf(FindPlan({.job = job, .num_devices = 8}, cost)),
      AllOf(HasSubstr("no gemms table"), HasSubstr("millrace profile JOB")));
}

// Goal: jobs that workers can run as they are measured get no plan on paper.
// Method: each reason, alone.
TEST(PlanOnlyTest, IsOnPaperOnlyForAReason) {
  JobSpec job = Llama8B(128);
  HardwareProfile measured = MakeProfile({});
  EXPECT_FALSE(IsPlanOnPaper(job, 4, measured));
  EXPECT_FALSE(IsPlanOnPaper(job, 64, measured));
  measured.device = Shipped("h100-sxm").device;
  measured.network = Shipped("h100-sxm").network;
  EXPECT_FALSE(IsPlanOnPaper(job, 4, measured));
  EXPECT_TRUE(IsPlanOnPaper(job, 64, measured));
  job.layout.context = 2;
  EXPECT_TRUE(IsPlanOnPaper(job, 4, measured));
  job.layout.context = 1;
  EXPECT_FALSE(IsPlanOnPaper(job, 4, measured));
  job.model.ties_embedding = true;
  EXPECT_FALSE(IsPlanOnPaper(job, 4, measured));
  job.model.feed_forward = FeedForward::kSquaredRelu;
  EXPECT_TRUE(IsPlanOnPaper(job, 4, measured));
}

// Goal: a tied embedding is planned over stages, and the exchange of its
// gradients is priced. Method: two stages on a measured profile, simulated in
// full, with and without; the longer step has a head less to hold.
TEST(PlanOnlyTest, PlansATiedEmbeddingOverStages) {
  JobSpec job = SmallJob();
  job.layout.pipeline = 2;
  const CostModel cost = CostOf(MakeProfile({}));
  double seconds[2] = {};
  for (const bool is_tied : {false, true}) {
    job.model.ties_embedding = is_tied;
    const auto plan = FindPlan({.job = job, .num_devices = 2}, cost);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->layout.pipeline, 2);
    seconds[is_tied ? 1 : 0] = plan->prediction.step_time_s;
  }
  EXPECT_GT(seconds[1], seconds[0]);
}

// Goal: who plans a model that stands for another is told, on paper and for a
// run.
// Method: a job with and without a text of what it leaves out.
TEST(PlanOnlyTest, WarnsOfApproximations) {
  JobSpec job = SmallJob();
  const auto warnings = [&](bool allows_plan_only) {
    const auto plan = FindPlan(
        {.job = job, .num_devices = 2, .allows_plan_only = allows_plan_only},
        CostOf(allows_plan_only ? Shipped("h100-sxm") : MakeProfile({})));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? absl::StrJoin(plan->warnings, "\n") : "";
  };
  EXPECT_THAT(warnings(false), Not(HasSubstr("model.approximates")));
  job.model_approximates = "norms of heads";
  EXPECT_THAT(warnings(false),
              HasSubstr("model.approximates): norms of heads"));
  job.training.precision = "bf16";
  job.resources.backend = "cuda";
  EXPECT_THAT(warnings(true), HasSubstr("model.approximates): norms of heads"));
}

}  // namespace
}  // namespace millrace
