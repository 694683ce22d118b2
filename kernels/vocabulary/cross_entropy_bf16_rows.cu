#include "kernels/vocabulary/cross_entropy_bf16_rows.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/vocabulary/cross_entropy.h"
#include "kernels/vocabulary/cross_entropy_bf16.h"
#include "kernels/vocabulary/cross_entropy_bf16_softmax.cuh"

namespace millrace {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 3;  // On a multiprocessor, for kernels over rows.
constexpr int64_t kMaxRows = int64_t{1} << 28;

template <int kNumThreads>
__device__ __forceinline__ float BlockMax(float x, float* scratch) {
  x = gpu::WarpMax(x);
  if (threadIdx.x % gpu::kWarpSize == 0) {
    scratch[threadIdx.x / gpu::kWarpSize] = x;
  }
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kNumThreads / gpu::kWarpSize; ++warp) {
    x = fmaxf(x, scratch[warp]);
  }
  return x;
}

// Returns the sum that one block of kThreads threads computes over a row of any
// length.
template <bool kCapped>
__device__ __forceinline__ ce::SoftmaxSum SumRow(
    const uint4* vecs, int vocab, const ce::Softcap<kCapped>& cap,
    float* max_scratch, float* sum_scratch) {
  const int row_vecs = (vocab + ce::kElements - 1) / ce::kElements;
  ce::SoftmaxSum mine = {-INFINITY, 0.0f};
#pragma unroll 4
  for (int vec = static_cast<int>(threadIdx.x); vec < row_vecs;
       vec += kThreads) {
    const uint4 raw =
        ce::MaskLogits(gpu::Load16(vecs + vec), vec * ce::kElements, vocab);
    const float maximum = fmaxf(mine.maximum, cap.Of(ce::Maximum(raw)));
    const float base = ce::Finite(maximum) * ce::kLog2E;
    mine.sum = mine.sum * ce::Exp2(fmaf(mine.maximum, ce::kLog2E, -base)) +
               ce::SumExponentials(raw, base, cap);
    mine.maximum = maximum;
  }
  const float maximum = BlockMax<kThreads>(mine.maximum, max_scratch);
  const float sum =
      mine.sum * ce::Exp2((mine.maximum - ce::Finite(maximum)) * ce::kLog2E);
  return {maximum, gpu::BlockSum<kThreads>(sum, sum_scratch)};
}

// Whole row by one block; `target` counts from the shard's first row and may be
// elsewhere.
template <bool kCapped>
__device__ __forceinline__ void WriteRow(uint4* vecs, int vocab, int64_t target,
                                         float target_logit,
                                         ce::RowGradient gradient,
                                         const ce::Softcap<kCapped>& cap) {
  constexpr int kBatch = 4;  // Accesses on their way at once.
  const int row_vecs = (vocab + ce::kElements - 1) / ce::kElements;
  for (int first = static_cast<int>(threadIdx.x); first < row_vecs;
       first += kBatch * kThreads) {
    uint4 raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int vec = first + i * kThreads;
      if (vec < row_vecs) raw[i] = gpu::Load16(vecs + vec);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int vec = first + i * kThreads;
      if (vec >= row_vecs) continue;
      gpu::Store16(
          vecs + vec,
          ce::Gradients(ce::MaskLogits(raw[i], vec * ce::kElements, vocab),
                        gradient, cap));
    }
  }
  // By the thread that has just written its neighbours.
  if (target >= 0 && target < vocab &&
      target / ce::kElements % kThreads == threadIdx.x) {
    reinterpret_cast<__nv_bfloat16*>(vecs)[target] =
        ce::TargetGradient(target_logit, gradient, cap.Slope(target_logit));
  }
}

__device__ __forceinline__ void ClearRow(uint4* vecs, int vocab) {
  const int row_vecs = (vocab + ce::kElements - 1) / ce::kElements;
  for (int vec = static_cast<int>(threadIdx.x); vec < row_vecs;
       vec += kThreads) {
    gpu::Store16(vecs + vec, {0, 0, 0, 0});
  }
}

struct OneRow {
  uint4* vecs;
  int vocab;
  int64_t target;  // From the shard's first row; negative or beyond: not here.
  bool is_ignored;

  __device__ bool HasTarget() const { return target >= 0 && target < vocab; }
  __device__ float TargetLogit() const {
    return __bfloat162float(
        reinterpret_cast<const __nv_bfloat16*>(vecs)[target]);
  }
};

__device__ __forceinline__ OneRow RowOf(const CrossEntropyRows& rows,
                                        int64_t row_idx) {
  const int32_t target = rows.targets[row_idx];
  return {reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(rows.logits) +
                                   row_idx * rows.row_stride),
          static_cast<int>(rows.vocab_rows), target - rows.vocab_begin,
          target < 0};
}

