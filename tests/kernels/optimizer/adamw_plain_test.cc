#include "kernels/optimizer/adamw_plain.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optimizer/adamw.h"
#include "tests/kernels/plain_testing.h"

namespace millrace {
namespace {

// Goal: three steps mean what adamw.h says, clipped and not, with learning
// rate, step and clip factor read on the device; a bf16 copy is the parameters
// rounded; a skipped step changes nothing. Method: one captured graph, launched
// once a step with other numbers in device memory, against the fp64 reference.
// A few operations in fp32 a step, on values near one.
TEST(PlainAdamWTest, OneCapturedLaunchServesEveryStep) {
  constexpr double kAbsolute = 2e-6;
  RandomNormals random;
  for (const int64_t size : {1, 255, 2048, 5001}) {
    std::vector<float> parameters = random.Floats(size);
    std::vector<float> exp_avg(size), exp_avg_sq(size);
    DeviceBuffer<float> device_parameters = ToDevice(parameters);
    DeviceBuffer<float> device_exp_avg = ToDevice(exp_avg);
    DeviceBuffer<float> device_exp_avg_sq = ToDevice(exp_avg_sq);
    DeviceBuffer<float> device_gradients = PoisonedFloats(size);
    DeviceBuffer<uint16_t> copy = PoisonedBf16(size);
    DeviceBuffer<double> learning_rate = ToDevice(std::vector<double>(1));
    DeviceBuffer<int64_t> step = ToDevice(std::vector<int64_t>(1));
    DeviceBuffer<float> clip_factor = PoisonedFloats(1);
    DeviceBuffer<int32_t> skip = ToDevice(std::vector<int32_t>(1));
    const PlainAdamWArgs args = {.parameters = device_parameters.data(),
                                 .bf16_copy = copy.data(),
                                 .exp_avg = device_exp_avg.data(),
                                 .exp_avg_sq = device_exp_avg_sq.data(),
                                 .gradients = device_gradients.data(),
                                 .num_elements = size,
                                 .learning_rate = learning_rate.data(),
                                 .step = step.data(),
                                 .clip_factor = clip_factor.data(),
                                 .skip = skip.data(),
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .epsilon = 1e-8,
                                 .weight_decay = 0.1};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    EXPECT_TRUE(LaunchPlainAdamW(args, stream).ok());
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    const auto write = [](auto& buffer, auto value) {
      ASSERT_EQ(cudaMemcpy(buffer.data(), &value, sizeof(value),
                           cudaMemcpyHostToDevice),
                cudaSuccess);
    };
    for (int64_t s = 1; s <= 3; ++s) {
      const std::vector<float> gradients = random.Floats(size);
      ASSERT_EQ(cudaMemcpy(device_gradients.data(), gradients.data(),
                           size * sizeof(float), cudaMemcpyHostToDevice),
                cudaSuccess);
      const float scale = s == 2 ? 0.3f : 1.0f;
      const double rate = 0.01 * static_cast<double>(s);
      write(learning_rate, rate);
      write(step, s);
      write(clip_factor, scale);
      write(skip, int32_t{0});
      ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      AdamWReference({.parameters = parameters.data(),
                      .exp_avg = exp_avg.data(),
                      .exp_avg_sq = exp_avg_sq.data(),
                      .gradients = gradients.data(),
                      .num_elements = size,
                      .learning_rate = rate,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .weight_decay = 0.1,
                      .step = s,
                      .gradient_scale = scale});
      const std::vector<float> actual = ToHost(device_parameters);
      ExpectNear(actual, parameters, 1e-6, kAbsolute, "parameters");
      ExpectNear(ToHost(device_exp_avg), exp_avg, 1e-6, kAbsolute, "exp_avg");
      ExpectNear(ToHost(device_exp_avg_sq), exp_avg_sq, 1e-6, kAbsolute,
                 "exp_avg_sq");
      EXPECT_EQ(ToHost(copy), ToBf16(actual));

      write(skip, int32_t{1});
      ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_EQ(ToHost(device_parameters), actual) << "skipped";
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// Goal: without copy, clip factor and skip the step is the same. Method: exact,
// against a launch with a factor of one.
TEST(PlainAdamWTest, WhatIsNullIsNeutral) {
  constexpr int64_t kSize = 1000;
  RandomNormals random;
  const std::vector<float> before = random.Floats(kSize);
  DeviceBuffer<float> gradients = ToDevice(random.Floats(kSize));
  DeviceBuffer<double> learning_rate = ToDevice(std::vector<double>{0.1});
  DeviceBuffer<int64_t> step = ToDevice(std::vector<int64_t>{1});
  DeviceBuffer<float> one = ToDevice(std::vector<float>{1.0f});
  std::vector<std::vector<float>> after;
  for (const float* clip_factor : {static_cast<const float*>(nullptr),
                                   static_cast<const float*>(one.data())}) {
    DeviceBuffer<float> parameters = ToDevice(before);
    DeviceBuffer<float> exp_avg = ToDevice(std::vector<float>(kSize));
    DeviceBuffer<float> exp_avg_sq = ToDevice(std::vector<float>(kSize));
    const absl::Status status =
        LaunchPlainAdamW({.parameters = parameters.data(),
                          .bf16_copy = nullptr,
                          .exp_avg = exp_avg.data(),
                          .exp_avg_sq = exp_avg_sq.data(),
                          .gradients = gradients.data(),
                          .num_elements = kSize,
                          .learning_rate = learning_rate.data(),
                          .step = step.data(),
                          .clip_factor = clip_factor,
                          .skip = nullptr,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.0},
                         nullptr);
    ASSERT_TRUE(status.ok()) << status;
    after.push_back(ToHost(parameters));
  }
  EXPECT_NE(after[0], before);
  ExpectEqualBits(after[0], after[1], "parameters");
}

TEST(PlainAdamWTest, RefusesWhatCannotBe) {
  const double rate = 0.1;  // Its address alone is looked at.
  const int64_t step = 1;
  const PlainAdamWArgs good = {.num_elements = 0,
                               .learning_rate = &rate,
                               .step = &step,
                               .beta1 = 0.9,
                               .beta2 = 0.95};
  EXPECT_TRUE(LaunchPlainAdamW(good, nullptr).ok());
  for (int which = 0; which < 5; ++which) {
    PlainAdamWArgs bad = good;
    if (which == 0) bad.num_elements = -1;
    if (which == 1) bad.beta1 = 1.0;
    if (which == 2) bad.beta2 = -0.1;
    if (which == 3) bad.learning_rate = nullptr;
    if (which == 4) bad.step = nullptr;
    EXPECT_EQ(LaunchPlainAdamW(bad, nullptr).code(),
              absl::StatusCode::kInvalidArgument)
        << which;
  }
}

}  // namespace
}  // namespace millrace
