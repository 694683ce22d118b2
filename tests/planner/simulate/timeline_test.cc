#include "planner/simulate/timeline.h"

#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// A Program of bare instructions: kinds, lanes and waits are all that matters.
class ProgramSketch {
 public:
  explicit ProgramSketch(int32_t pipeline) {
    program_.layout.pipeline = pipeline;
  }
  InstructionId Add(Lane lane, Waits waits, Group group = Group::kTensor) {
    const InstructionId id =
        static_cast<InstructionId>(program_.instructions.size());
    program_.instructions.push_back(
        {.kind = OpKind::kAllReduce,
         .phase = Phase::kForward,
         .lane = lane,
         .microbatch_idx = 0,
         .name = "",
         .attributes =
             CollectiveAttributes{
                 .group = group, .num_elements = 1, .dtype = DType::kFloat32},
         .waits = std::move(waits)});
    program_.lanes[static_cast<int>(lane)].push_back(id);
    return id;
  }
  const Program& program() const { return program_; }

 private:
  Program program_{};
};

double Sum(const TimeBreakdown& b) {
  return b.compute_s + b.exposed_tensor_comm_s + b.exposed_data_comm_s +
         b.bubble_s + b.data_s + b.other_s;
}

// Goal: each idle time goes to what was waited for, and the parts sum to the
// step. Method: one gap of each sort, of different lengths.
TEST(BreakDownTest, AttributesEachGap) {
  ProgramSketch sketch(2);
  const InstructionId load = sketch.Add(Lane::kHost, {});
  const InstructionId a = sketch.Add(Lane::kCompute, {load});
  const InstructionId gather = sketch.Add(Lane::kTensorComm, {a});
  const InstructionId b = sketch.Add(Lane::kCompute, {gather});
  const InstructionId receive = sketch.Add(Lane::kReceiveNext, {});
  const InstructionId c = sketch.Add(Lane::kCompute, {receive});
  const InstructionId reduce = sketch.Add(Lane::kDataComm, {c}, Group::kData);
  const InstructionId d = sketch.Add(Lane::kCompute, {reduce});
  const RankTimeline timeline{.rank = Rank{0},
                              .stage = 0,
                              .events = {{load, 0, 1},
                                         {receive, 0, 10},
                                         {a, 1, 3},
                                         {gather, 3, 5},
                                         {b, 5.5, 6},  // Half a second lost.
                                         {c, 10, 12},
                                         {reduce, 12, 20},
                                         {d, 20, 21}}};
  const TimeBreakdown breakdown = BreakDown(sketch.program(), timeline, 22);
  EXPECT_DOUBLE_EQ(breakdown.data_s, 1);
  EXPECT_DOUBLE_EQ(breakdown.exposed_tensor_comm_s, 2);
  EXPECT_DOUBLE_EQ(breakdown.bubble_s, 4);
  EXPECT_DOUBLE_EQ(breakdown.exposed_data_comm_s, 8);
  EXPECT_DOUBLE_EQ(breakdown.compute_s, 2 + 0.5 + 2 + 1);
  EXPECT_DOUBLE_EQ(breakdown.other_s, 0.5 + 1);
  EXPECT_DOUBLE_EQ(Sum(breakdown), 22);
}

// Goal: a wait behind a wait counts for what came first. Method: computation
// waits for a gather that waits for a receive.
TEST(BreakDownTest, FollowsTheChain) {
  ProgramSketch sketch(2);
  const InstructionId receive = sketch.Add(Lane::kReceiveNext, {});
  const InstructionId gather = sketch.Add(Lane::kTensorComm, {receive});
  const InstructionId compute = sketch.Add(Lane::kCompute, {gather});
  const RankTimeline timeline{
      .rank = Rank{0},
      .stage = 0,
      .events = {{receive, 0, 3}, {gather, 3, 4}, {compute, 4, 6}}};
  const TimeBreakdown breakdown = BreakDown(sketch.program(), timeline);
  EXPECT_DOUBLE_EQ(breakdown.bubble_s, 3);
  EXPECT_DOUBLE_EQ(breakdown.exposed_tensor_comm_s, 1);
  EXPECT_DOUBLE_EQ(breakdown.compute_s, 2);
}

