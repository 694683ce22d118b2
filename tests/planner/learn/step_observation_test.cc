#include "planner/learn/step_observation.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/search/program_prediction.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/played_step.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  std::vector<Program> programs;
  CostModel cost;
};
Case MakeCase(const Layout& layout, const HardwareProfile& profile) {
  return {*BuildProgramsOfRanks(SmallJob().model, layout),
          *CostModel::Create(profile)};
}

Layout FourStages() {
  return {.pipeline = 4, .micro_batch = 2, .num_microbatches = 4};
}

// Goal: the slow-downs that a profile knows of are divided out to the last
// digit. Method: observe what the simulator predicts of four ranks of one stage
// each, with cores shared and without, and find the tables again.
TEST(StepObservationTest, FindsTheTablesBehindASimulatedStep) {
  for (const double contention : {0.0, 0.4}) {
    HardwareProfile profile = MakeProfile({.contention_per_rank = contention});
    const Case of = MakeCase(FourStages(), profile);
    const Timeline timeline = *SimulatePrograms(of.programs, of.cost);
    const auto observed = ObserveStep(of.programs, of.cost, timeline, {});
    ASSERT_TRUE(observed.ok()) << observed.status();
    int64_t num_calls = 0;
    for (const OpObservation& op : observed->ops) {
      EXPECT_NEAR(op.seconds / (of.cost.RowSeconds(op.shape) +
                                profile.launch_overhead_s),
                  1, 1e-6)
          << ShapeText(op.shape);
      num_calls += op.num_calls;
      if (contention == 0) {
        EXPECT_LE(op.context.num_computing, 1);
      }
    }
    int64_t num_instructions = 0;
    for (const Program& program : of.programs) {
      num_instructions += static_cast<int64_t>(program.instructions.size());
    }
    // Two ends of a transfer are one call, as are four of the world's
    // collective; loading is not looked at.
    EXPECT_GT(num_calls, num_instructions / 2);
    EXPECT_LT(num_calls, num_instructions);
    EXPECT_TRUE(observed->slow_ranks.empty());
    EXPECT_EQ(observed->num_unplaced, 0);
  }
}

// Goal: what a rank waits for others is no part of an op, whatever their clocks
// say. Method: one stage takes twice as long over everything it computes;
// transfers and collectives are observed as they are.
TEST(StepObservationTest, LeavesOutWaiting) {
  const HardwareProfile profile = MakeProfile({});
  const Case of = MakeCase(FourStages(), profile);
  std::vector<std::vector<double>> seconds;
  for (const Program& program : of.programs) {
    seconds.push_back(of.cost.ProgramSeconds(program));
  }
  Timeline timeline = PlayStep(of.programs, [&](size_t rank, InstructionId id) {
    const bool computes =
        of.programs[rank].instructions[static_cast<size_t>(id)].lane ==
        Lane::kCompute;
    return seconds[rank][static_cast<size_t>(id)] *
           (rank == 2 && computes ? 2 : 1);
  });
  ShiftClocks(&timeline, 1.0);
  const auto observed = ObserveStep(of.programs, of.cost, timeline, {});
  ASSERT_TRUE(observed.ok()) << observed.status();
  for (const OpObservation& op : observed->ops) {
    if (!IsCommunication(op.shape)) continue;
    EXPECT_NEAR(
        op.seconds / (of.cost.RowSeconds(op.shape) + profile.launch_overhead_s),
        1, 1e-6)
        << ShapeText(op.shape);
  }
}

StepObservation ObserveOnHosts(const Layout& layout, int32_t ranks_per_host) {
  const HardwareProfile profile =
      MakeProfile({.ranks_per_host = ranks_per_host});
  const Case of = MakeCase(layout, profile);
  const Timeline timeline =
      PlayStep(of.programs, [](size_t, InstructionId) { return 1e-4; });
  const auto observed = ObserveStep(of.programs, of.cost, timeline, {});
  EXPECT_TRUE(observed.ok()) << observed.status();
  return observed.ok() ? *observed : StepObservation{};
}

// Goal: groups teach rows of as many hosts as they span, and transfers rows of
// the hosts between which they go. Method: pipelines over two hosts, crossing
// between them at the data axis, then at the middle of four stages.
TEST(StepObservationTest, GroupsTeachRowsOfTheirHosts) {
  const StepObservation replicas = ObserveOnHosts(
      {.pipeline = 2, .data = 2, .micro_batch = 1, .num_microbatches = 4}, 2);
  EXPECT_EQ(replicas.num_unplaced, 0);
  for (const OpObservation& op : replicas.ops) {
    if (IsCollective(op.shape.kind)) {
      EXPECT_EQ(op.shape.figures[2], 2) << ShapeText(op.shape);
    } else if (IsCommunication(op.shape)) {
      EXPECT_EQ(op.shape.figures[2], 1) << ShapeText(op.shape);
    }
  }
  std::set<int64_t> hosts;
  for (const OpObservation& op : ObserveOnHosts(FourStages(), 2).ops) {
    if (op.shape.kind == OpKind::kSend) hosts.insert(op.shape.figures[2]);
  }
  EXPECT_EQ(hosts, (std::set<int64_t>{1, 2}));
}

