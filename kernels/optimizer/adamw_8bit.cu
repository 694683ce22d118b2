#include "kernels/optimizer/adamw_8bit.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/four.cuh"
#include "kernels/cuda/status.h"
#include "kernels/optimizer/adamw_step.cuh"

namespace millrace {
namespace {

using gpu::Four;

struct Launch8bit {
  AdamW8bitArgs args;
  gpu::Hyperparameters hyper;
  gpu::MomentFactors moments;
  float epsilon;
};

__constant__ MomentFractions first_fractions = FractionsOf(Moment::kFirst);
__constant__ MomentFractions second_fractions = FractionsOf(Moment::kSecond);

constexpr int kNumThreads8bit = 256;
constexpr int kLanes = 32;
constexpr int kFours = kMomentBlockSize / (4 * kLanes);  // Of a lane.
constexpr int64_t kMaxBlocks8bit = int64_t{1} << 31;

// What lanes of a warp look up at different places.
struct SharedFractions {
  float first_values[128];
  float first_middles[128];
  float second_values[256];
  float second_middles[256];
};

// The lane's codes of the block, and back.
template <Moment kMoment>
__device__ __forceinline__ void Decode(const MomentBlock& block, int lane,
                                       const float* values, Four* out) {
  const float largest = block.largest;
  const auto* words = reinterpret_cast<const uint32_t*>(block.codes);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const uint32_t word = words[i * kLanes + lane];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto code = static_cast<uint8_t>(word >> (8 * j));
      out[i].v[j] = DecodeMoment<kMoment>(code, largest, values);
    }
  }
}

template <Moment kMoment>
__device__ __forceinline__ void Encode(const Four* x, int lane,
                                       const float* middles,
                                       MomentBlock* block) {
  // Read as whole numbers, magnitudes keep their order; NaN is above all.
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bits = max(bits, __float_as_uint(x[i].v[j]) & 0x7FFFFFFFu);
    }
  }
  float largest = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, bits));
  if (largest < kLeastLargestMoment) largest = 0.0f;
  if (lane == 0) block->largest = largest;
  auto* words = reinterpret_cast<uint32_t*>(block->codes);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      word |= uint32_t{EncodeMoment<kMoment>(x[i].v[j], largest, middles)}
              << (8 * j);
    }
    words[i * kLanes + lane] = word;
  }
}

// One warp a block of moments. Limited by memory bandwidth and, nearly as much,
// by the arithmetic of codes.
__global__ void __launch_bounds__(kNumThreads8bit)
    AdamW8bitKernel(const __grid_constant__ Launch8bit launch) {
  __shared__ SharedFractions fractions;
  __shared__ gpu::StepFactors of_block;
  const AdamW8bitArgs& args = launch.args;
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kNumThreads8bit) {
    if (i < 128) {
      fractions.first_values[i] = first_fractions.values[i];
      fractions.first_middles[i] = first_fractions.middles[i];
    }
    fractions.second_values[i] = second_fractions.values[i];
    fractions.second_middles[i] = second_fractions.middles[i];
  }
  if (threadIdx.x == 0) {
    of_block = gpu::FactorsOf(*args.device_step, launch.hyper);
  }
  __syncthreads();
  const gpu::StepFactors factors = of_block;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t block =
      (int64_t{blockIdx.x} * kNumThreads8bit + threadIdx.x) / kLanes;
  const int64_t first = block * kMomentBlockSize + 4 * lane;
  if (block >= args.num_elements / kMomentBlockSize) return;
  if (args.skip != nullptr && *args.skip != 0) return;

  Four g[kFours], p[kFours], m[kFours], v[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int64_t index = first + i * 4 * kLanes;
    g[i] = gpu::LoadFour<false>(args.gradients, index);
    p[i] = gpu::LoadFour<false>(args.master, index);
  }
  Decode<Moment::kFirst>(args.exp_avg[block], lane, fractions.first_values, m);
  Decode<Moment::kSecond>(args.exp_avg_sq[block], lane, fractions.second_values,
                          v);
  // All lanes have read the block before one of them writes it.
  __syncwarp();
  const float scale = args.clip_factor == nullptr ? 1.0f : *args.clip_factor;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      gpu::UpdateMoments(launch.moments, __fmul_rn(g[i].v[j], scale), m[i].v[j],
                         v[i].v[j]);
      // Both approximations are good to 2^-22.
      const float denominator =
          gpu::FastSquareRoot(v[i].v[j]) * factors.root_factor + launch.epsilon;
      p[i].v[j] = p[i].v[j] * factors.keep -
                  __fdividef(m[i].v[j] * factors.step_size, denominator);
    }
    const int64_t index = first + i * 4 * kLanes;
    gpu::StoreFour(args.master, index, p[i]);
    if (args.weights != nullptr) {
      gpu::StoreFour(static_cast<uint16_t*>(args.weights), index,
                     uint2{gpu::PackPair(p[i].v[0], p[i].v[1]),
                           gpu::PackPair(p[i].v[2], p[i].v[3])});
    }
  }
  Encode<Moment::kFirst>(m, lane, fractions.first_middles,
                         args.exp_avg + block);
  Encode<Moment::kSecond>(v, lane, fractions.second_middles,
                          args.exp_avg_sq + block);
}

absl::Status Check8bit(const AdamW8bitArgs& args) {
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (args.num_elements < 0 || args.num_elements % kMomentBlockSize != 0 ||
      args.num_elements / kMomentBlockSize >= kMaxBlocks8bit) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW in 8 bits got ", args.num_elements,
                     " elements; needs a multiple of ", kMomentBlockSize));
  }
  if (!is_beta(args.beta1) || !is_beta(args.beta2)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW in 8 bits got beta1 ", args.beta1, ", beta2 ",
                     args.beta2, "; needs both in [0, 1)"));
  }
  if (args.master == nullptr || args.exp_avg == nullptr ||
      args.exp_avg_sq == nullptr || args.gradients == nullptr ||
      args.device_step == nullptr) {
    return absl::InvalidArgumentError("AdamW in 8 bits got a null pointer");
  }
  for (const void* buffer : {static_cast<const void*>(args.master),
                             static_cast<const void*>(args.weights),
                             static_cast<const void*>(args.gradients)}) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) {
      return absl::InvalidArgumentError(
          "AdamW in 8 bits got a buffer that does not begin at a multiple of "
          "16 bytes");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LaunchAdamW8bit(const AdamW8bitArgs& args, cudaStream_t stream) {
  if (absl::Status status = Check8bit(args); !status.ok()) return status;
  if (args.num_elements == 0) return absl::OkStatus();
  const Launch8bit launch = {
      .args = args,
      .hyper = {args.beta1, args.beta2, args.weight_decay},
      .moments = gpu::MomentFactorsOf(args.beta1, args.beta2),
      .epsilon = static_cast<float>(args.epsilon)};
  constexpr int64_t kPerBlock = kNumThreads8bit / kLanes * kMomentBlockSize;
  const auto num_blocks =
      static_cast<unsigned>((args.num_elements + kPerBlock - 1) / kPerBlock);
  AdamW8bitKernel<<<num_blocks, kNumThreads8bit, 0, stream>>>(launch);
  return CudaStatus(cudaGetLastError(), "launch AdamW in 8 bits");
}

}  // namespace millrace
