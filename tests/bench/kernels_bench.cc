// Times every CPU kernel at a small model's shapes. Each is first checked
// against its reference; then come the best time of several, the rate, and the
// share of the peak: arithmetic against a large GEMM, memory-bound kernels
// against a large copy, both measured in the same run. A memory-bound kernel is
// above that peak where its data stays in the caches.
//
//   kernels_bench [hidden] [threads] [sequence length]
//
// MILLRACE_CPU_LEVEL chooses the level of the instruction set.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/gemm/gemm.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/swiglu.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "kernels/vocabulary/embedding.h"

namespace millrace {
namespace {

constexpr int64_t kNumTokens = 1024;
constexpr int64_t kVocab = 4096;
constexpr int64_t kChunkTokens = 256;

struct Peaks {
  double gflops = 0;
  double gigabytes_per_s = 0;
};

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

void RequireClose(const char* name, const std::vector<float>& actual,
                  const std::vector<float>& expected, double tolerance) {
  double scale = 1.0;
  for (float value : expected) scale = std::fmax(scale, std::fabs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(actual[i] - expected[i]) <= tolerance * scale) continue;
    std::fprintf(stderr, "%s: element %zu is %g, the reference says %g\n", name,
                 i, actual[i], expected[i]);
    std::exit(1);
  }
}

// The best of at least five runs and a fifth of a second.
double BestSeconds(const std::function<void()>& run) {
  run();
  double best = 1e30;
  const double start = MonotonicSeconds();
  for (int i = 0; i < 5 || MonotonicSeconds() - start < 0.2; ++i) {
    const double before = MonotonicSeconds();
    run();
    best = std::min(best, MonotonicSeconds() - before);
  }
  return best;
}

std::vector<float> Random(int64_t count) {
  static std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

class Bench {
 public:
  Bench(int64_t hidden, int num_threads, int64_t sequence_length)
      : hidden_(hidden),
        num_threads_(num_threads),
        sequence_length_(sequence_length) {}

  void MeasurePeaks();
  void Gemms();
  void Attention();
  void Norms();
  void Tokens();
  void Head();
  void Optimizer();

 private:
  void PrintFlops(const std::string& name, double seconds, double flops) {
    std::printf("%-34s %9.1f us %8.1f GFLOP/s %5.0f %% of peak\n", name.c_str(),
                seconds * 1e6, flops / seconds * 1e-9,
                100 * flops / seconds * 1e-9 / peaks_.gflops);
  }
  void PrintBytes(const std::string& name, double seconds, double bytes) {
    std::printf("%-34s %9.1f us %8.1f GB/s    %5.0f %% of peak\n", name.c_str(),
                seconds * 1e6, bytes / seconds * 1e-9,
                100 * bytes / seconds * 1e-9 / peaks_.gigabytes_per_s);
  }
  double TimeGemm(const GemmShape& shape, bool verify);

  const int64_t hidden_;
  const int num_threads_;
  const int64_t sequence_length_;
  Peaks peaks_;
};

double Bench::TimeGemm(const GemmShape& shape, bool verify) {
  absl::StatusOr<GemmPlan> plan = GemmPlan::Create(shape, num_threads_);
  Require(plan.status());
  std::vector<char> workspace(plan->workspace_bytes() + 64);
  void* aligned = workspace.data();
  size_t space = workspace.size();
  std::align(64, plan->workspace_bytes(), aligned, space);
  const std::vector<float> a = Random(shape.m * shape.k);
  const std::vector<float> b = Random(shape.k * shape.n);
  std::vector<float> c(shape.m * shape.n);
  const auto run = [&] {
    Require(plan->Run(c.data(), a.data(), b.data(), aligned));
  };
  if (verify) {
    std::vector<float> expected(c.size());
    GemmReference(shape, expected.data(), a.data(), b.data());
    run();
    RequireClose("gemm", c, expected, 1e-5);
  }
  return BestSeconds(run);
}

void Bench::MeasurePeaks() {
  constexpr int64_t kLarge = 1024;
  peaks_.gflops = 2.0 * kLarge * kLarge * kLarge /
                  TimeGemm({.m = kLarge, .n = kLarge, .k = kLarge}, false) *
                  1e-9;
  const int64_t bytes = int64_t{64} << 20;
  std::vector<char> from(bytes, 1), to(bytes);
  const double seconds = BestSeconds([&] {
    ParallelRanges(num_threads_, bytes, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, end - begin);
    });
  });
  peaks_.gigabytes_per_s = 2.0 * bytes / seconds * 1e-9;
  std::printf(
      "%s, %d threads, hidden %ld, %ld tokens in sequences of %ld; peak %.1f "
      "GFLOP/s (GEMM of %ld), %.1f GB/s (copy of %ld MiB)\n",
      Loops().name, num_threads_, hidden_, kNumTokens, sequence_length_,
      peaks_.gflops, kLarge, peaks_.gigabytes_per_s, bytes >> 20);
}

