#include "planner/simulate/simulate_instructions.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/program/copy_engines.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::vector<Program> BuildAll(const ModelSpec& model, const Layout& layout) {
  std::vector<Program> programs;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    programs.push_back(*BuildTrainingProgram(model, layout, stage));
  }
  return programs;
}

// Every instruction of every stage takes what `seconds` says.
template <typename SecondsFunction>
std::vector<StageSimulation> WithSeconds(const std::vector<Program>& programs,
                                         SecondsFunction seconds) {
  std::vector<StageSimulation> stages;
  for (const Program& program : programs) {
    StageSimulation stage{.program = &program};
    for (const Instruction& instruction : program.instructions) {
      stage.seconds.push_back(seconds(program, instruction));
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

// Gives copy engines all communication of `layout` that they can carry.
void UseCopyEngines(Layout layout, std::vector<StageSimulation>* stages) {
  layout.copy_engines = CopyEngineUseOf(layout);
  for (StageSimulation& stage : *stages) {
    for (const Instruction& in : stage.program->instructions) {
      stage.by_copy_engines.push_back(
          CopyEnginesCarry(layout, in.kind, in.attributes));
    }
  }
}

const TimelineEvent& EventOf(const RankTimeline& rank, InstructionId id) {
  return *std::find_if(
      rank.events.begin(), rank.events.end(),
      [&](const TimelineEvent& event) { return event.instruction == id; });
}

// Goal: no layout deadlocks, each instruction runs once, in lane order, after
// what it waits for; both ends of a step agree. Method: sweep layouts with
// unequal times, with and without what overlap costs, then also by copy
// engines.
TEST(SimulateTest, RunsEveryLayoutInOrder) {
  for (const OverlapFactors& overlap :
       {OverlapFactors{}, OverlapFactors{1.1, 3.7},
        OverlapFactors{1.1, 3.7, true}}) {
    for (const Layout& layout : TestLayouts()) {
      SCOPED_TRACE(LayoutToString(layout));
      const std::vector<Program> programs = BuildAll(TestModel(), layout);
      auto stages = WithSeconds(
          programs, [](const Program& program, const Instruction& instruction) {
            return 1e-6 * (1 + program.stage) * (1 + instruction.inputs.size());
          });
      if (overlap.compute > 1) UseCopyEngines(layout, &stages);
      absl::StatusOr<Timeline> timeline = Simulate(
          stages, {.overlap = overlap, .copy_engine_overlap = {1.05, 1.3}});
      ASSERT_TRUE(timeline.ok()) << timeline.status();
      ASSERT_EQ(timeline->ranks.size(), programs.size());
      double latest = 0;
      for (size_t s = 0; s < programs.size(); ++s) {
        const RankTimeline& rank = timeline->ranks[s];
        const Program& program = programs[s];
        ASSERT_EQ(rank.events.size(), program.instructions.size());
        std::vector<TimelineEvent> by_id(rank.events.size());
        for (const TimelineEvent& event : rank.events) {
          by_id[event.instruction] = event;
          latest = std::max(latest, event.end_s);
        }
        for (const auto& lane : program.lanes) {
          for (size_t i = 1; i < lane.size(); ++i) {
            EXPECT_GE(by_id[lane[i]].start_s, by_id[lane[i - 1]].end_s);
          }
        }
        for (size_t i = 0; i < program.instructions.size(); ++i) {
          EXPECT_EQ(by_id[i].instruction, static_cast<InstructionId>(i));
          for (InstructionId wait : program.instructions[i].waits) {
            EXPECT_GE(by_id[i].start_s, by_id[wait].end_s);
          }
        }
        EXPECT_TRUE(
            std::is_sorted(rank.events.begin(), rank.events.end(),
                           [](const TimelineEvent& a, const TimelineEvent& b) {
                             return a.start_s < b.start_s;
                           }));
      }
      EXPECT_EQ(latest, timeline->step_time_s);
    }
  }
}

// Goal: with free communication and equal stages, the bubble is the known one
// of 1F1B, (p - 1) / (m + p - 1), on every stage. Method: only the layers'
// GEMMs take time; backward twice the forward, whatever the ratio.
TEST(SimulateTest, BalancedPipelineHasTheKnownBubble) {
  for (int32_t pipeline : {1, 2, 4}) {
    for (int32_t num_microbatches : {1, 2, 4, 8, 16}) {
      ModelSpec model = TestModel();
      model.num_layers = 4;
      const Layout layout{.pipeline = pipeline,
                          .num_microbatches = num_microbatches};
      SCOPED_TRACE(LayoutToString(layout));
      const std::vector<Program> programs = BuildAll(model, layout);
      // Input gradients only: a weight gradient may run while the next stage
      // already works, which makes the bubble smaller than the formula's.
      const auto stages = WithSeconds(
          programs, [](const Program&, const Instruction& instruction) {
            return instruction.kind == OpKind::kGemm &&
                           instruction.phase != Phase::kWeightGradient
                       ? 1.0
                       : 0.0;
          });
      absl::StatusOr<Timeline> timeline = Simulate(stages, {});
      ASSERT_TRUE(timeline.ok()) << timeline.status();
      const double expected =
          (pipeline - 1.0) / (num_microbatches + pipeline - 1.0);
      for (int32_t stage = 0; stage < pipeline; ++stage) {
        const TimeBreakdown breakdown = BreakDown(
            programs[stage], timeline->ranks[stage], timeline->step_time_s);
        EXPECT_NEAR(breakdown.bubble_s / timeline->step_time_s, expected, 1e-9)
            << "stage " << stage;
        EXPECT_NEAR(breakdown.compute_s + breakdown.bubble_s,
                    timeline->step_time_s, 1e-9);
      }
    }
  }
}

// Goal: deferring weight gradients past the send shortens a pipeline's step.
// Method: with weight gradients taking time, the step is below 1F1B's formula.
TEST(SimulateTest, WeightGradientsFillTheBubble) {
  ModelSpec model = TestModel();
  model.num_layers = 4;
  const Layout layout{.pipeline = 4, .num_microbatches = 4};
  const std::vector<Program> programs = BuildAll(model, layout);
  const auto stages =
      WithSeconds(programs, [](const Program&, const Instruction& instruction) {
        return instruction.kind == OpKind::kGemm ? 1.0 : 0.0;
      });
  const double step_time_s = Simulate(stages, {})->step_time_s;
  const double unfilled_s = 12.0 * (4 + 3);  // 4 GEMMs forward, 8 backward.
  EXPECT_LT(step_time_s, unfilled_s);
  EXPECT_GE(step_time_s, 12.0 * 4);
}

// Goal: collectives hide under computation where the Program lets them. Method:
// tensor parallel; a collective as long as a GEMM costs less than in sequence.
TEST(SimulateTest, OverlapsCommunication) {
  const Layout layout{.data = 2, .tensor = 2, .zero = 1};
  const std::vector<Program> programs = BuildAll(TestModel(), layout);
  double sum_s = 0;
  const auto stages = WithSeconds(
      programs, [&](const Program&, const Instruction& instruction) {
        const double seconds =
            instruction.kind == OpKind::kGemm || IsCollective(instruction.kind)
                ? 1.0
                : 0.0;
        sum_s += seconds;
        return seconds;
      });
  absl::StatusOr<Timeline> timeline = Simulate(stages, {});
  ASSERT_TRUE(timeline.ok());
  EXPECT_LT(timeline->step_time_s, 0.8 * sum_s);
  const TimeBreakdown breakdown =
      BreakDown(programs[0], timeline->ranks[0], timeline->step_time_s);
  EXPECT_GT(breakdown.exposed_tensor_comm_s, 0);
  EXPECT_GT(breakdown.exposed_data_comm_s, 0);
  EXPECT_NEAR(breakdown.compute_s + breakdown.exposed_tensor_comm_s +
                  breakdown.exposed_data_comm_s + breakdown.other_s,
              timeline->step_time_s, 1e-9);
}

// Goal: ranks that compute at once on one host slow each other, by the
// profile's factor for their number. Method: four alike ranks on hosts of one,
// two, four.
TEST(SimulateTest, ContentionFollowsRanksOfOneHost) {
  const Layout layout{.data = 4};
  const std::vector<Program> programs = BuildAll(TestModel(), layout);
  const auto stages =
      WithSeconds(programs, [](const Program&, const Instruction& instruction) {
        return instruction.lane == Lane::kCompute ? 1.0 : 0.0;
      });
  const std::vector<double> contention = {1.0, 1.5, 2.2, 3.0};
  const double alone_s = Simulate(stages, {})->step_time_s;
  for (int32_t ranks_per_host : {1, 2, 4}) {
    absl::StatusOr<Timeline> timeline = Simulate(
        stages,
        {.compute_contention = contention, .ranks_per_host = ranks_per_host});
    ASSERT_TRUE(timeline.ok());
    EXPECT_NEAR(timeline->step_time_s, alone_s * contention[ranks_per_host - 1],
                1e-6);
  }
}

// Instruction 0 computes, 1 is a collective of two ranks; both start at once.
Program OpBeside(Group group, OpKind collective, OpKind kind = OpKind::kGemm) {
  const bool is_data = group == Group::kData;
  Program program{.kind = ProgramKind::kTraining,
                  .layout = is_data ? Layout{.data = 2} : Layout{.tensor = 2}};
  program.instructions = {
      {.kind = kind,
       .lane = Lane::kCompute,
       .attributes = kind == OpKind::kGemm
                         ? OpAttributes(GemmAttributes{1, 1, 1})
                         : OpAttributes(ElementwiseAttributes{1, 1})},
      {.kind = collective,
       .lane = is_data ? Lane::kDataComm : Lane::kTensorComm,
       .attributes = CollectiveAttributes{group, 2, DType::kFloat32}}};
  for (InstructionId id : {0, 1}) {
    const Lane lane = program.instructions[id].lane;
    program.lanes[static_cast<int>(lane)] = {id};
  }
  return program;
}

// Goal: computation and communication slow each other while both are under way,
// and only then. Method: one op and one collective that start together, either
// longer; the end of each by hand.
TEST(SimulateTest, OverlapSlowsBoth) {
  const Program program = OpBeside(Group::kData, OpKind::kAllReduce);
  auto ends = [&](double compute_s, double communication_s) {
    const std::vector<StageSimulation> stages = {
        {.program = &program, .seconds = {compute_s, communication_s}}};
    const auto timeline =
        Simulate(stages, {.overlap = {.compute = 1.5, .communication = 4}});
    EXPECT_TRUE(timeline.ok()) << timeline.status();
    return std::pair(EventOf(timeline->ranks[0], 0).end_s,
                     EventOf(timeline->ranks[0], 1).end_s);
  };
  // In 3 s the collective does 0.75 s of its 1 s.
  const auto [compute, late] = ends(2, 1);
  EXPECT_DOUBLE_EQ(compute, 3);
  EXPECT_DOUBLE_EQ(late, 3.25);
  // In 2 s the op does 4/3 s of its 2 s.
  const auto [late_compute, communication] = ends(2, 0.5);
  EXPECT_DOUBLE_EQ(communication, 2);
  EXPECT_DOUBLE_EQ(late_compute, 2 + 2.0 / 3);
}

// Goal: where ranks share cores, what communicates takes cores too, and both
// are slowed; where they do not, neither is. Method: two ranks whose one op and
// collective start together, on one core or on two; the ends by hand.
TEST(SimulateTest, CommunicationTakesSharedCores) {
  const Program program = OpBeside(Group::kData, OpKind::kAllReduce);
  const auto ends = [&](std::vector<double> contention) {
    const std::vector<StageSimulation> stages = {
        {.program = &program, .seconds = {2, 1}}};
    const auto timeline = Simulate(
        stages,
        {.compute_contention = std::move(contention), .ranks_per_host = 2});
    EXPECT_TRUE(timeline.ok()) << timeline.status();
    return std::pair(EventOf(timeline->ranks[0], 0).end_s,
                     EventOf(timeline->ranks[0], 1).end_s);
  };
  EXPECT_EQ(ends({1, 1}), std::pair(2.0, 1.0));
  // Four share the core. The collective's second was measured with two: it
  // takes two, in which the op does a half of its two seconds. The rest takes
  // twice as long on the core of two.
  EXPECT_EQ(ends({1, 2}), std::pair(5.0, 2.0));
}

// Goal: where communication waits for room, it starts after the product under
// way, but beside what leaves room. Method: a collective that is ready while a
// product, or an addition, computes; the end of each by hand.
TEST(SimulateTest, CommunicationWaitsForRoom) {
  for (const OpKind kind : {OpKind::kGemm, OpKind::kAdd}) {
    SCOPED_TRACE(OpKindName(kind));
    const Program program = OpBeside(Group::kData, OpKind::kAllReduce, kind);
    const std::vector<StageSimulation> stages = {
        {.program = &program, .seconds = {2.0, 1.0}}};
    const auto timeline = Simulate(stages, {.overlap = {.waits = true}});
    ASSERT_TRUE(timeline.ok()) << timeline.status();
    EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[0], 0).end_s, 2);
    EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[0], 1).end_s,
                     kind == OpKind::kGemm ? 3 : 1);
  }
}

