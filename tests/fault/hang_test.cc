#include "fault/hang.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/stopped_job.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const std::vector<Layout>& WatchedLayouts() {
  static const auto* const kLayouts = new std::vector<Layout>{
      {.data = 4, .num_microbatches = 2, .zero = 1},
      {.data = 2, .tensor = 2, .num_microbatches = 2},
      {.pipeline = 4, .num_microbatches = 4},
      {.pipeline = 2, .data = 2, .tensor = 2, .num_microbatches = 2, .zero = 1},
      {.pipeline = 2,
       .data = 3,
       .num_microbatches = 2,
       .extra_microbatches = 2,
       .zero = 1}};
  return *kLayouts;
}

// Goal: whichever instruction of whichever rank never ends, that rank alone is
// named as missing, with the instruction it is at; and once it is silent, too.
// Method: computations of every Program of four layouts in turn (every third,
// of the largest every seventh), the last rank of its stage being the one.
TEST(FindStuckCallsTest, NamesTheRankThatComputesForEver) {
  int num_hangs = 0;
  for (const Layout& layout : WatchedLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
      const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
      if (at.data != layout.data - 1 || at.tensor != layout.tensor - 1)
        continue;
      const auto program = BuildTrainingProgram(kStoppedModel, layout, at);
      ASSERT_TRUE(program.ok());
      const size_t stride = layout.num_ranks() > 4 ? 7 : 3;
      for (size_t i = 0; i < program->instructions.size(); i += stride) {
        const Instruction& instruction = program->instructions[i];
        if (IsCollective(instruction.kind) || IsTransfer(instruction.kind)) {
          continue;
        }
        SCOPED_TRACE(absl::StrCat("rank ", rank, " at ", instruction.name));
        const StoppedJob job(layout, Rank{rank}, static_cast<InstructionId>(i));
        const auto programs = job.programs();
        auto progress = job.progress();
        const std::vector<StuckCall> stuck = FindStuckCalls(programs, progress);
        if (!job.OthersWait()) {
          EXPECT_THAT(stuck, IsEmpty());
          continue;
        }
        ++num_hangs;
        ASSERT_THAT(stuck, Not(IsEmpty()));
        for (const StuckCall& call : stuck) {
          EXPECT_THAT(call.missing, ElementsAre(Rank{rank})) << call.ToString();
          ASSERT_THAT(call.whereabouts, SizeIs(1));
          EXPECT_THAT(call.whereabouts[0], HasSubstr(instruction.name));
          EXPECT_EQ(call.step, 7);
        }
        const Hang hang = ExplainStandstill(programs, progress);
        EXPECT_THAT(hang.culprits, ElementsAre(Rank{rank}));
        EXPECT_THAT(hang.whereabouts[0], HasSubstr(instruction.name));
        progress[rank].reset();
        for (const StuckCall& call : FindStuckCalls(programs, progress)) {
          EXPECT_THAT(call.missing, ElementsAre(Rank{rank}));
          EXPECT_THAT(call.whereabouts, ElementsAre("it gave no sign of life"));
        }
      }
    }
  }
  EXPECT_GT(num_hangs, 100);
}

// Goal: when all have come and nothing moves, that is what is said. Method: the
// first collective of the tensor group ends on nobody.
TEST(FindStuckCallsTest, SaysThatAllCame) {
  const Layout layout{.tensor = 2};
  const auto program = BuildTrainingProgram(kStoppedModel, layout, 0);
  ASSERT_TRUE(program.ok());
  const InstructionId first =
      program->lanes[static_cast<int>(Lane::kTensorComm)].at(0);
  // Stopping one member of two at the call stops the call.
  const StoppedJob job(layout, Rank{0}, first);
  const auto stuck = FindStuckCalls(job.programs(), job.progress());
  ASSERT_THAT(stuck, SizeIs(1));
  EXPECT_THAT(stuck[0].missing, IsEmpty());
  EXPECT_THAT(stuck[0].arrived, ElementsAre(Rank{0}, Rank{1}));
  EXPECT_THAT(stuck[0].ToString(), AllOf(HasSubstr("tensor group (ranks 0, 1)"),
                                         HasSubstr("ranks 0, 1 all came")));
}

// Goal: a rank that is still in an earlier step is missing from all calls of
// the next.
TEST(FindStuckCallsTest, NamesARankThatIsAStepBehind) {
  const Layout layout{.data = 2};
  const auto program = BuildTrainingProgram(kStoppedModel, layout, 0);
  ASSERT_TRUE(program.ok());
  // Rank 1 stops before its first collective, and is a step behind.
  const StoppedJob job(layout, Rank{1}, 0);
  auto progress = job.progress();
  progress[1]->step = 6;
  const auto stuck = FindStuckCalls(job.programs(), progress);
  ASSERT_THAT(stuck, Not(IsEmpty()));
  EXPECT_THAT(stuck[0].missing, ElementsAre(Rank{1}));
  EXPECT_THAT(stuck[0].whereabouts[0], HasSubstr("it is still in step 6"));
}

// Goal: in a job of one rank, and where ranks that wait for nobody stand, the
// one that is inside its step is named with its instruction; a call that all
// came to names nobody.
TEST(ExplainStandstillTest, NamesWhoIsInsideAStep) {
  const Layout alone{};
  const StoppedJob single(alone, Rank{0}, 3);
  const Hang hang = ExplainStandstill(single.programs(), single.progress());
  EXPECT_THAT(hang.culprits, ElementsAre(Rank{0}));
  EXPECT_THAT(hang.whereabouts[0],
              HasSubstr(single.programs()[0]->instructions[3].name));

  const Layout layout{.tensor = 2};
  const InstructionId first = StoppedJob(layout, Rank{0}, 0)
                                  .programs()[0]
                                  ->lanes[static_cast<int>(Lane::kTensorComm)]
                                  .at(0);
  const StoppedJob pair(layout, Rank{0}, first);
  const Hang met = ExplainStandstill(pair.programs(), pair.progress());
  EXPECT_THAT(met.culprits, IsEmpty());
  EXPECT_THAT(met.explanation, HasSubstr("ranks 0, 1 all came"));
}

}  // namespace
}  // namespace millrace
