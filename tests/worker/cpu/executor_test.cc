#include "worker/cpu/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/allocation_counter.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Adds an instruction; its kind is never looked at beyond its name.
InstructionId Add(Program& program, Lane lane, Waits waits) {
  const auto id = static_cast<InstructionId>(program.instructions.size());
  program.instructions.push_back({.kind = OpKind::kAdd,
                                  .phase = Phase::kForward,
                                  .lane = lane,
                                  .name = absl::StrCat("instruction_", id),
                                  .waits = std::move(waits)});
  program.lanes[static_cast<int>(lane)].push_back(id);
  return id;
}

Program RandomProgram(uint32_t seed, int32_t num_instructions) {
  std::mt19937 random(seed);
  Program program{.stage = 0};
  for (InstructionId id = 0; id < num_instructions; ++id) {
    const auto lane = static_cast<Lane>(random() % kNumLanes);
    Waits waits;
    for (uint32_t i = 0; i < random() % 4 && id > 0; ++i) {
      const auto earlier = static_cast<InstructionId>(random() % id);
      if (program.instructions[earlier].lane != lane &&
          std::find(waits.begin(), waits.end(), earlier) == waits.end()) {
        waits.push_back(earlier);
      }
    }
    Add(program, lane, waits);
  }
  return program;
}

// Goal: an instruction runs after everything it waits for and after its lane's
// earlier ones, once a run, run after run. Method: random Programs over all
// lanes; each op looks at the counts of the others.
TEST(ExecutorTest, KeepsOrderOnEveryRun) {
  constexpr int kNumRuns = 20;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Program program = RandomProgram(seed, 200);
    std::vector<std::atomic<int>> num_done(program.instructions.size());
    std::vector<BoundOp> ops;
    for (InstructionId id = 0; id < 200; ++id) {
      ops.push_back([&program, &num_done, id] {
        const int run = num_done[id].load();
        for (const InstructionId earlier : program.instructions[id].waits) {
          EXPECT_EQ(num_done[earlier].load(), run + 1);
        }
        for (const InstructionId other :
             program.lanes[static_cast<int>(program.instructions[id].lane)]) {
          EXPECT_EQ(num_done[other].load(), other < id ? run + 1 : run);
        }
        ++num_done[id];
        return absl::OkStatus();
      });
    }
    PreparedProgram prepared(&program, std::move(ops));
    Executor executor({.name = "rank 0"});
    for (int run = 0; run < kNumRuns; ++run) {
      ASSERT_TRUE(executor.Run(prepared, run).ok());
    }
    for (const std::atomic<int>& count : num_done) EXPECT_EQ(count, kNumRuns);
  }
}

// Goal: the timeline has every instruction once, by start, each starting after
// what it waits for has ended. Method: a random Program.
TEST(ExecutorTest, TimelineFollowsTheWaits) {
  const Program program = RandomProgram(7, 100);
  PreparedProgram prepared(
      &program, std::vector<BoundOp>(100, [] { return absl::OkStatus(); }));
  Executor executor({.name = "rank 0"});
  ASSERT_TRUE(executor.Run(prepared, 1).ok());
  RankTimeline timeline;
  prepared.FillTimeline(&timeline);
  ASSERT_EQ(timeline.events.size(), 100u);
  std::vector<const TimelineEvent*> by_instruction(100, nullptr);
  double last_start = 0;
  for (const TimelineEvent& event : timeline.events) {
    EXPECT_GE(event.start_s, last_start);
    EXPECT_GE(event.end_s, event.start_s);
    EXPECT_EQ(by_instruction[event.instruction], nullptr);
    by_instruction[event.instruction] = &event;
    last_start = event.start_s;
  }
  for (InstructionId id = 0; id < 100; ++id) {
    for (const InstructionId earlier : program.instructions[id].waits) {
      EXPECT_GE(by_instruction[id]->start_s, by_instruction[earlier]->end_s);
    }
  }
}

