#include "kernels/gemm/gemm_bf16.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/gemm/gemm_algorithm_table.h"
#include "tests/kernels/gemm/gemm_bf16_testing.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

double Gelu(double x) {
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double GeluGradient(double x) {
  const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  const double t = std::tanh(inner);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope;
}

std::string ShapeName(const testing::TestParamInfo<GemmBf16Shape>& info) {
  std::string name = GemmBf16ShapeWord(info.param);
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

class GemmBf16Test : public testing::TestWithParam<GemmBf16Shape> {};

// Goal: every kernel behind the door computes op(a) op(b) in every layout and
// output, writes exactly c's rows, and gives equal bits again. Method: sizes
// off every tile against fp64, normal inputs, outputs poisoned or added to.
TEST_P(GemmBf16Test, EveryAlgorithmMatchesFp64) {
  const GemmBf16Shape shape = GetParam();
  Problem problem(shape);
  std::vector<double> expected = problem.Product();
  if (shape.accumulate) {
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) {
        expected[i * shape.n + j] += problem.c.before[i * problem.c.stride + j];
      }
    }
  }
  std::vector<std::optional<GemmAlgorithm>> algorithms = {std::nullopt};
  const bool takes_own = problem.AStride() % 8 == 0 &&
                         problem.BStride() % 8 == 0 &&
                         problem.c.stride % (shape.fp32_output ? 4 : 8) == 0 &&
                         (shape.fp32_output || !shape.accumulate);
  for (const char* text : kOwnAlgorithms) {
    if (takes_own) algorithms.push_back(GemmAlgorithm{text});
  }
  for (const auto& algorithm : algorithms) {
    const auto plan = GemmBf16Plan::Create(shape, {.algorithm = algorithm});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::string what = plan->algorithm().text;
    problem.c.Reset();
    ASSERT_TRUE(RunPlan(*plan, problem.Args()).ok());
    ExpectRows(problem.c, expected, what);
    const std::vector<float> first = problem.c.Values();
    problem.c.Reset();
    ASSERT_TRUE(RunPlan(*plan, problem.Args()).ok());
    const std::vector<float> second = problem.c.Values();
    EXPECT_EQ(std::memcmp(first.data(), second.data(), 4 * first.size()), 0)
        << what << ": the second run differs";
  }
}

std::vector<GemmBf16Shape> LayoutShapes() {
  std::vector<GemmBf16Shape> shapes;
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      GemmBf16Shape shape = {320, 520, 200, trans_a, trans_b};
      shapes.push_back(shape);
      shape.fp32_output = true;
      shapes.push_back(shape);
      shape.accumulate = true;
      shapes.push_back(shape);
      // Strides that leave gaps, sizes below a tile.
      shapes.push_back({.m = 72,
                        .n = 104,
                        .k = 56,
                        .trans_a = trans_a,
                        .trans_b = trans_b,
                        .a_stride = 128,
                        .b_stride = 136,
                        .c_stride = 112});
      // Many tiles a block where the chip is made to look small.
      shapes.push_back({1000, 1800, 136, trans_a, trans_b});
    }
  }
  shapes.push_back({.m = 40, .n = 24, .k = 8, .accumulate = true});
  shapes.push_back({.m = 1, .n = 8, .k = 8, .trans_b = true});
  shapes.push_back({.m = 33, .n = 17, .k = 19, .trans_b = true});  // Odd.
  shapes.push_back({.m = 129,
                    .n = 264,
                    .k = 72,
                    .fp32_output = true,
                    .accumulate = true,
                    .c_stride = 268});
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GemmBf16Test,
                         testing::ValuesIn(LayoutShapes()), ShapeName);

class GemmBf16EpilogueTest : public testing::TestWithParam<GemmEpilogue> {};