// The products of a layer and of the head: forward, input gradient, weight
// gradient added to what is there.
void Bench::Gemms() {
  const int64_t ffn = 11 * hidden_ / 4;
  const struct {
    const char* name;
    int64_t num_tokens, outputs, inputs;
  } linears[] = {{"qkv", kNumTokens, 2 * hidden_, hidden_},
                 {"attention output", kNumTokens, hidden_, hidden_},
                 {"gate_up", kNumTokens, 2 * ffn, hidden_},
                 {"down", kNumTokens, hidden_, ffn},
                 {"head", kChunkTokens, kVocab, hidden_}};
  for (const auto& [name, tokens, outputs, inputs] : linears) {
    const struct {
      const char* name;
      GemmShape shape;
    } passes[] = {
        {"", {.m = tokens, .n = outputs, .k = inputs, .trans_b = true}},
        {", input gradient", {.m = tokens, .n = inputs, .k = outputs}},
        {", weight gradient",
         {.m = outputs,
          .n = inputs,
          .k = tokens,
          .trans_a = true,
          .accumulate = true}}};
    for (const auto& pass : passes) {
      // Accumulating runs keep adding, so only the others are checked here.
      PrintFlops(std::string("gemm ") + name + pass.name,
                 TimeGemm(pass.shape, !pass.shape.accumulate),
                 2.0 * tokens * outputs * inputs);
    }
  }
}

void Bench::Attention() {
  const AttentionShape shape = {.num_sequences = kNumTokens / sequence_length_,
                                .sequence_length = sequence_length_,
                                .num_heads = 8,
                                .num_kv_heads = 4,
                                .head_dim = hidden_ / 8};
  const std::vector<float> qkv = Random(kNumTokens * 2 * hidden_);
  const std::vector<float> d_o = Random(kNumTokens * hidden_);
  const std::vector<int32_t> starts(kNumTokens, 0);
  std::vector<float> o(d_o.size()), lse(kNumTokens * 8), delta(lse.size()),
      d_qkv(qkv.size());
  AttentionForwardArgs forward = {.o = o.data(),
                                  .lse = lse.data(),
                                  .qkv = qkv.data(),
                                  .document_starts = starts.data(),
                                  .shape = shape};
  AttentionBackwardArgs backward = {.d_qkv = d_qkv.data(),
                                    .delta = delta.data(),
                                    .qkv = qkv.data(),
                                    .document_starts = starts.data(),
                                    .o = o.data(),
                                    .lse = lse.data(),
                                    .d_o = d_o.data(),
                                    .shape = shape};
  const auto run_forward = [&] {
    Require(AttentionForward(forward, num_threads_));
  };
  const auto run_backward = [&] {
    Require(AttentionBackward(backward, num_threads_));
  };
  AttentionForwardReference(forward);
  const std::vector<float> expected_o = o;
  AttentionBackwardReference(backward);
  const std::vector<float> expected_d_qkv = d_qkv;
  run_forward();
  RequireClose("attention forward", o, expected_o, 1e-5);
  run_backward();
  RequireClose("attention backward", d_qkv, expected_d_qkv, 1e-5);
  // Half of every product: what causality leaves.
  const double product = 1.0 * kNumTokens * sequence_length_ * hidden_;
  PrintFlops("attention forward", BestSeconds(run_forward), 2 * product);
  PrintFlops("attention backward", BestSeconds(run_backward), 5 * product);
}

