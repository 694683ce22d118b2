#include "kernels/gemm_bf16.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/gemm_algorithm_table.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

std::vector<uint16_t> RandomBits(int64_t count) {
  static RandomNormals normals;
  return normals.Bits(count);
}

int64_t Stride(int64_t stride, int64_t columns) {
  return stride == 0 ? columns : stride;
}

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

// A matrix of bf16 or fp32, on the host as doubles and on the device.
struct Output {
  Output(int64_t rows, int64_t columns, int64_t stride, bool is_fp32,
         bool poisoned)
      : columns(columns), stride(stride), is_fp32(is_fp32) {
    const int64_t count = (rows - 1) * stride + columns;
    for (uint16_t bits : poisoned ? std::vector<uint16_t>(count, kNanBf16)
                                  : RandomBits(count)) {
      before.push_back(FromBf16(bits));
    }
    Reset();
  }

  // Puts the old values back where they were.
  void Reset() {
    if (is_fp32) {
      const std::vector<float> values(before.begin(), before.end());
      Put(fp32, values);
    } else {
      std::vector<uint16_t> bits;
      for (float value : before) {
        bits.push_back(std::isnan(value) ? kNanBf16 : ToBf16(value));
      }
      Put(bf16, bits);
    }
  }

  template <typename T>
  static void Put(std::optional<DeviceBuffer<T>>& buffer,
                  const std::vector<T>& values) {
    if (!buffer.has_value()) {
      buffer.emplace(ToDevice(values));
      return;
    }
    EXPECT_EQ(cudaMemcpy(buffer->data(), values.data(),
                         values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  void* data() {
    return is_fp32 ? static_cast<void*>(fp32->data())
                   : static_cast<void*>(bf16->data());
  }

  std::vector<float> Values() const {
    if (is_fp32) return ToHost(*fp32);
    std::vector<float> values;
    for (uint16_t bits : ToHost(*bf16)) values.push_back(FromBf16(bits));
    return values;
  }

  int64_t columns, stride;
  bool is_fp32;
  std::vector<float> before;
  std::optional<DeviceBuffer<float>> fp32;
  std::optional<DeviceBuffer<uint16_t>> bf16;
};

// One shape with inputs, outputs, and what they should become in fp64.
struct Problem {
  explicit Problem(const GemmBf16Shape& shape)
      : shape(shape),
        a_bits(RandomBits((shape.trans_a ? shape.k : shape.m) * AStride())),
        b_bits(RandomBits((shape.trans_b ? shape.n : shape.k) * BStride())),
        a(ToDevice(a_bits)),
        b(ToDevice(b_bits)),
        c(shape.m, shape.n, Stride(shape.c_stride, shape.n), shape.fp32_output,
          !shape.accumulate),
        scale(static_cast<float>(1 / std::sqrt(shape.k))) {}

  int64_t AStride() const {
    return Stride(shape.a_stride, shape.trans_a ? shape.m : shape.k);
  }
  int64_t BStride() const {
    return Stride(shape.b_stride, shape.trans_b ? shape.k : shape.n);
  }
  double A(int64_t i, int64_t k) const {
    return FromBf16(
        a_bits[shape.trans_a ? k * AStride() + i : i * AStride() + k]);
  }
  double B(int64_t k, int64_t j) const {
    return FromBf16(
        b_bits[shape.trans_b ? j * BStride() + k : k * BStride() + j]);
  }

  // scale * op(a) op(b), dense.
  std::vector<double> Product() const {
    std::vector<double> product(shape.m * shape.n, 0.0);
    std::vector<double> b_rows(shape.k * shape.n);
    for (int64_t k = 0; k < shape.k; ++k) {
      for (int64_t j = 0; j < shape.n; ++j) b_rows[k * shape.n + j] = B(k, j);
    }
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t k = 0; k < shape.k; ++k) {
        const double a_ik = A(i, k) * scale;
        for (int64_t j = 0; j < shape.n; ++j) {
          product[i * shape.n + j] += a_ik * b_rows[k * shape.n + j];
        }
      }
    }
    return product;
  }

  GemmBf16Args Args() {
    return {.c = c.data(), .a = a.data(), .b = b.data(), .scale = scale};
  }

  GemmBf16Shape shape;
  std::vector<uint16_t> a_bits, b_bits;
  DeviceBuffer<uint16_t> a, b;
  Output c;
  float scale;
};

// Rounding to bf16 costs up to 2^-8 of a value. What is added to in bf16,
// `before`, may be rounded together with the product and without. fp32 sums of
// k terms of size 1/sqrt(k) are good to 1e-5. NaN never passes.
bool IsClose(double actual, double expected, bool is_fp32, double before) {
  const double relative = is_fp32 ? 1e-5 : 1.0 / 256;
  double size = std::fabs(expected);
  if (!is_fp32 && !std::isnan(before)) size += size + std::fabs(before);
  return std::fabs(actual - expected) <= relative * size + 1e-5;
}

absl::Status RunPlan(const GemmBf16Plan& plan, GemmBf16Args args) {
  auto workspace = DeviceBuffer<uint8_t>::Allocate(plan.workspace_bytes() + 1);
  if (!workspace.ok()) return workspace.status();
  args.workspace = workspace->data();
  absl::Status status = plan.Run(args, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return status;
}

constexpr const char* kOwnAlgorithms[] = {
    "wgmma/1/128x256/r3", "wgmma/1/128x256/r2", "wgmma/1/128x192turns/r1",
    "wgmma/1/128x192turns/r4", "wgmma/1/256x192/r3"};

// Everything between the matrix's rows stays as it was, the rows become
// `expected` [m, n].
void ExpectRows(const Output& c, const std::vector<double>& expected,
                const std::string& what) {
  const std::vector<float> values = c.Values();
  int num_wrong = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t row = i / c.stride;
    const int64_t column = i % c.stride;
    if (column >= c.columns) {
      ASSERT_EQ(std::memcmp(&values[i], &c.before[i], 4), 0)
          << what << " wrote beside row " << row << " at " << column;
      continue;
    }
    const double want = expected[row * c.columns + column];
    if (!IsClose(values[i], want, c.is_fp32, c.before[i]) && ++num_wrong <= 3) {
      ADD_FAILURE() << what << ": c[" << row << ", " << column << "] is "
                    << values[i] << ", expected " << want << ", before "
                    << c.before[i];
    }
  }
  EXPECT_EQ(num_wrong, 0) << what;
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

// Goal: an algorithm's text makes the same plan again, in another process too;
// a graph may capture a run; no workspace and few multiprocessors change how,
// not what. Method: equal bits, or closeness to fp64.
TEST(GemmBf16PlanTest, KeepsItsMeaningThroughTextGraphsAndLimits) {
  const GemmBf16Shape shape = {.m = 264, .n = 776, .k = 1032, .trans_b = true};
  Problem problem(shape);
  const std::vector<double> expected = problem.Product();
  const auto plan = GemmBf16Plan::Create(shape, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(RunPlan(*plan, problem.Args()).ok());
  ExpectRows(problem.c, expected, plan->algorithm().text);
  const std::vector<float> first = problem.c.Values();

  std::vector<GemmBf16Options> variants = {{.algorithm = plan->algorithm()},
                                           {.max_workspace_bytes = 0},
                                           {.num_multiprocessors = 12}};
  for (const char* text : kOwnAlgorithms) {
    variants.push_back(
        {.num_multiprocessors = 6, .algorithm = GemmAlgorithm{text}});
    variants.push_back(
        {.num_multiprocessors = 1, .algorithm = GemmAlgorithm{text}});
  }
  for (const GemmBf16Options& options : variants) {
    const auto other = GemmBf16Plan::Create(shape, options);
    ASSERT_TRUE(other.ok()) << other.status();
    if (options.max_workspace_bytes == 0) {
      EXPECT_EQ(other->workspace_bytes(), 0);
    }
    problem.c.Reset();
    ASSERT_TRUE(RunPlan(*other, problem.Args()).ok());
    ExpectRows(problem.c, expected, other->algorithm().text);
    if (options.algorithm == plan->algorithm()) {
      EXPECT_EQ(problem.c.Values(), first);
    }

    auto workspace =
        DeviceBuffer<uint8_t>::Allocate(other->workspace_bytes() + 1);
    ASSERT_TRUE(workspace.ok());
    GemmBf16Args args = problem.Args();
    args.workspace = workspace->data();
    const std::vector<float> eager = problem.c.Values();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
              cudaSuccess);
    ASSERT_TRUE(other->Run(args, stream).ok());
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    problem.c.Reset();
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(problem.c.Values(), eager) << other->algorithm().text;
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// Goal: measuring returns algorithms that run, fastest first, our own among
// those measured.
TEST(GemmBf16PlanTest, MeasuresCandidates) {
  const GemmBf16Shape shape = {.m = 512, .n = 768, .k = 256, .trans_b = true};
  Problem problem(shape);
  auto workspace = DeviceBuffer<uint8_t>::Allocate(32 << 20);
  ASSERT_TRUE(workspace.ok());
  GemmBf16Args args = problem.Args();
  args.workspace = workspace->data();
  const auto measured = MeasureGemmBf16(shape, {}, {&args, 1}, 4, nullptr);
  ASSERT_TRUE(measured.ok()) << measured.status();
  ASSERT_GE(measured->size(), 1u);
  for (size_t i = 0; i < measured->size(); ++i) {
    const GemmMeasurement& measurement = (*measured)[i];
    EXPECT_GT(measurement.milliseconds, 0);
    if (i > 0) {
      EXPECT_GE(measurement.milliseconds, (*measured)[i - 1].milliseconds);
    }
    EXPECT_TRUE(
        GemmBf16Plan::Create(shape, {.algorithm = measurement.algorithm}).ok());
  }
  EXPECT_EQ(MeasureGemmBf16(shape, {}, {}, 4, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Goal: what cannot be is refused by name at set-up.
TEST(GemmBf16PlanTest, RefusesWhatItCannotDo) {
  const GemmBf16Shape good = {.m = 64, .n = 64, .k = 64};
  auto refuse = [](const GemmBf16Shape& shape, const GemmBf16Options& options,
                   absl::StatusCode code, const char* named) {
    const absl::Status status = GemmBf16Plan::Create(shape, options).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  GemmBf16Shape shape = good;
  shape.k = 0;
  refuse(shape, {}, kInvalid, "m64n64k0: sizes are from 1");
  shape = good;
  shape.a_stride = 63;
  refuse(shape, {}, kInvalid, "rows of a have 64 elements");
  shape = good;
  shape.accumulate = true;
  shape.epilogue = GemmEpilogue::kGelu;
  refuse(shape, {}, kInvalid, "does not add to c");
  shape = good;
  shape.n = 60;
  shape.epilogue = GemmEpilogue::kGeluSave;
  refuse(shape, {}, kInvalid, "stride of aux");
  refuse(good, {.max_workspace_bytes = -1}, kInvalid, "-1 bytes");
  auto algorithm = [](const char* text) {
    return GemmBf16Options{.algorithm = GemmAlgorithm{text}};
  };
  refuse(good, algorithm("magic/1"), kInvalid, "\"magic/1\" is no algorithm");
  refuse(good, algorithm("cublaslt/1/0.0.0.0.0.0.0.0"),
         absl::StatusCode::kFailedPrecondition, "another cuBLASLt");
  refuse(good, algorithm("wgmma/0/128x256/r8"),
         absl::StatusCode::kFailedPrecondition, "another version of wgmma");
  refuse(good, algorithm("wgmma/1/128x256/c3/r8"), kInvalid, "is not wgmma/1/");
  shape = good;
  shape.epilogue = GemmEpilogue::kBias;
  refuse(shape, algorithm(kOwnAlgorithms[0]), kInvalid, "no epilogue");
  shape = good;
  shape.b_stride = 65;
  refuse(shape, algorithm(kOwnAlgorithms[0]), kInvalid, "64, 65 and 64");
}

}  // namespace
}  // namespace millrace
