#include "planner/simulate/simulate_passes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/pipeline/list_schedule.h"
#include "planner/pipeline/pass_order.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/seeded_noise.h"
#include "planner/simulate/event_loop.h"
#include "planner/simulate/pass_ops.h"
#include "planner/simulate/simulate_instructions.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/simulate/pass_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: without noise, step times are those of the closed laws. Method: sweep
// shapes; stages alike, free transfers. 1F1B takes t (m + p - 1); interleaving
// makes its bubble (p - 1) / (v m) of the rest; ZB-H1 leaves (p - 1) (F + B -
// W) where all weight gradients fit in.
TEST(SimulatePassesTest, FollowsTheClosedLaws) {
  const ChunkCosts chunk = {
      .forward_s = 1.1, .input_gradient_s = 1.3, .weight_gradient_s = 0.9};
  const double pass = 1.1 + 1.3 + 0.9;
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 1; m <= 24; ++m) {
      SCOPED_TRACE(absl::StrCat(p, " stages, ", m, " micro-batches"));
      const PipelineCosts costs =
          Costs({.stages = p, .microbatches = m}, chunk);
      const double expected = pass * (m + p - 1);
      EXPECT_NEAR(StepTime(StepOf(costs, Schedule::kOneForwardOneBackward)),
                  expected, 1e-12 * expected);
      if (m >= 2 * p) {
        const ChunkCosts equal = {
            .forward_s = 1, .input_gradient_s = 1, .weight_gradient_s = 1};
        EXPECT_NEAR(
            StepTime(StepOf(Costs({.stages = p, .microbatches = m}, equal),
                            Schedule::kZeroBubble)),
            3.0 * m + (p - 1), 1e-12 * m);
      }
      for (int32_t v = 1; v <= 4 && m % p == 0; ++v) {
        const PipelineCosts turns =
            Costs({.stages = p, .turns = v, .microbatches = m}, chunk);
        const double law = pass * (m * v + p - 1);
        EXPECT_NEAR(StepTime(StepOf(turns, Schedule::kInterleaved)), law,
                    1e-12 * law);
      }
    }
  }
}

// Goal: no shape deadlocks, also where the last group of micro-batches is not
// full, and no order is faster than its busiest stage.
TEST(SimulatePassesTest, RunsEveryShape) {
  for (int32_t p = 1; p <= 6; ++p) {
    for (int32_t v = 1; v <= 4; ++v) {
      for (int32_t m = 1; m <= 17; ++m) {
        SCOPED_TRACE(absl::StrCat(p, " x ", v, ", ", m));
        PipelineCosts costs = Costs(
            {.stages = p, .turns = v, .microbatches = m}, {1, 1, 1, 1, 1});
        costs.transfer_s = 0.1;
        EXPECT_GE(StepTime(StepOf(costs, Schedule::kInterleaved)), 3.0 * m * v);
      }
    }
  }
}

// Goal: transfers take their time where nothing hides them. Method: one
// micro-batch, which crosses every boundary twice; with more of them, no less
// than that, and more where the sender cannot compute meanwhile.
TEST(SimulatePassesTest, CountsTransfers) {
  PipelineCosts costs =
      Costs({.stages = 4, .microbatches = 1}, {1, 1, 1, 0, 0});
  costs.transfer_s = 0.25;
  EXPECT_NEAR(StepTime(StepOf(costs, Schedule::kOneForwardOneBackward)),
              4 * 3 + 6 * 0.25, 1e-12);
  costs.num_microbatches = 8;
  PassStep step = StepOf(costs, Schedule::kOneForwardOneBackward);
  const double hidden = StepTime(step);
  EXPECT_GE(hidden, 3 * 11 + 6 * 0.25 - 1e-12);
  step.overlaps_transfers = false;
  EXPECT_GT(StepTime(step), hidden);
}

