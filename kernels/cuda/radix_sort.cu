#include "kernels/cuda/radix_sort.h"

#include <cuda_runtime.h>

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

using gpu::kWarpSize;

// Nine bits, so that two passes sort any vocabulary below 2^18.
constexpr int kMaxDigitBits = 9;
constexpr int kMaxDigits = 1 << kMaxDigitBits;
constexpr int kNumThreads = 512;
constexpr int kNumWarps = kNumThreads / kWarpSize;
constexpr int kPairsPerLane = 4;
constexpr int kTile = kNumThreads * kPairsPerLane;
static_assert(kNumThreads == kMaxDigits, "a thread looks after each digit");

struct Pass {
  const int32_t* keys_in;
  const int32_t* values_in;
  int32_t* keys_out;
  int32_t* values_out;
  int32_t* counts;  // [num_tiles, kMaxDigits]
  int64_t num_pairs;
  int shift;
  int digit_bits;

  __device__ __forceinline__ int Digit(int32_t key) const {
    return key >> shift & ((1 << digit_bits) - 1);
  }
};

// A block counts the digits of a tile. Limited by launch time at usual sizes.
__global__ void __launch_bounds__(kNumThreads)
    CountDigitsKernel(const __grid_constant__ Pass pass) {
  __shared__ int32_t counts[kMaxDigits];
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (int k = 0; k < kPairsPerLane; ++k) {
    const int64_t i =
        int64_t{blockIdx.x} * kTile + k * kNumThreads + threadIdx.x;
    if (i < pass.num_pairs) atomicAdd(&counts[pass.Digit(pass.keys_in[i])], 1);
  }
  __syncthreads();
  pass.counts[int64_t{blockIdx.x} * kMaxDigits + threadIdx.x] =
      counts[threadIdx.x];
}

// Exclusive sum over the block of one number a thread.
__device__ int32_t ExclusiveBlockSum(int32_t x, int32_t* scratch) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  int32_t inclusive = x;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int32_t below = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += below;
  }
  if (lane == kWarpSize - 1) scratch[warp] = inclusive;
  __syncthreads();
  int32_t before = 0;
  for (int w = 0; w < warp; ++w) before += scratch[w];
  return before + inclusive - x;
}

// A block moves a tile. A pair goes behind all pairs of lower digits, those of
// its digit in earlier tiles, and those before it in the tile. Memory bandwidth
// limits the speed, as above.
__global__ void __launch_bounds__(kNumThreads)
    MovePairsKernel(const __grid_constant__ Pass pass) {
  __shared__ int32_t next[kNumWarps][kMaxDigits];  // For each warp and digit.
  __shared__ int32_t scratch[kNumWarps];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  for (int w = 0; w < kNumWarps; ++w) next[w][threadIdx.x] = 0;
  __syncthreads();

  // A warp takes consecutive pairs; `rank` counts those of the same digit
  // before this one in the warp.
  int32_t keys[kPairsPerLane];
  int32_t ranks[kPairsPerLane];
  const int64_t first =
      int64_t{blockIdx.x} * kTile + warp * (kPairsPerLane * kWarpSize) + lane;
  for (int k = 0; k < kPairsPerLane; ++k) {
    const int64_t i = first + k * kWarpSize;
    const bool exists = i < pass.num_pairs;
    keys[k] = exists ? pass.keys_in[i] : 0;
    const int digit = exists ? pass.Digit(keys[k]) : -1;
    const unsigned same = __match_any_sync(~0u, digit);
    const int num_below = __popc(same & ((1u << lane) - 1));
    if (exists) ranks[k] = next[warp][digit] + num_below;
    __syncwarp();
    if (exists && num_below == 0) next[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();

  // Thread d turns the counts of digit d into places.
  const int digit = threadIdx.x;
  int32_t in_all = 0;
  int32_t in_earlier = 0;
  for (int64_t tile = 0; tile < gridDim.x; ++tile) {
    const int32_t count = pass.counts[tile * kMaxDigits + digit];
    if (tile < blockIdx.x) in_earlier += count;
    in_all += count;
  }
  int32_t place = ExclusiveBlockSum(in_all, scratch) + in_earlier;
  for (int w = 0; w < kNumWarps; ++w) {
    const int32_t count = next[w][digit];
    next[w][digit] = place;
    place += count;
  }
  __syncthreads();

  for (int k = 0; k < kPairsPerLane; ++k) {
    const int64_t i = first + k * kWarpSize;
    if (i >= pass.num_pairs) continue;
    const int32_t target = next[warp][pass.Digit(keys[k])] + ranks[k];
    pass.keys_out[target] = keys[k];
    pass.values_out[target] = pass.values_in[i];
  }
}

int64_t NumTiles(int64_t num_pairs) { return (num_pairs + kTile - 1) / kTile; }

// Arrays of the workspace begin at multiples of 16 bytes.
int64_t PaddedPairs(int64_t num_pairs) { return (num_pairs + 3) / 4 * 4; }

}  // namespace

int64_t RadixSortWorkspaceBytes(int64_t num_pairs) {
  return (2 * PaddedPairs(num_pairs) + NumTiles(num_pairs) * kMaxDigits) *
         static_cast<int64_t>(sizeof(int32_t));
}

absl::Status LaunchRadixSort(const RadixSortArgs& args, cudaStream_t stream) {
  if (args.num_pairs < 0 || args.num_pairs >= int64_t{1} << 31 ||
      args.key_limit < 1 || args.key_limit > int64_t{1} << 31) {
    return absl::InvalidArgumentError(
        absl::StrCat("sort got ", args.num_pairs, " pairs with keys below ",
                     args.key_limit, "; needs less than 2^31 of both"));
  }
  if (args.num_pairs == 0) return absl::OkStatus();
  int32_t* const spare_keys = static_cast<int32_t*>(args.workspace);
  int32_t* const spare_values = spare_keys + PaddedPairs(args.num_pairs);
  const int key_bits =
      std::bit_width(static_cast<uint64_t>(args.key_limit - 1));
  // An even number of passes ends where it began.
  int num_passes = (key_bits + kMaxDigitBits - 1) / kMaxDigitBits;
  num_passes += num_passes % 2;
  if (num_passes == 0) return absl::OkStatus();  // One key.
  const int digit_bits = (key_bits + num_passes - 1) / num_passes;
  Pass pass = {.keys_in = args.keys,
               .values_in = args.values,
               .keys_out = spare_keys,
               .values_out = spare_values,
               .counts = spare_values + PaddedPairs(args.num_pairs),
               .num_pairs = args.num_pairs,
               .shift = 0,
               .digit_bits = digit_bits};
  const auto num_tiles = static_cast<unsigned>(NumTiles(args.num_pairs));
  for (int i = 0; i < num_passes; ++i) {
    CountDigitsKernel<<<num_tiles, kNumThreads, 0, stream>>>(pass);
    MovePairsKernel<<<num_tiles, kNumThreads, 0, stream>>>(pass);
    pass.shift += digit_bits;
    pass.keys_in = pass.keys_out;
    pass.values_in = pass.values_out;
    pass.keys_out = i % 2 == 0 ? args.keys : spare_keys;
    pass.values_out = i % 2 == 0 ? args.values : spare_values;
  }
  return CudaStatus(cudaGetLastError(), "launch RadixSort");
}

}  // namespace millrace