// Goal: each epilogue means what the header says. Method: against fp64, with x
// of size one; the chip's tanh leaves gelu and its gradient good to 2^-8, and
// the gradient of a bias is a sum of m terms that may have been rounded to
// bf16.
TEST_P(GemmBf16EpilogueTest, MatchesFp64) {
  const GemmEpilogue epilogue = GetParam();
  // Sums over k ride on layouts that have k across rows, as weight gradients.
  const bool sums =
      epilogue == GemmEpilogue::kSumA || epilogue == GemmEpilogue::kSumB;
  const GemmBf16Shape shape = {.m = 200,
                               .n = 264,
                               .k = 136,
                               .trans_a = sums,
                               .trans_b = !sums,
                               .epilogue = epilogue};
  Problem problem(shape);
  const std::vector<double> product = problem.Product();
  const int64_t bias_size = epilogue == GemmEpilogue::kSumA ? shape.m : shape.n;
  const bool reads_bias = epilogue == GemmEpilogue::kBias ||
                          epilogue == GemmEpilogue::kGeluBias ||
                          epilogue == GemmEpilogue::kGeluBiasSave;
  const bool reads_aux = epilogue == GemmEpilogue::kGeluGradient ||
                         epilogue == GemmEpilogue::kGeluBiasGradient;
  Output bias(1, bias_size, bias_size, false, !reads_bias);
  Output aux(shape.m, shape.n, shape.n, false, !reads_aux);
  const auto plan = GemmBf16Plan::Create(shape, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  GemmBf16Args args = problem.Args();
  args.bias = bias.data();
  args.aux = aux.data();
  const absl::Status status = RunPlan(*plan, args);
  ASSERT_TRUE(status.ok()) << status;

  const std::vector<float> c = problem.c.Values();
  const std::vector<float> bias_after = bias.Values();
  const std::vector<float> aux_after = aux.Values();
  std::vector<double> gradient(bias_size, 0.0);
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const int64_t at = i * shape.n + j;
      double x = product[at];
      if (reads_bias) x += bias.before[j];
      double y = x;
      switch (epilogue) {
        case GemmEpilogue::kGelu:
        case GemmEpilogue::kGeluBias:
        case GemmEpilogue::kGeluSave:
        case GemmEpilogue::kGeluBiasSave:
          y = Gelu(x);
          break;
        case GemmEpilogue::kGeluGradient:
        case GemmEpilogue::kGeluBiasGradient:
          y = x * GeluGradient(aux.before[at]);
          break;
        default:
          break;
      }
      ASSERT_NEAR(c[at], y, std::fabs(y) / 128 + 2e-3) << i << ", " << j;
      if (epilogue == GemmEpilogue::kGeluSave ||
          epilogue == GemmEpilogue::kGeluBiasSave) {
        ASSERT_TRUE(IsClose(aux_after[at], x, false, kNan)) << i << ", " << j;
      }
      if (epilogue == GemmEpilogue::kGeluBiasGradient) gradient[j] += y;
    }
  }
  if (epilogue == GemmEpilogue::kSumA || epilogue == GemmEpilogue::kSumB) {
    for (int64_t i = 0; i < bias_size; ++i) {
      for (int64_t k = 0; k < shape.k; ++k) {
        gradient[i] +=
            epilogue == GemmEpilogue::kSumA ? problem.A(i, k) : problem.B(k, i);
      }
    }
  }
  if (epilogue == GemmEpilogue::kSumA || epilogue == GemmEpilogue::kSumB ||
      epilogue == GemmEpilogue::kGeluBiasGradient) {
    for (int64_t i = 0; i < bias_size; ++i) {
      ASSERT_NEAR(bias_after[i], gradient[i],
                  std::fabs(gradient[i]) / 128 + 0.1)
          << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GemmBf16EpilogueTest,
    testing::Values(GemmEpilogue::kBias, GemmEpilogue::kGelu,
                    GemmEpilogue::kGeluBias, GemmEpilogue::kGeluSave,
                    GemmEpilogue::kGeluBiasSave, GemmEpilogue::kGeluGradient,
                    GemmEpilogue::kGeluBiasGradient, GemmEpilogue::kSumA,
                    GemmEpilogue::kSumB),
    [](const testing::TestParamInfo<GemmEpilogue>& info) {
      return absl::StrCat("Epilogue", static_cast<int>(info.param));
    });

}  // namespace
}  // namespace millrace