// Goal: any order of passes takes the time that list scheduling found it to
// take (planner/pipeline/order_times.h), and listed orders are never behind the
// known one. Method: random costs with stages placed in turns and back and
// forth.
TEST(SimulatePassesTest, RunsListedSchedules) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  for (int32_t i = 0; i < 40; ++i) {
    uint64_t num_draws = 0;
    const auto draw = [&] { return RandomUniform(100 + i, num_draws++); };
    const int32_t stages = 2 + i % 4;
    PipelineCosts costs{.num_stages = stages,
                        .num_microbatches = 3 + i % 7,
                        .transfer_s = i % 2 * 0.2};
    for (int32_t c = 0; c < stages * (1 + i % 3); ++c) {
      const int32_t place = c % stages;
      const bool is_back = i % 5 == 0 && c / stages % 2 == 1;
      costs.stage_of_chunk.push_back(is_back ? stages - 1 - place : place);
      costs.chunks.push_back({.forward_s = 0.5 + draw(),
                              .input_gradient_s = 0.5 + draw(),
                              .weight_gradient_s = 0.5 + draw(),
                              .activation_bytes = 2,
                              .weight_gradient_bytes = 1});
    }
    SCOPED_TRACE(absl::StrCat("shape ", i));
    const absl::StatusOr<ListedSchedule> listed = ListSchedule(costs, {});
    ASSERT_TRUE(listed.ok()) << listed.status();
    const PassStep step = {
        .costs = costs, .order = listed->order, .ends = {{}}};
    EXPECT_NEAR(StepTime(step), listed->times.makespan_s,
                1e-12 * listed->times.makespan_s);
    const absl::StatusOr<PassOrder> known =
        OrderOf(Schedule::kInterleaved, costs);
    if (!known.ok()) continue;  // Placed back and forth.
    EXPECT_LE(StepTime(step),
              StepTime({.costs = costs, .order = *known, .ends = {{}}}) + 1e-9);
  }
}

// Goal: reductions hide under the last backward pass and gathers under the
// first forward pass, bucket by bucket. Method: one stage by hand.
TEST(SimulatePassesTest, HidesReductionsAndGathers) {
  const PipelineCosts costs =
      Costs({.stages = 1, .microbatches = 2}, {4, 4, 4, 0, 0});
  PassStep step = StepOf(
      costs, Schedule::kOneForwardOneBackward,
      {.gradient_reduction_s = 2, .parameter_gather_s = 2, .optimizer_s = 0.5});
  step.num_buckets = 4;
  // 24 of passes; the first bucket's gather and the last one's reduction.
  EXPECT_NEAR(StepTime(step), 0.5 + 24 + 0.5 + 0.5, 1e-12);
  // Slower than the pass: 4 gathers of 2 with the last part after, and the
  // reductions of 4 after the first part.
  step.ends[0] = {
      .gradient_reduction_s = 16, .parameter_gather_s = 8, .optimizer_s = 0.5};
  EXPECT_NEAR(StepTime(step), (8 + 1) + 12 + (2 + 16) + 0.5, 1e-12);
  // Half of it is not to be hidden: it stands before and after all passes.
  step.data_hidden_share = 0.5;
  EXPECT_NEAR(StepTime(step), 4 + (4 + 1) + 12 + (2 + 8) + 8 + 0.5, 1e-12);
  step.data_hidden_share = 0;
  EXPECT_NEAR(StepTime(step), 8 + 24 + 16 + 0.5, 1e-12);

  const PassSimulation parts = *SimulatePasses(step, {});
  EXPECT_NEAR(parts.compute_fraction, 24.5 / 48.5, 1e-12);
  EXPECT_NEAR(parts.exposed_data_fraction, 24 / 48.5, 1e-12);
  EXPECT_NEAR(parts.bubble_fraction, 0, 1e-12);
}

