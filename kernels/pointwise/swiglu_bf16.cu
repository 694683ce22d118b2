#include "kernels/pointwise/swiglu_bf16.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/occupancy.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"
#include "kernels/tuning/tuned_choice.h"

namespace millrace {
namespace {

using gpu::Eights;
using gpu::Float8;

__device__ __forceinline__ uint16_t* At(const Bf16Rows& rows,
                                        const Eights::Place& place) {
  return static_cast<uint16_t*>(rows.data) + place.row * rows.row_stride +
         place.column;
}

__device__ __forceinline__ float Sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

// The gate's value and slope.
struct Gated {
  float value, slope;
};

template <GluGate kGate>
__device__ __forceinline__ Gated GatedOf(float x) {
  if constexpr (kGate == GluGate::kSilu) {
    const float sigmoid = Sigmoid(x);
    const float silu = x * sigmoid;
    return {silu, sigmoid + silu * (1.0f - sigmoid)};
  } else {
    // P = (1 + tanh u) / 2 = sigmoid(2 u) of gelu.h.
    constexpr float kFactor = 1.59576912f;  // 2 sqrt(2 / pi).
    constexpr float kCubic = 0.044715f * kFactor;
    const float square = x * x;
    const float p = Sigmoid(x * (kFactor + kCubic * square));
    const float gelu = x * p;
    return {gelu, p + gelu * (1.0f - p) * (kFactor + 3.0f * kCubic * square)};
  }
}

// A thread takes one eight; so many small blocks keep more loads under way than
// fewer that do more (97 against 88 % of a copy on H200). Limited by memory
// bandwidth.
template <GluGate kGate, bool kIsWide, int kNumThreads>
__global__ void __launch_bounds__(kNumThreads)
    SwigluForwardKernel(const __grid_constant__ SwigluForwardBf16Args args,
                        const __grid_constant__ Eights eights) {
  const Eights::Place place =
      eights.Find(blockIdx.x * kNumThreads + threadIdx.x);
  const Float8 gate = gpu::LoadEight<kIsWide, /*kStreams=*/false>(
      At(args.gate, place), place.count);
  Float8 up = gpu::LoadEight<kIsWide, /*kStreams=*/false>(At(args.up, place),
                                                          place.count);
#pragma unroll
  for (int j = 0; j < 8; ++j) up.v[j] *= GatedOf<kGate>(gate.v[j]).value;
  gpu::StoreEight<kIsWide>(At(args.activation, place), up, place.count);
  if (args.amax != nullptr) {
    gpu::RaiseAmax<kNumThreads>(args.amax, gpu::LargerPair(0, gpu::Pack8(up)));
  }
}

// The same for the backward pass. Room for all threads of the multiprocessor
// takes 4 % off the time.
template <GluGate kGate, bool kIsWide, int kNumThreads>
__global__ void __launch_bounds__(kNumThreads,
                                  kIsWide ? gpu::FullBlocks(kNumThreads) : 1)
    SwigluBackwardKernel(const __grid_constant__ SwigluBackwardBf16Args args,
                         const __grid_constant__ Eights eights) {
  const Eights::Place place =
      eights.Find(blockIdx.x * kNumThreads + threadIdx.x);
  Float8 gate = gpu::LoadEight<kIsWide, /*kStreams=*/false>(
      At(args.gate, place), place.count);
  Float8 up = gpu::LoadEight<kIsWide, /*kStreams=*/false>(At(args.up, place),
                                                          place.count);
  Float8 d = gpu::LoadEight<kIsWide, /*kStreams=*/false>(
      At(args.d_activation, place), place.count);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const Gated gated = GatedOf<kGate>(gate.v[j]);
    gate.v[j] = d.v[j] * up.v[j] * gated.slope;
    const float d_up = d.v[j] * gated.value;
    d.v[j] = gated.value * up.v[j];
    up.v[j] = d_up;
  }
  gpu::StoreEight<kIsWide>(At(args.d_gate, place), gate, place.count);
  gpu::StoreEight<kIsWide>(At(args.d_up, place), up, place.count);
  if (args.activation.data != nullptr) {
    gpu::StoreEight<kIsWide>(At(args.activation, place), d, place.count);
  }
  if (args.amax != nullptr) {
    const uint32_t largest = gpu::LargerPair(0, gpu::Pack8(gate));
    gpu::RaiseAmax<kNumThreads>(args.amax,
                                gpu::LargerPair(largest, gpu::Pack8(up)));
  }
}

absl::Status Check(const char* kernel, int64_t num_tokens, int64_t ffn_hidden,
                   std::initializer_list<Bf16Rows> tensors) {
  if (num_tokens < 0 || ffn_hidden < 1 ||
      !Eights::Fits(num_tokens, ffn_hidden)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kernel, " got [", num_tokens, ", ", ffn_hidden,
        "]; needs tokens of at least zero, columns of at least one, and less "
        "than 2^34 elements"));
  }
  for (const Bf16Rows& rows : tensors) {
    if (rows.data == nullptr || rows.row_stride < ffn_hidden) {
      return absl::InvalidArgumentError(
          absl::StrCat(kernel, " got a null pointer or a row stride of ",
                       rows.row_stride, " for rows of ", ffn_hidden));
    }
  }
  return absl::OkStatus();
}

