#include "planner/lower/common_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/lower/lower.h"
#include "planner/program/collective_matches.h"
#include "tests/planner/planner_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

// Executes the stages' Programs where the lanes of a set share one queue, in
// the order of instructions, and every other lane has its own. An instruction
// holds its queue until it ends; those that meet end once all are at the head
// of theirs and wait for nothing else.
class SharedQueueRun {
 public:
  SharedQueueRun(const std::vector<Program>& programs, uint32_t shared_lanes)
      : programs_(programs) {
    std::vector<const Program*> borrowed;
    for (const Program& program : programs) {
      borrowed.push_back(&program);
      const size_t size = program.instructions.size();
      Stage stage{.done = std::vector<bool>(size),
                  .meeting = std::vector<int32_t>(size, -1)};
      for (size_t i = 0; i < size; ++i) {
        const int lane = static_cast<int>(program.instructions[i].lane);
        stage.queues[(shared_lanes >> lane & 1) != 0 ? kNumLanes : lane]
            .push_back(static_cast<InstructionId>(i));
      }
      stages_.push_back(std::move(stage));
    }
    meetings_ = *StageMeetingsOf(borrowed);
    for (size_t i = 0; i < meetings_.size(); ++i) {
      for (const StageInstruction& ref : meetings_[i]) {
        stages_[ref.stage].meeting[ref.id] = static_cast<int32_t>(i);
      }
    }
  }

  // Whether all come to their end.
  bool Ends() {
    bool ran = true;
    while (ran) {
      ran = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        for (int queue = 0; queue <= kNumLanes; ++queue) {
          while (RunHead(static_cast<int32_t>(stage), queue)) ran = true;
        }
      }
    }
    for (const Stage& stage : stages_) {
      for (const bool done : stage.done) {
        if (!done) return false;
      }
    }
    return true;
  }

 private:
  struct Stage {
    std::vector<InstructionId> queues[kNumLanes + 1];
    size_t next[kNumLanes + 1] = {};
    std::vector<bool> done;
    std::vector<int32_t> meeting;
  };

  bool CanEnd(StageInstruction ref) const {
    const Stage& stage = stages_[ref.stage];
    for (int queue = 0; queue <= kNumLanes; ++queue) {
      if (stage.next[queue] == stage.queues[queue].size()) continue;
      if (stage.queues[queue][stage.next[queue]] != ref.id) continue;
      for (const InstructionId wait :
           programs_[ref.stage].instructions[ref.id].waits) {
        if (!stage.done[wait]) return false;
      }
      return true;
    }
    return false;
  }

  bool RunHead(int32_t stage_idx, int queue) {
    Stage& stage = stages_[stage_idx];
    if (stage.next[queue] == stage.queues[queue].size()) return false;
    const InstructionId id = stage.queues[queue][stage.next[queue]];
    const int32_t meeting = stage.meeting[id];
    StageMeeting members = {{stage_idx, id}};
    if (meeting >= 0) members = meetings_[meeting];
    for (const StageInstruction& member : members) {
      if (!CanEnd(member)) return false;
    }
    for (const StageInstruction& member : members) {
      Stage& other = stages_[member.stage];
      other.done[member.id] = true;
      for (int i = 0; i <= kNumLanes; ++i) {
        if (other.next[i] < other.queues[i].size() &&
            other.queues[i][other.next[i]] == member.id) {
          ++other.next[i];
          break;
        }
      }
    }
    return true;
  }

  const std::vector<Program>& programs_;
  std::vector<Stage> stages_;
  std::vector<StageMeeting> meetings_;
};

// How many sets of lanes make the Programs wait in a circle.
int CountCircles(const std::vector<Program>& programs) {
  int num_circles = 0;
  for (uint32_t lanes = 0; lanes < uint32_t{1} << kNumLanes;
       lanes += SweepStep(5)) {
    if (!SharedQueueRun(programs, lanes).Ends()) ++num_circles;
  }
  return num_circles;
}

