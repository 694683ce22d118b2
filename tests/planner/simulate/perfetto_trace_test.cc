#include "planner/simulate/perfetto_trace.h"

#include <map>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

Program TwoLanes(int32_t stage) {
  Program program{.stage = stage};
  program.instructions = {
      {.kind = OpKind::kAdd,
       .phase = Phase::kForward,
       .lane = Lane::kCompute,
       .microbatch_idx = 3,
       .name = "layers.0/add",
       .attributes = ElementwiseAttributes{.rows = 2, .cols = 5}},
      {.kind = OpKind::kAllReduce,
       .phase = Phase::kGradientReduce,
       .lane = Lane::kDataComm,
       .microbatch_idx = -1,
       .name = "reduce_gradients/norms",
       .attributes = NoAttributes{}}};
  program.lanes[static_cast<int>(Lane::kCompute)] = {0};
  program.lanes[static_cast<int>(Lane::kDataComm)] = {1};
  return program;
}

// Goal: every event of every rank is a slice of its rank's process and its
// lane's thread, in microseconds, named; threads and processes have names.
// Method: two ranks of two stages by hand, parsed back.
TEST(TimelineTraceTest, ShowsEveryInstructionOnItsLane) {
  const Program first = TwoLanes(0), second = TwoLanes(1);
  const Timeline timeline{
      .step_time_s = 0.01,
      .ranks = {{.rank = Rank{4},
                 .stage = 0,
                 .events = {{0, 0.001, 0.0015}, {1, 0.002, 0.004}}},
                {.rank = Rank{5}, .stage = 1, .events = {{1, 0, 0.003}}}}};
  const nlohmann::json trace =
      nlohmann::json::parse(TimelineToTrace({&first, &second}, timeline));

  std::map<std::pair<int, std::string>, nlohmann::json> slices;
  std::map<std::pair<int, int>, std::string> thread_names;
  std::map<int, std::string> process_names;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const int pid = event.at("pid");
    if (event.at("ph") == "X") {
      slices[{pid, event.at("name").get<std::string>()}] = event;
    } else if (event.at("name") == "thread_name") {
      thread_names[{pid, event.at("tid").get<int>()}] =
          event.at("args").at("name");
    } else if (event.at("name") == "process_name") {
      process_names[pid] = event.at("args").at("name");
    }
  }
  ASSERT_EQ(slices.size(), 3u);
  const nlohmann::json& add = slices.at({4, "layers.0/add"});
  EXPECT_NEAR(add.at("ts").get<double>(), 1000, 1e-6);
  EXPECT_NEAR(add.at("dur").get<double>(), 500, 1e-6);
  EXPECT_EQ(add.at("cat"), OpKindName(OpKind::kAdd));
  EXPECT_EQ(add.at("args").at("microbatch"), 3);
  EXPECT_EQ(thread_names.at({4, add.at("tid").get<int>()}),
            LaneName(Lane::kCompute));
  const nlohmann::json& reduce = slices.at({5, "reduce_gradients/norms"});
  EXPECT_NEAR(reduce.at("dur").get<double>(), 3000, 1e-6);
  EXPECT_FALSE(reduce.at("args").contains("microbatch"));
  EXPECT_EQ(thread_names.at({5, reduce.at("tid").get<int>()}),
            LaneName(Lane::kDataComm));
  EXPECT_EQ(process_names.at(4), "rank 4, stage 0");
  EXPECT_EQ(process_names.at(5), "rank 5, stage 1");
}

// Goal: a step by passes becomes a trace too, with a process for each class.
TEST(TimelineTraceTest, ShowsClassesOfRanks) {
  const PassTimeline timeline{
      .step_time_s = 3,
      .classes = {{.stage = 0,
                   .replica = 7,
                   .num_ranks = 128,
                   .events = {{.kind = PassEventKind::kForward,
                               .lane = Lane::kCompute,
                               .chunk_idx = 1,
                               .microbatch_idx = 3,
                               .start_s = 0.5,
                               .end_s = 2}}},
                  {.stage = 1, .replica = 0, .num_ranks = 1, .events = {}}}};
  const nlohmann::json events =
      nlohmann::json::parse(PassTimelineToTrace(timeline)).at("traceEvents");
  ASSERT_EQ(events.size(), 5u);  // Two processes, a lane's two lines, a slice.
  EXPECT_EQ(events[0].at("args").at("name"),
            "stage 0, replica 7, for 128 ranks");
  EXPECT_EQ(events[1].at("args").at("name"), "compute");
  EXPECT_EQ(events[3].at("name"), "forward of chunk 1");
  EXPECT_EQ(events[3].at("cat"), "forward");
  EXPECT_EQ(events[3].at("ts"), 0.5e6);
  EXPECT_EQ(events[3].at("dur"), 1.5e6);
  EXPECT_EQ(events[3].at("args").at("microbatch"), 3);
  EXPECT_EQ(events[4].at("args").at("name"), "stage 1, replica 0, for 1 rank");
  EXPECT_EQ(events[4].at("pid"), 1);
}

}  // namespace
}  // namespace millrace
