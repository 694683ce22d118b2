#include "kernels/vocabulary/cross_entropy_rows_plain.h"

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

using plain::FromFloat;
using plain::kNumThreads;
using plain::ToFloat;

constexpr int kNumWarps = kNumThreads / gpu::kWarpSize;

// The maximum of a row's logits, and the sum of exp(logit - maximum).
struct RowSums {
  float maximum;
  float sum_exponentials;
};

// A logit as the softcap leaves it, and the softcap's slope there.
__device__ __forceinline__ float Capped(float x, float softcap) {
  return softcap > 0.0f ? softcap * tanhf(x / softcap) : x;
}
__device__ __forceinline__ float CapSlope(float capped, float softcap) {
  if (softcap == 0.0f) return 1.0f;
  const float share = capped / softcap;
  return 1.0f - share * share;
}

// By all threads of a block, in every one.
template <typename T>
__device__ RowSums SumRow(const T* row, int64_t vocab_rows, float softcap) {
  __shared__ float maxima[kNumWarps];
  __shared__ float scratch[kNumWarps];
  float maximum = -INFINITY;
  for (int64_t v = threadIdx.x; v < vocab_rows; v += kNumThreads) {
    maximum = fmaxf(maximum, Capped(ToFloat(row[v]), softcap));
  }
  maximum = gpu::WarpMax(maximum);
  if (threadIdx.x % gpu::kWarpSize == 0) {
    maxima[threadIdx.x / gpu::kWarpSize] = maximum;
  }
  __syncthreads();
  for (const float other : maxima) maximum = fmaxf(maximum, other);
  float sum = 0.0f;
  for (int64_t v = threadIdx.x; v < vocab_rows; v += kNumThreads) {
    sum += expf(Capped(ToFloat(row[v]), softcap) - maximum);
  }
  return {maximum, gpu::BlockSum<kNumThreads>(sum, scratch)};
}

// A block a row. Limited by memory bandwidth: the second reading of a row finds
// it in the caches.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) StatsRowsKernel(
    const __grid_constant__ PlainCrossEntropyStatsRowsArgs args) {
  const PlainLogits& logits = args.logits;
  const T* row = static_cast<const T*>(logits.logits) +
                 int64_t{blockIdx.x} * logits.row_stride;
  const RowSums sums = SumRow(row, logits.vocab_rows, logits.softcap);
  if (threadIdx.x != 0) return;
  const int64_t target = logits.targets[blockIdx.x] - logits.vocab_begin;
  const bool is_mine = target >= 0 && target < logits.vocab_rows;
  float* stats = args.stats + int64_t{blockIdx.x} * kNumCrossEntropyStats;
  stats[kMaximumStat] = sums.maximum;
  stats[kSumExponentialsStat] = sums.sum_exponentials;
  stats[kTargetLogitStat] =
      is_mine ? Capped(ToFloat(row[target]), logits.softcap) : 0.0f;
}

// The statistics of a token over the whole vocabulary.
struct TokenStats {
  float maximum;
  double sum_exponentials;
  double target_logit;
};

__device__ TokenStats
CombineStats(const PlainCrossEntropyGradientRowsArgs& args, int64_t row_idx) {
  const float* of_first = args.all_stats + row_idx * kNumCrossEntropyStats;
  TokenStats combined = {of_first[kMaximumStat], 0.0, 0.0};
  for (int64_t shard = 1; shard < args.num_shards; ++shard) {
    combined.maximum = fmaxf(
        combined.maximum, of_first[shard * args.shard_stride + kMaximumStat]);
  }
  for (int64_t shard = 0; shard < args.num_shards; ++shard) {
    const float* stats = of_first + shard * args.shard_stride;
    combined.sum_exponentials +=
        stats[kSumExponentialsStat] *
        exp(double{stats[kMaximumStat]} - combined.maximum);
    combined.target_logit += stats[kTargetLogitStat];
  }
  return combined;
}

