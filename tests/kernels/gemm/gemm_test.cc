#include "kernels/gemm/gemm.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
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

GemmShape ShapeOf(int64_t m, int64_t n, int64_t k, int flags) {
  return {.m = m,
          .n = n,
          .k = k,
          .trans_a = (flags & 1) != 0,
          .trans_b = (flags & 2) != 0,
          .accumulate = (flags & 4) != 0};
}

std::string NameOf(const GemmShape& shape) {
  return absl::StrCat(
      shape.m, " x ", shape.n, " x ", shape.k, shape.trans_a ? ", trans_a" : "",
      shape.trans_b ? ", trans_b" : "", shape.accumulate ? ", accumulate" : "");
}

// Rows [begin, begin + rows) and columns [col, col + cols) of a row-major
// matrix of `width` columns.
std::vector<float> Part(const std::vector<float>& from, int64_t width,
                        int64_t begin, int64_t rows, int64_t col,
                        int64_t cols) {
  std::vector<float> part;
  for (int64_t r = begin; r < begin + rows; ++r) {
    const auto row = from.begin() + r * width + col;
    part.insert(part.end(), row, row + cols);
  }
  return part;
}

// Goal: every combination of transposes and accumulation means what the
// reference says, at shapes that no block divides. Tolerance: sums of k <= 600
// products of magnitude up to one, rounded 600 times at 6e-8 of the running
// sum at worst.
TEST(GemmTest, MatchesReference) {
  ForEachCpuLevel([] {
    RandomFloats random(1);
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                             {1, 7, 300},
                                             {33, 1, 5},
                                             {64, 48, 32},
                                             {65, 130, 67},
                                             {51, 401, 259},
                                             {13, 64, 600}}) {
      for (int flags = 0; flags < 8; ++flags) {
        const GemmShape shape = ShapeOf(m, n, k, flags);
        SCOPED_TRACE(NameOf(shape));
        const std::vector<float> a = random(m * k);
        const std::vector<float> b = random(k * n);
        const std::vector<float> before =
            shape.accumulate ? random(m * n) : Poisoned(m * n);
        std::vector<float> expected = before;
        GemmReference(shape, expected.data(), a.data(), b.data());
        ExpectClose(RunPlan(shape, before, a, b, 1), expected, 2e-5, "c");
      }
    }
  });
}

// Goal: neither the number of threads nor a repetition changes a bit. Method:
// products large enough that every thread gets a part (a million operations
// each), cut along rows, along columns and along both.
TEST(GemmTest, ThreadsChangeNoBit) {
  ForEachCpuLevel([] {
    RandomFloats random(3);
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
             {257, 97, 301}, {47, 499, 300}, {203, 211, 257}}) {
      for (int flags = 0; flags < 8; ++flags) {
        const GemmShape shape = ShapeOf(m, n, k, flags);
        SCOPED_TRACE(NameOf(shape));
        const std::vector<float> a = random(m * k);
        const std::vector<float> b = random(k * n);
        const std::vector<float> before = random(m * n);
        const std::vector<float> once = RunPlan(shape, before, a, b, 1);
        for (int num_threads : {1, 2, 3, 4, 7}) {
          ExpectSameBits(RunPlan(shape, before, a, b, num_threads), once,
                         absl::StrCat("c on ", num_threads, " threads"));
        }
      }
    }
  });
}

// Goal: an element's bits depend neither on the product's rows and columns nor
// on where among them it lies. Method: any rows and columns of a product,
// computed alone, equal the same part of the whole; at each offset they are in
// another place of a tile, and fewer than a tile, a panel or a block.
TEST(GemmTest, OtherRowsAndColumnsChangeNoBit) {
  constexpr int64_t kM = 61, kN = 437, kK = 261;
  ForEachCpuLevel([] {
    RandomFloats random(4);
    for (int flags = 0; flags < 8; ++flags) {
      const GemmShape shape = ShapeOf(kM, kN, kK, flags);
      const std::vector<float> a = random(kM * kK);
      const std::vector<float> b = random(kK * kN);
      const std::vector<float> before = random(kM * kN);
      const std::vector<float> whole = RunPlan(shape, before, a, b, 1);
      for (const auto& [row, rows, col, cols] :
           std::vector<std::array<int64_t, 4>>{{0, 1, 0, kN},
                                               {60, 1, 436, 1},
                                               {5, 3, 0, 64},
                                               {1, 60, 17, 33},
                                               {13, 48, 1, 100},
                                               {7, 9, 50, 387}}) {
        GemmShape part = shape;
        part.m = rows;
        part.n = cols;
        SCOPED_TRACE(
            absl::StrCat(NameOf(part), " from row ", row, ", column ", col));
        const std::vector<float> part_a = shape.trans_a
                                              ? Part(a, kM, 0, kK, row, rows)
                                              : Part(a, kK, row, rows, 0, kK);
        const std::vector<float> part_b = shape.trans_b
                                              ? Part(b, kK, col, cols, 0, kK)
                                              : Part(b, kN, 0, kK, col, cols);
        const std::vector<float> alone = RunPlan(
            part, Part(before, kN, row, rows, col, cols), part_a, part_b, 2);
        ExpectSameBits(alone, Part(whole, kN, row, rows, col, cols), "part");
      }
    }
  });
}

// Goal: how the operands are stored changes no bit. Method: one product of four
// storages.
TEST(GemmTest, TransposesChangeNoBit) {
  constexpr int64_t kM = 53, kN = 119, kK = 258;
  const auto transposed = [](const std::vector<float>& x, int64_t rows,
                             int64_t cols) {
    std::vector<float> y;
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < rows; ++r) y.push_back(x[r * cols + c]);
    }
    return y;
  };
  ForEachCpuLevel([&] {
    RandomFloats random(5);
    const std::vector<float> a = random(kM * kK);
    const std::vector<float> b = random(kK * kN);
    const std::vector<float> a_transposed = transposed(a, kM, kK);
    const std::vector<float> b_transposed = transposed(b, kK, kN);
    const std::vector<float> before = Poisoned(kM * kN);
    const std::vector<float> plain =
        RunPlan(ShapeOf(kM, kN, kK, 0), before, a, b, 1);
    for (int flags = 1; flags < 4; ++flags) {
      const GemmShape shape = ShapeOf(kM, kN, kK, flags);
      ExpectSameBits(RunPlan(shape, before, shape.trans_a ? a_transposed : a,
                             shape.trans_b ? b_transposed : b, 1),
                     plain, NameOf(shape));
    }
  });
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

TEST(GemmTest, RefusesEmptyShapesAndNoWorkspace) {
  for (const GemmShape& shape :
       std::vector<GemmShape>{{.m = 0, .n = 1, .k = 1},
                              {.m = 1, .n = -1, .k = 1},
                              {.m = 1, .n = 1, .k = 0}}) {
    EXPECT_EQ(GemmPlan::Create(shape, 1).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(GemmPlan::Create({.m = 1, .n = 1, .k = 1}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  absl::StatusOr<GemmPlan> plan = GemmPlan::Create({.m = 1, .n = 1, .k = 1}, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  float c = 0, a = 0, b = 0;
  EXPECT_EQ(plan->Run(&c, &a, &b, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
