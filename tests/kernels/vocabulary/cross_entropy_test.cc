#include "kernels/vocabulary/cross_entropy.h"

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

struct FreeAligned {
  void operator()(void* memory) const { std::free(memory); }
};

// Scratch of one plan.
struct Scratch {
  Scratch(const CrossEntropyOptions& options, const CrossEntropyPlan& plan)
      : logits(Poisoned(options.chunk_tokens * options.vocab_rows)),
        workspace(
            std::aligned_alloc(64, (plan.workspace_bytes() + 64) / 64 * 64)) {}
  std::vector<float> logits;
  std::unique_ptr<void, FreeAligned> workspace;
};

struct Problem {
  CrossEntropyOptions options;
  std::vector<float> hidden;
  std::vector<float> weight;
  std::vector<float> d_weight;  // Before the run.
  std::vector<int32_t> targets;
};

// Every fifth target or so is ignored.
Problem MakeProblem(const CrossEntropyOptions& options, int32_t vocab,
                    uint32_t seed) {
  RandomFloats random(seed);
  Problem problem = {.options = options};
  problem.hidden = random(options.num_tokens * options.hidden);
  problem.weight = random(options.vocab_rows * options.hidden, 2.0f);
  problem.d_weight = options.accumulate ? random(problem.weight.size())
                                        : Poisoned(problem.weight.size());
  problem.targets = random.Integers(options.num_tokens, -vocab / 5, vocab - 1);
  return problem;
}

