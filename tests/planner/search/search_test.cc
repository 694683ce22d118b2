#include "planner/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "planner/explain/explain.h"
#include "planner/explain/explain_json.h"
#include "planner/job/layout_space.h"
#include "planner/lower/lower.h"
#include "planner/program/parameters.h"
#include "planner/search/program_prediction.h"
#include "tests/planner/planning_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CostModel MakeCost(const MachineFigures& machine) {
  absl::StatusOr<CostModel> cost = CostModel::Create(MakeProfile(machine));
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

Plan MustPlan(const JobSpec& job, int32_t num_devices, const CostModel& cost) {
  absl::StatusOr<Plan> plan =
      FindPlan({.job = job, .num_devices = num_devices}, cost);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

std::string ErrorOf(const JobSpec& job, int32_t num_devices,
                    const CostModel& cost) {
  const absl::StatusOr<Plan> plan =
      FindPlan({.job = job, .num_devices = num_devices}, cost);
  return plan.ok() ? "no error" : std::string(plan.status().message());
}

// Goal: a search that is not wanted any more ends with Cancelled, whatever it
// was at. Method: stop it before it begins, then after ever more time until one
// is done; where the job fits, and where no layout does.
TEST(SearchTest, EndsOnceItIsStopped) {
  const CostModel cost = MakeCost({});
  for (const int64_t memory_bytes : {int64_t{0}, int64_t{1} << 16}) {
    bool was_done = false;
    for (int i = 0; !was_done; ++i) {
      std::stop_source stop;
      SearchInput input = {.job = SmallJob(), .num_devices = 4};
      input.device_memory_bytes = memory_bytes;
      input.stop = stop.get_token();
      if (i == 0) stop.request_stop();
      absl::Status ended;
      std::thread search([&] { ended = FindPlan(input, cost).status(); });
      absl::SleepFor(absl::Microseconds(int64_t{100} << i));
      stop.request_stop();
      search.join();
      was_done = !absl::IsCancelled(ended);
      if (!was_done) continue;
      EXPECT_GT(i, 0);
      EXPECT_EQ(ended.ok(), memory_bytes == 0) << ended;
    }
  }
}

// Goal: finalists that are priced side by side give the plan, bit by bit, that
// they give one by one. Method: 1 and 4 threads; with all of the memory, then
// with a byte less than the last plan took, so that ever more layouts do not
// fit and stages come to differ in what they recompute; searches that price
// many layouts, and ones that take the first that fits.
TEST(SearchTest, NumberOfThreadsChangesNothing) {
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  job.training.global_batch = 16;
  JobSpec pipelined = job;
  pipelined.layout = {.pipeline = 2, .zero = 0, .schedule = "1f1b"};
  int num_differing_stages = 0;
  for (const JobSpec& planned : {job, pipelined}) {
    for (const bool is_urgent : {false, true}) {
      int64_t memory_bytes = 0;
      int num_plans = 0;
      for (bool fits = true; fits && num_plans < 4; num_plans += fits) {
        std::vector<absl::StatusOr<Plan>> plans;
        for (const int num_threads : {1, 4}) {
          SearchInput input = {.job = planned, .num_devices = 4};
          input.device_memory_bytes = memory_bytes;
          input.is_urgent = is_urgent;
          input.num_threads = num_threads;
          plans.push_back(FindPlan(input, cost));
          if (plans.back().ok()) plans.back()->search_seconds = 0;
        }
        ASSERT_EQ(plans[1].status(), plans[0].status());
        fits = plans[0].ok();
        if (!fits) continue;
        const Plan& plan = *plans[0];
        EXPECT_EQ(PlanToJson(*plans[1]), PlanToJson(plan));
        EXPECT_EQ(plans[1]->program_hashes, plan.program_hashes);
        EXPECT_EQ(plans[1]->timeline.step_time_s, plan.timeline.step_time_s);
        memory_bytes = plan.prediction.memory_bytes() - 1;
        num_differing_stages += !plan.layout.recompute_by_stage.empty();
      }
      EXPECT_GE(num_plans, 3);
    }
  }
  EXPECT_GE(num_differing_stages, 1);
}

// Goal: the chosen layout is the fastest of all. Method: predict every layout
// on its own and compare, over machines that favour different axes.
TEST(SearchTest, ChoosesTheFastestOfAll) {
  for (const double link : Sampled<double>({1e9, 1e8, 1e11}, 3)) {
    for (const double contention : {0.0, 0.5}) {
      const CostModel cost = MakeCost(
          {.link_bytes_per_second = link, .contention_per_rank = contention});
      const JobSpec job = SmallJob();
      const Plan plan = MustPlan(job, 4, cost);
      double best = 1e9;
      for (const Layout& layout : EnumerateLayouts(LayoutSpaceOf(job, 4))) {
        Timeline timeline;
        const auto prediction =
            PredictLayout(job.model, layout, cost, &timeline);
        ASSERT_TRUE(prediction.ok()) << prediction.status();
        best = std::min(best, prediction->step_time_s);
      }
      if (plan.layout.schedule == Schedule::kListScheduled) {
        EXPECT_LT(plan.prediction.step_time_s, best);
        best = plan.prediction.step_time_s;
      }
      EXPECT_EQ(plan.prediction.model, PriceModel::kInstructions);
      EXPECT_DOUBLE_EQ(plan.prediction.step_time_s, best);
      EXPECT_DOUBLE_EQ(plan.timeline.step_time_s, best);
      EXPECT_EQ(plan.optimality_gap, 0);
      EXPECT_GT(plan.alternatives.size(), 10u);
      EXPECT_GE(plan.layouts_considered,
                static_cast<int64_t>(plan.alternatives.size()) / 2);
      EXPECT_EQ(plan.program_hashes.size(),
                static_cast<size_t>(plan.layout.pipeline));
    }
  }
}

// Goal: alternatives come in the order of their steps, each priced by a model
// that priced the choice too; what does not fit comes last. Method: a job of so
// many layouts that not all are simulated.
TEST(SearchTest, OrdersTheAlternatives) {
  JobSpec job = SmallJob();
  job.training.global_batch = 512;
  const Plan plan = MustPlan(job, 4, MakeCost({}));
  double slowest = 0;
  bool has_unfit = false;
  for (const Alternative& alternative : plan.alternatives) {
    const std::optional<Prediction> chosen =
        PredictionBy(alternative.prediction.model, plan);
    ASSERT_TRUE(chosen.has_value());
    EXPECT_FALSE(alternative.reason.empty());
    if (!alternative.fits) {
      has_unfit = true;
      continue;
    }
    EXPECT_FALSE(has_unfit);
    const double ratio =
        alternative.prediction.step_time_s / chosen->step_time_s;
    EXPECT_GE(ratio, slowest);
    slowest = ratio;
    if (alternative.prediction.model == PriceModel::kInstructions) {
      EXPECT_GE(ratio, 1 - 1e-4) << LayoutToString(alternative.layout);
    }
  }
}

// Goal: copy engines are planned with where the job asks for them, and where it
// leaves it open if they were measured and are the faster; never on CPUs.
// Method: a pipeline on a machine with quick ones, with slow ones and with
// none.
TEST(SearchTest, OffersCopyEngines) {
  JobSpec job = SmallJob();
  job.layout.pipeline = 4;
  job.layout.schedule = "1f1b";
  const auto cost_of = [&](double copies_over_nccl) {
    HardwareProfile profile = MakeProfile({.link_bytes_per_second = 1e8});
    for (CommunicationTime time : profile.communication) {
      if (copies_over_nccl == 0 || time.kind == OpKind::kAllReduce) continue;
      time.seconds *= copies_over_nccl;
      profile.copy_engines.push_back({time});
    }
    return *CostModel::Create(profile);
  };
  const CostModel none = cost_of(0), quick = cost_of(0.25), slow = cost_of(4);
  for (const char* backend : {"cpu", "cuda"}) {
    job.resources.backend = backend;
    const bool is_cuda = job.resources.uses_cuda();
    for (const char* transport : {"nccl", "copy_engines", "auto"}) {
      SCOPED_TRACE(absl::StrCat(backend, " ", transport));
      job.resources.transport = transport;
      const auto uses = [&](const CostModel& cost) {
        return MustPlan(job, 4, cost).layout.copy_engines.transfers;
      };
      const bool is_asked_for = job.resources.transport == "copy_engines";
      EXPECT_EQ(uses(none), is_cuda && is_asked_for);
      EXPECT_EQ(uses(slow), is_cuda && is_asked_for);
      EXPECT_EQ(uses(quick), is_cuda && job.resources.transport != "nccl");
    }
  }
  // The layout that lost by its transport is among the alternatives.
  job.resources.transport = "auto";
  const Plan plan = MustPlan(job, 4, quick);
  Layout by_nccl = plan.layout;
  by_nccl.copy_engines = {};
  const auto lost = std::find_if(
      plan.alternatives.begin(), plan.alternatives.end(),
      [&](const Alternative& other) { return other.layout == by_nccl; });
  ASSERT_NE(lost, plan.alternatives.end());
  EXPECT_GT(lost->prediction.step_time_s, plan.prediction.step_time_s);
}

// Goal: a pipeline gets its list-scheduled variant where that is quicker, or
// where the job asks for it, and a job that cannot have it hears so. Method:
// one pipeline under each schedule.
TEST(SearchTest, OffersListScheduledPipelines) {
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  job.layout.pipeline = 4;
  job.layout.micro_batch = 1;
  std::map<std::string, double> seconds;
  for (const char* schedule : {"1f1b", "zero_bubble", "list", "auto"}) {
    job.layout.schedule = schedule;
    const Plan plan = MustPlan(job, 4, cost);
    seconds[schedule] = plan.prediction.step_time_s;
    if (job.layout.schedule == "auto") continue;
    EXPECT_EQ(ScheduleName(plan.layout.schedule), job.layout.schedule);
    EXPECT_EQ(plan.layout.listed_stages.size(),
              job.layout.schedule == "list" ? 4u : 0u);
    for (const Alternative& alternative : plan.alternatives) {
      EXPECT_EQ(alternative.layout.schedule, plan.layout.schedule);
    }
  }
  EXPECT_LT(seconds["list"], seconds["1f1b"]);
  EXPECT_DOUBLE_EQ(
      seconds["auto"],
      std::min({seconds["1f1b"], seconds["zero_bubble"], seconds["list"]}));
  job.layout.schedule = "list";
  job.layout.pipeline = 1;
  EXPECT_THAT(ErrorOf(job, 4, cost), HasSubstr("layout.schedule"));
}

// Goal: an urgent plan is the first in the closed form's order that fits, and
// lists passes only where the job asks for it. Method: the urgent plan and the
// other one of a pipeline, and one that does not fit.
TEST(SearchTest, TakesTheFirstThatFitsWhereItIsUrgent) {
  const CostModel cost = MakeCost({});
  SearchInput input{.job = SmallJob(), .num_devices = 4, .is_urgent = true};
  input.job.layout.pipeline = 4;
  input.job.layout.micro_batch = 1;
  auto plan = FindPlan(input, cost);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->layout.schedule, Schedule::kListScheduled);
  EXPECT_FALSE(plan->program_hashes.empty());
  const Plan thorough = MustPlan(input.job, 4, cost);
  EXPECT_GE(plan->prediction.step_time_s, thorough.prediction.step_time_s);
  EXPECT_LE(plan->prediction.step_time_s,
            1.2 * thorough.prediction.step_time_s);
  input.job.layout.schedule = "list";
  plan = FindPlan(input, cost);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.schedule, Schedule::kListScheduled);
  input.job.layout.schedule = "auto";
  input.device_memory_bytes = thorough.prediction.memory_bytes() / 100;
  plan = FindPlan(input, cost);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("no layout on 4 devices fits"));
}

