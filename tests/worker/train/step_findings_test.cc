#include "worker/train/step_findings.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr float kNoAmax = std::numeric_limits<float>::quiet_NaN();

Instruction Gemm(bool accumulate) {
  return {.kind = OpKind::kGemm,
          .phase = Phase::kWeightGradient,
          .lane = Lane::kCompute,
          .microbatch_idx = 1,
          .name = "layers.3/down",
          .attributes = GemmAttributes{.m = 1,
                                       .n = 1,
                                       .k = 1,
                                       .trans_a = true,
                                       .accumulate = accumulate},
          .inputs = {4, 5},
          .outputs = {6}};
}

// Goal: an op is judged by its results, given all that it reads: a sum that was
// no number before is not its doing, nor is what other ranks sent.
TEST(StepFindingsTest, JudgesAnOpByItsOwnDoing) {
  EXPECT_EQ(OperandsToCheck({}, Gemm(false)), (Operands{4, 5}));
  EXPECT_EQ(OperandsToCheck({}, Gemm(true)), (Operands{4, 5, 6}));
  EXPECT_EQ(ResultsToCheck(Gemm(true)), (Operands{6}));
  // Behind the gradients and the scalars, to which it adds, lies a workspace.
  const Instruction loss = {.kind = OpKind::kLinearCrossEntropy,
                            .phase = Phase::kInputGradient,
                            .lane = Lane::kCompute,
                            .microbatch_idx = 0,
                            .name = "head/loss",
                            .attributes = VocabAttributes{},
                            .inputs = {1, 2, 3},
                            .outputs = {4, 5, 6, 7}};
  EXPECT_EQ(OperandsToCheck({}, loss), (Operands{1, 2, 3, 6}));
  EXPECT_EQ(ResultsToCheck(loss), (Operands{4, 5, 6}));
  Instruction reduce = Gemm(false);
  reduce.kind = OpKind::kAllReduce;
  reduce.attributes = CollectiveAttributes{};
  EXPECT_TRUE(ResultsToCheck(reduce).empty());
}

// Goal: the earliest op in the Program's order is named, in whatever order they
// are noted, and the earliest of the largest copies. What is not a number is
// not large.
TEST(StepFindingsTest, NamesTheEarliest) {
  Program program;
  for (const char* name : {"a", "b", "c"}) {
    program.instructions.push_back(Gemm(false));
    program.instructions.back().name = name;
  }
  StepFindings findings(&program);
  EXPECT_EQ(findings.Outcome({}).origin, "");
  EXPECT_EQ(findings.Outcome({}).largest_in, "");
  findings.NoteOrigin(2);
  findings.NoteOrigin(1);
  findings.NoteAmax(2, 7);
  findings.NoteAmax(1, 7);
  findings.NoteAmax(0, kNoAmax);
  const CheckedStep checked = findings.Outcome({.step = 9});
  EXPECT_EQ(checked.result.step, 9);
  EXPECT_EQ(checked.origin, "gemm 'b' of micro-batch 1 (weight_gradient)");
  EXPECT_EQ(checked.largest_amax, 7);
  EXPECT_EQ(checked.largest_in, "'b' of micro-batch 1 (weight_gradient)");
  const float amaxes[] = {2, 5, 3};
  EXPECT_EQ(LargestAmax(amaxes), 5);
  const float unknown[] = {2, kNoAmax, 3};
  EXPECT_TRUE(std::isnan(LargestAmax(unknown)));
}

}  // namespace
}  // namespace millrace
