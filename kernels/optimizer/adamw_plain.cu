#include "kernels/optimizer/adamw_plain.h"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"
#include "kernels/optimizer/adamw_step.cuh"

namespace millrace {
namespace {

// The factors that all elements share, computed in double and rounded once.
struct Constants {
  float keep, beta1, rest1, beta2, rest2, step_size, root_factor, epsilon;
  float gradient_scale;
};

__device__ Constants Fold(const PlainAdamWArgs& args) {
  const gpu::StepFactors factors =
      gpu::FactorsOf({.learning_rate = *args.learning_rate, .step = *args.step},
                     {.beta1 = args.beta1,
                      .beta2 = args.beta2,
                      .weight_decay = args.weight_decay});
  const gpu::MomentFactors moments =
      gpu::MomentFactorsOf(args.beta1, args.beta2);
  return {
      .keep = factors.keep,
      .beta1 = moments.beta1,
      .rest1 = moments.rest1,
      .beta2 = moments.beta2,
      .rest2 = moments.rest2,
      .step_size = factors.step_size,
      .root_factor = factors.root_factor,
      .epsilon = static_cast<float>(args.epsilon),
      .gradient_scale = args.clip_factor == nullptr ? 1.0f : *args.clip_factor};
}

constexpr int kPerThread = 8;
constexpr int64_t kPerBlock = int64_t{plain::kNumThreads} * kPerThread;

// A thread takes every 256th of a block's elements, after one has folded the
// constants for all. Limited by memory bandwidth.
__global__ void __launch_bounds__(plain::kNumThreads)
    AdamWKernel(const __grid_constant__ PlainAdamWArgs args) {
  if (args.skip != nullptr && *args.skip != 0) return;
  __shared__ Constants constants;
  if (threadIdx.x == 0) constants = Fold(args);
  __syncthreads();
  const Constants c = constants;
  const int64_t begin = int64_t{blockIdx.x} * kPerBlock + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = begin + k * plain::kNumThreads;
    if (i >= args.num_elements) return;
    const float g = args.gradients[i] * c.gradient_scale;
    const float m = args.exp_avg[i] * c.beta1 + g * c.rest1;
    const float v = args.exp_avg_sq[i] * c.beta2 + g * g * c.rest2;
    const float denominator = sqrtf(v) * c.root_factor + c.epsilon;
    const float p = args.parameters[i] * c.keep - m * c.step_size / denominator;
    args.exp_avg[i] = m;
    args.exp_avg_sq[i] = v;
    args.parameters[i] = p;
    if (args.bf16_copy != nullptr) {
      static_cast<__nv_bfloat16*>(args.bf16_copy)[i] = __float2bfloat16_rn(p);
    }
  }
}

}  // namespace

absl::Status LaunchPlainAdamW(const PlainAdamWArgs& args, cudaStream_t stream) {
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  if (args.num_elements < 0 || args.num_elements >= kMaxElements ||
      !is_beta(args.beta1) || !is_beta(args.beta2)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain AdamW got ", args.num_elements, " elements, beta1 ",
                     args.beta1, ", beta2 ", args.beta2,
                     "; needs less than 2^40 elements and betas in [0, 1)"));
  }
  if (args.learning_rate == nullptr || args.step == nullptr) {
    return absl::InvalidArgumentError(
        "plain AdamW got no learning rate or no step; both are read on the "
        "device");
  }
  if (args.num_elements == 0) return absl::OkStatus();
  AdamWKernel<<<static_cast<unsigned>((args.num_elements + kPerBlock - 1) /
                                      kPerBlock),
                plain::kNumThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch plain AdamW");
}

}  // namespace millrace
