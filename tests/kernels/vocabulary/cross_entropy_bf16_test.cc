#include "kernels/vocabulary/cross_entropy_bf16.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Rounding logits to bf16 moves a logit of 2 by up to 2^-8 and its exponential
// by as much, relatively; rounding the gradient adds 2^-9. Over a row these
// average out: norm-wise errors near 2e-3, of which this is the double. Few
// logits do not average: there the bound itself holds.
constexpr double kNormTolerance = 5e-3;
double NormTolerance(const CrossEntropyOptions& options) {
  return options.num_tokens * options.vocab_rows < 1000 ? 1e-2 : kNormTolerance;
}

struct Problem {
  CrossEntropyOptions options;
  Bf16s hidden, weight;
  std::vector<float> d_weight;  // Before the run.
  std::vector<int32_t> targets;
};

// Logits of standard deviation two; every sixth target or so is ignored.
Problem MakeProblem(const CrossEntropyOptions& options) {
  RandomNormals random;
  Problem problem = {.options = options};
  problem.hidden = random.Bits(options.num_tokens * options.hidden);
  std::vector<float> weight =
      random.Floats(options.vocab_rows * options.hidden);
  for (float& w : weight) {
    w *= 2.0f / std::sqrt(static_cast<float>(options.hidden));
  }
  problem.weight = ToBf16(weight);
  problem.d_weight = options.accumulate
                         ? random.Floats(static_cast<int64_t>(weight.size()))
                         : std::vector<float>(weight.size(), kNan);
  std::mt19937 generator(std::random_device{}());
  const auto vocab = static_cast<int32_t>(options.vocab_rows);
  std::uniform_int_distribution<int32_t> uniform(-vocab / 5, vocab - 1);
  problem.targets.resize(options.num_tokens);
  for (int32_t& target : problem.targets) target = uniform(generator);
  problem.targets.back() = vocab - 1;  // The last row of all counts.
  return problem;
}

struct Outputs {
  std::vector<float> d_hidden, d_weight;
  double loss = 2.0;

  bool operator==(const Outputs&) const = default;
};

Outputs Expected(const Problem& problem) {
  const std::vector<float> hidden = FromBf16(problem.hidden);
  const std::vector<float> weight = FromBf16(problem.weight);
  Outputs outputs = {.d_hidden = std::vector<float>(hidden.size()),
                     .d_weight = problem.d_weight};
  LinearCrossEntropyReference(problem.options,
                              {.d_hidden = outputs.d_hidden.data(),
                               .d_weight = outputs.d_weight.data(),
                               .loss = &outputs.loss,
                               .hidden = hidden.data(),
                               .weight = weight.data(),
                               .targets = problem.targets.data()});
  return outputs;
}