// Like the kernel above, a block a row. One thread does, in double, the work
// that a row needs once.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) GradientRowsKernel(
    const __grid_constant__ PlainCrossEntropyGradientRowsArgs args) {
  __shared__ float shared_maximum, shared_factor;
  const PlainLogits& logits = args.logits;
  const int64_t row_idx = blockIdx.x;
  T* row = static_cast<T*>(logits.logits) + row_idx * logits.row_stride;
  if (logits.targets[row_idx] < 0) {
    for (int64_t v = threadIdx.x; v < logits.vocab_rows; v += kNumThreads) {
      row[v] = FromFloat<T>(0.0f);
    }
    if (threadIdx.x == 0) args.losses[row_idx] = 0.0;
    return;
  }
  const int64_t target = logits.targets[row_idx] - logits.vocab_begin;
  const double scale = args.token_weights == nullptr
                           ? args.token_scale
                           : args.token_scale * args.token_weights[row_idx];
  RowSums sums = {};
  if (args.all_stats == nullptr) {
    sums = SumRow(row, logits.vocab_rows, logits.softcap);
  }
  if (threadIdx.x == 0) {
    TokenStats stats;
    if (args.all_stats == nullptr) {
      stats = {sums.maximum, sums.sum_exponentials,
               target < logits.vocab_rows
                   ? Capped(ToFloat(row[target]), logits.softcap)
                   : NAN};
    } else {
      stats = CombineStats(args, row_idx);
    }
    const double lse = log(stats.sum_exponentials) + stats.maximum;
    args.losses[row_idx] = lse - stats.target_logit + args.z_loss * lse * lse;
    shared_maximum = stats.maximum;
    shared_factor = static_cast<float>((1.0 + 2.0 * args.z_loss * lse) * scale /
                                       stats.sum_exponentials);
  }
  __syncthreads();
  const float maximum = shared_maximum;
  const float factor = shared_factor;
  const float token_scale = static_cast<float>(scale);
  for (int64_t v = threadIdx.x; v < logits.vocab_rows; v += kNumThreads) {
    const float logit = Capped(ToFloat(row[v]), logits.softcap);
    const float share = expf(logit - maximum) * factor;
    row[v] = FromFloat<T>((v == target ? share - token_scale : share) *
                          CapSlope(logit, logits.softcap));
  }
}

absl::Status CheckLogits(const char* kernel, const PlainLogits& logits) {
  RETURN_IF_ERROR(plain::CheckRows(kernel, logits.num_rows, logits.vocab_rows));
  if (logits.row_stride >= logits.vocab_rows && logits.vocab_begin >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kernel, " got vocabulary rows from ", logits.vocab_begin, ", ",
      logits.vocab_rows, " of them in a row of ", logits.row_stride,
      "; needs a first of zero or more and all of them in the row"));
}

}  // namespace

absl::Status LaunchPlainCrossEntropyStatsRows(
    const PlainCrossEntropyStatsRowsArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckLogits("plain cross entropy stats", args.logits));
  if (args.logits.num_rows == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    StatsRowsKernel<T><<<static_cast<unsigned>(args.logits.num_rows),
                         kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain cross entropy stats");
}

absl::Status LaunchPlainCrossEntropyGradientRows(
    const PlainCrossEntropyGradientRowsArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckLogits("plain cross entropy gradient", args.logits));
  if (args.all_stats == nullptr ? args.logits.vocab_begin != 0
                                : args.num_shards < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plain cross entropy gradient got vocabulary rows from ",
        args.logits.vocab_begin, " and stats of ", args.num_shards,
        " shards; needs stats of one or more, or the whole vocabulary"));
  }
  if (args.logits.num_rows == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    GradientRowsKernel<T><<<static_cast<unsigned>(args.logits.num_rows),
                            kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain cross entropy gradient");
}

}  // namespace millrace
