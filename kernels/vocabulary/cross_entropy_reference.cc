#include <cmath>
#include <vector>

#include "kernels/vocabulary/cross_entropy.h"

namespace millrace {
namespace {

std::vector<double> Logits(const CrossEntropyOptions& options,
                           const float* hidden, const float* weight,
                           int64_t token) {
  std::vector<double> logits(options.vocab_rows);
  for (int64_t v = 0; v < options.vocab_rows; ++v) {
    for (int64_t h = 0; h < options.hidden; ++h) {
      logits[v] += double{hidden[token * options.hidden + h]} *
                   weight[v * options.hidden + h];
    }
    if (options.softcap > 0) {
      logits[v] = options.softcap * std::tanh(logits[v] / options.softcap);
    }
  }
  return logits;
}

struct Maximum {
  double value;
  double sum_exponentials;
};

Maximum MaximumOf(const std::vector<double>& logits) {
  Maximum maximum = {logits[0], 0.0};
  for (double logit : logits) maximum.value = std::fmax(maximum.value, logit);
  for (double logit : logits) {
    maximum.sum_exponentials += std::exp(logit - maximum.value);
  }
  return maximum;
}

// Adds the gradients of all tokens, given ln(sum over the whole vocabulary of
// exp(logit)) of each.
void Propagate(const CrossEntropyOptions& options,
               const std::vector<double>& log_sums, float* d_hidden,
               float* d_weight, const float* hidden, const float* weight,
               const int32_t* targets, const float* token_weights = nullptr) {
  std::vector<double> weight_gradient(options.vocab_rows * options.hidden);
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    std::vector<double> hidden_gradient(options.hidden);
    const std::vector<double> logits = Logits(options, hidden, weight, t);
    for (int64_t v = 0; targets[t] >= 0 && v < options.vocab_rows; ++v) {
      const double one = targets[t] - options.vocab_begin == v ? 1.0 : 0.0;
      const double slope = options.softcap > 0
                               ? 1 - std::pow(logits[v] / options.softcap, 2)
                               : 1;
      const double d_logit =
          slope * (token_weights == nullptr ? 1.0 : token_weights[t]) *
          options.token_scale *
          ((1 + 2 * options.z_loss * log_sums[t]) *
               std::exp(logits[v] - log_sums[t]) -
           one);
      for (int64_t h = 0; h < options.hidden; ++h) {
        hidden_gradient[h] += d_logit * weight[v * options.hidden + h];
        weight_gradient[v * options.hidden + h] +=
            d_logit * hidden[t * options.hidden + h];
      }
    }
    for (int64_t h = 0; h < options.hidden; ++h) {
      d_hidden[t * options.hidden + h] = static_cast<float>(hidden_gradient[h]);
    }
  }
  for (size_t i = 0; i < weight_gradient.size(); ++i) {
    d_weight[i] = static_cast<float>(weight_gradient[i] +
                                     (options.accumulate ? d_weight[i] : 0.0));
  }
}

}  // namespace

void LinearCrossEntropyReference(const CrossEntropyOptions& options,
                                 const LinearCrossEntropyArgs& args) {
  std::vector<double> log_sums(options.num_tokens);
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    const std::vector<double> logits =
        Logits(options, args.hidden, args.weight, t);
    const Maximum maximum = MaximumOf(logits);
    log_sums[t] = maximum.value + std::log(maximum.sum_exponentials);
    if (args.targets[t] < 0) continue;
    *args.loss += options.token_scale * options.loss_share *
                  (log_sums[t] - logits[args.targets[t]] +
                   options.z_loss * log_sums[t] * log_sums[t]);
  }
  Propagate(options, log_sums, args.d_hidden, args.d_weight, args.hidden,
            args.weight, args.targets);
}

void CrossEntropyStatsReference(const CrossEntropyOptions& options,
                                const CrossEntropyStatsArgs& args) {
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    const std::vector<double> logits =
        Logits(options, args.hidden, args.weight, t);
    const Maximum maximum = MaximumOf(logits);
    const int64_t target = args.targets[t] - options.vocab_begin;
    const bool mine = target >= 0 && target < options.vocab_rows;
    float* stats = args.stats + t * kNumCrossEntropyStats;
    stats[kMaximumStat] = static_cast<float>(maximum.value);
    stats[kSumExponentialsStat] = static_cast<float>(maximum.sum_exponentials);
    stats[kTargetLogitStat] = mine ? static_cast<float>(logits[target]) : 0.0f;
  }
}

void CrossEntropyGradientReference(const CrossEntropyOptions& options,
                                   const CrossEntropyGradientArgs& args) {
  std::vector<double> log_sums(options.num_tokens);
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    double sum = 0.0;
    double target_logit = 0.0;
    for (int64_t shard = 0; shard < args.num_shards; ++shard) {
      const float* stats = args.all_stats + (shard * options.num_tokens + t) *
                                                kNumCrossEntropyStats;
      sum +=
          stats[kSumExponentialsStat] * std::exp(double{stats[kMaximumStat]});
      target_logit += stats[kTargetLogitStat];
    }
    log_sums[t] = std::log(sum);
    if (args.targets[t] < 0 || args.token_weights != nullptr) continue;
    *args.loss += options.token_scale * options.loss_share *
                  (log_sums[t] - target_logit +
                   options.z_loss * log_sums[t] * log_sums[t]);
  }
  Propagate(options, log_sums, args.d_hidden, args.d_weight, args.hidden,
            args.weight, args.targets, args.token_weights);
}

}  // namespace millrace
