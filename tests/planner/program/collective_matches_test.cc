#include "planner/program/collective_matches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/lower/lower.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

std::vector<const Program*> Pointers(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) pointers.push_back(&program);
  return pointers;
}

bool IsOfAllStages(const Instruction& in) {
  return IsCollective(in.kind) &&
         std::get<CollectiveAttributes>(in.attributes).group == Group::kWorld;
}

// Goal: every transfer meets its other end, every world collective all stages,
// nothing else anything, and nothing twice. Method: sweep layouts; who meets is
// found again by what instructions are.
TEST(StageMeetingsTest, PairTransfersAndJoinWorldCollectives) {
  for (const Layout& layout : TestLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const std::vector<Program> programs =
        *BuildTrainingPrograms(TestModel(), layout);
    const auto meetings = StageMeetingsOf(Pointers(programs));
    ASSERT_TRUE(meetings.ok()) << meetings.status();
    std::set<std::pair<int32_t, InstructionId>> seen;
    for (const StageMeeting& meeting : *meetings) {
      const auto at = [&](size_t i) -> const Instruction& {
        return programs[meeting[i].stage].instructions[meeting[i].id];
      };
      for (const StageInstruction& member : meeting) {
        EXPECT_TRUE(seen.insert({member.stage, member.id}).second);
      }
      if (IsOfAllStages(at(0))) {
        ASSERT_EQ(meeting.size(), programs.size());
        for (size_t i = 0; i < meeting.size(); ++i) {
          EXPECT_EQ(meeting[i].stage, static_cast<int32_t>(i));
          EXPECT_TRUE(IsOfAllStages(at(i)));
        }
        continue;
      }
      ASSERT_EQ(meeting.size(), 2u);
      EXPECT_EQ(meeting[1].stage, meeting[0].stage + 1);
      EXPECT_EQ(at(1).lane, at(0).lane == Lane::kSendNext
                                ? Lane::kReceivePrevious
                                : Lane::kSendPrevious);
      EXPECT_EQ(at(0).microbatch_idx, at(1).microbatch_idx);
    }
    size_t num_that_meet = 0;
    for (const Program& program : programs) {
      for (const Instruction& in : program.instructions) {
        num_that_meet += IsTransfer(in.kind) || IsOfAllStages(in) ? 1 : 0;
      }
    }
    EXPECT_EQ(seen.size(), num_that_meet);
  }
}

// Goal: Programs that do not fit each other are refused, by name. Method: leave
// a transfer out of one lane, then a collective out of one stage.
TEST(StageMeetingsTest, RefuseWhatDoesNotMeet) {
  const Layout layout{.pipeline = 2, .num_microbatches = 2};
  const std::vector<Program> programs =
      *BuildTrainingPrograms(TestModel(), layout);
  std::vector<Program> changed = programs;
  changed[1].lanes[static_cast<int>(Lane::kReceivePrevious)].pop_back();
  absl::Status status = StageMeetingsOf(Pointers(changed)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("stage 0 has 2 transfers"));
  changed = programs;
  std::vector<InstructionId>& lane =
      changed[1].lanes[static_cast<int>(Lane::kDataComm)];
  ASSERT_GT(std::erase_if(lane,
                          [&](InstructionId id) {
                            return IsOfAllStages(changed[1].instructions[id]);
                          }),
            0u);
  status = StageMeetingsOf(Pointers(changed)).status();
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("a world collective has 1 of 2 stages"));
}

}  // namespace
}  // namespace millrace
