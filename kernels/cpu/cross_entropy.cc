#include "kernels/vocabulary/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/gemm/gemm.h"

namespace millrace {
namespace {

// The matrix products of a chunk of so many tokens.
struct ChunkPlans {
  GemmPlan logits;
  GemmPlan d_hidden;
  GemmPlan d_weight;       // As the options' accumulate says.
  GemmPlan d_weight_next;  // For all chunks but the first: accumulates.
};

absl::StatusOr<ChunkPlans> MakeChunkPlans(const CrossEntropyOptions& options,
                                          int64_t num_tokens, int num_threads) {
  const int64_t rows = options.vocab_rows;
  const int64_t hidden = options.hidden;
  const GemmShape d_weight = {
      .m = rows, .n = hidden, .k = num_tokens, .trans_a = true};
  GemmShape d_weight_first = d_weight;
  d_weight_first.accumulate = options.accumulate;
  GemmShape d_weight_next = d_weight;
  d_weight_next.accumulate = true;
  ASSIGN_OR_RETURN(
      GemmPlan logits_plan,
      GemmPlan::Create(
          {.m = num_tokens, .n = rows, .k = hidden, .trans_b = true},
          num_threads));
  ASSIGN_OR_RETURN(
      GemmPlan d_hidden_plan,
      GemmPlan::Create({.m = num_tokens, .n = hidden, .k = rows}, num_threads));
  ASSIGN_OR_RETURN(GemmPlan d_weight_plan,
                   GemmPlan::Create(d_weight_first, num_threads));
  ASSIGN_OR_RETURN(GemmPlan d_weight_next_plan,
                   GemmPlan::Create(d_weight_next, num_threads));
  return ChunkPlans{std::move(logits_plan), std::move(d_hidden_plan),
                    std::move(d_weight_plan), std::move(d_weight_next_plan)};
}

int64_t WorkspaceBytes(const ChunkPlans& plans) {
  return std::max({plans.logits.workspace_bytes(),
                   plans.d_hidden.workspace_bytes(),
                   plans.d_weight.workspace_bytes(),
                   plans.d_weight_next.workspace_bytes()});
}

// The statistics of one token over all shards.
struct TokenStats {
  float maximum;
  double sum_exponentials;
  double target_logit;

  double lse() const { return std::log(sum_exponentials) + maximum; }
  double loss(double z_loss) const {
    return lse() - target_logit + z_loss * lse() * lse();
  }
  // Returns the softmax's factor in the gradient.
  float lse_factor(double z_loss) const {
    return static_cast<float>(1 + 2 * z_loss * lse());
  }
};

// The slope of the softcap where it gave this logit.
float CapSlope(double logit, double softcap) {
  if (softcap == 0) return 1;
  const double share = logit / softcap;
  return static_cast<float>(1 - share * share);
}

TokenStats CombineStats(const float* all_stats, int64_t num_shards,
                        int64_t num_tokens, int64_t token) {
  const auto stat = [&](int64_t shard, CrossEntropyStat which) {
    return all_stats[(shard * num_tokens + token) * kNumCrossEntropyStats +
                     which];
  };
  TokenStats combined = {stat(0, kMaximumStat), 0.0, 0.0};
  for (int64_t shard = 1; shard < num_shards; ++shard) {
    combined.maximum = std::max(combined.maximum, stat(shard, kMaximumStat));
  }
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    combined.sum_exponentials +=
        stat(shard, kSumExponentialsStat) *
        std::exp(double{stat(shard, kMaximumStat)} - combined.maximum);
    combined.target_logit += stat(shard, kTargetLogitStat);
  }
  return combined;
}

absl::Status CheckShards(int64_t num_shards) {
  if (num_shards >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cross entropy got stats of ", num_shards, " shards; needs one or more"));
}

}  // namespace

struct CrossEntropyPlan::Impl {
  CrossEntropyOptions options;
  int num_threads;
  int64_t chunk_tokens;
  ChunkPlans whole;                // For chunk_tokens tokens.
  std::optional<ChunkPlans> last;  // If the last chunk is smaller.
  std::vector<double> losses;      // One a token of a chunk.

  // Computes the logits of the chunk that starts at token `begin`, lets
  // body(row, index in the chunk, token) at each row, and returns the chunk's
  // plans.
  template <typename Body>
  absl::StatusOr<ChunkPlans*> ForEachRow(int64_t begin, const float* hidden,
                                         const float* weight, float* logits,
                                         void* workspace, const Body& body);

  // d_hidden and d_weight of a chunk from its logits' gradient.
  absl::Status PropagateChunk(ChunkPlans& plans, int64_t begin, float* d_hidden,
                              float* d_weight, const float* hidden,
                              const float* weight, const float* d_logits,
                              void* workspace) const;

  // The sum over a chunk's tokens, in their order.
  double SumLosses(int64_t begin) const;

