// Tests what Programs communicate, with whom, and what runs meanwhile.

#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/program/happens_before.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

// Goal: ops over a group of one rank are left out, and those over larger ones
// are there. Method: look for each group in Programs of layouts that have it.
TEST(BuildCommunicationTest, CommunicatesOverGroupsThatExistOnly) {
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
    const bool is_cut = layout.data_groups > 1;
    EXPECT_EQ(groups.contains(Group::kData), layout.data > 1 && !is_cut);
    EXPECT_EQ(groups.contains(Group::kShards), is_cut);
    EXPECT_EQ(groups.contains(Group::kReplicas), is_cut);
    EXPECT_EQ(groups.contains(Group::kWorld), layout.num_ranks() > 1);
    const int transfers = layout.pipeline > 1 ? layout.num_microbatches : 0;
    EXPECT_EQ(num_sends, transfers);
    EXPECT_EQ(num_receives, transfers);
  }
}

// Goal: what one stage sends is what the next receives, in one order. Method:
// compare the lanes of each pair of neighbours.
TEST(BuildCommunicationTest, TransfersMatchBetweenNeighbours) {
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

// Goal: a bucket's reduction starts while the rest of the backward pass runs,
// the embedding's, the largest, under the first layer's weight gradients.
// Method: no reduction but the last one waits for the last compute instruction
// of the backward passes.
TEST(BuildCommunicationTest, ReducesBucketsDuringTheBackwardPass) {
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
  EXPECT_EQ(waited["reduce_gradients/layers.0"], last_backward);
  EXPECT_LT(waited["reduce_gradients/embedding"], last_backward - 2);
  EXPECT_LT(waited["reduce_gradients/head"],
            waited["reduce_gradients/layers.4"]);
  EXPECT_LT(waited["reduce_gradients/layers.4"],
            waited["reduce_gradients/layers.0"]);
}

// Goal: where the data axis is cut, a whole bucket is reduced inside a group as
// often as without cutting, and its slice is summed across once a step, after
// everything else that adds to it. Method: count and order the instructions
// that name each bucket, for every ZeRO stage.
TEST(BuildCommunicationTest, SumsSlicesAcrossGroupsOnceAStep) {
  for (const GradientReduction reduction :
       {GradientReduction::kFloat32, GradientReduction::kBfloat16,
        GradientReduction::kBfloat16Across}) {
    for (int32_t zero = 0; zero <= kMaximumZero; ++zero) {
      for (const int32_t num_microbatches : {1, 3}) {
        const Layout layout{.data = 8,
                            .data_groups = 2,
                            .num_microbatches = num_microbatches,
                            .zero = zero,
                            .gradient_reduction = reduction};
        SCOPED_TRACE(LayoutToString(layout));
        const auto program = BuildTrainingProgram(TestModel(), layout, 0);
        ASSERT_TRUE(program.ok()) << program.status();
        ASSERT_TRUE(CheckProgram(*program).ok()) << CheckProgram(*program);
        const HappensBefore order(program->instructions);
        for (const Bucket& bucket : program->parameters.buckets) {
          int num_inside = 0, num_across = 0, num_widened = 0;
          InstructionId across = -1;
          for (size_t i = 0; i < program->instructions.size(); ++i) {
            const Instruction& in = program->instructions[i];
            if (in.phase != Phase::kGradientReduce ||
                !absl::EndsWith(in.name, absl::StrCat("/", bucket.name))) {
              continue;
            }
            const auto id = static_cast<InstructionId>(i);
            num_widened += in.kind == OpKind::kWidenGradients ? 1 : 0;
            if (in.kind == OpKind::kReduceScatter) {
              ++num_inside;
              const auto& a = std::get<CollectiveAttributes>(in.attributes);
              EXPECT_EQ(a.group, Group::kShards);
              EXPECT_EQ(a.num_elements, bucket.num_elements);
              EXPECT_EQ(a.dtype == DType::kBfloat16,
                        reduction == GradientReduction::kBfloat16 &&
                            bucket.weight_decay);
            } else if (in.kind == OpKind::kAllReduce) {
              ++num_across;
              across = id;
              const auto& a = std::get<CollectiveAttributes>(in.attributes);
              EXPECT_EQ(a.group, Group::kReplicas);
              // Slices that are rounded here are buffers of their own.
              const bool in_bucket =
                  zero < 2 &&
                  (reduction != GradientReduction::kBfloat16Across ||
                   !bucket.weight_decay);
              EXPECT_EQ(a.of_slice, in_bucket);
              EXPECT_EQ(a.num_elements,
                        bucket.num_elements / (in_bucket ? 1 : 4));
              EXPECT_EQ(a.dtype == DType::kBfloat16,
                        reduction != GradientReduction::kFloat32 &&
                            bucket.weight_decay);
            } else if (across >= 0) {
              EXPECT_TRUE(in.kind == OpKind::kAllGather ||
                          in.kind == OpKind::kWidenGradients)
                  << in.name;
              EXPECT_TRUE(order.FinishedBefore(across, id)) << in.name;
            }
          }
          EXPECT_EQ(num_inside, zero < 2 ? 1 : num_microbatches);
          EXPECT_EQ(num_across, 1) << bucket.name;
          const bool rounds_inside = reduction == GradientReduction::kBfloat16;
          const bool rounds_apart =
              reduction == GradientReduction::kBfloat16Across ||
              (rounds_inside && zero >= 2);
          EXPECT_EQ(num_widened, !bucket.weight_decay
                                     ? 0
                                     : (rounds_inside ? num_inside : 0) +
                                           (rounds_apart ? 1 : 0))
              << bucket.name;
        }
      }
    }
  }
}

// Goal: under ZeRO-1 the parameters are gathered while the forward pass runs:
// first, in the order in which it needs them, each op waiting for its own
// bucket alone, and none at the end. Method: look at both Programs' data lanes
// and at what the first GEMM of each layer waits for.
TEST(BuildCommunicationTest, GathersParametersUnderTheForwardPass) {
  for (const int32_t pipeline : {1, 2}) {
    const Layout layout{
        .pipeline = pipeline, .data = 2, .num_microbatches = 2, .zero = 1};
    for (const bool trains : {true, false}) {
      for (int32_t stage = 0; stage < pipeline; ++stage) {
        const Program program =
            *(trains ? BuildTrainingProgram(TestModel(), layout, stage)
                     : BuildValidationProgram(TestModel(), layout, stage));
        const auto& lane = program.lanes[static_cast<int>(Lane::kDataComm)];
        const std::vector<Bucket>& buckets = program.parameters.buckets;
        std::vector<std::string> names;
        for (const InstructionId id : lane) {
          const Instruction& gather = program.instructions[id];
          if (gather.phase != Phase::kParameterGather) continue;
          EXPECT_EQ(id, lane[names.size()]) << "after other instructions";
          EXPECT_TRUE(gather.waits.empty()) << gather.name;
          names.push_back(gather.name);
        }
        ASSERT_EQ(names.size(), buckets.size());
        EXPECT_EQ(names[stage == 0 ? 1 : 0], "gather_parameters/norms");
        for (const Instruction& instruction : program.instructions) {
          if (instruction.microbatch_idx != 0 ||
              !absl::EndsWith(instruction.name, "attention/qkv") ||
              instruction.phase != Phase::kForward) {
            continue;
          }
          ASSERT_EQ(instruction.waits.size(), 1u) << instruction.name;
          EXPECT_EQ(program.instructions[instruction.waits[0]].name,
                    absl::StrCat("gather_parameters/",
                                 instruction.name.substr(
                                     0, instruction.name.find('/'))));
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