// Goal: equal inputs give equal plans. Method: plan twice, compare the text
// without the search's own duration.
TEST(SearchTest, IsDeterministic) {
  const CostModel cost = MakeCost({.contention_per_rank = 0.3});
  Plan first = MustPlan(SmallJob(), 4, cost);
  Plan second = MustPlan(SmallJob(), 4, cost);
  first.search_seconds = second.search_seconds = 0;
  EXPECT_EQ(PlanToJson(first), PlanToJson(second));
  EXPECT_EQ(first.program_hashes, second.program_hashes);
}

// Who writes each of the buffers that outlive a step, in order: gradients add
// up micro-batches and replicas there, and the scalars squared norms.
std::map<std::string, std::vector<std::string>> OrdersOfSums(
    const JobSpec& job, const Layout& layout) {
  std::map<std::string, std::vector<std::string>> writers;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    const absl::StatusOr<Program> program =
        BuildTrainingProgram(job.model, layout, stage);
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) continue;
    for (const Instruction& instruction : program->instructions) {
      for (const BufferId output : instruction.outputs) {
        const Buffer& buffer = program->buffers[output];
        if (buffer.arena != Arena::kPersistent) continue;
        writers[absl::StrCat("stage ", stage, " ", buffer.name)].push_back(
            absl::StrCat(instruction.name, " of ", instruction.microbatch_idx,
                         " ", AttributesToString(instruction.attributes)));
      }
    }
  }
  return writers;
}

