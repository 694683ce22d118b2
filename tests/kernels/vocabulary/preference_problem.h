// Pairs of answers with made-up statistics, for tests of the preference loss.

#ifndef MILLRACE_TESTS_KERNELS_VOCABULARY_PREFERENCE_PROBLEM_H_
#define MILLRACE_TESTS_KERNELS_VOCABULARY_PREFERENCE_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "kernels/vocabulary/preference.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {

struct PreferenceOutputs {
  std::vector<float> weights, log_probabilities;
  double loss = 1, chosen_reward = 1, rejected_reward = 1, accuracy = 1;
};

struct PreferenceProblem {
  struct Pair {
    int64_t chosen, rejected, end;  // Places in the batch.
  };

  // Sequences of `length` tokens: one of two pairs that end before it does, one
  // of a pair that fills it, one of no pair. The answers of the second are the
  // longest. Two targets of three are trained; where the answers begin, none.
  explicit PreferenceProblem(int64_t num_shards, uint32_t seed,
                             int64_t length = 16)
      : length(length), num_shards(num_shards) {
    RandomFloats random(seed);
    const int64_t num_tokens = 3 * length;
    document_starts.assign(num_tokens, 0);
    pair_starts.assign(num_tokens, -1);
    references.assign(num_tokens, 0);
    targets = random.Integers(num_tokens, 0, 99);
    for (int64_t t = 0; t < num_tokens; t += 3) targets[t] = -1;
    const int64_t part = length / 5;
    AddPair({0, part, 2 * part});
    AddPair({2 * part, 2 * part + 1, 4 * part});
    AddPair({length, length + length / 2 + 2, 2 * length});
    for (int64_t t = 4 * part; t < length; ++t) {
      document_starts[t] = static_cast<int32_t>(4 * part);
      alone.push_back(t);
    }
    for (int64_t t = 2 * length; t < num_tokens; ++t) alone.push_back(t);
    stats = random(num_shards * num_tokens * kNumCrossEntropyStats);
    for (size_t i = 0; i < stats.size(); ++i) {
      const auto token =
          static_cast<int64_t>(i) / kNumCrossEntropyStats % num_tokens;
      const auto shard =
          static_cast<int64_t>(i) / kNumCrossEntropyStats / num_tokens;
      switch (i % kNumCrossEntropyStats) {
        case kSumExponentialsStat:
          stats[i] = 2 + stats[i];
          break;
        case kTargetLogitStat:
          if (token % num_shards != shard) stats[i] = 0;
          break;
        default:
          break;
      }
    }
    for (const Pair& pair : pairs) {
      for (int64_t t = pair.chosen; t < pair.end; ++t) {
        references[t] = t < pair.rejected ? -3.5f : -2.25f;
      }
    }
  }

  int64_t num_tokens() const { return 3 * length; }
  int64_t FirstTrained() const {
    return std::find_if(targets.begin(), targets.end(),
                        [](int32_t target) { return target >= 0; }) -
           targets.begin();
  }

  float& TargetLogit(int64_t token) {
    const int64_t shard = token % num_shards;
    return stats[(shard * num_tokens() + token) * kNumCrossEntropyStats +
                 kTargetLogitStat];
  }

  double CrossEntropy(int64_t token) const {
    double sum = 0, target = 0;
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      const float* of_token =
          stats.data() + (shard * num_tokens() + token) * kNumCrossEntropyStats;
      sum += of_token[kSumExponentialsStat] *
             std::exp(double{of_token[kMaximumStat]});
      target += of_token[kTargetLogitStat];
    }
    return std::log(sum) - target;
  }
  // The log-probability of places [begin, end).
  double Sum(int64_t begin, int64_t end) const {
    double sum = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (targets[t] >= 0) sum -= CrossEntropy(t);
    }
    return sum;
  }

  template <typename Function>
  PreferenceOutputs Run(double beta, double smoothing,
                        const Function& function) const {
    PreferenceOutputs outputs = {.weights = Poisoned(num_tokens()),
                                 .log_probabilities = Poisoned(num_tokens())};
    const absl::Status status =
        function({.weights = outputs.weights.data(),
                  .log_probabilities = outputs.log_probabilities.data(),
                  .loss = &outputs.loss,
                  .chosen_reward = &outputs.chosen_reward,
                  .rejected_reward = &outputs.rejected_reward,
                  .accuracy = &outputs.accuracy,
                  .targets = targets.data(),
                  .document_starts = document_starts.data(),
                  .pair_starts = pair_starts.data(),
                  .references = references.data(),
                  .all_stats = stats.data(),
                  .num_shards = num_shards,
                  .num_tokens = num_tokens(),
                  .sequence_length = length,
                  .beta = beta,
                  .label_smoothing = smoothing,
                  .scale = scale});
    EXPECT_TRUE(status.ok()) << status;
    return outputs;
  }

  const int64_t length;
  const int64_t num_shards;
  const double scale = 0.125;
  std::vector<int32_t> targets, document_starts, pair_starts;
  std::vector<float> references, stats;
  std::vector<Pair> pairs;
  std::vector<int64_t> alone;  // Tokens of no pair.

 private:
  void AddPair(const Pair& pair) {
    pairs.push_back(pair);
    const int64_t begin = pair.chosen / length * length;
    for (int64_t t = pair.chosen; t < pair.end; ++t) {
      pair_starts[t] = static_cast<int32_t>(pair.chosen - begin);
      document_starts[t] = static_cast<int32_t>(
          (t < pair.rejected ? pair.chosen : pair.rejected) - begin);
    }
  }
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_VOCABULARY_PREFERENCE_PROBLEM_H_
