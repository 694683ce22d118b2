#include "worker/train/op_binders.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/cpu/ops.h"
#include "worker/measure/single_op.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: CPUs, which GPUs are compared with, run every op kind, and those that
// they do not run are plan only. Method: all of the table.
TEST(OpBindersTest, CpusBindEveryKindThatIsNotPlanOnly) {
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    EXPECT_EQ(AllCpuBinders().bound().Has(kind), !IsPlanOnly(kind))
        << OpKindName(kind);
  }
}

// Goal: a missing binder is an error at start that names kind and backend.
// Method: a backend that binds all kinds of a Program but one.
TEST(OpBindersTest, MissingOnesAreNamed) {
  const Program program =
      SingleOpProgram(Precision::kFloat32, OpKind::kSwigluForward,
                      ElementwiseAttributes{.rows = 4, .cols = 8}, 1, 0);
  OpBinders<int> binders("made-up");
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
