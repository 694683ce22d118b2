#include "worker/cuda/measure/profiler.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/tuning/tuning_families.h"
#include "planner/cost/op_cost.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/cuda/measure/op_timer.h"
#include "worker/cuda/measure/tuning.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/kernel_choices.h"

namespace millrace {
namespace {

const ProfileOp kLargeGemm = {
    OpKind::kGemm,
    GemmAttributes{.m = 8192, .n = 8192, .k = 8192, .trans_b = true}};

HardwareProfile Measure(const ProfileRequest& request, Precision precision) {
  auto algorithms = ShippedGemmAlgorithms();
  EXPECT_TRUE(algorithms.ok()) << algorithms.status();
  auto profile = MeasureCudaRequest(request, {.precision = precision,
                                              .algorithms = *algorithms,
                                              .time_budget = absl::Seconds(2)});
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : HardwareProfile{};
}

// Goal: a measured profile has every table that the cost model needs, in either
// precision. Method: a small job on one GPU, with little time.
TEST(CudaProfilerTest, MeasuresWhatTheCostModelNeeds) {
  JobSpec job = SmallJob();
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBfloat16}) {
    SCOPED_TRACE(PrecisionName(precision));
    job.training.precision = PrecisionName(precision);
    const auto request =
        BuildProfileRequest(job.model, job.training, 1, 1, kGpuProfileBudget);
    ASSERT_TRUE(request.ok()) << request.status();
    const HardwareProfile profile = Measure(*request, precision);
    const auto cost = CostModel::Create(profile);
    EXPECT_TRUE(cost.ok()) << cost.status();
    EXPECT_EQ(profile.precision, precision);
    EXPECT_EQ(profile.compute_contention, std::vector<double>{1.0});
    // A kernel of a graph takes a microsecond or two to come after another.
    EXPECT_GT(profile.launch_overhead_s, 3e-7);
    EXPECT_LT(profile.launch_overhead_s, 2e-5);
    std::printf("%s: launch %.2f us, %zu products, best %.0f TFLOP/s\n",
                PrecisionName(precision), 1e6 * profile.launch_overhead_s,
                profile.gemms.size(), 1e-12 * cost->PeakFlopsPerSecond());
  }
}

// Goal: times are those of the chip: products below the tensor cores' peak and
// not far from it, sums of tensors below the rate of its memory and not far,
// and the same when measured again. Method: the largest of each, twice.
TEST(CudaProfilerTest, MeasuresWhatTheChipDoes) {
  constexpr double kNumElements = 1 << 28;
  const ProfileRequest request = {
      .ops = {kLargeGemm,
              {OpKind::kAdd, ElementwiseAttributes{1 << 14, 1 << 14}}}};
  const HardwareProfile first = Measure(request, Precision::kBfloat16);
  const HardwareProfile second = Measure(request, Precision::kBfloat16);
  ASSERT_EQ(first.gemms.size(), 1u);
  ASSERT_EQ(first.bandwidth.size(), 1u);
  const double flops = 2 * 8192.0 * 8192 * 8192 / first.gemms[0].seconds;
  const double rate = 6 * kNumElements / first.bandwidth[0].seconds;
  std::printf("product %.0f TFLOP/s, add %.0f GB/s\n", 1e-12 * flops,
              1e-9 * rate);
  int clock_khz = 0, bus_bits = 0, device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  ASSERT_EQ(
      cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device),
      cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth,
                                   device),
            cudaSuccess);
  const double peak = 2e3 * clock_khz * bus_bits / 8;
  std::printf("to the host %.1f GB/s\n",
              1e-9 * first.host_link.to_host_bytes_per_s);
  // PCIe 3 at least, and slower than the device's memory.
  EXPECT_GT(first.host_link.to_host_bytes_per_s, 3e9);
  EXPECT_LT(first.host_link.to_host_bytes_per_s, rate);
  EXPECT_LT(rate, peak);
  EXPECT_GT(rate, 0.7 * peak);
  EXPECT_GT(flops, 2e14);
  EXPECT_LT(flops, 1e15);
  EXPECT_NEAR(second.gemms[0].seconds, first.gemms[0].seconds,
              0.05 * first.gemms[0].seconds);
  EXPECT_NEAR(second.bandwidth[0].seconds, first.bandwidth[0].seconds,
              0.03 * first.bandwidth[0].seconds);
}