// Whether all rows are whole eights at multiples of 16 bytes.
bool AreWide(int64_t ffn_hidden, std::initializer_list<Bf16Rows> tensors) {
  for (const Bf16Rows& rows : tensors) {
    if (reinterpret_cast<uintptr_t>(rows.data) % 16 != 0 ||
        rows.row_stride % 8 != 0) {
      return false;
    }
  }
  return ffn_hidden % 8 == 0;
}

// The compiled kernels, for vectors of eight and for any rows.
template <typename Args>
struct Way {
  using Kernel = void (*)(Args, Eights);
  int threads;
  Kernel wide, narrow;
};

// The way of most threads up to the tuned choice; 256 to begin with.
template <typename Args, size_t kCount>
absl::Status Launch(const Way<Args> (&ways)[kCount], TunedKernel family,
                    int64_t num_bytes, bool is_wide, const Args& args,
                    const char* what, cudaStream_t stream) {
  const int64_t threads =
      TunedChoice(family, {IsCachedClass(num_bytes)}, {256})[0];
  const Way<Args>* way = ways;
  while (way + 1 != ways + kCount && way[1].threads <= threads) ++way;
  const Eights eights(args.num_tokens, args.ffn_hidden);
  const unsigned num_blocks =
      (eights.num_eights() + way->threads - 1) / way->threads;
  (is_wide ? way->wide : way->narrow)<<<num_blocks, way->threads, 0, stream>>>(
      args, eights);
  return CudaStatus(cudaGetLastError(), what);
}

#define WAY(kernel, threads) \
  { threads, kernel<kGate, true, threads>, kernel<kGate, false, threads> }
template <GluGate kGate>
constexpr Way<SwigluForwardBf16Args> kForwardWays[] = {
    WAY(SwigluForwardKernel, 128), WAY(SwigluForwardKernel, 256),
    WAY(SwigluForwardKernel, 512), WAY(SwigluForwardKernel, 1024)};
template <GluGate kGate>
constexpr Way<SwigluBackwardBf16Args> kBackwardWays[] = {
    WAY(SwigluBackwardKernel, 128), WAY(SwigluBackwardKernel, 256),
    WAY(SwigluBackwardKernel, 512), WAY(SwigluBackwardKernel, 1024)};
#undef WAY

}  // namespace

absl::Status LaunchSwigluForwardBf16(const SwigluForwardBf16Args& args,
                                     cudaStream_t stream) {
  if (absl::Status status =
          Check("SwiGLU forward", args.num_tokens, args.ffn_hidden,
                {args.activation, args.gate, args.up});
      !status.ok()) {
    return status;
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  const auto& ways = args.kind == GluGate::kGelu ? kForwardWays<GluGate::kGelu>
                                                 : kForwardWays<GluGate::kSilu>;
  return Launch(ways, TunedKernel::kSwigluForward,
                6 * args.num_tokens * args.ffn_hidden,
                AreWide(args.ffn_hidden, {args.activation, args.gate, args.up}),
                args, "launch SwiGLU forward", stream);
}

absl::Status LaunchSwigluBackwardBf16(const SwigluBackwardBf16Args& args,
                                      cudaStream_t stream) {
  const Bf16Rows activation =
      args.activation.data == nullptr ? args.d_activation : args.activation;
  if (absl::Status status =
          Check("SwiGLU backward", args.num_tokens, args.ffn_hidden,
                {args.d_gate, args.d_up, activation, args.gate, args.up,
                 args.d_activation});
      !status.ok()) {
    return status;
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  const auto& ways = args.kind == GluGate::kGelu
                         ? kBackwardWays<GluGate::kGelu>
                         : kBackwardWays<GluGate::kSilu>;
  return Launch(
      ways, TunedKernel::kSwigluBackward,
      10 * args.num_tokens * args.ffn_hidden,
      AreWide(args.ffn_hidden, {args.d_gate, args.d_up, activation, args.gate,
                                args.up, args.d_activation}),
      args, "launch SwiGLU backward", stream);
}

}  // namespace millrace