Layout RandomListed(std::mt19937& random, int32_t pipeline) {
  const auto pick = [&](uint32_t n) {
    return static_cast<int32_t>(random() % n);
  };
  Layout layout = {.pipeline = pipeline,
                   .data = 1 + pick(2),
                   .tensor = 1 + pick(2),
                   .num_microbatches = 1 + pick(10),
                   .schedule = Schedule::kListScheduled};
  layout.listed_transfer_us = pick(100);
  for (int32_t s = 0; s < pipeline; ++s) {
    layout.listed_stages.push_back(
        {.forward_us = 100 + pick(1000),
         .input_gradient_us = 100 + pick(1000),
         .weight_gradient_us = 100 + pick(1000),
         .activation_bytes = 100,
         .weight_gradient_bytes = pick(100),
         .memory_bytes = 200 * (1 + pick(uint32_t(pipeline)))});
  }
  return layout;
}

std::vector<Program> Programs(Layout layout, bool transfers) {
  layout.copy_engines.transfers = transfers;
  return *BuildTrainingPrograms(TestModel(), layout);
}

// Goal: with transfers by copy engines, Programs end whatever lanes share a
// queue; as they are lowered, some do not, so that there is something to put
// in order. Method: random pipelines of two to four stages in every order of
// passes, all sets of lanes.
TEST(SharedQueuesTest, ProgramsEndWhateverLanesShare) {
  std::mt19937 random(7);
  for (const Schedule schedule :
       {Schedule::kListScheduled, Schedule::kOneForwardOneBackward,
        Schedule::kZeroBubble}) {
    int num_circles_as_lowered = 0;
    for (int i = 0; i < 30; i += SweepStep(7)) {
      Layout layout = RandomListed(random, 2 + i % 3);
      if (schedule != Schedule::kListScheduled) {
        layout.schedule = schedule;
        layout.listed_stages.clear();
        layout.listed_transfer_us = 0;
      }
      SCOPED_TRACE(LayoutToString(layout));
      EXPECT_EQ(CountCircles(Programs(layout, /*transfers=*/true)), 0);
      num_circles_as_lowered +=
          CountCircles(Programs(layout, /*transfers=*/false));
    }
    EXPECT_GE(num_circles_as_lowered, kSanitized ? 0 : 1);
  }
}

// "name of micro-batch", by instruction: what numbers stand for.
std::string NameOf(const Program& program, InstructionId id) {
  const Instruction& in = program.instructions[id];
  return in.name + " " + PhaseName(in.phase) + " " +
         std::to_string(in.microbatch_idx) + " on " + LaneName(in.lane);
}

// Goal: the common order changes numbers alone: each lane runs the same in the
// same order, waits are for the same and point backward. Method: random
// pipelines lowered with and without, by names.
TEST(SharedQueuesTest, LanesAndWaitsStayTheSame) {
  std::mt19937 random(11);
  for (int i = 0; i < 20; i += SweepStep(5)) {
    const Layout layout = RandomListed(random, 2 + i % 3);
    SCOPED_TRACE(LayoutToString(layout));
    const std::vector<Program> as_lowered = Programs(layout, false);
    const std::vector<Program> ordered = Programs(layout, true);
    for (size_t stage = 0; stage < ordered.size(); ++stage) {
      const Program& before = as_lowered[stage];
      const Program& after = ordered[stage];
      ASSERT_EQ(before.instructions.size(), after.instructions.size());
      for (int lane = 0; lane < kNumLanes; ++lane) {
        ASSERT_EQ(before.lanes[lane].size(), after.lanes[lane].size());
        for (size_t place = 0; place < after.lanes[lane].size(); ++place) {
          const InstructionId was = before.lanes[lane][place];
          const InstructionId is = after.lanes[lane][place];
          ASSERT_EQ(NameOf(before, was), NameOf(after, is));
          std::vector<std::string> old_waits, new_waits;
          for (const InstructionId wait : before.instructions[was].waits) {
            old_waits.push_back(NameOf(before, wait));
          }
          for (const InstructionId wait : after.instructions[is].waits) {
            EXPECT_LT(wait, is);
            new_waits.push_back(NameOf(after, wait));
          }
          EXPECT_THAT(new_waits, testing::UnorderedElementsAreArray(old_waits));
        }
      }
      EXPECT_EQ(before.step_arena_bytes, after.step_arena_bytes);
      EXPECT_EQ(ProgramToString(*BuildTrainingProgram(
                    TestModel(), after.layout, static_cast<int32_t>(stage))),
                ProgramToString(after));
    }
  }
}

}  // namespace
}  // namespace millrace