// d_hidden, d_weight and the loss.
Outputs Linear(const Problem& problem, int num_threads) {
  std::vector<float> d_hidden = Poisoned(problem.hidden.size());
  std::vector<float> d_weight = problem.d_weight;
  double loss = 2.0;
  LinearCrossEntropyArgs args = {.d_hidden = d_hidden.data(),
                                 .d_weight = d_weight.data(),
                                 .loss = &loss,
                                 .hidden = problem.hidden.data(),
                                 .weight = problem.weight.data(),
                                 .targets = problem.targets.data()};
  if (num_threads == 0) {
    LinearCrossEntropyReference(problem.options, args);
  } else {
    absl::StatusOr<CrossEntropyPlan> plan =
        CrossEntropyPlan::Create(problem.options, num_threads);
    EXPECT_TRUE(plan.ok()) << plan.status();
    Scratch scratch(problem.options, *plan);
    args.logits = scratch.logits.data();
    args.workspace = scratch.workspace.get();
    const absl::Status status = plan->LinearCrossEntropy(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  return {d_hidden, d_weight, {static_cast<float>(loss)}};
}

// Goal: fused loss and gradients mean what the reference says, for chunks that
// divide the tokens and not, with and without accumulation. Tolerance: logits
// are sums of up to 40 products of magnitude up to two, so err by some 1e-6.
TEST(CrossEntropyTest, LinearMatchesReference) {
  uint32_t seed = 1;
  for (const CrossEntropyOptions& options : std::vector<CrossEntropyOptions>{
           {.num_tokens = 1, .hidden = 1, .vocab_rows = 1, .chunk_tokens = 1},
           {.num_tokens = 7,
           .hidden = 5,
           .vocab_rows = 11,
           .chunk_tokens = 3,
           .token_scale = 0.25,
           .loss_share = 0.5,
           .z_loss = 0.1},
           {.num_tokens = 64,
           .hidden = 40,
           .vocab_rows = 130,
           .chunk_tokens = 16,
           .token_scale = 1.0 / 64,
           .accumulate = true},
           {.num_tokens = 33,
           .hidden = 24,
           .vocab_rows = 2000,
           .chunk_tokens = 100,
           .token_scale = 1.0 / 33},
           {.num_tokens = 33,
           .hidden = 24,
           .vocab_rows = 131,
           .chunk_tokens = 10,
           .token_scale = 1.0 / 33,
           .z_loss = 0.1,
           .softcap = 2.5},
       }) {
    SCOPED_TRACE(absl::StrCat(options.num_tokens, " tokens"));
    const Problem problem =
        MakeProblem(options, static_cast<int32_t>(options.vocab_rows), seed++);
    ExpectKernelMatches(Linear(problem, 0), 5e-6, [&](int num_threads) {
      return Linear(problem, num_threads);
    });
  }
}

// Goal: the reference's gradients are the derivatives of its loss. Method:
// central differences; the loss is in double, so the third-order term of a step
// of 1e-2 remains.
void ExpectDerivatives(double softcap) {
  Problem problem = MakeProblem({.num_tokens = 5,
                                 .hidden = 3,
                                 .vocab_rows = 6,
                                 .chunk_tokens = 5,
                                 .token_scale = 0.2,
                                 .z_loss = 0.05,
                                 .softcap = softcap},
                                6, 77);
  const Outputs gradient = Linear(problem, 0);
  const auto loss = [&] {
    std::vector<float> d_hidden(problem.hidden.size()),
        d_weight(problem.weight.size());
    double sum = 0.0;
    LinearCrossEntropyReference(problem.options,
                                {.d_hidden = d_hidden.data(),
                                 .d_weight = d_weight.data(),
                                 .loss = &sum,
                                 .hidden = problem.hidden.data(),
                                 .weight = problem.weight.data(),
                                 .targets = problem.targets.data()});
    return sum;
  };
  const auto derivative = [&](float& value) {
    const float kept = value;
    value = kept + 0.01f;
    const double above = loss();
    const double step_above = double{value} - kept;
    value = kept - 0.01f;
    const double below = loss();
    const double step = step_above + (double{kept} - value);
    value = kept;
    return (above - below) / step;
  };
  for (size_t i = 0; i < problem.hidden.size(); ++i) {
    EXPECT_NEAR(derivative(problem.hidden[i]), gradient[0][i], 1e-4) << i;
  }
  for (size_t i = 0; i < problem.weight.size(); ++i) {
    EXPECT_NEAR(derivative(problem.weight[i]), gradient[1][i], 1e-4) << i;
  }
}
TEST(CrossEntropyTest, ReferenceGradientIsTheDerivative) {
  for (const double softcap : {0.0, 3.0}) {
    SCOPED_TRACE(absl::StrCat("softcap ", softcap));
    ExpectDerivatives(softcap);
  }
}

// Goal: the sharded pair gives what the fused kernel gives on the whole
// vocabulary: summed d_hidden, concatenated d_weight, and the loss once, by
// Gradient() and by CrossEntropyLoss(). Method: three shards of unequal size.
void ExpectShardsGiveTheWhole(double softcap) {
  const CrossEntropyOptions options = {.num_tokens = 29,
                                       .hidden = 12,
                                       .vocab_rows = 50,
                                       .chunk_tokens = 8,
                                       .token_scale = 1.0 / 29,
                                       .z_loss = 0.01,
                                       .softcap = softcap};
  const Problem whole = MakeProblem(options, 50, 5);
  const Outputs expected = Linear(whole, 0);
  const std::vector<int64_t> begins = {0, 10, 33, 50};
  constexpr int64_t kShards = 3;
  const int64_t stats_size = options.num_tokens * kNumCrossEntropyStats;

  for (int num_threads : {0, 1, 2}) {
    SCOPED_TRACE(absl::StrCat(num_threads, " threads; 0 is the reference"));
    std::vector<float> all_stats = Poisoned(kShards * stats_size);
    std::vector<float> d_hidden_sum(whole.hidden.size());
    std::vector<float> d_weight = Poisoned(whole.weight.size());
    double loss = 2.0;
    double loss_alone = 2.0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t shard = 0; shard < kShards; ++shard) {
        CrossEntropyOptions mine = options;
        mine.vocab_begin = begins[shard];
        mine.vocab_rows = begins[shard + 1] - begins[shard];
        mine.loss_share = 1.0 / kShards;
        absl::StatusOr<CrossEntropyPlan> plan =
            CrossEntropyPlan::Create(mine, std::max(num_threads, 1));
        ASSERT_TRUE(plan.ok()) << plan.status();
        Scratch scratch(mine, *plan);
        const float* weight =
            whole.weight.data() + begins[shard] * options.hidden;
        if (pass == 0) {
          const CrossEntropyStatsArgs args = {
              .stats = all_stats.data() + shard * stats_size,
              .hidden = whole.hidden.data(),
              .weight = weight,
              .targets = whole.targets.data(),
              .logits = scratch.logits.data(),
              .workspace = scratch.workspace.get()};
          if (num_threads == 0) {
            CrossEntropyStatsReference(mine, args);
          } else {
            ASSERT_TRUE(plan->Stats(args).ok());
          }
          continue;
        }
        std::vector<float> d_hidden = Poisoned(whole.hidden.size());
        const CrossEntropyGradientArgs args = {
            .d_hidden = d_hidden.data(),
            .d_weight = d_weight.data() + begins[shard] * options.hidden,
            .loss = &loss,
            .hidden = whole.hidden.data(),
            .weight = weight,
            .targets = whole.targets.data(),
            .all_stats = all_stats.data(),
            .num_shards = kShards,
            .logits = scratch.logits.data(),
            .workspace = scratch.workspace.get()};
        if (num_threads == 0) {
          CrossEntropyGradientReference(mine, args);
        } else {
          ASSERT_TRUE(plan->Gradient(args).ok());
        }
        for (size_t i = 0; i < d_hidden.size(); ++i) {
          d_hidden_sum[i] += d_hidden[i];
        }
      }
    }
    ASSERT_TRUE(CrossEntropyLoss({.loss = &loss_alone,
                                  .targets = whole.targets.data(),
                                  .all_stats = all_stats.data(),
                                  .num_shards = kShards,
                                  .num_tokens = options.num_tokens,
                                  .token_scale = options.token_scale,
                                  .loss_share = 1.0,
                                  .z_loss = options.z_loss})
                    .ok());
    ExpectClose(d_hidden_sum, expected[0], 5e-6, "d_hidden");
    ExpectClose(d_weight, expected[1], 5e-6, "d_weight");
    EXPECT_NEAR(loss, expected[2][0], 1e-5);
    EXPECT_NEAR(loss_alone, expected[2][0], 1e-5);
  }
}
TEST(CrossEntropyTest, ShardsGiveTheWhole) {
  for (const double softcap : {0.0, 2.5}) {
    SCOPED_TRACE(absl::StrCat("softcap ", softcap));
    ExpectShardsGiveTheWhole(softcap);
  }
}

