#include "kernels/gemm.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

struct FreeAligned {
  void operator()(void* memory) const { std::free(memory); }
};

std::unique_ptr<void, FreeAligned> AllocateWorkspace(int64_t bytes) {
  return std::unique_ptr<void, FreeAligned>(
      bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64));
}

std::vector<float> RunPlan(const GemmShape& shape, std::vector<float> c,
                           const std::vector<float>& a,
                           const std::vector<float>& b, int num_threads) {
  absl::StatusOr<GemmPlan> plan = GemmPlan::Create(shape, num_threads);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto workspace = AllocateWorkspace(plan->workspace_bytes());
  const absl::Status status =
      plan->Run(c.data(), a.data(), b.data(), workspace.get());
  EXPECT_TRUE(status.ok()) << status;
  return c;
}

// Goal: every combination of transposes and accumulation means what the
// reference says, at shapes that no block divides. Tolerance: sums of k <= 300
// products of magnitude up to one, rounded 300 times at 6e-8 of the running
// sum at worst.
TEST(GemmTest, MatchesReference) {
  RandomFloats random(1);
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {1, 7, 300}, {33, 1, 5}, {64, 48, 32}, {65, 130, 67}}) {
    for (int flags = 0; flags < 8; ++flags) {
      const GemmShape shape = {.m = m,
                               .n = n,
                               .k = k,
                               .trans_a = (flags & 1) != 0,
                               .trans_b = (flags & 2) != 0,
                               .accumulate = (flags & 4) != 0};
      SCOPED_TRACE(absl::StrCat(m, " x ", n, " x ", k, " flags ", flags));
      const std::vector<float> a = random(m * k);
      const std::vector<float> b = random(k * n);
      const std::vector<float> before =
          shape.accumulate ? random(m * n) : Poisoned(m * n);
      std::vector<float> expected = before;
      GemmReference(shape, expected.data(), a.data(), b.data());
      for (int num_threads : {1, 2}) {
        const std::vector<float> once =
            RunPlan(shape, before, a, b, num_threads);
        ExpectClose(once, expected, 2e-5, "c");
        ExpectSameBits(RunPlan(shape, before, a, b, num_threads), once, "c");
      }
    }
  }
}

// Goal: a plan may be moved and run again with other operands.
TEST(GemmTest, PlanOutlivesItsFirstRun) {
  RandomFloats random(2);
  const GemmShape shape = {.m = 5, .n = 6, .k = 7};
  absl::StatusOr<GemmPlan> made = GemmPlan::Create(shape, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  GemmPlan plan = *std::move(made);
  const auto workspace = AllocateWorkspace(plan.workspace_bytes());
  for (int run = 0; run < 3; ++run) {
    const std::vector<float> a = random(5 * 7);
    const std::vector<float> b = random(7 * 6);
    std::vector<float> c = Poisoned(5 * 6);
    std::vector<float> expected = c;
    ASSERT_TRUE(plan.Run(c.data(), a.data(), b.data(), workspace.get()).ok());
    GemmReference(shape, expected.data(), a.data(), b.data());
    ExpectClose(c, expected, 1e-6, "c");
  }
}

TEST(GemmTest, RefusesEmptyShapes) {
  for (const GemmShape& shape :
       std::vector<GemmShape>{{.m = 0, .n = 1, .k = 1},
                              {.m = 1, .n = -1, .k = 1},
                              {.m = 1, .n = 1, .k = 0}}) {
    EXPECT_EQ(GemmPlan::Create(shape, 1).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(GemmPlan::Create({.m = 1, .n = 1, .k = 1}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
