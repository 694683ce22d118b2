#include "kernels/pointwise/elementwise_bf16.h"

#include <cuda_runtime.h>

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using gpu::Float8;

constexpr int kNumThreads = 256;
constexpr int64_t kPerBlock = 8 * kNumThreads;

// A thread adds eight elements. Limited by memory bandwidth.
template <bool kIsWide>
__global__ void __launch_bounds__(kNumThreads)
    AddKernel(const __grid_constant__ AddBf16Args args) {
  const int64_t index = blockIdx.x * kPerBlock + threadIdx.x * 8;
  const int count = static_cast<int>(
      max(int64_t{0}, min(int64_t{8}, args.num_elements - index)));
  const Float8 a = gpu::LoadEight<kIsWide>(
      static_cast<const uint16_t*>(args.a) + index, count);
  Float8 sum = gpu::LoadEight<kIsWide>(
      static_cast<const uint16_t*>(args.b) + index, count);
#pragma unroll
  for (int j = 0; j < 8; ++j) sum.v[j] += a.v[j];
  gpu::StoreEight<kIsWide>(static_cast<uint16_t*>(args.out) + index, sum,
                           count);
}

// Whether all are whole eights at multiples of 16 bytes.
bool IsWide(const AddBf16Args& args) {
  for (const void* buffer :
       {static_cast<const void*>(args.out), args.a, args.b}) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) return false;
  }
  return args.num_elements % 8 == 0;
}

}  // namespace

absl::Status LaunchAddBf16(const AddBf16Args& args, cudaStream_t stream) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  if (args.num_elements < 0 || args.num_elements >= kLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat("add got ", args.num_elements,
                     " elements; needs zero or more, less than 2^40"));
  }
  if (args.num_elements == 0) return absl::OkStatus();
  const auto num_blocks =
      static_cast<unsigned>((args.num_elements + kPerBlock - 1) / kPerBlock);
  const auto kernel = IsWide(args) ? AddKernel<true> : AddKernel<false>;
  kernel<<<num_blocks, kNumThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch add");
}

}  // namespace millrace
