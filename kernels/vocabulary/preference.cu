#include "kernels/vocabulary/preference.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/status.h"
#include "kernels/vocabulary/cross_entropy.h"

namespace millrace {
namespace {

constexpr int kWarp = 32;
constexpr int kNumPairThreads = 512;
constexpr int kNumPairWarps = kNumPairThreads / kWarp;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ double WarpTotal(double x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

// Returns the cross entropy of a token from the statistics of all shards.
__device__ double CrossEntropyOf(const PreferenceLossArgs& args,
                                 int64_t token) {
  const int64_t shard_stride = args.num_tokens * kNumCrossEntropyStats;
  const float* const stats = args.all_stats + token * kNumCrossEntropyStats;
  float maximum = stats[kMaximumStat];
  for (int64_t shard = 1; shard < args.num_shards; ++shard) {
    maximum = fmaxf(maximum, stats[shard * shard_stride + kMaximumStat]);
  }
  double sum = 0;
  double target_logit = 0;
  for (int64_t shard = 0; shard < args.num_shards; ++shard) {
    const float* const of_shard = stats + shard * shard_stride;
    sum += of_shard[kSumExponentialsStat] *
           exp(double{of_shard[kMaximumStat]} - maximum);
    target_logit += of_shard[kTargetLogitStat];
  }
  return log(sum) + maximum - target_logit;
}

__device__ double Sigmoid(double x) { return 1 / (1 + exp(-x)); }

__device__ double MinusLogSigmoid(double x) {
  return fmax(-x, 0.0) + log1p(exp(-fabs(x)));
}

struct Totals {
  double loss, chosen_reward, rejected_reward, accuracy;
};

// The pair that begins at token `first`, by all lanes of a warp.
__device__ void TakePair(const PreferenceLossArgs& args, int64_t first,
                         int lane, Totals* totals) {
  const int64_t sequence_end =
      (first / args.sequence_length + 1) * args.sequence_length;
  const int32_t pair = args.pair_starts[first];
  const int32_t chosen_document = args.document_starts[first];
  double chosen = 0;
  double rejected = 0;
  int64_t num_chosen = 0;
  int64_t num_tokens = 0;
  for (int64_t base = first;; base += kWarp) {
    const int64_t t = base + lane;
    const bool is_in = t < sequence_end && args.pair_starts[t] == pair;
    const bool is_chosen = is_in && args.document_starts[t] == chosen_document;
    if (is_in && args.targets[t] >= 0) {
      (is_chosen ? chosen : rejected) -= CrossEntropyOf(args, t);
    }
    const unsigned inside = __ballot_sync(kAllLanes, is_in);
    num_tokens += __popc(inside);
    num_chosen += __popc(__ballot_sync(kAllLanes, is_chosen));
    if (inside != kAllLanes) break;
  }
  chosen = WarpTotal(chosen);
  rejected = WarpTotal(rejected);
  const double reward_of_chosen = args.beta * (chosen - args.references[first]);
  const double reward_of_rejected =
      num_chosen < num_tokens
          ? args.beta * (rejected - args.references[first + num_chosen])
          : 0;
  const double margin = reward_of_chosen - reward_of_rejected;
  const double kept = 1 - args.label_smoothing;
  const double weight = args.beta * (kept * Sigmoid(-margin) -
                                     args.label_smoothing * Sigmoid(margin));
  for (int64_t i = lane; i < num_tokens; i += kWarp) {
    const bool is_chosen = i < num_chosen;
    args.weights[first + i] =
        args.targets[first + i] < 0
            ? 0.0f
            : static_cast<float>(is_chosen ? weight : -weight);
    args.log_probabilities[first + i] = i == 0 ? static_cast<float>(chosen)
                                        : i == num_chosen
                                            ? static_cast<float>(rejected)
                                            : 0.0f;
  }
  if (lane != 0) return;
  totals->loss += kept * MinusLogSigmoid(margin) +
                  args.label_smoothing * MinusLogSigmoid(-margin);
  totals->chosen_reward += reward_of_chosen;
  totals->rejected_reward += reward_of_rejected;
  totals->accuracy += margin > 0 ? 1 : 0;
}

// One block, so that sums have one order. A warp looks at 32 tokens at once and
// takes the pairs that begin there one after the other. Latency limits.
__global__ void __launch_bounds__(kNumPairThreads)
    PreferenceLossKernel(const __grid_constant__ PreferenceLossArgs args) {
  __shared__ Totals of_warps[kNumPairWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Totals totals = {};
  for (int64_t base = int64_t{warp} * kWarp; base < args.num_tokens;
       base += kNumPairThreads) {
    const int64_t t = base + lane;
    bool begins = false;
    if (t < args.num_tokens) {
      const int32_t pair = args.pair_starts[t];
      if (pair < 0) {
        const bool is_trained = args.targets[t] >= 0;
        if (is_trained) totals.loss += CrossEntropyOf(args, t);
        args.weights[t] = is_trained ? 1.0f : 0.0f;
        args.log_probabilities[t] = 0.0f;
      } else {
        begins = pair == t % args.sequence_length;
      }
    }
    unsigned leaders = __ballot_sync(kAllLanes, begins);
    while (leaders != 0) {
      TakePair(args, base + __ffs(static_cast<int>(leaders)) - 1, lane,
               &totals);
      leaders &= leaders - 1;
    }
  }
  totals = {WarpTotal(totals.loss), WarpTotal(totals.chosen_reward),
            WarpTotal(totals.rejected_reward), WarpTotal(totals.accuracy)};
  if (lane == 0) of_warps[warp] = totals;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Totals all = {};
  for (const Totals& part : of_warps) {
    all.loss += part.loss;
    all.chosen_reward += part.chosen_reward;
    all.rejected_reward += part.rejected_reward;
    all.accuracy += part.accuracy;
  }
  *args.loss += args.scale * all.loss;
  *args.chosen_reward += args.scale * all.chosen_reward;
  *args.rejected_reward += args.scale * all.rejected_reward;
  *args.accuracy += args.scale * all.accuracy;
}

}  // namespace

absl::Status LaunchPreferenceLoss(const PreferenceLossArgs& args,
                                  cudaStream_t stream) {
  if (args.num_shards < 1 || args.sequence_length < 1 || args.num_tokens < 0 ||
      args.num_tokens % args.sequence_length != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "preference loss got stats of ", args.num_shards, " shards, ",
        args.num_tokens, " tokens in sequences of ", args.sequence_length,
        "; needs one shard or more and whole sequences"));
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  PreferenceLossKernel<<<1, kNumPairThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch PreferenceLoss");
}

}  // namespace millrace