// One block a row, which reads it twice. Memory limits; the second reading
// mostly finds the row in L2.
template <bool kCapped>
__global__ void __launch_bounds__(kThreads, kBlocks)
    LoopRowsKernel(CrossEntropyFusedRowsArgs args) {
  __shared__ float max_scratch[kThreads / gpu::kWarpSize];
  __shared__ float sum_scratch[kThreads / gpu::kWarpSize];
  const OneRow row = RowOf(args.rows, blockIdx.x);
  if (row.is_ignored) {
    ClearRow(row.vecs, row.vocab);
    if (threadIdx.x == 0) args.losses[blockIdx.x] = 0.0;
    return;
  }
  const ce::Softcap<kCapped> cap(args.rows.softcap);
  const float target_logit = row.HasTarget() ? cap.Of(row.TargetLogit()) : NAN;
  const ce::SoftmaxSum all =
      SumRow(row.vecs, row.vocab, cap, max_scratch, sum_scratch);
  const float log_sum = logf(all.sum);
  WriteRow(row.vecs, row.vocab, row.target, target_logit,
           ce::MakeGradient(args.weights, all.maximum, log_sum), cap);
  if (threadIdx.x == 0) {
    args.losses[blockIdx.x] =
        ce::Loss(args.weights, all.maximum, log_sum, target_logit);
  }
}

// One block a row. Memory limits: the row is read once.
template <bool kCapped>
__global__ void __launch_bounds__(kThreads, kBlocks)
    RowStatsKernel(CrossEntropyRowStatsArgs args) {
  __shared__ float max_scratch[kThreads / gpu::kWarpSize];
  __shared__ float sum_scratch[kThreads / gpu::kWarpSize];
  const OneRow row = RowOf(args.rows, blockIdx.x);
  const ce::Softcap<kCapped> cap(args.rows.softcap);
  const ce::SoftmaxSum all =
      SumRow(row.vecs, row.vocab, cap, max_scratch, sum_scratch);
  if (threadIdx.x == 0) {
    float* stats = args.stats + int64_t{blockIdx.x} * kNumCrossEntropyStats;
    stats[kMaximumStat] = all.maximum;
    stats[kSumExponentialsStat] = all.sum;
    stats[kTargetLogitStat] =
        row.HasTarget() ? cap.Of(row.TargetLogit()) : 0.0f;
  }
}

// The statistics of a token over all shards.
struct TokenStats {
  ce::SoftmaxSum all;
  float target_logit;
};

__device__ __forceinline__ TokenStats CombineShards(const float* stats,
                                                    int64_t num_shards,
                                                    int64_t shard_stride) {
  TokenStats token = {{stats[kMaximumStat], stats[kSumExponentialsStat]},
                      stats[kTargetLogitStat]};
  for (int64_t shard = 1; shard < num_shards; ++shard) {
    stats += shard_stride;
    token.all = ce::Combine(token.all,
                            {stats[kMaximumStat], stats[kSumExponentialsStat]});
    token.target_logit += stats[kTargetLogitStat];
  }
  return token;
}

// One block a row; each thread combines the shards' stats by itself. Memory
// limits: the row is read once and written once.
template <bool kCapped>
__global__ void __launch_bounds__(kThreads, kBlocks)
    RowGradientsKernel(CrossEntropyRowGradientsArgs args) {
  const OneRow row = RowOf(args.rows, blockIdx.x);
  if (row.is_ignored) {
    ClearRow(row.vecs, row.vocab);
    if (threadIdx.x == 0) args.losses[blockIdx.x] = 0.0;
    return;
  }
  const auto [all, target_logit] = CombineShards(
      args.all_stats + int64_t{blockIdx.x} * kNumCrossEntropyStats,
      args.num_shards, args.shard_stride);
  const float log_sum = logf(all.sum);
  CrossEntropyWeights weights = args.weights;
  if (args.token_weights != nullptr) {
    weights.token_scale *= args.token_weights[blockIdx.x];
  }
  WriteRow(row.vecs, row.vocab, row.target, target_logit,
           ce::MakeGradient(weights, all.maximum, log_sum),
           ce::Softcap<kCapped>(args.rows.softcap));
  if (threadIdx.x == 0) {
    args.losses[blockIdx.x] =
        ce::Loss(args.weights, all.maximum, log_sum, target_logit);
  }
}