// Goal: Programs take turns on one set of lanes. Method: two of different
// shapes, alternating.
TEST(ExecutorTest, RunsProgramsInTurn) {
  const Program first = RandomProgram(1, 50);
  const Program second = RandomProgram(2, 30);
  std::atomic<int> count{0};
  const BoundOp op = [&] {
    ++count;
    return absl::OkStatus();
  };
  PreparedProgram prepared_first(&first, std::vector<BoundOp>(50, op));
  PreparedProgram prepared_second(&second, std::vector<BoundOp>(30, op));
  Executor executor({.name = "rank 0"});
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(executor.Run(prepared_first, i).ok());
    ASSERT_TRUE(executor.Run(prepared_second, i).ok());
  }
  EXPECT_EQ(count, 10 * 80);
}

// Goal: a failing instruction ends the run with an error that names rank, step
// and instruction; what blocks elsewhere is told, what waits never runs, and
// later runs are refused. Method: one lane fails, one blocks until on_failure,
// one waits for both.
TEST(ExecutorTest, FirstFailureStopsEveryLane) {
  Program program{.stage = 0};
  const InstructionId failing = Add(program, Lane::kCompute, {});
  const InstructionId blocked = Add(program, Lane::kDataComm, {});
  Add(program, Lane::kHost, {failing, blocked});
  absl::Notification failed;
  std::atomic<int> num_failures{0};
  std::atomic<bool> waiting_ran{false};
  Executor executor({.name = "rank 3", .on_failure = [&] {
                       ++num_failures;
                       failed.Notify();
                     }});
  PreparedProgram prepared(&program,
                           {[] { return absl::InternalError("no luck"); },
                            [&] {
                              failed.WaitForNotification();
                              return absl::AbortedError("gave up");
                            },
                            [&] {
                              waiting_ran = true;
                              return absl::OkStatus();
                            }});
  const absl::Status status = executor.Run(prepared, 17);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("rank 3, step 17, instruction_0"), HasSubstr("no luck")));
  EXPECT_EQ(num_failures, 1);
  EXPECT_FALSE(waiting_ran);
  EXPECT_EQ(executor.Run(prepared, 18), status);
}

// Goal: Abort() from another thread ends a run whose lanes wait for each other,
// and refuses later ones. Method: the op that all wait for ends when told; the
// rest must not run.
TEST(ExecutorTest, AbortEndsWaitingLanes) {
  Program program{.stage = 0};
  const InstructionId first = Add(program, Lane::kCompute, {});
  Add(program, Lane::kHost, {first});
  Add(program, Lane::kTensorComm, {first});
  absl::Notification started, release;
  std::atomic<int> num_later{0};
  const BoundOp later = [&] {
    ++num_later;
    return absl::OkStatus();
  };
  PreparedProgram prepared(&program, {[&] {
                                        started.Notify();
                                        release.WaitForNotification();
                                        return absl::OkStatus();
                                      },
                                      later, later});
  Executor executor({.name = "rank 0"});
  std::thread aborter([&] {
    started.WaitForNotification();
    executor.Abort();
    release.Notify();
  });
  EXPECT_TRUE(absl::IsAborted(executor.Run(prepared, 1)));
  aborter.join();
  EXPECT_EQ(num_later, 0);
  EXPECT_TRUE(absl::IsAborted(executor.Run(prepared, 2)));
}

// Goal: a run allocates nothing. Method: count operator new over runs after the
// first, which starts the threads.
TEST(ExecutorTest, RunAllocatesNothing) {
  const Program program = RandomProgram(3, 300);
  PreparedProgram prepared(
      &program, std::vector<BoundOp>(300, [] { return absl::OkStatus(); }));
  Executor executor({.name = "rank 0"});
  ASSERT_TRUE(executor.Run(prepared, 1).ok());
  StartCountingAllocations();
  for (int step = 2; step < 20; ++step) {
    ASSERT_TRUE(executor.Run(prepared, step).ok());
  }
  EXPECT_EQ(StopCountingAllocations().own, 0);
}

// Goal: the counter the test above trusts does count. Method: allocate.
TEST(AllocationCounterTest, Counts) {
  StartCountingAllocations();
  auto value = std::make_unique<std::vector<int>>(100);
  EXPECT_EQ(StopCountingAllocations().own, 2);
  EXPECT_EQ(value->size(), 100u);
}

}  // namespace
}  // namespace millrace