// Goal: a job that states its mesh, micro_batch and zero gives equal bits
// whatever its profile has learnt. One that leaves zero to the planner does
// not. Method: the order of all sums in plans for machines whose prices are far
// apart, and under each schedule.
TEST(SearchTest, PricesChangeNoOrderOfSums) {
  JobSpec job = SmallJob();
  job.layout.pipeline = job.layout.data = 2;
  job.layout.tensor = 1;
  job.layout.micro_batch = 1;
  std::set<int32_t> chosen_zeros;
  std::set<uint64_t> programs;
  std::map<int32_t, std::map<std::string, std::vector<std::string>>> expected;
  for (const double link : {1e6, 1e9, 1e12}) {
    for (const double bytes : {1e8, 1e11}) {
      const CostModel cost =
          MakeCost({.bytes_per_second = bytes, .link_bytes_per_second = link});
      job.layout.schedule = "auto";
      job.layout.zero.reset();
      chosen_zeros.insert(MustPlan(job, 4, cost).layout.zero);
      for (const int32_t zero : {0, 1}) {
        job.layout.zero = zero;
        for (const char* schedule :
             Sampled<const char*>({"1f1b", "zero_bubble", "list", "auto"}, 3)) {
          job.layout.schedule = schedule;
          const Plan plan = MustPlan(job, 4, cost);
          programs.insert(plan.program_hashes.begin(),
                          plan.program_hashes.end());
          const auto orders = OrdersOfSums(job, plan.layout);
          EXPECT_GT(orders.size(), 10u);
          EXPECT_EQ(orders, expected.emplace(zero, orders).first->second)
              << LayoutToString(plan.layout);
        }
      }
    }
  }
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_GT(programs.size(), 10u);
  EXPECT_GT(chosen_zeros.size(), 1u);
}