// Goal: replicas with different numbers of micro-batches are observed like
// others: each op as often as it runs, as long as it takes. Method: a played
// step of an uneven layout whose ranks take the table's times.
TEST(StepObservationTest, ObservesUnevenReplicas) {
  const HardwareProfile profile = MakeProfile({});
  const Layout layout{.pipeline = 2,
                      .data = 3,
                      .micro_batch = 1,
                      .num_microbatches = 2,
                      .extra_microbatches = 2};
  const Case of = MakeCase(layout, profile);
  ASSERT_EQ(of.programs.size(), 4u);
  std::vector<std::vector<double>> seconds;
  for (const Program& program : of.programs) {
    seconds.push_back(of.cost.ProgramSeconds(program));
  }
  const auto program_of = [&](size_t rank) {
    return ProgramIdx(layout,
                      CoordinatesOf(layout, Rank{static_cast<int32_t>(rank)}));
  };
  const Timeline timeline =
      PlayStep(of.programs, [&](size_t rank, InstructionId id) {
        return seconds[program_of(rank)][static_cast<size_t>(id)];
      });
  const auto observed = ObserveStep(of.programs, of.cost, timeline, {});
  ASSERT_TRUE(observed.ok()) << observed.status();
  EXPECT_TRUE(observed->slow_ranks.empty());
  EXPECT_EQ(observed->num_unplaced, 0);
  int64_t num_attentions = 0;
  for (const OpObservation& op : observed->ops) {
    EXPECT_NEAR(
        op.seconds / (of.cost.RowSeconds(op.shape) + profile.launch_overhead_s),
        1, 1e-6)
        << ShapeText(op.shape);
    if (op.shape.kind == OpKind::kAttentionForward) {
      num_attentions += op.num_calls;
    }
  }
  // The three replicas run 3 + 3 + 2 micro-batches.
  EXPECT_EQ(num_attentions, 8 * SmallJob().model.num_layers);
  // Programs of even layouts do not fit it.
  const Case even = MakeCase(
      {.pipeline = 2, .data = 3, .micro_batch = 1, .num_microbatches = 3},
      profile);
  EXPECT_FALSE(ObserveStep(even.programs, even.cost, timeline, {}).ok());
}

// Goal: groups that lie otherwise than profiles measure them teach nothing.
// Method: hosts of three ranks, so that of two replicas' groups one is on a
// host and one is not.
TEST(StepObservationTest, LeavesOutUnevenGroups) {
  const StepObservation observed = ObserveOnHosts(
      {.pipeline = 2, .data = 2, .micro_batch = 1, .num_microbatches = 4}, 3);
  EXPECT_GT(observed.num_unplaced, 0);
  for (const OpObservation& op : observed.ops) {
    if (IsCollective(op.shape.kind)) {
      EXPECT_EQ(op.shape.figures[2], 2) << ShapeText(op.shape);
    }
  }
}

// Goal: a timeline that is not of this layout is refused with what is wrong.
// Method: damage a whole one.
TEST(StepObservationTest, RefusesForeignTimelines) {
  const Case of = MakeCase(FourStages(), MakeProfile({}));
  const Timeline whole = *SimulatePrograms(of.programs, of.cost);
  const auto error_of = [&](const Timeline& timeline) {
    const auto observed = ObserveStep(of.programs, of.cost, timeline, {});
    EXPECT_TRUE(absl::IsInvalidArgument(observed.status()));
    return std::string(observed.status().message());
  };
  EXPECT_THAT(error_of({}), HasSubstr("lacks rank 0 of 4"));
  Timeline damaged = whole;
  damaged.ranks.pop_back();
  EXPECT_THAT(error_of(damaged), HasSubstr("lacks rank 3 of 4"));
  damaged.ranks.push_back(damaged.ranks.front());
  EXPECT_THAT(error_of(damaged), HasSubstr("rank 0 twice"));
  damaged = whole;
  damaged.ranks[1].events.pop_back();
  EXPECT_THAT(error_of(damaged), HasSubstr("instructions on rank 1"));
  damaged = whole;
  damaged.ranks[1].events[5].instruction = 100000;
  EXPECT_THAT(error_of(damaged), HasSubstr("instruction 100000 on rank 1"));
  damaged = whole;
  damaged.ranks[2].events[0].end_s = -1;
  EXPECT_THAT(error_of(damaged), HasSubstr("impossible times"));
  damaged = whole;
  damaged.ranks[2].events[0] = damaged.ranks[2].events[1];
  EXPECT_THAT(error_of(damaged), HasSubstr("two times"));
  damaged = whole;
  damaged.ranks[2].stage = 1;
  EXPECT_THAT(error_of(damaged), HasSubstr("stage"));
}

// Goal: lines of a file are read as written; torn ones and those of another
// version are told apart. Method: write, cut and change one.
TEST(StepObservationTest, ReadsItsOwnLines) {
  const Case of = MakeCase(FourStages(), MakeProfile({}));
  const Timeline timeline = *SimulatePrograms(of.programs, of.cost);
  StepObservation observed = *ObserveStep(of.programs, of.cost, timeline, {});
  observed.generation = 3;
  observed.step = 17;
  observed.slow_ranks = {2};
  // A row of attention with a window has a figure more.
  const auto attention =
      std::ranges::find(observed.ops, OpKind::kAttentionForward,
                        [](const OpObservation& op) { return op.shape.kind; });
  ASSERT_NE(attention, observed.ops.end());
  OpObservation windowed = *attention;
  windowed.shape.figures[5] = 8;
  observed.ops.push_back(windowed);
  const std::string line = StepObservationToJson(observed);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const auto read = StepObservationFromJson(line);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, observed);
  for (const size_t length :
       {size_t{0}, size_t{1}, line.size() / 2, line.size() - 1}) {
    EXPECT_THAT(
        StepObservationFromJson(line.substr(0, length)).status().message(),
        HasSubstr("not an observed step"));
  }
  std::string other = line;
  other.replace(other.find("\"version\":1"), 11, "\"version\":9");
  EXPECT_THAT(StepObservationFromJson(other).status().message(),
              HasSubstr("version 9"));
  EXPECT_THAT(StepObservationFromJson("{}").status().message(),
              HasSubstr("not an observed step"));
}

}  // namespace
}  // namespace millrace
