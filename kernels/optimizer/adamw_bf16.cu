#include "kernels/optimizer/adamw_bf16.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/four.cuh"
#include "kernels/cuda/occupancy.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/status.h"
#include "kernels/optimizer/adamw_step.cuh"

namespace millrace {
namespace {

using gpu::FactorsOf;
using gpu::FastSquareRoot;
using gpu::Four;
using gpu::Hyperparameters;
using gpu::StepFactors;

// The args, with constants folded in double and rounded once.
struct Launch {
  float* master;
  uint16_t* weights;
  void* exp_avg;
  void* exp_avg_sq;
  const void* gradients;
  int64_t begin, end;
  const float* clip_factor;
  const int32_t* skip;
  const AdamWStep* device_step;  // Null: `factors` are those of the step.
  Hyperparameters hyper;
  StepFactors factors;
  uint64_t seed;
  int64_t first_four;  // The index of the buffers' first four elements.
  gpu::MomentFactors moments;
  float epsilon;
};

// Elements `index` to index + 3, or those of them that lie in the run.
template <bool kIsWhole, bool kIsBf16>
__device__ __forceinline__ Four Load(const Launch& launch, int64_t index,
                                     const void* buffer) {
  if constexpr (kIsWhole) return gpu::LoadFour<kIsBf16>(buffer, index);
  return gpu::LoadPartOfFour<kIsBf16>(buffer, index, launch.begin, launch.end);
}
template <bool kIsWhole, typename Element, typename Values>
__device__ __forceinline__ void Store(const Launch& launch, int64_t index,
                                      void* buffer, const Values& values) {
  Element* out = static_cast<Element*>(buffer);
  if constexpr (kIsWhole) {
    gpu::StoreFour(out, index, values);
  } else {
    gpu::StorePartOfFour(out, index, values, launch.begin, launch.end);
  }
}

// Rounds with the lower halves of the four words.
__device__ __forceinline__ uint2 StochasticPairs(const Four& x, uint4 bits) {
  return {gpu::StochasticPair(x.v[0], x.v[1], bits.x, bits.y),
          gpu::StochasticPair(x.v[2], x.v[3], bits.z, bits.w)};
}

constexpr int kNumThreads = 256;
constexpr int64_t kMaxElements = int64_t{1} << 40;

// A thread updates four elements, from first_four to end_four; all loads are
// under way before the first is used. Limited by memory bandwidth (99 % of a
// copy on H200), but where all is in bf16 nearly as much by arithmetic, half of
// it Philox. The fours that a run only begins or ends in are launches of their
// own (not kIsWhole), which keeps the registers of the others low. One thread
// of each block works out what follows from a step that only the device knows,
// while other blocks' loads are under way.
template <bool kIsWhole, bool kBf16Gradients, bool kBf16Moments,
          bool kHasMaster>
__global__ void __launch_bounds__(kNumThreads,
                                  kIsWhole && !(kBf16Moments && kHasMaster)
                                      ? gpu::FullBlocks(kNumThreads)
                                      : 1)
    AdamWKernel(const __grid_constant__ Launch launch, int64_t first_four,
                int64_t end_four) {
  StepFactors factors = launch.factors;
  if (launch.device_step != nullptr) {
    __shared__ StepFactors of_block;
    if (threadIdx.x == 0) {
      of_block = FactorsOf(*launch.device_step, launch.hyper);
    }
    __syncthreads();
    factors = of_block;
  }
  const int64_t four =
      first_four + int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (four >= end_four) return;
  const int64_t index = 4 * four;
  const Four g =
      Load<kIsWhole, kBf16Gradients>(launch, index, launch.gradients);
  Four p = kHasMaster ? Load<kIsWhole, false>(launch, index, launch.master)
                      : Load<kIsWhole, true>(launch, index, launch.weights);
  Four m = Load<kIsWhole, kBf16Moments>(launch, index, launch.exp_avg);
  Four v = Load<kIsWhole, kBf16Moments>(launch, index, launch.exp_avg_sq);
  // Read behind the loads above, whose latency then hides theirs.
  if (launch.skip != nullptr && *launch.skip != 0) return;
  const float scale =
      launch.clip_factor == nullptr ? 1.0f : *launch.clip_factor;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float gradient = g.v[j] * scale;
    if constexpr (kBf16Moments) {
      gpu::UpdateMoments(launch.moments, gradient, m.v[j], v.v[j]);
    } else {
      const gpu::MomentFactors& c = launch.moments;
      m.v[j] = m.v[j] * c.beta1 + gradient * c.rest1;
      v.v[j] = v.v[j] * c.beta2 + gradient * gradient * c.rest2;
    }
    // Both approximations are good to 2^-22.
    const float denominator =
        FastSquareRoot(v.v[j]) * factors.root_factor + launch.epsilon;
    p.v[j] = p.v[j] * factors.keep -
             __fdividef(m.v[j] * factors.step_size, denominator);
  }