// Goal: slow links make for few messages, and memory for sharding. Method: one
// machine that punishes each.
TEST(SearchTest, FollowsTheMachine) {
  const CostModel slow_links = MakeCost({.link_bytes_per_second = 1e7});
  EXPECT_EQ(MustPlan(SmallJob(), 4, slow_links).layout.tensor, 1);

  // Just too little for the chosen layout; another must take over.
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  const Plan free = MustPlan(job, 4, cost);
  job.resources.memory_per_device_bytes = free.prediction.memory_bytes() - 1;
  const Plan tight = MustPlan(job, 4, cost);
  EXPECT_FALSE(tight.layout == free.layout);
  EXPECT_LE(tight.prediction.memory_bytes(),
            *job.resources.memory_per_device_bytes);
  const auto lost = std::find_if(
      tight.alternatives.begin(), tight.alternatives.end(),
      [&](const Alternative& a) { return a.layout == free.layout; });
  if (lost != tight.alternatives.end()) {
    EXPECT_FALSE(lost->fits);
    EXPECT_THAT(lost->reason, HasSubstr("more than the device has"));
  }
}

// Goal: devices that do not divide the batch share it unevenly where computing
// takes the time; all ranks' Programs are known by their hashes; and the step
// is the longest replica's. Method: three devices and a batch of 16 on links
// that cost next to nothing.
TEST(SearchTest, SharesABatchUnevenly) {
  const CostModel cost = MakeCost({.link_bytes_per_second = 1e13});
  JobSpec job = SmallJob();
  job.training.global_batch = 16;
  const Plan plan = MustPlan(job, 3, cost);
  const Layout& layout = plan.layout;
  EXPECT_EQ(layout.data, 3) << LayoutToString(layout);
  EXPECT_EQ(layout.global_batch(), 16);
  EXPECT_EQ(layout.most_microbatches() * layout.micro_batch, 6);
  ASSERT_EQ(plan.program_hashes.size(), 2u);
  for (int32_t data = 0; data < 3; ++data) {
    const auto program =
        BuildTrainingProgram(job.model, layout, MeshCoordinates{.data = data});
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(ProgramHash(*program),
              plan.program_hashes[ProgramIdx(layout, {.data = data})]);
  }
  JobSpec longest = job;
  longest.training.global_batch = 18;
  PinLayout(layout, &longest);
  const Plan even = MustPlan(longest, 3, cost);
  EXPECT_NEAR(even.prediction.step_time_s / plan.prediction.step_time_s, 1,
              1e-9);
  EXPECT_EQ(even.prediction.memory_bytes(), plan.prediction.memory_bytes());
}