// Goal: copy engines begin at once beside a product, slow both by their own
// factors, and what ends with a kernel ends behind the product. Method: a
// gather, or a transfer, that is ready while a product or an addition computes;
// the end of each by hand.
TEST(SimulateTest, CopyEnginesDoNotWaitToBegin) {
  const SimulationOptions options = {
      .overlap = {.compute = 3, .communication = 5, .waits = true},
      .copy_engine_overlap = {.compute = 1.25, .communication = 2}};
  for (const OpKind kind : {OpKind::kGemm, OpKind::kAdd}) {
    SCOPED_TRACE(OpKindName(kind));
    const Program program = OpBeside(Group::kTensor, OpKind::kAllGather, kind);
    const std::vector<StageSimulation> stages = {
        {.program = &program,
         .seconds = {2.0, 0.5},
         .by_copy_engines = {false, true}}};
    const auto timeline = Simulate(stages, options);
    ASSERT_TRUE(timeline.ok()) << timeline.status();
    // In the second that the gather takes, the op does 0.8 s of its 2 s.
    const double compute_end = 1 + 1.2;
    EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[0], 0).end_s, compute_end);
    EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[0], 1).end_s,
                     kind == OpKind::kGemm ? compute_end : 1);
  }
  // Both ends of a transfer, beside the receiver's product.
  std::vector<Program> programs(2);
  for (int32_t stage = 0; stage < 2; ++stage) {
    Program& program = programs[stage];
    program.layout = {.pipeline = 2};
    program.stage = stage;
    program.instructions = {
        {.kind = OpKind::kGemm,
         .lane = Lane::kCompute,
         .attributes = GemmAttributes{1, 1, 1}},
        {.kind = stage == 0 ? OpKind::kSend : OpKind::kReceive,
         .lane = stage == 0 ? Lane::kSendNext : Lane::kReceivePrevious,
         .attributes =
             TransferAttributes{Direction::kToNext, 2, DType::kFloat32}}};
    for (InstructionId id : {0, 1}) {
      const Lane lane = program.instructions[id].lane;
      program.lanes[static_cast<int>(lane)] = {id};
    }
  }
  const std::vector<StageSimulation> stages = {
      {.program = &programs[0],
       .seconds = {0.0, 0.5},
       .by_copy_engines = {false, true}},
      {.program = &programs[1],
       .seconds = {2.0, 0.5},
       .by_copy_engines = {false, true}}};
  const auto timeline = Simulate(stages, options);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[0], 1).end_s, 1);
  EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[1], 1).end_s, 1);
  EXPECT_DOUBLE_EQ(EventOf(timeline->ranks[1], 0).end_s, 2.2);
}