// Goal: a token's weight multiplies its gradient, whatever its sign, and the
// loss stays with whoever made the weights. Method: against the reference; the
// reference, with equal weights, against another token_scale.
TEST(CrossEntropyTest, WeightsMultiplyGradients) {
  const CrossEntropyOptions options = {.num_tokens = 29,
                                       .hidden = 12,
                                       .vocab_rows = 50,
                                       .chunk_tokens = 8,
                                       .token_scale = 1.0 / 29};
  const Problem problem = MakeProblem(options, 50, 5);
  std::vector<float> stats(options.num_tokens * kNumCrossEntropyStats);
  CrossEntropyStatsReference(options, {.stats = stats.data(),
                                       .hidden = problem.hidden.data(),
                                       .weight = problem.weight.data(),
                                       .targets = problem.targets.data()});
  const auto run = [&](const CrossEntropyOptions& options, int num_threads,
                       const float* weights) -> Outputs {
    std::vector<float> d_hidden = Poisoned(problem.hidden.size());
    std::vector<float> d_weight = Poisoned(problem.weight.size());
    double loss = 2.0;
    CrossEntropyGradientArgs args = {.d_hidden = d_hidden.data(),
                                     .d_weight = d_weight.data(),
                                     .loss = &loss,
                                     .hidden = problem.hidden.data(),
                                     .weight = problem.weight.data(),
                                     .targets = problem.targets.data(),
                                     .all_stats = stats.data(),
                                     .num_shards = 1,
                                     .token_weights = weights};
    if (num_threads == 0) {
      CrossEntropyGradientReference(options, args);
    } else {
      auto plan = CrossEntropyPlan::Create(options, num_threads);
      EXPECT_TRUE(plan.ok()) << plan.status();
      Scratch scratch(options, *plan);
      args.logits = scratch.logits.data();
      args.workspace = scratch.workspace.get();
      EXPECT_TRUE(plan->Gradient(args).ok());
    }
    if (weights != nullptr) {
      EXPECT_EQ(loss, 2.0);
    }
    return {d_hidden, d_weight};
  };
  std::vector<float> weights = RandomFloats(9)(options.num_tokens);
  weights[3] = 0;
  ExpectKernelMatches(run(options, 0, weights.data()), 5e-6,
                      [&](int num_threads) {
                        return run(options, num_threads, weights.data());
                      });
  std::fill(weights.begin(), weights.end(), -0.25f);
  CrossEntropyOptions scaled = options;
  scaled.token_scale *= -0.25;
  const Outputs actual = run(options, 0, weights.data());
  const Outputs expected = run(scaled, 0, nullptr);
  ExpectClose(actual[0], expected[0], 1e-7, "d_hidden");
  ExpectClose(actual[1], expected[1], 1e-7, "d_weight");
}

TEST(CrossEntropyTest, RefusesWhatCannotBe) {
  const CrossEntropyOptions good = {
      .num_tokens = 2, .hidden = 2, .vocab_rows = 3, .chunk_tokens = 2};
  CrossEntropyOptions bad = good;
  bad.chunk_tokens = 0;
  EXPECT_EQ(CrossEntropyPlan::Create(bad, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.z_loss = -1;
  EXPECT_EQ(CrossEntropyPlan::Create(bad, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.vocab_begin = -1;
  EXPECT_EQ(CrossEntropyPlan::Create(bad, 1).status().code(),
            absl::StatusCode::kInvalidArgument);

  const std::vector<int32_t> targets = {0, 3};
  LinearCrossEntropyArgs args = {.targets = targets.data()};
  absl::StatusOr<CrossEntropyPlan> plan = CrossEntropyPlan::Create(good, 1);
  ASSERT_TRUE(plan.ok());
  const absl::Status beyond = plan->LinearCrossEntropy(args);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(beyond.message()).find("target 3 of token 1"),
            std::string::npos);

  CrossEntropyOptions sharded = good;
  sharded.vocab_begin = 3;
  plan = CrossEntropyPlan::Create(sharded, 1);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->LinearCrossEntropy(args).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan->Gradient({.targets = targets.data(), .num_shards = 0}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
