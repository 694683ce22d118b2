#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "kernels/vocabulary/preference.h"

namespace millrace {
namespace {

// Returns the cross entropy of a token from the statistics of all shards.
double CrossEntropyOf(const PreferenceLossArgs& args, int64_t token) {
  const auto stat = [&](int64_t shard, CrossEntropyStat which) {
    return double{args.all_stats[(shard * args.num_tokens + token) *
                                     kNumCrossEntropyStats +
                                 which]};
  };
  double maximum = stat(0, kMaximumStat);
  for (int64_t shard = 1; shard < args.num_shards; ++shard) {
    maximum = std::max(maximum, stat(shard, kMaximumStat));
  }
  double sum = 0;
  double target_logit = 0;
  for (int64_t shard = 0; shard < args.num_shards; ++shard) {
    sum += stat(shard, kSumExponentialsStat) *
           std::exp(stat(shard, kMaximumStat) - maximum);
    target_logit += stat(shard, kTargetLogitStat);
  }
  return std::log(sum) + maximum - target_logit;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Returns -ln(sigmoid(x)) without overflow.
double MinusLogSigmoid(double x) {
  return std::max(-x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

// Places [chosen, rejected) and [rejected, end) are the answers of a pair.
struct PairPlaces {
  int64_t chosen, rejected, end;
};
PairPlaces PairFrom(const PreferenceLossArgs& args, int64_t token) {
  const int64_t sequence_end =
      (token / args.sequence_length + 1) * args.sequence_length;
  PairPlaces places = {token, token, token};
  while (places.end < sequence_end &&
         args.pair_starts[places.end] == args.pair_starts[token]) {
    if (args.document_starts[places.end] == args.document_starts[token]) {
      ++places.rejected;
    }
    ++places.end;
  }
  return places;
}

double LogProbability(const PreferenceLossArgs& args, int64_t begin,
                      int64_t end) {
  double sum = 0;
  for (int64_t t = begin; t < end; ++t) {
    if (args.targets[t] >= 0) sum -= CrossEntropyOf(args, t);
  }
  return sum;
}

void WriteAnswer(const PreferenceLossArgs& args, int64_t begin, int64_t end,
                 double log_probability, double weight) {
  for (int64_t t = begin; t < end; ++t) {
    args.weights[t] = args.targets[t] < 0 ? 0.0f : static_cast<float>(weight);
    args.log_probabilities[t] =
        t == begin ? static_cast<float>(log_probability) : 0.0f;
  }
}

}  // namespace

absl::Status PreferenceLoss(const PreferenceLossArgs& args) {
  if (args.num_shards < 1 || args.sequence_length < 1 || args.num_tokens < 0 ||
      args.num_tokens % args.sequence_length != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "preference loss got stats of ", args.num_shards, " shards, ",
        args.num_tokens, " tokens in sequences of ", args.sequence_length,
        "; needs one shard or more and whole sequences"));
  }
  double loss = 0;
  double chosen_reward = 0;
  double rejected_reward = 0;
  double accuracy = 0;
  int64_t t = 0;
  while (t < args.num_tokens) {
    if (args.pair_starts[t] < 0) {
      const bool is_trained = args.targets[t] >= 0;
      if (is_trained) loss += CrossEntropyOf(args, t);
      args.weights[t] = is_trained ? 1.0f : 0.0f;
      args.log_probabilities[t] = 0.0f;
      ++t;
      continue;
    }
    const PairPlaces pair = PairFrom(args, t);
    const double chosen = LogProbability(args, pair.chosen, pair.rejected);
    const double rejected = LogProbability(args, pair.rejected, pair.end);
    const double reward_of_chosen =
        args.beta * (chosen - args.references[pair.chosen]);
    const double reward_of_rejected =
        pair.rejected < pair.end
            ? args.beta * (rejected - args.references[pair.rejected])
            : 0;
    const double margin = reward_of_chosen - reward_of_rejected;
    const double kept = 1 - args.label_smoothing;
    loss += kept * MinusLogSigmoid(margin) +
            args.label_smoothing * MinusLogSigmoid(-margin);
    chosen_reward += reward_of_chosen;
    rejected_reward += reward_of_rejected;
    accuracy += margin > 0 ? 1 : 0;
    const double weight = args.beta * (kept * Sigmoid(-margin) -
                                       args.label_smoothing * Sigmoid(margin));
    WriteAnswer(args, pair.chosen, pair.rejected, chosen, weight);
    WriteAnswer(args, pair.rejected, pair.end, rejected, -weight);
    t = pair.end;
  }
  *args.loss += args.scale * loss;
  *args.chosen_reward += args.scale * chosen_reward;
  *args.rejected_reward += args.scale * rejected_reward;
  *args.accuracy += args.scale * accuracy;
  return absl::OkStatus();
}

}  // namespace millrace
