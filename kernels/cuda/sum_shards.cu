#include "kernels/cuda/sum_shards.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/four.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using gpu::Four;

constexpr int kNumThreads = 256;
// A thread's fours, kNumThreads apart: loads of all are under way at once.
constexpr int kFoursPerThread = 2;

// Limited by memory bandwidth.
template <bool kIsBf16, bool kIsAligned>
__global__ void __launch_bounds__(kNumThreads)
    SumShardsKernel(const __grid_constant__ SumShardsArgs args) {
  const int64_t first =
      4 * (int64_t{blockIdx.x} * kNumThreads * kFoursPerThread + threadIdx.x);
#pragma unroll
  for (int part = 0; part < kFoursPerThread; ++part) {
    const int64_t index = first + 4 * kNumThreads * part;
    const bool is_whole = kIsAligned && index + 4 <= args.num_elements;
    Four sum = {};
    for (int shard = 0; shard < args.num_shards; ++shard) {
      const Four x = is_whole
                         ? gpu::LoadFour<kIsBf16>(args.shards[shard], index)
                         : gpu::LoadPartOfFour<kIsBf16>(
                               args.shards[shard], index, 0, args.num_elements);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.v[j] += x.v[j];
    }
    if constexpr (kIsBf16) {
      const uint2 raw = {gpu::PackPair(sum.v[0], sum.v[1]),
                         gpu::PackPair(sum.v[2], sum.v[3])};
      uint16_t* out = static_cast<uint16_t*>(args.sum);
      if (is_whole) {
        gpu::StoreFour(out, index, raw);
      } else {
        gpu::StorePartOfFour(out, index, raw, 0, args.num_elements);
      }
    } else {
      float* out = static_cast<float*>(args.sum);
      if (is_whole) {
        gpu::StoreFour(out, index, sum);
      } else {
        gpu::StorePartOfFour(out, index, sum, 0, args.num_elements);
      }
    }
  }
}

bool AreAligned(const SumShardsArgs& args) {
  auto is_aligned = [](const void* buffer) {
    return reinterpret_cast<uintptr_t>(buffer) % 16 == 0;
  };
  return is_aligned(args.sum) &&
         std::all_of(args.shards, args.shards + args.num_shards, is_aligned);
}

}  // namespace

absl::Status LaunchSumShards(const SumShardsArgs& args, cudaStream_t stream) {
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  if (args.num_shards < 1 || args.num_shards > kMaxSumShards ||
      args.num_elements < 0 || args.num_elements >= kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("sum of shards got ", args.num_shards, " of ",
                     args.num_elements, " elements; needs one to ",
                     kMaxSumShards, " of zero or more, less than 2^40"));
  }
  if (args.num_elements == 0) return absl::OkStatus();
  constexpr int64_t kPerBlock = int64_t{4} * kFoursPerThread * kNumThreads;
  const auto num_blocks =
      static_cast<unsigned>((args.num_elements + kPerBlock - 1) / kPerBlock);
  auto run = [&]<bool kIsBf16>() {
    const auto kernel = AreAligned(args) ? SumShardsKernel<kIsBf16, true>
                                         : SumShardsKernel<kIsBf16, false>;
    kernel<<<num_blocks, kNumThreads, 0, stream>>>(args);
  };
  if (args.type == ElementType::kBfloat16) {
    run.operator()<true>();
  } else {
    run.operator()<false>();
  }
  return CudaStatus(cudaGetLastError(), "launch sum of shards");
}

}  // namespace millrace