// Goal: computing under traffic takes as much longer as said, and so does
// traffic under computing. Method: by hand, on one stage: a reduction of 1 s
// starts when the first half of the last backward pass (2 of 4 s) is done.
TEST(SimulatePassesTest, ComputingAndTrafficSlowEachOtherDown) {
  const PipelineCosts costs =
      Costs({.stages = 1, .microbatches = 1}, {1, 2, 2, 0, 0});
  PassStep step = StepOf(costs, Schedule::kOneForwardOneBackward,
                         {.gradient_reduction_s = 2});
  step.num_buckets = 2;
  EXPECT_NEAR(StepTime(step), 1 + 4 + 1, 1e-12);
  // 1.25 s of traffic take away 1 s of compute, so 0.25 s pass before the
  // compute is through as it would have been.
  EXPECT_NEAR(StepTime(step, {.overlap = {.compute = 1.25}}),
              1 + 2 + 1 + (2 - 1 / 1.25) + 1, 1e-12);
  EXPECT_NEAR(
      StepTime(step, {.overlap = {.compute = 1.25, .communication = 1.5}}),
      1 + 2 + 1.5 + (2 - 1.5 / 1.25) + 1, 1e-12);
  // Traffic as long as the compute beside it: both to the end.
  step.ends[0].gradient_reduction_s = 20;
  EXPECT_NEAR(StepTime(step, {.overlap = {.communication = 2}}),
              1 + 4 + (10 - 2 / 2.0) + 10, 1e-12);
}

// Goal: under traffic too, every op starts when what it waits for has ended,
// and takes its own time at least, slowed throughout at most. Method: sweep
// shapes of equal passes, where many ops end at the same instant, some of them
// deferred from it.
TEST(SimulatePassesTest, StartsWithoutDelayUnderTraffic) {
  const OverlapFactors overlap = {.compute = 1.25, .communication = 1.5};
  for (int32_t p = 1; p <= 6; ++p) {
    for (int32_t v = 1; v <= 3; ++v) {
      for (int32_t m = 1; m <= 12; ++m) {
        SCOPED_TRACE(absl::StrCat(p, " x ", v, ", ", m));
        PipelineCosts costs = Costs(
            {.stages = p, .turns = v, .microbatches = m}, {1, 1, 1, 0, 0});
        costs.transfer_s = 0.25;
        PassStep step = StepOf(costs, Schedule::kInterleaved,
                               {.gradient_reduction_s = 2,
                                .parameter_gather_s = 1,
                                .optimizer_s = 0.5});
        step.num_buckets = 2;
        const StepOps ops = PassOpsOf(step)->step;
        const OpTimes times = RunOps(ops, {.overlap = overlap});
        for (size_t i = 0; i < ops.ops.size(); ++i) {
          double ready_s = 0;
          for (const int32_t wait : ops.WaitsOf(i)) {
            ready_s = std::max(ready_s, times.end_s[wait]);
          }
          EXPECT_EQ(times.start_s[i], ready_s);
          const double seconds = ops.ops[i].seconds;
          const double taken_s = times.end_s[i] - times.start_s[i];
          EXPECT_GE(taken_s, seconds - 1e-9);
          EXPECT_LE(taken_s, seconds * overlap.communication + 1e-9);
        }
      }
    }
  }
}

// Goal: the path for replicas that differ gives, where they do not, exactly
// what the path for those that do not gives. Method: machines known to be of
// equal speed, with and without slowdown under traffic.
TEST(SimulatePassesTest, ReplicasThatDoNotDifferAreOne) {
  for (const OverlapFactors& overlap :
       {OverlapFactors{}, OverlapFactors{1.1, 1.4, false}}) {
    for (const int32_t replicas : {1, 3, 8, 21}) {
      const PassStep step = LargeStep(replicas);
      const PassSimulation alike = *SimulatePasses(step, {.overlap = overlap});
      const PassSimulation each = *SimulatePasses(
          step, {.overlap = overlap, .machine_slowdown = {1, 1}});
      EXPECT_NEAR(each.step_time_s, alike.step_time_s,
                  1e-12 * alike.step_time_s);
      EXPECT_EQ(each.undisturbed_step_time_s, alike.step_time_s);
      ASSERT_EQ(alike.timeline.classes.size(), 4u);
      ASSERT_EQ(each.timeline.classes.size(), replicas == 1 ? 4u : 8u);
      const auto& events = alike.timeline.classes[2].events;
      for (const RankClass& ranks : each.timeline.classes) {
        if (ranks.stage != 2) continue;
        ASSERT_EQ(ranks.events.size(), events.size());
        for (size_t i = 0; i < events.size(); ++i) {
          EXPECT_NEAR(ranks.events[i].start_s, events[i].start_s, 1e-12);
          EXPECT_NEAR(ranks.events[i].end_s, events[i].end_s, 1e-12);
        }
      }
    }
  }
}