  int64_t ChunkSize(int64_t begin) const {
    return std::min(chunk_tokens, options.num_tokens - begin);
  }
};

template <typename Body>
absl::StatusOr<ChunkPlans*> CrossEntropyPlan::Impl::ForEachRow(
    int64_t begin, const float* hidden, const float* weight, float* logits,
    void* workspace, const Body& body) {
  const int64_t num_rows = ChunkSize(begin);
  ChunkPlans* plans = num_rows == chunk_tokens ? &whole : &*last;
  RETURN_IF_ERROR(plans->logits.Run(logits, hidden + begin * options.hidden,
                                    weight, workspace));
  ParallelRanges(ThreadsForFloats(num_threads, num_rows * options.vocab_rows),
                 num_rows, [&](int64_t first, int64_t last_row) {
                   for (int64_t row = first; row < last_row; ++row) {
                     float* const of_row = logits + row * options.vocab_rows;
                     if (options.softcap > 0) {
                       Loops().cap(of_row, options.vocab_rows,
                                   static_cast<float>(options.softcap));
                     }
                     body(of_row, row, begin + row);
                   }
                 });
  return plans;
}

absl::Status CrossEntropyPlan::Impl::PropagateChunk(
    ChunkPlans& plans, int64_t begin, float* d_hidden, float* d_weight,
    const float* hidden, const float* weight, const float* d_logits,
    void* workspace) const {
  RETURN_IF_ERROR(plans.d_hidden.Run(d_hidden + begin * options.hidden,
                                     d_logits, weight, workspace));
  GemmPlan& d_weight_plan = begin == 0 ? plans.d_weight : plans.d_weight_next;
  return d_weight_plan.Run(d_weight, d_logits, hidden + begin * options.hidden,
                           workspace);
}

double CrossEntropyPlan::Impl::SumLosses(int64_t begin) const {
  double sum = 0.0;
  for (int64_t row = 0; row < ChunkSize(begin); ++row) sum += losses[row];
  return sum;
}

CrossEntropyPlan::CrossEntropyPlan(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
CrossEntropyPlan::CrossEntropyPlan(CrossEntropyPlan&&) noexcept = default;
CrossEntropyPlan& CrossEntropyPlan::operator=(CrossEntropyPlan&&) noexcept =
    default;
CrossEntropyPlan::~CrossEntropyPlan() = default;

absl::StatusOr<CrossEntropyPlan> CrossEntropyPlan::Create(
    const CrossEntropyOptions& options, int num_threads) {
  if (options.num_tokens < 1 || options.hidden < 1 || options.vocab_rows < 1 ||
      options.vocab_begin < 0 || options.chunk_tokens < 1 || num_threads < 1 ||
      options.z_loss < 0 || options.softcap < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cross entropy got num_tokens ", options.num_tokens, ", hidden ",
        options.hidden, ", vocab_rows ", options.vocab_rows, " from ",
        options.vocab_begin, ", chunk_tokens ", options.chunk_tokens, ", ",
        num_threads, " threads, z_loss ", options.z_loss, ", softcap ",
        options.softcap,
        "; needs at least one of each, from at least 0, z_loss and softcap at "
        "least 0"));
  }
  const int64_t chunk = std::min(options.chunk_tokens, options.num_tokens);
  ASSIGN_OR_RETURN(ChunkPlans whole,
                   MakeChunkPlans(options, chunk, num_threads));
  std::optional<ChunkPlans> last;
  if (options.num_tokens % chunk != 0) {
    ASSIGN_OR_RETURN(
        last, MakeChunkPlans(options, options.num_tokens % chunk, num_threads));
  }
  return CrossEntropyPlan(std::unique_ptr<Impl>(
      new Impl{.options = options,
               .num_threads = num_threads,
               .chunk_tokens = chunk,
               .whole = std::move(whole),
               .last = std::move(last),
               .losses = std::vector<double>(static_cast<size_t>(chunk))}));
}

int64_t CrossEntropyPlan::workspace_bytes() const {
  const int64_t whole = WorkspaceBytes(impl_->whole);
  return impl_->last ? std::max(whole, WorkspaceBytes(*impl_->last)) : whole;
}

