#include "kernels/cuda/amax.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// A thread takes four eights, so that enough loads are under way. Limited by
// memory bandwidth. Whoever rounds the tensor reads it next, so its end stays
// in the second-level cache.
constexpr int kAmaxEights = 4;
constexpr int kAmaxThreads = 256;
template <bool kIsWide>
__global__ void __launch_bounds__(kAmaxThreads)
    AmaxKernel(const __grid_constant__ AmaxBf16Args args,
               const __grid_constant__ gpu::Eights eights) {
  uint4 x[kAmaxEights];
#pragma unroll
  for (int i = 0; i < kAmaxEights; ++i) {
    const gpu::Eights::Place place = eights.Find(
        (blockIdx.x * kAmaxEights + i) * kAmaxThreads + threadIdx.x);
    const uint16_t* address = static_cast<const uint16_t*>(args.x) +
                              place.row * args.x_row_stride + place.column;
    x[i] = {};
    if constexpr (kIsWide) {
      if (place.count > 0) x[i] = gpu::Load16(address);
    } else {
      x[i] = gpu::Pack8(gpu::LoadEight<false>(address, place.count));
    }
  }
  uint32_t largest = 0;
#pragma unroll
  for (const uint4& eight : x) largest = gpu::LargerPair(largest, eight);
  gpu::RaiseAmax<kAmaxThreads>(args.amax, largest);
}

}  // namespace

absl::Status LaunchAmaxBf16(const AmaxBf16Args& args, cudaStream_t stream) {
  if (args.rows < 0 || args.columns < 1 || args.x_row_stride < args.columns ||
      !gpu::Eights::Fits(args.rows, args.columns)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "amax got [", args.rows, ", ", args.columns, "] with rows ",
        args.x_row_stride,
        " apart; needs zero rows or more, one column or more, rows apart, and "
        "less than 2^34 elements"));
  }
  if (args.rows == 0) return absl::OkStatus();
  const gpu::Eights eights(args.rows, args.columns);
  const bool is_wide = args.columns % 8 == 0 && args.x_row_stride % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  constexpr int kPerBlock = kAmaxEights * kAmaxThreads;
  const unsigned num_blocks = (eights.num_eights() + kPerBlock - 1) / kPerBlock;
  const auto kernel = is_wide ? AmaxKernel<true> : AmaxKernel<false>;
  kernel<<<num_blocks, kAmaxThreads, 0, stream>>>(args, eights);
  return CudaStatus(cudaGetLastError(), "launch amax");
}

}  // namespace millrace