// Goal: gradients and parameters are sharded, and work is done twice, only
// where memory asks for it or the job does. Method: shrink the memory below
// what the plain layouts need, then pin.
TEST(SearchTest, BuysMemoryWithTimeOnlyWhereItMust) {
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  job.layout = {.pipeline = 1, .data = 4, .tensor = 1, .micro_batch = 2};
  const Plan plain = MustPlan(job, 4, cost);
  EXPECT_LE(plain.layout.zero, 1);
  EXPECT_EQ(plain.layout.recompute, Recompute::kNone);

  Layout sharded = plain.layout;
  sharded.zero = 1;
  Timeline timeline;
  const int64_t least =
      PredictLayout(job.model, sharded, cost, &timeline)->memory_bytes();
  job.resources.memory_per_device_bytes = least - 1;
  const Plan tight = MustPlan(job, 4, cost);
  EXPECT_TRUE(tight.layout.zero > 1 ||
              tight.layout.recompute != Recompute::kNone)
      << LayoutToString(tight.layout);
  EXPECT_LT(tight.prediction.memory_bytes(), least);
  EXPECT_GT(tight.prediction.step_time_s, plain.prediction.step_time_s);

  // With nothing else left, layers are recomputed.
  job.layout.zero = 1;
  const Plan again = MustPlan(job, 4, cost);
  EXPECT_NE(again.layout.recompute, Recompute::kNone);
  EXPECT_GT(again.prediction.recompute_fraction, 0);
  EXPECT_THAT(ExplainPlan(job, cost.profile(), again),
              HasSubstr("of the step, for memory"));
  job.layout.recompute = "none";
  EXPECT_THAT(ErrorOf(job, 4, cost), HasSubstr("fits into"));

  // Asked for, they are taken without need.
  job = SmallJob();
  job.layout.zero = 3;
  job.layout.data = 4;
  job.layout.recompute = "full";
  const Plan pinned = MustPlan(job, 4, cost);
  EXPECT_EQ(pinned.layout.zero, 3);
  EXPECT_EQ(pinned.layout.recompute, Recompute::kFull);
  EXPECT_THAT(PlanToJson(pinned), HasSubstr("\"recompute\": \"full\""));
}

// Goal: where only the first stages of a pipeline are short of memory, only
// these recompute. Method: a limit under what stage 0 needs and over what
// the last does; every stage has the least with which its Program fits.
TEST(SearchTest, RecomputesStageByStage) {
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  job.training.global_batch = 16;
  job.layout = {.pipeline = 4,
                .data = 1,
                .tensor = 1,
                .micro_batch = 2,
                .zero = 0,
                .schedule = "1f1b"};
  const auto stage_bytes = [&](const Layout& layout) {
    std::vector<int64_t> bytes;
    const auto programs = BuildTrainingPrograms(job.model, layout);
    EXPECT_TRUE(programs.ok()) << programs.status();
    for (const Program& program : *programs) {
      bytes.push_back(StageBytes(program, cost.profile().memory_overhead));
    }
    return bytes;
  };
  const Layout plain = MustPlan(job, 4, cost).layout;
  const std::vector<int64_t> need = stage_bytes(plain);
  const int64_t most = *std::max_element(need.begin(), need.end());
  job.resources.memory_per_device_bytes = most - 1;
  const Plan tight = MustPlan(job, 4, cost);
  const Layout& layout = tight.layout;
  ASSERT_EQ(layout.recompute_by_stage.size(), 4u) << LayoutToString(layout);
  const std::vector<int64_t> held = stage_bytes(layout);
  for (int32_t stage = 0; stage < 4; ++stage) {
    EXPECT_LT(held[static_cast<size_t>(stage)], most);
    EXPECT_EQ(layout.recompute_of(stage) == Recompute::kNone,
              need[static_cast<size_t>(stage)] < most)
        << stage;
  }
  EXPECT_THAT(ExplainPlan(job, cost.profile(), tight),
              HasSubstr("by stage, the least with which each fits"));
  EXPECT_THAT(PlanToJson(tight), HasSubstr("\"recompute\": [\n"));

  // Pinned, it is taken as it is.
  job.layout.recompute = RecomputeKey(layout);
  job.resources.memory_per_device_bytes.reset();
  EXPECT_EQ(MustPlan(job, 4, cost).layout, layout);
  job.layout.recompute = "full, none";
  EXPECT_THAT(ErrorOf(job, 4, cost), HasSubstr("names 2 stages"));
}