// The sum of what `part` says of every token, in thread 0: thread t adds every
// kThreads-th token, then a tree adds the threads.
template <typename T, typename Part>
__device__ __forceinline__ T SumTokens(int64_t num_tokens, const Part& part) {
  __shared__ T sums[kThreads];
  T sum = 0;
  for (int64_t t = threadIdx.x; t < num_tokens; t += kThreads) sum += part(t);
  sums[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return sums[threadIdx.x];
}

// These three: one block; latency limits.
__global__ void __launch_bounds__(kThreads)
    SumKernel(CrossEntropySumArgs args) {
  const double sum = SumTokens<double>(
      args.num_tokens, [&](int64_t t) { return args.losses[t]; });
  if (threadIdx.x == 0) {
    const double scale = args.device_scale == nullptr
                             ? args.scale
                             : args.scale * *args.device_scale;
    *args.loss += scale * sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    LossKernel(CrossEntropyLossArgs args) {
  const double sum =
      SumTokens<double>(args.num_tokens, [&](int64_t t) -> double {
        if (args.targets[t] < 0) return 0.0;
        const TokenStats token = CombineShards(
            args.all_stats + t * kNumCrossEntropyStats, args.num_shards,
            args.num_tokens * kNumCrossEntropyStats);
        return ce::Loss({.z_loss = static_cast<float>(args.z_loss)},
                        token.all.maximum, logf(token.all.sum),
                        token.target_logit);
      });
  if (threadIdx.x == 0) *args.loss += args.token_scale * args.loss_share * sum;
}

__global__ void __launch_bounds__(kThreads) CountKernel(CountTargetsArgs args) {
  const int64_t count = SumTokens<int64_t>(args.num_tokens, [&](int64_t t) {
    return int64_t{args.targets[t] >= 0};
  });
  if (threadIdx.x == 0) {
    *args.count += count;
    if (args.reciprocal != nullptr) {
      *args.reciprocal =
          1.0f / static_cast<float>(max(*args.count, int64_t{1}));
    }
  }
}

absl::Status CheckRows(const CrossEntropyRows& rows) {
  constexpr int64_t kMaxVocab = int64_t{1} << 30;
  if (rows.vocab_rows < 1 || rows.vocab_rows > kMaxVocab ||
      rows.row_stride < rows.vocab_rows ||
      rows.row_stride % ce::kElements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cross entropy got ", rows.vocab_rows, " logits a row, rows ",
        rows.row_stride, " apart; needs 1 to ", kMaxVocab,
        " and a multiple of ", ce::kElements, " that is not less"));
  }
  if (rows.num_rows < 0 || rows.num_rows > kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("cross entropy got ", rows.num_rows,
                     " rows of logits at once; at most ", kMaxRows));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LaunchCrossEntropyFusedRows(const CrossEntropyFusedRowsArgs& args,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows(args.rows));
  if (args.rows.num_rows == 0) return absl::OkStatus();
  const bool is_capped = args.rows.softcap > 0;
  if (!is_capped) {
    ASSIGN_OR_RETURN(const bool is_done,
                     LaunchCrossEntropyResidentRows(args, stream));
    if (is_done) return absl::OkStatus();
  }
  const auto kernel = is_capped ? LoopRowsKernel<true> : LoopRowsKernel<false>;
  kernel<<<static_cast<unsigned>(args.rows.num_rows), kThreads, 0, stream>>>(
      args);
  return CudaStatus(cudaGetLastError(), "launch CrossEntropyFusedRows");
}

absl::Status LaunchCrossEntropyRowStats(const CrossEntropyRowStatsArgs& args,
                                        cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows(args.rows));
  if (args.rows.num_rows == 0) return absl::OkStatus();
  const auto kernel =
      args.rows.softcap > 0 ? RowStatsKernel<true> : RowStatsKernel<false>;
  kernel<<<static_cast<unsigned>(args.rows.num_rows), kThreads, 0, stream>>>(
      args);
  return CudaStatus(cudaGetLastError(), "launch CrossEntropyRowStats");
}

absl::Status LaunchCrossEntropyRowGradients(
    const CrossEntropyRowGradientsArgs& args, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows(args.rows));
  if (args.rows.num_rows == 0) return absl::OkStatus();
  const auto kernel = args.rows.softcap > 0 ? RowGradientsKernel<true>
                                            : RowGradientsKernel<false>;
  kernel<<<static_cast<unsigned>(args.rows.num_rows), kThreads, 0, stream>>>(
      args);
  return CudaStatus(cudaGetLastError(), "launch CrossEntropyRowGradients");
}

absl::Status LaunchCrossEntropySum(const CrossEntropySumArgs& args,
                                   cudaStream_t stream) {
  SumKernel<<<1, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch CrossEntropySum");
}

absl::Status LaunchCrossEntropyLoss(const CrossEntropyLossArgs& args,
                                    cudaStream_t stream) {
  if (args.num_shards < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cross entropy got stats of ", args.num_shards,
                     " shards; needs one or more"));
  }
  LossKernel<<<1, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch CrossEntropyLoss");
}

absl::Status LaunchCountTargets(const CountTargetsArgs& args,
                                cudaStream_t stream) {
  CountKernel<<<1, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch CountTargets");
}

}  // namespace millrace