// Goal: communication after the last computation is exposed, and meeting the
// world is a bubble in a pipeline, communication otherwise. Method: both.
TEST(BreakDownTest, CountsTheTail) {
  for (int32_t pipeline : {1, 2}) {
    ProgramSketch sketch(pipeline);
    const InstructionId a = sketch.Add(Lane::kCompute, {});
    const InstructionId world = sketch.Add(Lane::kDataComm, {a}, Group::kWorld);
    const InstructionId b = sketch.Add(Lane::kCompute, {world});
    const InstructionId gather = sketch.Add(Lane::kDataComm, {b}, Group::kData);
    const RankTimeline timeline{
        .rank = Rank{0},
        .stage = 0,
        .events = {{a, 0, 1}, {world, 1, 3}, {b, 3, 4}, {gather, 4, 9}}};
    const TimeBreakdown breakdown = BreakDown(sketch.program(), timeline);
    EXPECT_DOUBLE_EQ(breakdown.bubble_s, pipeline == 1 ? 0 : 2);
    EXPECT_DOUBLE_EQ(breakdown.exposed_data_comm_s, pipeline == 1 ? 7 : 5);
    EXPECT_DOUBLE_EQ(Sum(breakdown), 9);
  }
}

// Goal: clocks read apart by different threads, so that events overlap a
// little, neither break the sum nor make a part negative. Method: overlapping
// events.
TEST(BreakDownTest, ToleratesOverlappingEvents) {
  ProgramSketch sketch(1);
  const InstructionId a = sketch.Add(Lane::kCompute, {});
  const InstructionId gather = sketch.Add(Lane::kTensorComm, {a});
  const InstructionId b = sketch.Add(Lane::kCompute, {gather});
  const RankTimeline timeline{
      .rank = Rank{0},
      .stage = 0,
      .events = {{a, 0, 2}, {gather, 1.9, 3.1}, {b, 3, 4}}};
  const TimeBreakdown breakdown = BreakDown(sketch.program(), timeline);
  EXPECT_DOUBLE_EQ(breakdown.exposed_tensor_comm_s, 1);
  EXPECT_DOUBLE_EQ(Sum(breakdown), 4);
}

// Goal: JSON there and back is the same timeline, bit for bit. Method: figures
// that no short decimal holds.
TEST(TimelineJsonTest, RoundTrips) {
  const Timeline timeline{
      .step_time_s = 1.0 / 3,
      .ranks = {{.rank = Rank{5},
                 .stage = 2,
                 .events = {{0, 1e-9 / 7, 0.1}, {3, 0.1, 0.2 + 0.1}}},
                {.rank = Rank{6}, .stage = 0, .events = {}}}};
  absl::StatusOr<Timeline> read = TimelineFromJson(TimelineToJson(timeline));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step_time_s, timeline.step_time_s);
  ASSERT_EQ(read->ranks.size(), 2u);
  EXPECT_EQ(read->ranks[0].rank, Rank{5});
  EXPECT_EQ(read->ranks[0].stage, 2);
  ASSERT_EQ(read->ranks[0].events.size(), 2u);
  EXPECT_EQ(read->ranks[0].events[0].start_s, 1e-9 / 7);
  EXPECT_EQ(read->ranks[0].events[1].end_s, 0.2 + 0.1);
  EXPECT_EQ(read->ranks[0].events[1].instruction, 3);
}

// Goal: begins by a common clock become begins after the first rank's, and
// survive the file; a rank without one makes all of them unknown, and the file
// says nothing of them. Method: three ranks, of which one began last.
TEST(TimelineJsonTest, KeepsBegins) {
  Timeline timeline{.step_time_s = 1};
  for (const double begin_s : {1000.5, 1000.25, 1002.0}) {
    timeline.ranks.push_back({.rank = Rank{0},
                              .stage = 0,
                              .begin_s = begin_s,
                              .clock_uncertainty_s = 0.125});
  }
  Timeline unknown = timeline;
  AlignBegins(&timeline);
  const auto read = TimelineFromJson(TimelineToJson(timeline));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ranks[0].begin_s, 0.25);
  EXPECT_EQ(read->ranks[1].begin_s, 0);
  EXPECT_EQ(read->ranks[2].begin_s, 1.75);
  EXPECT_EQ(read->ranks[2].clock_uncertainty_s, 0.125);
  unknown.ranks[1].begin_s = 0;
  AlignBegins(&unknown);
  EXPECT_EQ(unknown.ranks[2].begin_s, 0);
  EXPECT_EQ(TimelineToJson(unknown).find("begin_s"), std::string::npos);
}

// Goal: what is no timeline is refused, not crashed on. Method: broken text,
// missing keys, wrong types, short events.
TEST(TimelineJsonTest, RefusesOtherJson) {
  for (const char* json :
       {"", "[", "[]", "{}", R"({"step_time_s": "x", "ranks": []})",
        R"({"step_time_s": 1})", R"({"step_time_s": 1, "ranks": [{}]})",
        R"({"step_time_s": 1, "ranks": [{"rank": 0, "stage": 0,
            "events": [[1, 2]]}]})"}) {
    EXPECT_EQ(TimelineFromJson(json).status().code(),
              absl::StatusCode::kInvalidArgument)
        << json;
  }
}

}  // namespace
}  // namespace millrace