// Goal: what cannot be simulated is refused with the reason.
TEST(SimulatePassesTest, RefusesWhatCannotRun) {
  const PassStep good = LargeStep(1);
  const auto message = [](const PassStep& step,
                          const PassOptions& options = {}) {
    return std::string(SimulatePasses(step, options).status().message());
  };
  PassStep step = good;
  // The last stage turns micro-batches round in an order that the others,
  // which wait for it, do not follow.
  step = StepOf(Costs({.stages = 2, .microbatches = 2}, {1, 1, 1, 0, 0}),
                Schedule::kOneForwardOneBackward);
  step.order[0] = {{ChunkPassKind::kForward, 0, 0},
                   {ChunkPassKind::kBackward, 0, 0},
                   {ChunkPassKind::kForward, 0, 1},
                   {ChunkPassKind::kBackward, 0, 1}};
  step.order[1] = {{ChunkPassKind::kForward, 1, 1},
                   {ChunkPassKind::kBackward, 1, 1},
                   {ChunkPassKind::kForward, 1, 0},
                   {ChunkPassKind::kBackward, 1, 0}};
  EXPECT_THAT(message(step), HasSubstr("deadlocks: stage 0 at backward"));
  step = good;
  step.order[1].pop_back();
  EXPECT_THAT(message(step), HasSubstr("lacks"));
  step = good;
  step.ends.resize(3);
  EXPECT_THAT(message(step), HasSubstr("of 3 stages for 4"));
  step = good;
  step.costs.chunks[5].forward_s = -1;
  EXPECT_THAT(message(step), HasSubstr("chunk 5 has a negative"));
  EXPECT_THAT(message(good, {.noise_sigma = -1}), HasSubstr("noise_sigma"));
  EXPECT_THAT(message(good, {.straggler_share = 1.5}),
              HasSubstr("straggler_share"));
  EXPECT_THAT(message(good, {.step_sigma = -1}), HasSubstr("step_sigma"));
  EXPECT_THAT(message(good, {.slow_ranks = {{.rank = 16, .factor = 2}}}),
              HasSubstr("there are 16 ranks"));
  EXPECT_THAT(
      message(good, {.slow_links = {{.machine = 2, .passes = {1, 1, 1, 1}}}}),
      HasSubstr("there are 2 machines"));
  EXPECT_THAT(message(good, {.slow_links = {{.machine = 0, .passes = {1}}}}),
              HasSubstr("factors for 1 stages"));
  EXPECT_THAT(message(good, {.overlap = {.compute = 0.5}}),
              HasSubstr("overlap"));
}

// Goal: at whole models, passes give what the closed form gives, to a few
// percent: they are built from the same parts. Method: the models and layouts
// of published runs on the shipped H100 profile.
TEST(SimulatePassesTest, AgreesWithTheClosedForm) {
  const absl::StatusOr<HardwareProfile> profile =
      LoadProfile("configs/hardware/h100-sxm.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status();
  const ModelSpec model = {.vocab_size = 128256,
                           .hidden = 16384,
                           .num_layers = 126,
                           .num_heads = 128,
                           .num_kv_heads = 8,
                           .head_dim = 128,
                           .ffn_hidden = 53248,
                           .sequence_length = 8192};
  const Implementation implementation;
  absl::StatusOr<StepModel> step_model =
      StepModel::Create(model, *profile, implementation);
  ASSERT_TRUE(step_model.ok()) << step_model.status();
  const Layout plain = {.pipeline = 9,
                        .data = 8,
                        .tensor = 8,
                        .num_microbatches = 36,
                        .zero = 1,
                        .precision = Precision::kBfloat16};
  Layout interleaved = plain;
  interleaved.schedule = Schedule::kInterleaved;
  interleaved.interleave = 7;
  Layout sharded = {.data = 64,
                    .tensor = 8,
                    .num_microbatches = 2,
                    .zero = 3,
                    .precision = Precision::kBfloat16};
  Layout large = interleaved;
  large.data = 256;
  large.num_microbatches = 18;
  for (const Layout& layout : {plain, interleaved, sharded, large}) {
    SCOPED_TRACE(LayoutToString(layout));
    const absl::StatusOr<PassStep> step =
        PassStepOf(layout, implementation, *step_model);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->num_replicas, layout.data);
    EXPECT_EQ(step->ranks_per_pass, 8);
    const double closed = step_model->Predict(layout).time.step_time_s();
    EXPECT_NEAR(StepTime(*step, {.overlap = profile->overlap}) / closed, 1,
                0.04);
  }
}

