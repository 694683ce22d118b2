#include "kernels/vocabulary/cross_entropy_plain.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "kernels/vocabulary/cross_entropy_bf16.h"
#include "kernels/vocabulary/cross_entropy_rows_plain.h"
#include "tests/kernels/plain_testing.h"

namespace millrace {
namespace {

// In fp32 a logit of a few units is off by 1e-6. In bf16 rounding the logits of
// standard deviation two moves their exponentials by up to 2^-8 each, which
// averages out over a row: norm-wise errors near 2e-3.
double NormTolerance(ElementType type) {
  return type == ElementType::kFloat32 ? 5e-6 : 5e-3;
}

// |actual - expected| / |expected|; NaN if anything was left unwritten.
double RelativeError(const std::vector<float>& actual,
                     const std::vector<float>& expected) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

struct Problem {
  CrossEntropyOptions options;
  std::vector<float> hidden, weight, d_weight;
  std::vector<int32_t> targets;  // About every sixth is ignored.
};

Problem MakeProblem(ElementType type, const CrossEntropyOptions& options) {
  RandomNormals random;
  Problem problem = {.options = options};
  problem.hidden =
      Rounded(type, random.Floats(options.num_tokens * options.hidden));
  problem.weight = random.Floats(options.vocab_rows * options.hidden);
  for (float& w : problem.weight) {
    w *= 2.0f / std::sqrt(static_cast<float>(options.hidden));
  }
  problem.weight = Rounded(type, problem.weight);
  problem.d_weight =
      options.accumulate
          ? random.Floats(static_cast<int64_t>(problem.weight.size()))
          : std::vector<float>(problem.weight.size(), kNan);
  std::mt19937 generator(std::random_device{}());
  const auto vocab = static_cast<int32_t>(options.vocab_rows);
  std::uniform_int_distribution<int32_t> uniform(-vocab / 5 - 1, vocab - 1);
  problem.targets.resize(options.num_tokens);
  for (int32_t& target : problem.targets) target = uniform(generator);
  problem.targets.back() = vocab - 1;  // The last row of all counts.
  return problem;
}

PlainCrossEntropyPlan MakePlan(const PlainCrossEntropyOptions& options) {
  absl::StatusOr<PlainCrossEntropyPlan> plan =
      PlainCrossEntropyPlan::Create(options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

struct Outputs {
  std::vector<float> d_hidden, d_weight;
  double loss = 2.0;
};

// The buffers that calls on one problem work on; outputs are poisoned.
struct Buffers {
  PlainTensor hidden, weight, d_hidden;
  DeviceBuffer<float> d_weight;
  DeviceBuffer<int32_t> targets;
  DeviceBuffer<double> loss;
  DeviceBuffer<uint8_t> logits, workspace;

  Buffers(ElementType type, const Problem& problem,
          const PlainCrossEntropyPlan& plan)
      : hidden(type, problem.hidden, true),
        weight(type, problem.weight, true),
        d_hidden(type, static_cast<int64_t>(problem.hidden.size()), true),
        d_weight(ToDevice(problem.d_weight)),
        targets(ToDevice(problem.targets)),
        loss(ToDevice(std::vector<double>{2.0})),
        logits(ToDevice(std::vector<uint8_t>(plan.logits_bytes(), 0xFF))),
        workspace(
            ToDevice(std::vector<uint8_t>(plan.workspace_bytes(), 0xFF))) {}

  Outputs Host() {
    return {d_hidden.Host(), ToHost(d_weight), ToHost(loss)[0]};
  }
};

// How far logits rounded to bf16 move the gradient of a shard whose sums come
// of exact logits, over its norm: each exponential by half an ulp of its logit.
// One confident token with a logit beyond 8 makes a hundredth.
double LogitRounding(const CrossEntropyOptions& options, const Problem& part,
                     const std::vector<float>& all_stats, int64_t num_shards) {
  double error = 0;
  double norm = 0;
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    if (part.targets[t] < 0) continue;
    double sum = 0;
    for (int64_t s = 0; s < num_shards; ++s) {
      const float* stats =
          &all_stats[(s * options.num_tokens + t) * kNumCrossEntropyStats];
      sum += stats[kSumExponentialsStat] * std::exp(stats[kMaximumStat]);
    }
    for (int64_t v = 0; v < options.vocab_rows; ++v) {
      const double logit =
          std::inner_product(&part.hidden[t * options.hidden],
                             &part.hidden[t * options.hidden] + options.hidden,
                             &part.weight[v * options.hidden], 0.0);
      const double share = std::exp(logit) / sum;
      const bool is_target = part.targets[t] == options.vocab_begin + v;
      const int exponent = std::ilogb(std::fmax(std::fabs(logit), 1e-3));
      error += std::pow(share * std::ldexp(1.0, exponent - 8), 2);
      norm += std::pow(share - (is_target ? 1.0 : 0.0), 2);
    }
  }
  return std::sqrt(error / norm);
}

constexpr struct {
  int64_t num_tokens, hidden, vocab_rows, chunk_tokens;
} kShapes[] = {
    {1, 8, 1, 1},      {5, 3, 11, 2},       {33, 64, 257, 33},
    {100, 33, 301, 7}, {64, 128, 1000, 32}, {130, 96, 517, 50},
};

// Goal: loss and gradients mean what cross_entropy.h says, over chunks that
// divide the tokens and chunks that do not, added to and overwritten, with and
// without a z-loss; equal runs give equal bits. Method: against the fp64
// reference, poisoned outputs, logits and workspace.
TEST(PlainCrossEntropyTest, LinearMatchesTheReferenceAndRepeats) {
  for (const ElementType type : kElementTypes) {
    for (const auto& shape : kShapes) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(absl::StrCat(ElementName(type), " ", shape.num_tokens,
                                  " x ", shape.hidden, " x ",
                                  shape.vocab_rows));
        const Problem problem =
            MakeProblem(type, {.num_tokens = shape.num_tokens,
                               .hidden = shape.hidden,
                               .vocab_rows = shape.vocab_rows,
                               .chunk_tokens = shape.chunk_tokens,
                               .token_scale = 1.0 / 64,
                               .loss_share = 0.5,
                               .accumulate = accumulate,
                               .z_loss = accumulate ? 1e-3 : 0.0});
        Outputs expected = {
            .d_hidden = std::vector<float>(problem.hidden.size()),
            .d_weight = problem.d_weight};
        LinearCrossEntropyReference(problem.options,
                                    {.d_hidden = expected.d_hidden.data(),
                                     .d_weight = expected.d_weight.data(),
                                     .loss = &expected.loss,
                                     .hidden = problem.hidden.data(),
                                     .weight = problem.weight.data(),
                                     .targets = problem.targets.data()});
        const PlainCrossEntropyPlan plan =
            MakePlan({.problem = problem.options, .type = type});
        Outputs first;
        for (int run = 0; run < 2; ++run) {
          Buffers buffers(type, problem, plan);
          const absl::Status status =
              plan.LinearCrossEntropy({.d_hidden = buffers.d_hidden.data(),
                                       .d_weight = buffers.d_weight.data(),
                                       .loss = buffers.loss.data(),
                                       .hidden = buffers.hidden.data(),
                                       .weight = buffers.weight.data(),
                                       .targets = buffers.targets.data(),
                                       .logits = buffers.logits.data(),
                                       .workspace = buffers.workspace.data()},
                                      nullptr);
          ASSERT_TRUE(status.ok()) << status;
          const Outputs actual = buffers.Host();
          if (run == 0) first = actual;
          ExpectEqualBits(actual.d_hidden, first.d_hidden, "d_hidden");
          ExpectEqualBits(actual.d_weight, first.d_weight, "d_weight");
          EXPECT_EQ(actual.loss, first.loss);
        }
        const double tolerance = NormTolerance(type);
        EXPECT_NEAR(first.loss, expected.loss, tolerance);
        // One row of vocabulary has no gradient but the z-loss's.
        if (shape.vocab_rows == 1) continue;
        EXPECT_LE(RelativeError(first.d_hidden, expected.d_hidden), tolerance);
        EXPECT_LE(RelativeError(first.d_weight, expected.d_weight), tolerance);
      }
    }
  }
}

// Goal: three shards of a vocabulary that say what they know, and each compute
// their part, give what the whole gives; so does the loss alone. Method:
// against the fp64 reference of each shard; the loss against that of the whole.
TEST(PlainCrossEntropyTest, ShardsMatchTheReference) {
  constexpr int64_t kShards = 3;
  constexpr int64_t kTokens = 45;
  constexpr int64_t kHidden = 40;
  constexpr int64_t kRows = 67;  // Rows of a shard.
  for (const ElementType type : kElementTypes) {
    const CrossEntropyOptions whole = {.num_tokens = kTokens,
                                       .hidden = kHidden,
                                       .vocab_rows = kShards * kRows,
                                       .chunk_tokens = 16,
                                       .token_scale = 1.0 / kTokens,
                                       .z_loss = 1e-3};
    const Problem problem = MakeProblem(type, whole);
    std::vector<float> all_stats;
    for (int64_t shard = 0; shard < kShards; ++shard) {
      CrossEntropyOptions options = whole;
      options.vocab_rows = kRows;
      options.vocab_begin = shard * kRows;
      Problem part = problem;
      part.weight.assign(
          problem.weight.begin() + shard * kRows * kHidden,
          problem.weight.begin() + (shard + 1) * kRows * kHidden);
      part.d_weight.resize(part.weight.size());
      std::vector<float> stats(kTokens * kNumCrossEntropyStats);
      CrossEntropyStatsReference(options, {.stats = stats.data(),
                                           .hidden = part.hidden.data(),
                                           .weight = part.weight.data(),
                                           .targets = part.targets.data()});
      const PlainCrossEntropyPlan plan =
          MakePlan({.problem = options, .type = type});
      Buffers buffers(type, part, plan);
      DeviceBuffer<float> device_stats =
          PoisonedFloats(static_cast<int64_t>(stats.size()));
      const absl::Status status =
          plan.Stats({.stats = device_stats.data(),
                      .hidden = buffers.hidden.data(),
                      .weight = buffers.weight.data(),
                      .targets = buffers.targets.data(),
                      .logits = buffers.logits.data(),
                      .workspace = buffers.workspace.data()},
                     nullptr);
      ASSERT_TRUE(status.ok()) << status;
      const double tolerance = type == ElementType::kFloat32 ? 1e-5 : 0.02;
      ExpectNear(ToHost(device_stats), stats, tolerance, tolerance, "stats");
      all_stats.insert(all_stats.end(), stats.begin(), stats.end());
    }
    double loss_of_whole = 2.0;
    DeviceBuffer<float> device_all_stats = ToDevice(all_stats);
    // With weights of tokens too: of either sign, and zero.
    std::vector<float> weights(kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      weights[t] = 0.25f * static_cast<float>(t % 5 - 2);
    }
    const DeviceBuffer<float> device_weights = ToDevice(weights);
    for (int64_t i = 0; i < 2 * kShards; ++i) {
      const int64_t shard = i / 2;
      const bool weighted = i % 2 == 0;
      SCOPED_TRACE(absl::StrCat(ElementName(type), " shard ", shard,
                                weighted ? ", weighted" : ""));
      CrossEntropyOptions options = whole;
      options.vocab_rows = kRows;
      options.vocab_begin = shard * kRows;
      Problem part = problem;
      part.weight.assign(
          problem.weight.begin() + shard * kRows * kHidden,
          problem.weight.begin() + (shard + 1) * kRows * kHidden);
      part.d_weight.assign(part.weight.size(), kNan);
      Outputs expected = {.d_hidden = std::vector<float>(part.hidden.size()),
                          .d_weight = std::vector<float>(part.weight.size())};
      CrossEntropyGradientReference(
          options, {.d_hidden = expected.d_hidden.data(),
                    .d_weight = expected.d_weight.data(),
                    .loss = &expected.loss,
                    .hidden = part.hidden.data(),
                    .weight = part.weight.data(),
                    .targets = part.targets.data(),
                    .all_stats = all_stats.data(),
                    .num_shards = kShards,
                    .token_weights = weighted ? weights.data() : nullptr});
      const PlainCrossEntropyPlan plan =
          MakePlan({.problem = options, .type = type});
      Buffers buffers(type, part, plan);
      const absl::Status status = plan.Gradient(
          {.d_hidden = buffers.d_hidden.data(),
           .d_weight = buffers.d_weight.data(),
           .loss = buffers.loss.data(),
           .hidden = buffers.hidden.data(),
           .weight = buffers.weight.data(),
           .targets = buffers.targets.data(),
           .all_stats = device_all_stats.data(),
           .num_shards = kShards,
           .token_weights = weighted ? device_weights.data() : nullptr,
           .logits = buffers.logits.data(),
           .workspace = buffers.workspace.data()},
          nullptr);
      ASSERT_TRUE(status.ok()) << status;
      const Outputs actual = buffers.Host();
      // The loss comes of the stats alone, which both sides were given.
      EXPECT_NEAR(actual.loss, expected.loss, 1e-9);
      double tolerance = NormTolerance(type);
      if (type != ElementType::kFloat32) {
        tolerance += LogitRounding(options, part, all_stats, kShards);
      }
      EXPECT_LE(RelativeError(actual.d_hidden, expected.d_hidden), tolerance);
      EXPECT_LE(RelativeError(actual.d_weight, expected.d_weight), tolerance);
      loss_of_whole = expected.loss;
    }
    DeviceBuffer<double> loss = ToDevice(std::vector<double>{2.0});
    DeviceBuffer<int32_t> targets = ToDevice(problem.targets);
    const absl::Status status =
        LaunchCrossEntropyLoss({.loss = loss.data(),
                                .targets = targets.data(),
                                .all_stats = device_all_stats.data(),
                                .num_shards = kShards,
                                .num_tokens = kTokens,
                                .token_scale = whole.token_scale,
                                .loss_share = 1.0,
                                .z_loss = whole.z_loss},
                               nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_NEAR(ToHost(loss)[0], loss_of_whole, 1e-6);  // Exponentials in fp32.
  }
}

// Goal: a target that the vocabulary has not makes the loss NaN rather than
// reading beyond it. Method: one such target.
TEST(PlainCrossEntropyTest, TargetsBeyondTheVocabularyMakeTheLossNan) {
  for (const ElementType type : kElementTypes) {
    Problem problem = MakeProblem(
        type,
        {.num_tokens = 6, .hidden = 8, .vocab_rows = 10, .chunk_tokens = 6});
    problem.targets[2] = 10;
    const PlainCrossEntropyPlan plan =
        MakePlan({.problem = problem.options, .type = type});
    Buffers buffers(type, problem, plan);
    const absl::Status status =
        plan.LinearCrossEntropy({.d_hidden = buffers.d_hidden.data(),
                                 .d_weight = buffers.d_weight.data(),
                                 .loss = buffers.loss.data(),
                                 .hidden = buffers.hidden.data(),
                                 .weight = buffers.weight.data(),
                                 .targets = buffers.targets.data(),
                                 .logits = buffers.logits.data(),
                                 .workspace = buffers.workspace.data()},
                                nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(std::isnan(ToHost(buffers.loss)[0]));
  }
}

TEST(PlainCrossEntropyTest, RefusesWhatCannotBe) {
  const CrossEntropyOptions good = {
      .num_tokens = 4, .hidden = 8, .vocab_rows = 16, .chunk_tokens = 4};
  for (int which = 0; which < 6; ++which) {
    CrossEntropyOptions bad = good;
    if (which == 0) bad.num_tokens = 0;
    if (which == 1) bad.hidden = 0;
    if (which == 2) bad.vocab_rows = 0;
    if (which == 3) bad.vocab_begin = -1;
    if (which == 4) bad.chunk_tokens = 0;
    if (which == 5) bad.z_loss = -1;
    EXPECT_EQ(PlainCrossEntropyPlan::Create(
                  {.problem = bad, .type = ElementType::kFloat32})
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument)
        << which;
  }
  CrossEntropyOptions shard = good;
  shard.vocab_begin = 16;
  const PlainCrossEntropyPlan plan =
      MakePlan({.problem = shard, .type = ElementType::kFloat32});
  EXPECT_EQ(plan.LinearCrossEntropy({}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan.Gradient({}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchPlainCrossEntropyStatsRows(
                {.logits = {.num_rows = 1, .row_stride = 3, .vocab_rows = 4}},
                ElementType::kFloat32, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
  float stats = 0;  // Its address alone is looked at.
  EXPECT_EQ(LaunchPlainCrossEntropyGradientRows(
                {.logits = {.num_rows = 1, .row_stride = 4, .vocab_rows = 4},
                 .all_stats = &stats,
                 .num_shards = 0},
                ElementType::kFloat32, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