absl::Status CrossEntropyPlan::LinearCrossEntropy(
    const LinearCrossEntropyArgs& args) {
  const CrossEntropyOptions& options = impl_->options;
  const int64_t vocab_rows = options.vocab_rows;
  if (options.vocab_begin != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LinearCrossEntropy needs the whole vocabulary, but its "
                     "rows begin at ",
                     options.vocab_begin));
  }
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    if (args.targets[t] >= vocab_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("target ", args.targets[t], " of token ", t,
                       " is beyond the vocabulary of ", vocab_rows, " rows"));
    }
  }
  const float token_scale = static_cast<float>(options.token_scale);
  const auto row_gradient = [&](float* row, int64_t row_idx, int64_t token) {
    const int32_t target = args.targets[token];
    if (target < 0) {
      std::fill(row, row + vocab_rows, 0.0f);
      impl_->losses[row_idx] = 0.0;
      return;
    }
    const float target_logit = row[target];
    const float maximum = Loops().maximum(row, vocab_rows);
    const bool is_capped = options.softcap > 0;
    const float sum = is_capped
                          ? Loops().sum_exponentials(row, vocab_rows, maximum)
                          : Loops().exponentials(row, vocab_rows, maximum);
    const TokenStats stats = {maximum, sum, target_logit};
    impl_->losses[row_idx] = stats.loss(options.z_loss);
    const float factor = stats.lse_factor(options.z_loss) * token_scale / sum;
    if (is_capped) {
      Loops().capped_gradient(row, vocab_rows, maximum, factor,
                              static_cast<float>(options.softcap));
    } else {
      Loops().scale(row, vocab_rows, factor);
    }
    row[target] -= token_scale * CapSlope(target_logit, options.softcap);
  };
  double loss = 0.0;
  for (int64_t begin = 0; begin < options.num_tokens;
       begin += impl_->chunk_tokens) {
    ASSIGN_OR_RETURN(
        ChunkPlans * plans,
        impl_->ForEachRow(begin, args.hidden, args.weight, args.logits,
                          args.workspace, row_gradient));
    loss += impl_->SumLosses(begin);
    RETURN_IF_ERROR(impl_->PropagateChunk(
        *plans, begin, args.d_hidden, args.d_weight, args.hidden, args.weight,
        args.logits, args.workspace));
  }
  *args.loss += options.token_scale * options.loss_share * loss;
  return absl::OkStatus();
}

absl::Status CrossEntropyPlan::Stats(const CrossEntropyStatsArgs& args) {
  const CrossEntropyOptions& options = impl_->options;
  const auto row_stats = [&](float* row, int64_t, int64_t token) {
    float* stats = args.stats + token * kNumCrossEntropyStats;
    stats[kMaximumStat] = Loops().maximum(row, options.vocab_rows);
    const int64_t target = args.targets[token] - options.vocab_begin;
    stats[kTargetLogitStat] =
        target >= 0 && target < options.vocab_rows ? row[target] : 0.0f;
    stats[kSumExponentialsStat] =
        Loops().exponentials(row, options.vocab_rows, stats[kMaximumStat]);
  };
  for (int64_t begin = 0; begin < options.num_tokens;
       begin += impl_->chunk_tokens) {
    RETURN_IF_ERROR(impl_
                        ->ForEachRow(begin, args.hidden, args.weight,
                                     args.logits, args.workspace, row_stats)
                        .status());
  }
  return absl::OkStatus();
}

absl::Status CrossEntropyPlan::Gradient(const CrossEntropyGradientArgs& args) {
  RETURN_IF_ERROR(CheckShards(args.num_shards));
  const CrossEntropyOptions& options = impl_->options;
  const int64_t vocab_rows = options.vocab_rows;
  const auto row_gradient = [&](float* row, int64_t row_idx, int64_t token) {
    const double scale =
        options.token_scale *
        (args.token_weights == nullptr ? 1.0 : args.token_weights[token]);
    if (args.targets[token] < 0) {
      std::fill(row, row + vocab_rows, 0.0f);
      impl_->losses[row_idx] = 0.0;
      return;
    }
    const TokenStats stats = CombineStats(args.all_stats, args.num_shards,
                                          options.num_tokens, token);
    impl_->losses[row_idx] = stats.loss(options.z_loss);
    const float factor = stats.lse_factor(options.z_loss) *
                         static_cast<float>(scale / stats.sum_exponentials);
    if (options.softcap > 0) {
      Loops().capped_gradient(row, vocab_rows, stats.maximum, factor,
                              static_cast<float>(options.softcap));
    } else {
      Loops().exponentials(row, vocab_rows, stats.maximum);
      Loops().scale(row, vocab_rows, factor);
    }
    const int64_t target = args.targets[token] - options.vocab_begin;
    if (target >= 0 && target < vocab_rows) {
      row[target] -= static_cast<float>(scale) *
                     CapSlope(stats.target_logit, options.softcap);
    }
  };
  double loss = 0.0;
  for (int64_t begin = 0; begin < options.num_tokens;
       begin += impl_->chunk_tokens) {
    ASSIGN_OR_RETURN(
        ChunkPlans * plans,
        impl_->ForEachRow(begin, args.hidden, args.weight, args.logits,
                          args.workspace, row_gradient));
    loss += impl_->SumLosses(begin);
    RETURN_IF_ERROR(impl_->PropagateChunk(
        *plans, begin, args.d_hidden, args.d_weight, args.hidden, args.weight,
        args.logits, args.workspace));
  }
  if (args.token_weights == nullptr) {
    *args.loss += options.token_scale * options.loss_share * loss;
  }
  return absl::OkStatus();
}

absl::Status CrossEntropyLoss(const CrossEntropyLossArgs& args) {
  RETURN_IF_ERROR(CheckShards(args.num_shards));
  double loss = 0.0;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    if (args.targets[t] < 0) continue;
    loss += CombineStats(args.all_stats, args.num_shards, args.num_tokens, t)
                .loss(args.z_loss);
  }
  *args.loss += args.token_scale * args.loss_share * loss;
  return absl::OkStatus();
}

}  // namespace millrace
