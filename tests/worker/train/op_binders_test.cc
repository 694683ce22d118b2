#include "worker/train/op_binders.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/program/op_table.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/cpu/ops.h"
#include "worker/measure/single_op.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: the planner's tables say of CPUs what these have: binders for op kinds,
// and kernels for number formats. Method: all rows of both tables.
TEST(OpBindersTest, CpusRunWhatTheTablesSay) {
  const BoundKinds& bound = AllCpuBinders().bound();
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    EXPECT_EQ(bound.Has(kind), Describe(kind).backends.Has(Backend::kCpu))
        << OpKindName(kind);
  }
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    EXPECT_EQ(bound.Has(recipe), recipe.backends.Has(Backend::kCpu))
        << recipe.name;
  }
}

// Goal: a Program in formats that a backend has no kernels for is refused, not
// misread. Method: a bf16 Program on CPUs.
TEST(OpBindersTest, FormatsWithoutKernelsAreNamed) {
  const Program program =
      SingleOpProgram(Precision::kBfloat16, OpKind::kSwigluForward,
                      ElementwiseAttributes{.rows = 4, .cols = 8}, 1, 0);
  const absl::Status status =
      CheckBindings(AllCpuBinders().bound(), {&program});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the cpu backend has no kernels for bf16"));
}

// Goal: a missing binder is an error at start that names kind and backend.
// Method: a backend that binds all kinds of a Program but one.
TEST(OpBindersTest, MissingOnesAreNamed) {
  const Program program =
      SingleOpProgram(Precision::kFloat32, OpKind::kSwigluForward,
                      ElementwiseAttributes{.rows = 4, .cols = 8}, 1, 0);
  OpBinders<int> binders("made-up", {{Precision::kFloat32}});
  binders.Bind(OpKind::kSwigluBackward, 7);
  const absl::Status status = CheckBindings(binders.bound(), {&program});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the made-up backend has no kernel for op kind "
                        "swiglu_forward, which repetition_0 needs"));
  binders.Bind(OpKind::kSwigluForward, 8);
  EXPECT_TRUE(CheckBindings(binders.bound(), {&program}).ok());
  EXPECT_EQ(binders.For(OpKind::kSwigluForward), 8);
}

// Goal: what trains under the layouts of the equivalence test is as the op
// table says, and CPUs have kernels for it. Method: the Programs of all stages.
TEST(OpBindersTest, EquivalenceLayoutsPassTheChecks) {
  const JobSpec job = SmallJob();
  for (const Layout& layout : SmallLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const auto programs = BuildTrainingPrograms(job.model, layout);
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (const Program& program : *programs) {
      const auto validation =
          BuildValidationProgram(job.model, layout, program.stage);
      ASSERT_TRUE(validation.ok()) << validation.status();
      EXPECT_TRUE(CheckProgram(program).ok()) << CheckProgram(program);
      EXPECT_TRUE(CheckProgram(*validation).ok()) << CheckProgram(*validation);
      EXPECT_TRUE(
          CheckBindings(AllCpuBinders().bound(), {&program, &*validation})
              .ok());
    }
  }
}

}  // namespace
}  // namespace millrace