void Bench::Norms() {
  const int64_t size = kNumTokens * hidden_;
  const std::vector<float> x = Random(size), delta = Random(size),
                           d_y = Random(size), weight = Random(hidden_);
  std::vector<float> residual(size), y(size), rstd(kNumTokens), d_x(size),
      d_weight(hidden_);
  const ResidualRmsNormForwardArgs forward = {.residual = residual.data(),
                                              .y = y.data(),
                                              .rstd = rstd.data(),
                                              .x = x.data(),
                                              .delta = delta.data(),
                                              .weight = weight.data(),
                                              .num_tokens = kNumTokens,
                                              .hidden = hidden_,
                                              .epsilon = 1e-5f};
  const RmsNormBackwardArgs backward = {.d_x = d_x.data(),
                                        .d_weight = d_weight.data(),
                                        .d_y = d_y.data(),
                                        .x = residual.data(),
                                        .rstd = rstd.data(),
                                        .weight = weight.data(),
                                        .d_residual = delta.data(),
                                        .num_tokens = kNumTokens,
                                        .hidden = hidden_,
                                        .accumulate = false};
  const auto run_forward = [&] {
    Require(ResidualRmsNormForward(forward, num_threads_));
  };
  const auto run_backward = [&] {
    Require(RmsNormBackward(backward, num_threads_));
  };
  ResidualRmsNormForwardReference(forward);
  const std::vector<float> expected_y = y;
  RmsNormBackwardReference(backward);
  const std::vector<float> expected_d_x = d_x;
  run_forward();
  RequireClose("rmsnorm forward", y, expected_y, 1e-5);
  run_backward();
  RequireClose("rmsnorm backward", d_x, expected_d_x, 1e-5);
  PrintBytes("residual rmsnorm forward", BestSeconds(run_forward), 16.0 * size);
  PrintBytes("rmsnorm backward", BestSeconds(run_backward), 16.0 * size);
}

void Bench::Tokens() {
  const int64_t ffn = 3 * hidden_;
  const std::vector<float> gate_up = Random(kNumTokens * 2 * ffn),
                           d_activation = Random(kNumTokens * ffn),
                           d_x = Random(kNumTokens * hidden_);
  std::vector<float> activation(d_activation.size()), expected(activation),
      d_gate_up(gate_up.size()), qkv = Random(kNumTokens * 2 * hidden_),
                                 d_weight(kVocab * hidden_);
  SwigluForwardArgs swiglu = {expected.data(), gate_up.data(), kNumTokens, ffn};
  SwigluForwardReference(swiglu);
  swiglu.activation = activation.data();
  const double swiglu_seconds =
      BestSeconds([&] { Require(SwigluForward(swiglu, num_threads_)); });
  RequireClose("swiglu", activation, expected, 1e-5);
  PrintBytes("swiglu forward", swiglu_seconds, 12.0 * kNumTokens * ffn);
  const SwigluBackwardArgs swiglu_backward = {
      d_gate_up.data(), gate_up.data(), d_activation.data(), kNumTokens, ffn};
  SwigluBackwardReference(swiglu_backward);
  expected = d_gate_up;
  const double backward_seconds = BestSeconds(
      [&] { Require(SwigluBackward(swiglu_backward, num_threads_)); });
  RequireClose("swiglu backward", d_gate_up, expected, 1e-5);
  PrintBytes("swiglu backward", backward_seconds, 20.0 * kNumTokens * ffn);

  std::vector<float> table(sequence_length_ * hidden_ / 8);
  Require(FillRopeTable(table.data(), sequence_length_, hidden_ / 8, 10000.0));
  RopeArgs rope = {.qkv = qkv.data(),
                   .table = table.data(),
                   .num_tokens = kNumTokens,
                   .sequence_length = sequence_length_,
                   .num_heads = 8,
                   .num_kv_heads = 4,
                   .head_dim = hidden_ / 8,
                   .inverse = false};
  expected = qkv;
  const double rope_seconds =
      BestSeconds([&] { Require(Rope(rope, num_threads_)); });
  qkv = expected;
  Require(Rope(rope, num_threads_));
  std::swap(qkv, expected);
  rope.qkv = qkv.data();
  RopeReference(rope);
  RequireClose("rope", expected, qkv, 1e-5);
  PrintBytes("rope", rope_seconds, 8.0 * kNumTokens * hidden_ * 1.5);

  std::vector<int32_t> tokens(kNumTokens);
  for (int64_t t = 0; t < kNumTokens; ++t) tokens[t] = (t * 7919) % kVocab;
  const EmbeddingBackwardArgs embedding = {.d_weight = d_weight.data(),
                                           .tokens = tokens.data(),
                                           .d_x = d_x.data(),
                                           .num_tokens = kNumTokens,
                                           .hidden = hidden_,
                                           .vocab_begin = 0,
                                           .vocab_rows = kVocab,
                                           .accumulate = false};
  EmbeddingBackwardReference(embedding);
  expected = d_weight;
  const double embedding_seconds =
      BestSeconds([&] { Require(EmbeddingBackward(embedding, num_threads_)); });
  RequireClose("embedding backward", d_weight, expected, 1e-5);
  PrintBytes("embedding backward", embedding_seconds,
             4.0 * (kVocab + 3 * kNumTokens) * hidden_);
}