// Goal: a chosen algorithm is kept, and no slower than the first guess. Method:
// both take turns, since a chip's clocks fall while it warms; the margin is
// what two measurements of one chip may differ by.
TEST(CudaProfilerTest, ChoosesAlgorithms) {
  auto guessing = CudaOpTimer::Create(Precision::kBfloat16, {});
  ASSERT_TRUE(guessing.ok()) << guessing.status();
  auto choosing = CudaOpTimer::Create(Precision::kBfloat16, {});
  ASSERT_TRUE(choosing.ok()) << choosing.status();
  for (const bool weight_gradient : {false, true}) {
    const GemmAttributes gemm = {.m = 2048,
                                 .n = 5120,
                                 .k = 8192,
                                 .trans_a = weight_gradient,
                                 .trans_b = !weight_gradient};
    const absl::Status chosen = (*choosing)->ChooseAlgorithm(gemm, 0.05);
    ASSERT_TRUE(chosen.ok()) << chosen;
    double guess_s = std::numeric_limits<double>::infinity();
    double choice_s = guess_s;
    for (int turn = 0; turn < 3; ++turn) {
      const auto guess = (*guessing)->Time({OpKind::kGemm, gemm}, 0.05);
      ASSERT_TRUE(guess.ok()) << guess.status();
      guess_s = std::min(guess_s, *guess);
      const auto choice = (*choosing)->Time({OpKind::kGemm, gemm}, 0.05);
      ASSERT_TRUE(choice.ok()) << choice.status();
      choice_s = std::min(choice_s, *choice);
    }
    std::printf("guessed %.1f us, chosen %.1f us\n", 1e6 * guess_s,
                1e6 * choice_s);
    EXPECT_LT(choice_s, 1.05 * guess_s);
  }
  const std::string table = (*choosing)->algorithms().Format();
  EXPECT_NE(table.find("m2048n5120k8192"), std::string::npos) << table;
}

// Goal: what tuning measures can be read back and is in force. Method: small
// cases of every kernel and one product; a profile's words become choices.
TEST(CudaProfilerTest, TunesIntoWordsThatCanBeRead) {
  auto timer = CudaOpTimer::Create(Precision::kBfloat16, {});
  ASSERT_TRUE(timer.ok()) << timer.status();
  const auto tuning = MeasureTuning(SmallTuningCases(), {.ops = {kLargeGemm}},
                                    absl::Seconds(2), **timer);
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_GE(tuning->kernels.size(), KernelTuningFamilies().size());
  ASSERT_EQ(tuning->products.size(), 1u);
  EXPECT_EQ(tuning->products[0].shape, "m8192n8192k8192-tb");
  EXPECT_GT(tuning->products[0].seconds, 1e-3);
  const auto device = CurrentDeviceName();
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(tuning->device, *device);
  const auto choices = ChoicesFor(*tuning, *device);
  ASSERT_TRUE(choices.ok()) << choices.status();
  const auto cache = CudaKernelCache::Create(*tuning);
  EXPECT_TRUE(cache.ok()) << cache.status();
  InstallTuning({});
}

// Goal: what does not fit the device is left out, and the rest measured.
TEST(CudaProfilerTest, LeavesOutWhatDoesNotFit) {
  const HardwareProfile profile = Measure(
      {.ops = {{OpKind::kGemm, GemmAttributes{1 << 20, 1 << 20, 1 << 20}},
               {OpKind::kGemm, GemmAttributes{512, 512, 512}}}},
      Precision::kBfloat16);
  ASSERT_EQ(profile.gemms.size(), 1u);
  EXPECT_EQ(profile.gemms[0].m, 512);
}

}  // namespace
}  // namespace millrace