// Goal: contention counts stages that compute at the moment, not all. Method:
// a pipeline of one micro-batch, where one stage computes at a time, takes as
// long on one host as on two; input gradients and forward passes only.
TEST(SimulateTest, IdleStagesDoNotContend) {
  const Layout layout{.pipeline = 2};
  const std::vector<Program> programs = BuildAll(TestModel(), layout);
  const auto stages =
      WithSeconds(programs, [](const Program&, const Instruction& instruction) {
        return instruction.kind == OpKind::kGemm &&
                       instruction.phase != Phase::kWeightGradient
                   ? 1.0
                   : 0.0;
      });
  const SimulationOptions shared{.compute_contention = {1.0, 2.0},
                                 .ranks_per_host = 2};
  EXPECT_NEAR(Simulate(stages, shared)->step_time_s,
              Simulate(stages, {})->step_time_s, 1e-9);
}

// Goal: a transfer ends its seconds after the later end arrived, on both sides.
// Method: a slow sender; the receiver's event spans its waiting.
TEST(SimulateTest, TransfersJoinBothEnds) {
  const Layout layout{.pipeline = 2};
  const std::vector<Program> programs = BuildAll(TestModel(), layout);
  const auto stages = WithSeconds(programs, [](const Program& program,
                                               const Instruction& instruction) {
    if (IsTransfer(instruction.kind)) return 0.25;
    return program.stage == 0 && instruction.lane == Lane::kCompute ? 1.0 : 0.0;
  });
  const Timeline timeline = *Simulate(stages, {});
  const InstructionId send =
      programs[0].lanes[static_cast<int>(Lane::kSendNext)][0];
  const InstructionId receive =
      programs[1].lanes[static_cast<int>(Lane::kReceivePrevious)][0];
  const TimelineEvent& sent = EventOf(timeline.ranks[0], send);
  const TimelineEvent& received = EventOf(timeline.ranks[1], receive);
  EXPECT_EQ(received.start_s, 0);
  EXPECT_GT(sent.start_s, 1);
  EXPECT_EQ(sent.end_s, sent.start_s + 0.25);
  EXPECT_EQ(received.end_s, sent.end_s);
}