// Goal: predicted memory is what the Programs hold. Method: lower the choice.
TEST(SearchTest, MemoryIsThePrograms) {
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  job.layout = {.pipeline = 2, .data = 2, .zero = 1};
  const Plan plan = MustPlan(job, 4, cost);
  int64_t largest = 0;
  for (int32_t stage = 0; stage < 2; ++stage) {
    const auto program = BuildTrainingProgram(job.model, plan.layout, stage);
    ASSERT_TRUE(program.ok());
    EXPECT_EQ(ProgramHash(*program),
              plan.program_hashes[static_cast<size_t>(stage)]);
    largest = std::max(
        largest, program->persistent_arena_bytes + program->step_arena_bytes);
  }
  EXPECT_EQ(plan.prediction.memory_bytes(), largest);
  EXPECT_GE(plan.prediction.persistent_bytes,
            plan.prediction.parameter_bytes + plan.prediction.gradient_bytes +
                plan.prediction.optimizer_bytes);
  // Two replicas share the moments of what each holds in full.
  EXPECT_EQ(plan.prediction.optimizer_bytes, plan.prediction.parameter_bytes);
}

// Goal: a bf16 job is planned in bf16, and its memory counts the master
// weights. Method: plan it with a bf16 profile.
TEST(SearchTest, PlansInThePrecisionOfTheJob) {
  HardwareProfile profile = MakeProfile({});
  profile.precision = Precision::kBfloat16;
  const auto cost = CostModel::Create(profile);
  ASSERT_TRUE(cost.ok());
  JobSpec job = SmallJob();
  job.training.precision = "bf16";
  job.layout = {.data = 2, .zero = 0};
  const Plan plan = MustPlan(job, 2, *cost);
  EXPECT_EQ(plan.layout.precision, Precision::kBfloat16);
  EXPECT_THAT(PlanToJson(plan), HasSubstr("\"precision\": \"bf16\""));
  // 2 bytes of parameters but 4 of norms', 4 of gradients, 12 of moments and
  // master weights.
  const StageParameters parameters =
      BuildStageParameters(job.model, plan.layout, 0);
  EXPECT_EQ(plan.prediction.optimizer_bytes, 12 * parameters.num_elements);
  for (const auto& [moments, bytes] :
       {std::pair("bf16", 8.0), std::pair("8bit", 4 + 2 * 260 / 256.0)}) {
    job.training.optimizer.moments = moments;
    const Plan small = MustPlan(job, 2, *cost);
    const StageParameters padded =
        BuildStageParameters(job.model, small.layout, 0);
    EXPECT_EQ(static_cast<double>(small.prediction.optimizer_bytes),
              bytes * static_cast<double>(padded.num_elements));
    EXPECT_THAT(PlanToJson(small),
                HasSubstr(absl::StrCat("\"moments\": \"", moments, "\"")));
  }
  EXPECT_EQ(plan.prediction.gradient_bytes, 4 * parameters.num_elements);
  EXPECT_EQ(
      plan.prediction.parameter_bytes,
      2 * parameters.num_elements + 2 * parameters.buckets.back().num_elements);
}

// Goal: what cannot work is refused with a way out. Method: memory, batch, and
// a profile without communication.
TEST(SearchTest, RefusesWithAWayOut) {
  const CostModel cost = MakeCost({});
  JobSpec job = SmallJob();
  job.resources.memory_per_device_bytes = 100 * kKiB;
  EXPECT_THAT(
      ErrorOf(job, 4, cost),
      AllOf(HasSubstr("no layout on 4 devices fits into 100 KiB a device"),
            HasSubstr("raise resources.memory_per_device to")));
  job = SmallJob();
  job.layout = {.pipeline = 2, .data = 2, .tensor = 2};
  EXPECT_THAT(ErrorOf(job, 4, cost), HasSubstr("= 8 devices"));
  job = SmallJob();
  const CostModel lonely = MakeCost({.num_ranks = 1, .ranks_per_host = 1});
  EXPECT_THAT(ErrorOf(job, 4, lonely), HasSubstr("measured with one rank"));
  EXPECT_EQ(MustPlan(job, 1, lonely).layout.num_ranks(), 1);
  job.training.precision = "bf16";
  EXPECT_THAT(ErrorOf(job, 4, cost),
              HasSubstr("was measured in fp32, but the job trains in bf16"));
}

}  // namespace
}  // namespace millrace