// How far the mean loss may be off: a logit errs by half a bf16 ulp, which is
// 2^-6 up to 8 and twice as much beyond, where few logits lie.
double LossTolerance(const Problem& problem) {
  const CrossEntropyOptions& options = problem.options;
  const std::vector<float> hidden = FromBf16(problem.hidden);
  const std::vector<float> weight = FromBf16(problem.weight);
  double sum = 0;
  for (int64_t t = 0; t < options.num_tokens; ++t) {
    float largest = 1.0f;
    for (int64_t v = 0; v < options.vocab_rows; ++v) {
      const float logit =
          std::inner_product(&hidden[t * options.hidden],
                             &hidden[t * options.hidden] + options.hidden,
                             &weight[v * options.hidden], 0.0f);
      largest = std::fmax(largest, std::fabs(logit));
    }
    sum += std::ldexp(1.0, std::max(std::ilogb(largest), 2) - 8);
  }
  return options.token_scale * options.loss_share * sum;
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

CrossEntropyBf16Plan MakePlan(const CrossEntropyBf16Options& options) {
  absl::StatusOr<CrossEntropyBf16Plan> plan =
      CrossEntropyBf16Plan::Create(options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

DeviceBuffer<uint8_t> PoisonedWorkspace(const CrossEntropyBf16Plan& plan) {
  return ToDevice(std::vector<uint8_t>(plan.workspace_bytes(), 0xFF));
}

// Captures what `run` enqueues on a stream into a graph, and runs that.
template <typename Run>
void ReplayOnce(const Run& run) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  run(stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

Outputs Linear(const Problem& problem, const CrossEntropyBf16Options& options,
               const float* device_token_scale = nullptr,
               bool captured = false) {
  const CrossEntropyBf16Plan plan = MakePlan(options);
  DeviceBuffer<uint8_t> workspace = PoisonedWorkspace(plan);
  DeviceBuffer<uint16_t> hidden = ToDevice(problem.hidden);
  DeviceBuffer<uint16_t> weight = ToDevice(problem.weight);
  DeviceBuffer<int32_t> targets = ToDevice(problem.targets);
  DeviceBuffer<uint16_t> d_hidden =
      PoisonedBf16(static_cast<int64_t>(problem.hidden.size()));
  DeviceBuffer<float> d_weight = ToDevice(problem.d_weight);
  DeviceBuffer<double> loss = ToDevice(std::vector<double>{2.0});
  const auto run = [&](cudaStream_t stream) {
    const absl::Status status =
        plan.LinearCrossEntropy({.d_hidden = d_hidden.data(),
                                 .d_weight = d_weight.data(),
                                 .loss = loss.data(),
                                 .hidden = hidden.data(),
                                 .weight = weight.data(),
                                 .targets = targets.data(),
                                 .device_token_scale = device_token_scale,
                                 .workspace = workspace.data()},
                                stream);
    EXPECT_TRUE(status.ok()) << status;
  };
  if (captured) {
    ReplayOnce(run);
  } else {
    run(nullptr);
  }
  return {FromBf16(ToHost(d_hidden)), ToHost(d_weight), ToHost(loss)[0]};
}

class CrossEntropyBf16Test
    : public testing::TestWithParam<CrossEntropyOptions> {};

// Goal: loss and gradients mean what the reference says, every element is
// written, and a second run, captured into a graph, gives the same bits.
// Method: odd and even shapes, vocabularies for one block, for clusters of
// every size and beyond, one chunk and chunks that do not divide the tokens,
// fresh normal inputs.
TEST_P(CrossEntropyBf16Test, MatchesTheReference) {
  const Problem problem = MakeProblem(GetParam());
  const Outputs expected = Expected(problem);
  const Outputs actual = Linear(problem, {.problem = GetParam()});
  EXPECT_LT(RelativeError(actual.d_hidden, expected.d_hidden),
            NormTolerance(GetParam()));
  EXPECT_LT(RelativeError(actual.d_weight, expected.d_weight),
            NormTolerance(GetParam()));
  EXPECT_NEAR(actual.loss, expected.loss, LossTolerance(problem));
  const int64_t hidden = GetParam().hidden;
  for (int64_t t = 0; t < GetParam().num_tokens; ++t) {
    for (int64_t h = 0; problem.targets[t] < 0 && h < hidden; ++h) {
      ASSERT_EQ(actual.d_hidden[t * hidden + h], 0.0f) << "ignored token " << t;
    }
  }
  EXPECT_EQ(Linear(problem, {.problem = GetParam()}, nullptr, true), actual)
      << "the second run, by a graph, differs";
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CrossEntropyBf16Test,
    testing::ValuesIn(std::vector<CrossEntropyOptions>{
        {.num_tokens = 1, .hidden = 8, .vocab_rows = 8},
        {.num_tokens = 7,
         .hidden = 16,
         .vocab_rows = 11,
         .chunk_tokens = 3,
         .token_scale = 0.25,
         .loss_share = 0.5,
         .z_loss = 0.01},
        {.num_tokens = 777,
         .hidden = 24,
         .vocab_rows = 130,
         .chunk_tokens = 256,
         .token_scale = 1.0 / 777,
         .accumulate = true},
        {.num_tokens = 64, .hidden = 64, .vocab_rows = 5003, .z_loss = 1e-3},
        {.num_tokens = 300, .hidden = 8, .vocab_rows = 40001},
        {.num_tokens = 40, .hidden = 8, .vocab_rows = 128256},
        {.num_tokens = 3, .hidden = 8, .vocab_rows = 262144},
        {.num_tokens = 3, .hidden = 8, .vocab_rows = 262147}}),
    [](const testing::TestParamInfo<CrossEntropyOptions>& info) {
      return absl::StrCat("T", info.param.num_tokens, "H", info.param.hidden,
                          "V", info.param.vocab_rows);
    });

// Goal: the loss is exact to fp32 where the logits are bf16 values, so that
// rounding them is its only error; and so is each gradient of a logit but for
// its own rounding to bf16. Method: token t looks at column t alone, which
// makes logits[t, v] = weight[v, t] and d_weight[v, t] = d_logits[t, v].
TEST(CrossEntropyBf16LossTest, IsExactForExactLogits) {
  const CrossEntropyOptions options = {.num_tokens = 64,
                                       .hidden = 64,
                                       .vocab_rows = 50257,
                                       .token_scale = 1.0 / 64,
                                       .z_loss = 1e-4};
  Problem problem = MakeProblem(options);
  for (uint16_t& w : problem.weight) w = ToBf16(8.0f * FromBf16(w));
  std::fill(problem.hidden.begin(), problem.hidden.end(), uint16_t{0});
  for (int64_t t = 0; t < 64; ++t) problem.hidden[t * 64 + t] = ToBf16(1.0f);
  const Outputs expected = Expected(problem);
  const Outputs actual = Linear(problem, {.problem = options});
  EXPECT_NEAR(actual.loss, expected.loss, 1e-6 * expected.loss);
  ExpectNear(actual.d_weight, expected.d_weight, 0.004, 1e-12, "d_weight");
}

// Goal: ignored tokens alone leave the loss and give zero gradients.
TEST(CrossEntropyBf16LossTest, IsZeroWhereAllTokensAreIgnored) {
  for (const bool accumulate : {false, true}) {
    const CrossEntropyOptions options = {.num_tokens = 20,
                                         .hidden = 8,
                                         .vocab_rows = 100,
                                         .chunk_tokens = 16,
                                         .accumulate = accumulate};
    Problem problem = MakeProblem(options);
    std::fill(problem.targets.begin(), problem.targets.end(), -100);
    const Outputs actual = Linear(problem, {.problem = options});
    EXPECT_EQ(actual.loss, 2.0);
    EXPECT_EQ(actual.d_hidden, std::vector<float>(actual.d_hidden.size()));
    EXPECT_EQ(actual.d_weight,
              accumulate ? problem.d_weight
                         : std::vector<float>(problem.d_weight.size()));
  }
}

// Goal: a target beyond the vocabulary, which no check on the host can see,
// shows in the loss and reads nothing it should not. Method: the least and the
// greatest such target, with rows kept in shared memory and with rows read
// twice.
TEST(CrossEntropyBf16LossTest, IsNanForTargetsBeyondTheVocabulary) {
  for (const int64_t vocab_rows : {100, 262147}) {
    const CrossEntropyOptions options = {
        .num_tokens = 4, .hidden = 8, .vocab_rows = vocab_rows};
    for (const int64_t target : {vocab_rows, int64_t{0x7FFFFFFF}}) {
      Problem problem = MakeProblem(options);
      problem.targets[2] = static_cast<int32_t>(target);
      EXPECT_TRUE(std::isnan(Linear(problem, {.problem = options}).loss))
          << target << " of " << vocab_rows;
    }
  }
}

// Goal: a mean over the tokens that count needs no number from the host.
TEST(CrossEntropyBf16LossTest, TakesItsScaleFromTheDevice) {
  CrossEntropyOptions options = {
      .num_tokens = 100, .hidden = 16, .vocab_rows = 300};
  Problem problem = MakeProblem(options);
  DeviceBuffer<int32_t> targets = ToDevice(problem.targets);
  DeviceBuffer<int64_t> count = ToDevice(std::vector<int64_t>{0});
  DeviceBuffer<float> reciprocal = PoisonedFloats(1);
  ASSERT_TRUE(LaunchCountTargets({.count = count.data(),
                                  .reciprocal = reciprocal.data(),
                                  .targets = targets.data(),
                                  .num_tokens = options.num_tokens},
                                 nullptr)
                  .ok());
  const auto expected_count =
      std::count_if(problem.targets.begin(), problem.targets.end(),
                    [](int32_t target) { return target >= 0; });
  ASSERT_EQ(ToHost(count)[0], expected_count);
  ASSERT_LT(expected_count, options.num_tokens);
  const Outputs actual =
      Linear(problem, {.problem = options}, reciprocal.data());
  problem.options.token_scale = 1.0 / static_cast<double>(expected_count);
  const Outputs expected = Expected(problem);
  EXPECT_NEAR(actual.loss, expected.loss, 1.0 / 64);
  EXPECT_LT(RelativeError(actual.d_hidden, expected.d_hidden), kNormTolerance);
  EXPECT_LT(RelativeError(actual.d_weight, expected.d_weight), kNormTolerance);
}

// Goal: one, two and three shards of unequal size give the whole: summed
// d_hidden, concatenated d_weight, and the loss once, by Gradient() and by
// LaunchCrossEntropyLoss(); logits that Stats() left give the bits of logits
// computed again.
TEST(CrossEntropyBf16ShardsTest, GiveTheWhole) {
  const CrossEntropyOptions options = {.num_tokens = 29,
                                       .hidden = 16,
                                       .vocab_rows = 5000,
                                       .token_scale = 1.0 / 29,
                                       .z_loss = 0.01};
  const Problem whole = MakeProblem(options);
  const Outputs expected = Expected(whole);
  DeviceBuffer<uint16_t> hidden = ToDevice(whole.hidden);
  DeviceBuffer<uint16_t> weight = ToDevice(whole.weight);
  DeviceBuffer<int32_t> targets = ToDevice(whole.targets);
  const int64_t stats_size = options.num_tokens * kNumCrossEntropyStats;
  for (const std::vector<int64_t>& begins : std::vector<std::vector<int64_t>>{
           {0, 5000}, {0, 1700, 5000}, {0, 801, 3304, 5000}}) {
    const auto num_shards = static_cast<int64_t>(begins.size()) - 1;
    SCOPED_TRACE(absl::StrCat(num_shards, " shards"));
    DeviceBuffer<float> all_stats = PoisonedFloats(num_shards * stats_size);
    DeviceBuffer<float> d_weight =
        PoisonedFloats(static_cast<int64_t>(whole.weight.size()));
    DeviceBuffer<double> loss = ToDevice(std::vector<double>{2.0});
    DeviceBuffer<double> loss_alone = ToDevice(std::vector<double>{2.0});
    std::vector<float> d_hidden_sum(whole.hidden.size());
    std::vector<CrossEntropyBf16Plan> plans;
    std::vector<DeviceBuffer<uint8_t>> workspaces;
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      CrossEntropyOptions mine = options;
      mine.vocab_begin = begins[shard];
      mine.vocab_rows = begins[shard + 1] - begins[shard];
      mine.loss_share = 1.0 / static_cast<double>(num_shards);
      plans.push_back(MakePlan({.problem = mine}));
      workspaces.push_back(PoisonedWorkspace(plans.back()));
      ASSERT_TRUE(
          plans.back()
              .Stats({.stats = all_stats.data() + shard * stats_size,
                      .hidden = hidden.data(),
                      .weight = weight.data() + begins[shard] * options.hidden,
                      .targets = targets.data(),
                      .workspace = workspaces.back().data()},
                     nullptr)
              .ok());
    }
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      std::vector<float> first;
      for (const bool has_logits : {true, false}) {
        DeviceBuffer<uint16_t> d_hidden =
            PoisonedBf16(static_cast<int64_t>(whole.hidden.size()));
        DeviceBuffer<double> loss_again = ToDevice(std::vector<double>{0.0});
        ASSERT_TRUE(
            plans[shard]
                .Gradient(
                    {.d_hidden = d_hidden.data(),
                     .d_weight =
                         d_weight.data() + begins[shard] * options.hidden,
                     .loss = has_logits ? loss.data() : loss_again.data(),
                     .hidden = hidden.data(),
                     .weight = weight.data() + begins[shard] * options.hidden,
                     .targets = targets.data(),
                     .all_stats = all_stats.data(),
                     .num_shards = num_shards,
                     .has_logits = has_logits,
                     .workspace = workspaces[shard].data()},
                    nullptr)
                .ok());
        const std::vector<float> part = FromBf16(ToHost(d_hidden));
        if (has_logits) {
          first = part;
          for (size_t i = 0; i < part.size(); ++i) d_hidden_sum[i] += part[i];
        } else {
          EXPECT_EQ(part, first);
        }
      }
    }
    ASSERT_TRUE(LaunchCrossEntropyLoss({.loss = loss_alone.data(),
                                        .targets = targets.data(),
                                        .all_stats = all_stats.data(),
                                        .num_shards = num_shards,
                                        .num_tokens = options.num_tokens,
                                        .token_scale = options.token_scale,
                                        .loss_share = 1.0,
                                        .z_loss = options.z_loss},
                                       nullptr)
                    .ok());
    EXPECT_LT(RelativeError(d_hidden_sum, expected.d_hidden), kNormTolerance);
    EXPECT_LT(RelativeError(ToHost(d_weight), expected.d_weight),
              kNormTolerance);
    EXPECT_NEAR(ToHost(loss)[0], expected.loss, 1.0 / 64);
    EXPECT_NEAR(ToHost(loss_alone)[0], ToHost(loss)[0], 1e-9);
  }
}

// Goal: a token's weight multiplies its gradient, and the loss stays with
// whoever made the weights. Method: weights that are powers of two of either
// sign, or zero, change no other bit of d_hidden; equal weights none of
// d_weight.
TEST(CrossEntropyBf16ShardsTest, WeightsMultiplyGradients) {
  const CrossEntropyOptions options = {.num_tokens = 40,
                                       .hidden = 64,
                                       .vocab_rows = 3000,
                                       .token_scale = 1.0 / 64};
  const Problem problem = MakeProblem(options);
  DeviceBuffer<uint16_t> hidden = ToDevice(problem.hidden);
  DeviceBuffer<uint16_t> weight = ToDevice(problem.weight);
  DeviceBuffer<int32_t> targets = ToDevice(problem.targets);
  DeviceBuffer<float> stats =
      PoisonedFloats(options.num_tokens * kNumCrossEntropyStats);
  const CrossEntropyBf16Plan plan = MakePlan({.problem = options});
  DeviceBuffer<uint8_t> workspace = PoisonedWorkspace(plan);
  ASSERT_TRUE(plan.Stats({.stats = stats.data(),
                          .hidden = hidden.data(),
                          .weight = weight.data(),
                          .targets = targets.data(),
                          .workspace = workspace.data()},
                         nullptr)
                  .ok());
  struct Gradients {
    std::vector<float> d_hidden, d_weight;
  };
  const auto run = [&](const std::vector<float>& weights) {
    DeviceBuffer<float> token_weights =
        ToDevice(weights.empty() ? std::vector<float>(1) : weights);
    DeviceBuffer<uint16_t> d_hidden =
        PoisonedBf16(static_cast<int64_t>(problem.hidden.size()));
    DeviceBuffer<float> d_weight =
        PoisonedFloats(static_cast<int64_t>(problem.weight.size()));
    DeviceBuffer<double> loss = ToDevice(std::vector<double>{2.0});
    const absl::Status status = plan.Gradient(
        {.d_hidden = d_hidden.data(),
         .d_weight = d_weight.data(),
         .loss = loss.data(),
         .hidden = hidden.data(),
         .weight = weight.data(),
         .targets = targets.data(),
         .all_stats = stats.data(),
         .num_shards = 1,
         .token_weights = weights.empty() ? nullptr : token_weights.data(),
         .workspace = workspace.data()},
        nullptr);
    EXPECT_TRUE(status.ok()) << status;
    if (!weights.empty()) {
      EXPECT_EQ(ToHost(loss)[0], 2.0);
    }
    return Gradients{FromBf16(ToHost(d_hidden)), ToHost(d_weight)};
  };
  const Gradients plain = run({});
  std::vector<float> weights(options.num_tokens);
  for (size_t t = 0; t < weights.size(); ++t) {
    weights[t] = std::vector<float>{-2, 0.5f, 0, 1, -0.25f}[t % 5];
  }
  const Gradients weighted = run(weights);
  for (size_t i = 0; i < plain.d_hidden.size(); ++i) {
    ASSERT_EQ(weighted.d_hidden[i],
              weights[i / options.hidden] * plain.d_hidden[i])
        << i;
  }
  const Gradients negative = run(std::vector<float>(weights.size(), -2));
  for (size_t i = 0; i < plain.d_weight.size(); ++i) {
    ASSERT_EQ(negative.d_weight[i], -2 * plain.d_weight[i]) << i;
  }
}

// Goal: chunks are as few as the bytes for logits allow, of equal size, and
// measuring finds algorithms that plans take and that give the same loss.
TEST(CrossEntropyBf16PlanTest, CutsChunksAndTakesMeasuredAlgorithms) {
  const CrossEntropyOptions options = {
      .num_tokens = 1500, .hidden = 64, .vocab_rows = 1000};
  CrossEntropyBf16Options bf16 = {.problem = options,
                                  .max_logits_bytes = 2'000 * 1'000};
  const CrossEntropyBf16Plan plan = MakePlan(bf16);
  EXPECT_EQ(plan.chunk_tokens(), 768);
  EXPECT_EQ(plan.num_chunks(), 2);
  EXPECT_EQ(MakePlan({.problem = options}).num_chunks(), 1);

  const Problem problem = MakeProblem(options);
  const Outputs expected = Linear(problem, bf16);
  const absl::StatusOr<int64_t> workspace_bytes =
      MeasureCrossEntropyBf16WorkspaceBytes(bf16);
  ASSERT_TRUE(workspace_bytes.ok()) << workspace_bytes.status();
  DeviceBuffer<uint8_t> workspace =
      ToDevice(std::vector<uint8_t>(*workspace_bytes, 0xFF));
  DeviceBuffer<uint16_t> hidden = ToDevice(problem.hidden);
  DeviceBuffer<uint16_t> weight = ToDevice(problem.weight);
  DeviceBuffer<int32_t> targets = ToDevice(problem.targets);
  DeviceBuffer<uint16_t> d_hidden =
      PoisonedBf16(static_cast<int64_t>(problem.hidden.size()));
  DeviceBuffer<float> d_weight =
      PoisonedFloats(static_cast<int64_t>(problem.weight.size()));
  DeviceBuffer<double> loss = ToDevice(std::vector<double>{0.0});
  const absl::StatusOr<CrossEntropyBf16Algorithms> measured =
      MeasureCrossEntropyBf16(bf16,
                              {.d_hidden = d_hidden.data(),
                               .d_weight = d_weight.data(),
                               .loss = loss.data(),
                               .hidden = hidden.data(),
                               .weight = weight.data(),
                               .targets = targets.data(),
                               .workspace = workspace.data()},
                              4, nullptr);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_TRUE(measured->logits && measured->d_hidden && measured->d_weight);
  bf16.algorithms = *measured;
  const Outputs actual = Linear(problem, bf16);
  EXPECT_NEAR(actual.loss, expected.loss, 1e-3 * expected.loss);
  EXPECT_LT(RelativeError(actual.d_hidden, expected.d_hidden), kNormTolerance);
  EXPECT_LT(RelativeError(actual.d_weight, expected.d_weight), kNormTolerance);
}

// Goal: what cannot be is refused by name, before any launch.
TEST(CrossEntropyBf16PlanTest, RefusesWhatCannotBe) {
  const CrossEntropyBf16Options good = {
      .problem = {.num_tokens = 100, .hidden = 8, .vocab_rows = 50}};
  const auto refuse = [](const CrossEntropyBf16Options& options,
                         const std::string& named) {
    const absl::Status status = CrossEntropyBf16Plan::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(named), std::string::npos)
        << status;
  };
  CrossEntropyBf16Options bad = good;
  bad.problem.hidden = 12;
  refuse(bad, "hidden 12");
  bad = good;
  bad.problem.num_tokens = 0;
  refuse(bad, "num_tokens 0");
  bad = good;
  bad.problem.z_loss = -1;
  refuse(bad, "z_loss -1");
  bad = good;
  bad.max_logits_bytes = 111;
  refuse(bad, "need 112");
  bad.problem.chunk_tokens = 10;
  refuse(bad, "chunks of 10");

  CrossEntropyBf16Options sharded = good;
  sharded.problem.vocab_begin = 3;
  EXPECT_EQ(MakePlan(sharded).LinearCrossEntropy({}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  CrossEntropyBf16Options chunked = good;
  chunked.problem.chunk_tokens = 60;
  EXPECT_EQ(MakePlan(chunked)
                .Gradient({.num_shards = 1, .has_logits = true}, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakePlan(good).Gradient({.num_shards = 0}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchCrossEntropyLoss({.num_shards = 0}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