// The time that one stage's Program spends in passes and at its ends.
struct StageSums {
  ChunkCosts chunk;
  StepModel::StepEnds ends;
  double transfer_s = 0;
};

StageSums SumsOf(const Program& program, const std::vector<double>& seconds) {
  StageSums sums;
  const double m = program.layout.num_microbatches;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const bool is_pass = instruction.microbatch_idx >= 0;
    switch (instruction.lane) {
      case Lane::kCompute:
      case Lane::kTensorComm:
        if (!is_pass) {
          sums.ends.optimizer_s += seconds[i];
        } else if (instruction.phase == Phase::kForward) {
          sums.chunk.forward_s += seconds[i] / m;
        } else if (instruction.phase == Phase::kWeightGradient) {
          sums.chunk.weight_gradient_s += seconds[i] / m;
        } else {
          sums.chunk.input_gradient_s += seconds[i] / m;
        }
        break;
      case Lane::kDataComm:
        (instruction.phase == Phase::kParameterGather
             ? sums.ends.parameter_gather_s
             : sums.ends.gradient_reduction_s) += seconds[i];
        break;
      case Lane::kSendNext:
      case Lane::kSendPrevious:
        sums.transfer_s = seconds[i];
        break;
      default:
        break;
    }
  }
  return sums;
}

// Goal: the simulator of passes agrees with that of instructions within a few
// percent. Method: Programs of executable layouts, whose times by pass are
// summed up; tensor 1, since communication within a pass is hidden there and
// not here, and 1F1B with the gradient leaving before a stage's last weight
// gradients, which is the difference that is left.
TEST(SimulatePassesTest, AgreesWithTheSimulatorOfInstructions) {
  ModelSpec model = TestModel();
  model.num_layers = 16;
  for (const int32_t pipeline : {1, 2, 4}) {
    for (const int32_t microbatches : {4, 8, 16}) {
      for (const int32_t zero : {0, 1}) {
        for (const Schedule schedule :
             {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
          if (pipeline == 1 && schedule == Schedule::kZeroBubble) continue;
          const Layout layout{.pipeline = pipeline,
                              .data = 2,
                              .num_microbatches = microbatches,
                              .zero = zero,
                              .schedule = schedule};
          SCOPED_TRACE(LayoutToString(layout));
          std::vector<Program> programs;
          for (int32_t stage = 0; stage < pipeline; ++stage) {
            programs.push_back(*BuildTrainingProgram(model, layout, stage));
          }
          std::vector<StageSimulation> stages;
          PassStep step{
              .costs =
                  Costs({.stages = pipeline, .microbatches = microbatches}, {}),
              .num_buckets = 8};
          for (const Program& program : programs) {
            StageSimulation stage{.program = &program};
            for (const Instruction& instruction : program.instructions) {
              double seconds = 1e-3;
              if (instruction.kind == OpKind::kGemm) seconds = 6e-3;
              if (instruction.lane == Lane::kHost) seconds = 0;
              if (IsCollective(instruction.kind)) seconds = 8e-3;
              stage.seconds.push_back(seconds);
            }
            const StageSums sums = SumsOf(program, stage.seconds);
            step.costs.chunks[program.stage] = sums.chunk;
            step.costs.transfer_s = sums.transfer_s;
            step.ends.push_back(sums.ends);
            stages.push_back(std::move(stage));
          }
          step.order = *OrderOf(schedule, step.costs);
          const absl::StatusOr<Timeline> instructions = Simulate(stages, {});
          ASSERT_TRUE(instructions.ok()) << instructions.status();
          EXPECT_NEAR(StepTime(step) / instructions->step_time_s, 1, 0.02);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
