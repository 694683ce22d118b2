#include "planner/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/graph.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string BufferName(const Program& program, BufferId id) {
  return program.buffers[id].name;
}

// Goal: every layout lowers to Programs without races, on right lanes, with
// operands in their arenas; equal inputs give equal Programs. Method: sweep,
// and check each with CheckProgram, which shares no code with the lowering's
// waits.
TEST(BuildTrainingProgramTest, GivesSoundProgramsForEveryLayout) {
  for (const Layout& layout : TestLayouts()) {
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", stage ", stage));
      absl::StatusOr<Program> program =
          BuildTrainingProgram(TestModel(), layout, stage);
      ASSERT_TRUE(program.ok()) << program.status();
      ASSERT_TRUE(CheckProgram(*program).ok()) << CheckProgram(*program);
      absl::StatusOr<Program> again =
          BuildTrainingProgram(TestModel(), layout, stage);
      EXPECT_EQ(ProgramHash(*program), ProgramHash(*again));
    }
  }
}

// Goal: validation Programs are sound, change no parameter and share the
// persistent arena with training. Method: sweep.
TEST(BuildValidationProgramTest, SharesThePersistentArena) {
  for (const Layout& layout : TestLayouts()) {
    if (layout.num_microbatches != 2) continue;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", stage ", stage));
      absl::StatusOr<Program> training =
          BuildTrainingProgram(TestModel(), layout, stage);
      absl::StatusOr<Program> validation =
          BuildValidationProgram(TestModel(), layout, stage);
      ASSERT_TRUE(training.ok() && validation.ok());
      EXPECT_TRUE(CheckProgram(*validation).ok()) << CheckProgram(*validation);
      EXPECT_EQ(validation->persistent_arena_bytes,
                training->persistent_arena_bytes);
      EXPECT_EQ(validation->exp_avg_buffer, -1);
      EXPECT_EQ(validation->exp_avg_sq_buffer, -1);
      std::map<std::string, int64_t> offsets;
      for (const Buffer& buffer : training->buffers) {
        if (buffer.arena == Arena::kPersistent) {
          offsets[buffer.name] = buffer.offset_bytes;
        }
      }
      for (const Buffer& buffer : validation->buffers) {
        if (buffer.arena != Arena::kPersistent) continue;
        ASSERT_TRUE(offsets.contains(buffer.name)) << buffer.name;
        EXPECT_EQ(buffer.offset_bytes, offsets[buffer.name]) << buffer.name;
      }
      for (const Instruction& instruction : validation->instructions) {
        for (BufferId id : instruction.outputs) {
          EXPECT_FALSE(
              absl::StartsWith(BufferName(*validation, id), "parameters"));
        }
      }
    }
  }
}

// Goal: ops over a group of one rank are left out, and those over larger ones
// are there. Method: look for each group in Programs of layouts that have it.
TEST(BuildTrainingProgramTest, CommunicatesOverGroupsThatExistOnly) {
  for (const Layout& layout : TestLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    absl::StatusOr<Program> program =
        BuildTrainingProgram(TestModel(), layout, 0);
    ASSERT_TRUE(program.ok()) << program.status();
    std::set<Group> groups;
    int num_sends = 0, num_receives = 0;
    for (const Instruction& instruction : program->instructions) {
      if (IsCollective(instruction.kind)) {
        groups.insert(
            std::get<CollectiveAttributes>(instruction.attributes).group);
      }
      num_sends += instruction.kind == OpKind::kSend;
      num_receives += instruction.kind == OpKind::kReceive;
    }
    EXPECT_EQ(groups.contains(Group::kTensor), layout.tensor > 1);
    EXPECT_EQ(groups.contains(Group::kData), layout.data > 1);
    EXPECT_EQ(groups.contains(Group::kWorld), layout.num_ranks() > 1);
    const int transfers = layout.pipeline > 1 ? layout.num_microbatches : 0;
    EXPECT_EQ(num_sends, transfers);
    EXPECT_EQ(num_receives, transfers);
  }
}

// Goal: what one stage sends is what the next receives, in one order. Method:
// compare the lanes of each pair of neighbours.
TEST(BuildTrainingProgramTest, TransfersMatchBetweenNeighbours) {
  const Layout layout{.pipeline = 4, .tensor = 2, .num_microbatches = 5};
  std::vector<Program> programs;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    programs.push_back(*BuildTrainingProgram(TestModel(), layout, stage));
  }
  auto transfers = [](const Program& program, Lane lane) {
    std::vector<std::string> result;
    for (InstructionId id : program.lanes[static_cast<int>(lane)]) {
      const Instruction& instruction = program.instructions[id];
      result.push_back(
          absl::StrCat("mb", instruction.microbatch_idx,
                       AttributesToString(instruction.attributes)));
    }
    return result;
  };
  for (int32_t stage = 0; stage + 1 < layout.pipeline; ++stage) {
    EXPECT_EQ(transfers(programs[stage], Lane::kSendNext),
              transfers(programs[stage + 1], Lane::kReceivePrevious));
    EXPECT_EQ(transfers(programs[stage], Lane::kReceiveNext),
              transfers(programs[stage + 1], Lane::kSendPrevious));
    EXPECT_EQ(transfers(programs[stage], Lane::kSendNext).size(), 5u);
  }
}

