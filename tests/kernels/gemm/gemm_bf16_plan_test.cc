// Tests a GemmBf16Plan beside its product: text, graphs, limits, refusals.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/gemm/gemm_bf16.h"
#include "tests/kernels/gemm/gemm_bf16_testing.h"

namespace millrace {
namespace {

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