// Goal: ranks that scatter wait for the last at each collective, the more of
// them the longer, and who meets nobody waits for nobody. Method: equal ops on
// tensor axes of two and four, and on stages of one rank each.
TEST(SimulateTest, RanksArriveApart) {
  const auto step_time = [](const Layout& layout, double arrival_spread) {
    const std::vector<Program> programs = BuildAll(TestModel(), layout);
    const auto stages = WithSeconds(
        programs, [](const Program&, const Instruction&) { return 1.0; });
    return Simulate(stages, {.arrival_spread = arrival_spread})->step_time_s;
  };
  const Layout two = {.tensor = 2, .num_microbatches = 2};
  const Layout four = {.tensor = 4, .num_microbatches = 2};
  EXPECT_EQ(step_time(two, 0), step_time(four, 0));
  EXPECT_GT(step_time(two, 0.1), 1.01 * step_time(two, 0));
  EXPECT_GT(step_time(four, 0.1), 1.01 * step_time(two, 0.1));
  EXPECT_LT(step_time(four, 0.1), 1.5 * step_time(four, 0));
  const Layout stages = {.pipeline = 4, .num_microbatches = 4};
  EXPECT_EQ(step_time(stages, 0.1), step_time(stages, 0));
}

// Goal: a deadlock is reported with who is stuck. Method: two stages, each made
// to wait for what the other sends later.
TEST(SimulateTest, NamesDeadlocks) {
  const Layout layout{.pipeline = 2, .num_microbatches = 2};
  std::vector<Program> programs = BuildAll(TestModel(), layout);
  // Stage 0's first send now waits for the gradient that only follows from it.
  const InstructionId send =
      programs[0].lanes[static_cast<int>(Lane::kSendNext)][0];
  programs[0].instructions[send].waits.push_back(
      programs[0].lanes[static_cast<int>(Lane::kReceiveNext)][0]);
  const auto stages = WithSeconds(
      programs, [](const Program&, const Instruction&) { return 1.0; });
  const absl::Status status = Simulate(stages, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "deadlock")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "send_output")) << status;
}

// Goal: inputs that do not belong together are refused. Method: a stage
// missing, a time missing.
TEST(SimulateTest, RefusesIncompleteInput) {
  const std::vector<Program> programs = BuildAll(TestModel(), {.pipeline = 2});
  auto stages = WithSeconds(
      programs, [](const Program&, const Instruction&) { return 1.0; });
  EXPECT_EQ(Simulate(std::span(stages).first(1), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  stages[1].seconds.pop_back();
  EXPECT_EQ(Simulate(stages, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Simulate({}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