// Goal: the first micro-batch overwrites each gradient, later ones add. Method:
// follow every gradient of every bucket through the step.
TEST(BuildTrainingProgramTest, FirstMicrobatchOverwritesGradients) {
  const Layout layout{.tensor = 2, .num_microbatches = 3};
  absl::StatusOr<Program> program =
      BuildTrainingProgram(TestModel(), layout, 0);
  ASSERT_TRUE(program.ok());
  std::map<std::string, int> writes;
  for (const Instruction& instruction : program->instructions) {
    if (instruction.microbatch_idx < 0) continue;
    for (BufferId id : instruction.outputs) {
      const std::string& name = BufferName(*program, id);
      if (!absl::StartsWith(name, "gradients/")) continue;
      const bool accumulate = std::visit(
          [](const auto& a) {
            if constexpr (requires { a.accumulate; }) return a.accumulate;
            return false;
          },
          instruction.attributes);
      EXPECT_EQ(accumulate, instruction.microbatch_idx > 0) << name;
      ++writes[name];
    }
  }
  // Four matrices and two norms a layer, embedding, head, final norm.
  EXPECT_EQ(writes.size(), 5u * 6 + 3);
  for (const auto& [name, count] : writes) EXPECT_EQ(count, 3) << name;
}

// Goal: a bucket's reduction starts while the rest of the backward pass runs.
// Method: no reduction but the last ones waits for the last compute instruction
// of the backward passes.
TEST(BuildTrainingProgramTest, ReducesBucketsDuringTheBackwardPass) {
  const Layout layout{.data = 2, .num_microbatches = 2, .zero = 1};
  absl::StatusOr<Program> program =
      BuildTrainingProgram(TestModel(), layout, 0);
  ASSERT_TRUE(program.ok());
  InstructionId last_backward = -1;
  std::map<std::string, InstructionId> waited;
  for (size_t i = 0; i < program->instructions.size(); ++i) {
    const Instruction& instruction = program->instructions[i];
    if (instruction.microbatch_idx == 1 && instruction.lane == Lane::kCompute) {
      last_backward = static_cast<InstructionId>(i);
    }
    if (instruction.phase == Phase::kGradientReduce) {
      ASSERT_FALSE(instruction.waits.empty());
      waited[instruction.name] = instruction.waits.back();
    }
  }
  EXPECT_EQ(waited.size(), 5u + 3);
  EXPECT_EQ(waited["reduce_gradients/embedding"], last_backward);
  EXPECT_LT(waited["reduce_gradients/head"],
            waited["reduce_gradients/layers.4"]);
  EXPECT_LT(waited["reduce_gradients/layers.4"],
            waited["reduce_gradients/layers.0"]);
  EXPECT_LT(waited["reduce_gradients/layers.0"], last_backward);
}

// Goal: 1F1B's bound on memory: the step arena of a deep pipeline does not grow
// with the number of micro-batches. Method: compare 8 with 16 micro-batches.
TEST(BuildTrainingProgramTest, MemoryStopsGrowingWithMicrobatches) {
  for (int32_t stage = 0; stage < 4; ++stage) {
    Layout layout{.pipeline = 4, .num_microbatches = 8};
    const int64_t eight =
        BuildTrainingProgram(TestModel(), layout, stage)->step_arena_bytes;
    layout.num_microbatches = 16;
    const int64_t sixteen =
        BuildTrainingProgram(TestModel(), layout, stage)->step_arena_bytes;
    EXPECT_LE(sixteen, eight * 1.1) << "stage " << stage;
  }
}

// Goal: shares make sums over the world right. Method: the loss shares of the
// ranks that add a loss sum to one a data replica; squared-norm shares sum to
// one for every element.
TEST(BuildTrainingProgramTest, SharesSumToOne) {
  for (const Layout& layout : TestLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const Program program =
        *BuildTrainingProgram(TestModel(), layout, layout.pipeline - 1);
    const bool sharded = layout.zero == 1 && layout.data > 1;
    for (const Instruction& instruction : program.instructions) {
      if (instruction.kind == OpKind::kLinearCrossEntropy ||
          instruction.kind == OpKind::kCrossEntropyGradient) {
        const auto& a = std::get<VocabAttributes>(instruction.attributes);
        EXPECT_DOUBLE_EQ(a.loss_share * layout.tensor, 1.0);
        EXPECT_DOUBLE_EQ(
            a.token_scale * layout.global_batch() * TestModel().sequence_length,
            1.0);
      }
      if (instruction.kind == OpKind::kSquaredNorm) {
        const auto& a = std::get<OptimizerAttributes>(instruction.attributes);
        EXPECT_EQ(a.data_sharded, sharded);
        double copies = sharded ? 1 : layout.data;
        if (instruction.name == "squared_norm/norms") copies *= layout.tensor;
        EXPECT_DOUBLE_EQ(a.share * copies, 1.0) << instruction.name;
      }
    }
  }
}

// Goal: what cannot be lowered is refused. Method: a bad layout, a bad stage.
TEST(BuildTrainingProgramTest, RefusesWhatCannotBe) {
  EXPECT_THAT(std::string(BuildTrainingProgram(TestModel(), {.tensor = 3}, 0)
                              .status()
                              .message()),
              HasSubstr("tensor"));
  EXPECT_EQ(
      BuildTrainingProgram(TestModel(), {.pipeline = 2}, 2).status().code(),
      absl::StatusCode::kInvalidArgument);
}

// Goal: the logits workspace stays near its limit and within the tokens there
// are. Method: a small, a large and a huge vocabulary.
TEST(ChunkTokensTest, KeepsTheWorkspaceSmall) {
  EXPECT_EQ(ChunkTokens(100, 50), 100);
  EXPECT_EQ(ChunkTokens(4096, 8192), 128);
  EXPECT_EQ(ChunkTokens(4096, 200000), 64);
  EXPECT_EQ(ChunkTokens(10, 200000), 10);
}

}  // namespace
}  // namespace millrace