  uint4 bits = {};
  if constexpr (kBf16Moments || !kHasMaster) {
    bits = gpu::RandomBits(launch.seed, factors.step,
                           static_cast<uint64_t>(launch.first_four + four));
  }
  // An element has 32 bits: the lower half rounds m, the upper half rounds v,
  // and their exclusive or rounds the weight. Each is uniform, and any two of
  // them are independent.
  const uint4 upper = {bits.x >> 16, bits.y >> 16, bits.z >> 16, bits.w >> 16};
  if constexpr (kBf16Moments) {
    Store<kIsWhole, uint16_t>(launch, index, launch.exp_avg,
                              StochasticPairs(m, bits));
    Store<kIsWhole, uint16_t>(launch, index, launch.exp_avg_sq,
                              StochasticPairs(v, upper));
  } else {
    Store<kIsWhole, float>(launch, index, launch.exp_avg, m);
    Store<kIsWhole, float>(launch, index, launch.exp_avg_sq, v);
  }
  if constexpr (!kHasMaster) {
    Store<kIsWhole, uint16_t>(
        launch, index, launch.weights,
        StochasticPairs(p, {bits.x ^ upper.x, bits.y ^ upper.y,
                            bits.z ^ upper.z, bits.w ^ upper.w}));
    return;
  }
  Store<kIsWhole, float>(launch, index, launch.master, p);
  if (launch.weights != nullptr) {
    Store<kIsWhole, uint16_t>(
        launch, index, launch.weights,
        uint2{gpu::PackPair(p.v[0], p.v[1]), gpu::PackPair(p.v[2], p.v[3])});
  }
}

absl::Status Check(const AdamWBf16Args& args) {
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (args.begin < 0 || args.end < args.begin || args.end >= kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW got the run [", args.begin, ", ", args.end,
                     "); needs one within [0, 2^40)"));
  }
  if (args.first_index < 0 || args.first_index % 4 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW got the first index ", args.first_index,
                     "; needs a multiple of four, at least zero"));
  }
  const bool is_step = args.device_step != nullptr || args.step >= 1;
  if (!is_beta(args.beta1) || !is_beta(args.beta2) || !is_step) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW got beta1 ", args.beta1, ", beta2 ", args.beta2, ", step ",
        args.step, "; needs betas in [0, 1) and a first step of 1"));
  }
  if (args.master == nullptr && args.weights == nullptr) {
    return absl::InvalidArgumentError(
        "AdamW got neither master weights nor bf16 weights");
  }
  if (args.exp_avg == nullptr || args.exp_avg_sq == nullptr ||
      args.gradients == nullptr) {
    return absl::InvalidArgumentError(
        "AdamW got a null pointer for a moment or the gradients");
  }
  for (const void* buffer :
       {static_cast<const void*>(args.master),
        static_cast<const void*>(args.weights),
        static_cast<const void*>(args.exp_avg),
        static_cast<const void*>(args.exp_avg_sq), args.gradients}) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) {
      return absl::InvalidArgumentError(
          "AdamW got a buffer that does not begin at a multiple of 16 bytes");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LaunchAdamWBf16(const AdamWBf16Args& args, cudaStream_t stream) {
  if (absl::Status status = Check(args); !status.ok()) return status;
  if (args.begin == args.end) return absl::OkStatus();
  const Hyperparameters hyper = {args.beta1, args.beta2, args.weight_decay};
  const Launch launch = {
      .master = args.master,
      .weights = static_cast<uint16_t*>(args.weights),
      .exp_avg = args.exp_avg,
      .exp_avg_sq = args.exp_avg_sq,
      .gradients = args.gradients,
      .begin = args.begin,
      .end = args.end,
      .clip_factor = args.clip_factor,
      .skip = args.skip,
      .device_step = args.device_step,
      .hyper = hyper,
      .factors = args.device_step != nullptr
                     ? StepFactors{}
                     : FactorsOf({args.learning_rate, args.step}, hyper),
      .seed = args.seed,
      .first_four = args.first_index / 4,
      .moments = gpu::MomentFactorsOf(args.beta1, args.beta2),
      .epsilon = static_cast<float>(args.epsilon)};
  auto run = [&]<bool kBf16Gradients, bool kBf16Moments, bool kHasMaster>() {
    auto run_fours = [&]<bool kIsWhole>(int64_t first, int64_t end) {
      if (first >= end) return;
      const auto num_blocks =
          static_cast<unsigned>((end - first + kNumThreads - 1) / kNumThreads);
      AdamWKernel<kIsWhole, kBf16Gradients, kBf16Moments, kHasMaster>
          <<<num_blocks, kNumThreads, 0, stream>>>(launch, first, end);
    };
    const int64_t begin_four = args.begin / 4;
    const int64_t end_four = args.end / 4;
    const bool begins_within = args.begin % 4 != 0;
    const bool ends_within =
        args.end % 4 != 0 && !(begins_within && end_four == begin_four);
    run_fours.template operator()<true>(begin_four + begins_within, end_four);
    run_fours.template operator()<false>(begin_four,
                                         begin_four + begins_within);
    run_fours.template operator()<false>(end_four, end_four + ends_within);
  };
  auto with_moments = [&]<bool kBf16Gradients, bool kBf16Moments>() {
    if (args.master != nullptr) {
      run.template operator()<kBf16Gradients, kBf16Moments, true>();
    } else {
      run.template operator()<kBf16Gradients, kBf16Moments, false>();
    }
  };
  auto with_gradients = [&]<bool kBf16Gradients>() {
    if (args.bf16_moments) {
      with_moments.template operator()<kBf16Gradients, true>();
    } else {
      with_moments.template operator()<kBf16Gradients, false>();
    }
  };
  if (args.bf16_gradients) {
    with_gradients.template operator()<true>();
  } else {
    with_gradients.template operator()<false>();
  }
  return CudaStatus(cudaGetLastError(), "launch AdamW");
}

}  // namespace millrace
