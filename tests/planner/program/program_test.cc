#include "planner/program/program.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

Program TestProgram(int32_t zero = 1) {
  return *BuildTrainingProgram(TestModel(),
                               {.pipeline = 2,
                                .data = 2,
                                .tensor = 2,
                                .num_microbatches = 3,
                                .zero = zero},
                               0);
}

// Goal: the text shows instructions, operands and waits, and the hash follows
// every part of it. Method: change one thing at a time.
TEST(ProgramToStringTest, ShowsEverythingAndHashesIt) {
  const Program program = TestProgram();
  const std::string text = ProgramToString(program);
  for (const char* part : {"pipeline 2 x data 2 x tensor 2",
                           "layers.0/attention/qkv  gemm m 12 n 48 k 20",
                           "mb2/layers.1/feed_forward/gate_up", "waits:"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part;
  }
  EXPECT_EQ(ProgramHash(program), ProgramHash(TestProgram()));
  Program changed = TestProgram();
  changed.buffers.back().offset_bytes += kBufferAlignment;
  EXPECT_NE(ProgramHash(changed), ProgramHash(program));
  changed = TestProgram();
  std::get<GemmAttributes>(
      std::find_if(changed.instructions.begin(), changed.instructions.end(),
                   [](const Instruction& instruction) {
                     return instruction.kind == OpKind::kGemm;
                   })
          ->attributes)
      .accumulate ^= true;
  EXPECT_NE(ProgramHash(changed), ProgramHash(program));
}

// Goal: every single wait that lowering emits is needed, and CheckProgram
// misses none of them. Method: remove one at a time; each removal must be
// found, but for those that only bound how far a lane runs ahead (loads,
// receives, gathers, and the compute instruction that waits for an old send).
class MissingWaitTest : public testing::TestWithParam<int32_t> {};
TEST_P(MissingWaitTest, IsFound) {
  const Program program = TestProgram(/*zero=*/GetParam());
  ASSERT_TRUE(CheckProgram(program).ok()) << CheckProgram(program);
  int num_removed = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (size_t w = 0; w < program.instructions[i].waits.size(); ++w) {
      const Instruction& instruction = program.instructions[i];
      const InstructionId wait = instruction.waits[w];
      if (instruction.lane == Lane::kHost || IsTransfer(instruction.kind) ||
          instruction.phase == Phase::kParameterGather ||
          program.instructions[wait].kind == OpKind::kSend) {
        continue;
      }
      Program changed = program;
      Waits& waits = changed.instructions[i].waits;
      waits.erase(waits.begin() + w);
      EXPECT_EQ(CheckProgram(changed).code(), absl::StatusCode::kInternal)
          << instruction.name << " without its wait for "
          << program.instructions[wait].name;
      ++num_removed;
    }
  }
  EXPECT_GT(num_removed, 100);
}
INSTANTIATE_TEST_SUITE_P(ZeroStages, MissingWaitTest, testing::Values(1, 2, 3));

// Goal: each kind of damage is named. Method: one at a time.
TEST(CheckProgramTest, NamesWhatIsWrong) {
  auto message = [](const Program& program) {
    return std::string(CheckProgram(program).message());
  };
  Program program = TestProgram();
  program.instructions[3].waits.push_back(3);
  EXPECT_THAT(message(program), HasSubstr("which is not before"));

  program = TestProgram();
  program.instructions.front().lane = Lane::kHost;
  EXPECT_THAT(message(program), HasSubstr("wrong lane"));

  program = TestProgram();
  std::swap(program.lanes[0][0], program.lanes[0][1]);
  EXPECT_THAT(message(program), HasSubstr("its place"));

  program = TestProgram();
  program.buffers.back().offset_bytes = program.step_arena_bytes;
  EXPECT_THAT(message(program), HasSubstr("outside its arena"));

  // A part outside its whole, and one that reads what was written as another.
  program = TestProgram(/*zero=*/3);
  const auto part =
      std::find_if(program.buffers.begin(), program.buffers.end(),
                   [](const Buffer& buffer) { return buffer.parent >= 0; });
  ASSERT_NE(part, program.buffers.end());
  const Buffer& whole = program.buffers[part->parent];
  const Buffer intact = *part;
  part->offset_bytes = whole.offset_bytes + whole.bytes;
  EXPECT_THAT(message(program), HasSubstr("is no part of"));
  *part = intact;
  part->parent = -1;
  EXPECT_THAT(message(program), HasSubstr("whose bytes hold"));

  // Two activations of one micro-batch on the same bytes.
  program = TestProgram();
  const auto find = [&](const std::string& name) {
    return std::find_if(
        program.buffers.begin(), program.buffers.end(),
        [&](const Buffer& buffer) { return buffer.name == name; });
  };
  find("mb0/layers.0/attention/attended")->offset_bytes =
      find("mb0/layers.0/attention/qkv")->offset_bytes;
  EXPECT_FALSE(CheckProgram(program).ok());
}

}  // namespace
}  // namespace millrace