void Bench::Head() {
  const CrossEntropyOptions options = {.num_tokens = kNumTokens,
                                       .hidden = hidden_,
                                       .vocab_rows = kVocab,
                                       .chunk_tokens = kChunkTokens,
                                       .token_scale = 1.0 / kNumTokens};
  absl::StatusOr<CrossEntropyPlan> plan =
      CrossEntropyPlan::Create(options, num_threads_);
  Require(plan.status());
  std::vector<float> workspace(plan->workspace_bytes() / 4 + 32);
  void* aligned = workspace.data();
  size_t space = workspace.size() * 4;
  std::align(64, plan->workspace_bytes(), aligned, space);
  const std::vector<float> hidden = Random(kNumTokens * hidden_),
                           weight = Random(kVocab * hidden_);
  std::vector<int32_t> targets(kNumTokens);
  for (int64_t t = 0; t < kNumTokens; ++t) targets[t] = (t * 7919) % kVocab;
  std::vector<float> d_hidden(hidden.size()), d_weight(weight.size()),
      logits(kChunkTokens * kVocab);
  double loss = 0.0;
  const LinearCrossEntropyArgs args = {.d_hidden = d_hidden.data(),
                                       .d_weight = d_weight.data(),
                                       .loss = &loss,
                                       .hidden = hidden.data(),
                                       .weight = weight.data(),
                                       .targets = targets.data(),
                                       .logits = logits.data(),
                                       .workspace = aligned};
  LinearCrossEntropyReference(options, args);
  const double expected_loss = loss;
  const std::vector<float> expected = d_hidden;
  loss = 0.0;
  Require(plan->LinearCrossEntropy(args));
  RequireClose("linear cross entropy", d_hidden, expected, 1e-5);
  if (std::fabs(loss - expected_loss) > 1e-5 * expected_loss) {
    std::fprintf(stderr, "loss is %g, the reference says %g\n", loss,
                 expected_loss);
    std::exit(1);
  }
  PrintFlops("linear cross entropy",
             BestSeconds([&] { Require(plan->LinearCrossEntropy(args)); }),
             6.0 * kNumTokens * hidden_ * kVocab);
}

void Bench::Optimizer() {
  const int64_t size = int64_t{4} << 20;
  const std::vector<float> gradients = Random(size);
  std::vector<float> parameters = Random(size), exp_avg(size), exp_avg_sq(size);
  const std::vector<float> before = parameters;
  const AdamWArgs args = {.parameters = parameters.data(),
                          .exp_avg = exp_avg.data(),
                          .exp_avg_sq = exp_avg_sq.data(),
                          .gradients = gradients.data(),
                          .num_elements = size,
                          .learning_rate = 1e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .step = 1,
                          .gradient_scale = 1};
  AdamWReference(args);
  const std::vector<float> expected = parameters;
  parameters = before;
  std::fill(exp_avg.begin(), exp_avg.end(), 0.0f);
  std::fill(exp_avg_sq.begin(), exp_avg_sq.end(), 0.0f);
  Require(AdamW(args, num_threads_));
  RequireClose("adamw", parameters, expected, 1e-6);
  PrintBytes("adamw", BestSeconds([&] { Require(AdamW(args, num_threads_)); }),
             28.0 * size);

  double sum = 0.0, expected_sum = 0.0;
  SquaredNormReference({&expected_sum, gradients.data(), size, 1.0});
  Require(SquaredNorm({&sum, gradients.data(), size, 1.0}, num_threads_));
  if (std::fabs(sum - expected_sum) > 1e-9 * expected_sum) {
    std::fprintf(stderr, "squared norm is %g, the reference says %g\n", sum,
                 expected_sum);
    std::exit(1);
  }
  PrintBytes(
      "squared norm", BestSeconds([&] {
        Require(SquaredNorm({&sum, gradients.data(), size, 1.0}, num_threads_));
      }),
      4.0 * size);
}

int Main(int argc, char** argv) {
  const int64_t hidden = argc > 1 ? std::atol(argv[1]) : 256;
  const int num_threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const int64_t sequence_length = argc > 3 ? std::atol(argv[3]) : 256;
  if (hidden < 8 || hidden % 16 != 0 || num_threads < 1 ||
      sequence_length < 1 || kNumTokens % sequence_length != 0) {
    std::fprintf(stderr,
                 "usage: kernels_bench [hidden, a multiple of 16] [threads] "
                 "[sequence length, dividing %ld]\n",
                 kNumTokens);
    return 2;
  }
  Bench bench(hidden, num_threads, sequence_length);
  bench.MeasurePeaks();
  bench.Gemms();
  bench.Attention();
  bench.Norms();
  bench.Tokens();
  bench.Head();
  bench.Optimizer();
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::Main(argc, argv); }
