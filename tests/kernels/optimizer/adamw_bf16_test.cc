#include "kernels/optimizer/adamw_bf16.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/optimizer/adamw.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr AdamWBf16Args kHyper = {.learning_rate = 1e-2,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .epsilon = 1e-8,
                                  .weight_decay = 0.1,
                                  .step = 1,
                                  .seed = 5};

struct Cut {
  int64_t size, begin, end;
};

void Update(const AdamWBf16Args& args) {
  const absl::Status status = LaunchAdamWBf16(args, nullptr);
  ASSERT_TRUE(status.ok()) << status;
}

// Goal: five steps mean what adamw.h says, on any run of the buffers and
// nothing around it. Method: odd runs against the fp64 reference, which keeps
// fp32 between steps as the kernel does; a step in fp32 rounds the parameters
// to 2^-24 of themselves a few times, and square root, division and sums cost
// some 1e-6 of the change. Weights in bf16 are the master rounded to nearest.
// Half of the cases read learning rate and step on the device.
TEST(AdamWBf16Test, MatchesTheReferenceOverSteps) {
  for (const bool bf16_gradients : {false, true}) {
    for (const auto& [size, begin, end] :
         std::vector<Cut>{{1, 0, 1},
                          {8, 5, 7},
                          {1031, 0, 1031},
                          {5000, 3, 4998},
                          {5000, 1024, 3072}}) {
      SCOPED_TRACE(absl::StrCat("[", begin, ", ", end, ") of ", size));
      RandomNormals random;
      std::vector<float> p = random.Floats(size);
      std::vector<float> m(size, 0.0f), v(size, 0.0f);
      const std::vector<float> before = p;
      DeviceBuffer<float> master = ToDevice(p);
      DeviceBuffer<uint16_t> weights = PoisonedBf16(size);
      DeviceBuffer<float> exp_avg = ToDevice(m);
      DeviceBuffer<float> exp_avg_sq = ToDevice(v);
      const float factor = 0.75f;
      DeviceBuffer<float> clip_factor = ToDevice(std::vector<float>{factor});
      for (int64_t step = 1; step <= 5; ++step) {
        std::vector<float> g = FromBf16(random.Bits(size));
        DeviceBuffer<float> gradients = ToDevice(g);
        DeviceBuffer<uint16_t> short_gradients = ToDevice(ToBf16(g));
        AdamWBf16Args args = kHyper;
        args.master = master.data();
        args.weights = weights.data();
        args.exp_avg = exp_avg.data();
        args.exp_avg_sq = exp_avg_sq.data();
        args.gradients = bf16_gradients
                             ? static_cast<void*>(short_gradients.data())
                             : gradients.data();
        args.bf16_gradients = bf16_gradients;
        args.begin = begin;
        args.end = end;
        args.clip_factor = clip_factor.data();
        DeviceBuffer<AdamWStep> device_step =
            ToDevice(std::vector<AdamWStep>{{kHyper.learning_rate, step}});
        if (bf16_gradients) {
          args.device_step = device_step.data();
          args.learning_rate = kNan;
          args.step = 0;
        } else {
          args.step = step;
        }
        Update(args);
        AdamWReference({.parameters = p.data() + begin,
                        .exp_avg = m.data() + begin,
                        .exp_avg_sq = v.data() + begin,
                        .gradients = g.data() + begin,
                        .num_elements = end - begin,
                        .learning_rate = kHyper.learning_rate,
                        .beta1 = kHyper.beta1,
                        .beta2 = kHyper.beta2,
                        .epsilon = kHyper.epsilon,
                        .weight_decay = kHyper.weight_decay,
                        .step = step,
                        .gradient_scale = factor});
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
      const std::vector<float> actual = ToHost(master);
      ExpectNear(actual, p, 1e-6, 1e-7, "parameters");
      ExpectNear(ToHost(exp_avg), m, 1e-6, 1e-7, "exp_avg");
      ExpectNear(ToHost(exp_avg_sq), v, 2e-6, 1e-9, "exp_avg_sq");
      const Bf16s rounded = ToHost(weights);
      for (int64_t i = 0; i < size; ++i) {
        const bool is_in = i >= begin && i < end;
        ASSERT_EQ(rounded[i], is_in ? ToBf16(actual[i]) : kNanBf16) << i;
        ASSERT_EQ(actual[i], is_in ? actual[i] : before[i]) << i;
      }
    }
  }
}

// Everything in bf16: weights, moments and gradients, all elements alike.
struct AllBf16 {
  AllBf16(int64_t size, float p, float m, float v, float g)
      : weights(ToDevice(Bf16s(size, ToBf16(p)))),
        exp_avg(ToDevice(Bf16s(size, ToBf16(m)))),
        exp_avg_sq(ToDevice(Bf16s(size, ToBf16(v)))),
        gradients(ToDevice(Bf16s(size, ToBf16(g)))) {}

  AdamWBf16Args Args(int64_t begin, int64_t end) {
    AdamWBf16Args args = kHyper;
    args.weights = weights.data();
    args.exp_avg = exp_avg.data();
    args.exp_avg_sq = exp_avg_sq.data();
    args.gradients = gradients.data();
    args.bf16_moments = args.bf16_gradients = true;
    args.begin = begin;
    args.end = end;
    return args;
  }
  std::vector<Bf16s> State() {
    return {ToHost(weights), ToHost(exp_avg), ToHost(exp_avg_sq)};
  }

  DeviceBuffer<uint16_t> weights, exp_avg, exp_avg_sq, gradients;
};

double Mean(const Bf16s& values) {
  double sum = 0.0;
  for (const uint16_t value : values) sum += FromBf16(value);
  return sum / static_cast<double>(values.size());
}

// Goal: what stochastic rounding keeps has the exact value as its mean, and no
// element is further from it than one step of bf16. Method: a million equal
// elements; the bound is five standard deviations of the mean, at most half a
// step a piece.
TEST(AdamWBf16Test, StochasticRoundingIsUnbiased) {
  constexpr int64_t kSize = 1 << 20;
  AllBf16 state(kSize, 1.0f, 0.71875f, 0.6875f, 0.3984375f);
  AdamWBf16Args args = state.Args(0, kSize);
  args.learning_rate = 1e-3;
  Update(args);
  float p = FromBf16(ToBf16(1.0f));
  float m = 0.71875f, v = 0.6875f;
  const float g = 0.3984375f;
  AdamWReference({.parameters = &p,
                  .exp_avg = &m,
                  .exp_avg_sq = &v,
                  .gradients = &g,
                  .num_elements = 1,
                  .learning_rate = args.learning_rate,
                  .beta1 = args.beta1,
                  .beta2 = args.beta2,
                  .epsilon = args.epsilon,
                  .weight_decay = args.weight_decay,
                  .step = 1});
  const std::vector<Bf16s> all = state.State();
  const float expected[] = {p, m, v};
  for (int i = 0; i < 3; ++i) {
    const double step = std::exp2(std::floor(std::log2(expected[i])) - 7);
    EXPECT_NEAR(Mean(all[i]), expected[i], 5 * 0.5 * step / std::sqrt(kSize))
        << i;
    int64_t num_up = 0;
    for (const uint16_t bits : all[i]) {
      ASSERT_LT(std::fabs(FromBf16(bits) - expected[i]), step) << i;
      num_up += FromBf16(bits) > expected[i];
    }
    EXPECT_GT(num_up, 0) << i;
    EXPECT_LT(num_up, kSize) << i;
  }
}

// Goal: changes far below what bf16 resolves are not lost. Method: a second
// moment with beta2 0.999 moves by a thousandth of its distance a step, which
// rounding to nearest would stop; a thousand steps must bring its mean to
// 1 - 0.999^1000 = 0.6323. The deviation of one element is about 0.03.
TEST(AdamWBf16Test, SmallChangesAddUpInBf16) {
  constexpr int64_t kSize = 1 << 14;
  AllBf16 state(kSize, 1.0f, 0.0f, 0.0f, 1.0f);
  AdamWBf16Args args = state.Args(0, kSize);
  args.beta2 = 0.999;
  for (args.step = 1; args.step <= 1000; ++args.step) Update(args);
  EXPECT_NEAR(Mean(ToHost(state.exp_avg_sq)), 1 - std::pow(0.999, 1000), 2e-3);
}

// Goal: the bits depend on seed, step and element alone. Method: equal runs,
// a run in two unaligned launches, and other seeds and steps.
TEST(AdamWBf16Test, BitsFollowFromSeedStepAndElement) {
  constexpr int64_t kSize = 10007;
  auto run = [](std::vector<int64_t> cuts, uint64_t seed, int64_t step) {
    AllBf16 state(kSize, 1.0f, 0.3f, 0.2f, 0.1f);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      AdamWBf16Args args = state.Args(cuts[i], cuts[i + 1]);
      args.seed = seed;
      args.step = step;
      Update(args);
    }
    return state.State();
  };
  const std::vector<Bf16s> first = run({0, kSize}, 5, 3);
  EXPECT_EQ(run({0, kSize}, 5, 3), first);
  EXPECT_EQ(run({0, 1, 4097, 10002, kSize}, 5, 3), first);
  const std::vector<Bf16s> other_seed = run({0, kSize}, 6, 3);
  const std::vector<Bf16s> other_step = run({0, kSize}, 5, 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(other_seed[i], first[i]) << i;
    EXPECT_NE(other_step[i], first[i]) << i;
  }
}

// Goal: moments in bf16 have the bits of the CPU's AdamW(), of a slice as of
// the whole. Method: some steps of fp32 master weights on both sides, from an
// index that is not zero.
TEST(AdamWBf16Test, MomentsHaveTheCpusBits) {
  constexpr int64_t kSize = 10007;
  constexpr int64_t kFirst = 4096;
  RandomNormals random;
  std::vector<float> p = random.Floats(kSize);
  Bf16s m(kSize, 0), v(kSize, 0);
  DeviceBuffer<float> master = ToDevice(p);
  DeviceBuffer<uint16_t> exp_avg = ToDevice(m);
  DeviceBuffer<uint16_t> exp_avg_sq = ToDevice(v);
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> g = random.Floats(kSize);
    DeviceBuffer<float> gradients = ToDevice(g);
    AdamWBf16Args args = kHyper;
    args.master = master.data();
    args.exp_avg = exp_avg.data();
    args.exp_avg_sq = exp_avg_sq.data();
    args.gradients = gradients.data();
    args.bf16_moments = true;
    args.end = kSize;
    args.step = step;
    args.first_index = kFirst;
    Update(args);
    ASSERT_TRUE(AdamW({.parameters = p.data(),
                       .exp_avg = m.data(),
                       .exp_avg_sq = v.data(),
                       .gradients = g.data(),
                       .num_elements = kSize,
                       .learning_rate = kHyper.learning_rate,
                       .beta1 = kHyper.beta1,
                       .beta2 = kHyper.beta2,
                       .epsilon = kHyper.epsilon,
                       .weight_decay = kHyper.weight_decay,
                       .step = step,
                       .moments = MomentStorage::kBf16,
                       .seed = kHyper.seed,
                       .first_index = kFirst},
                      1)
                    .ok());
    EXPECT_EQ(ToHost(exp_avg), m) << step;
    EXPECT_EQ(ToHost(exp_avg_sq), v) << step;
  }
  ExpectNear(ToHost(master), p, 2e-6, 1e-6, "parameters");
}

// Goal: a step means the same wherever its number and learning rate lie, also
// one far on, whose bias corrections are long powers. Method: both ways from
// equal state, equal bits; with nothing to correct any more, the first update
// of a step far on is g over |g| scaled by what beta1 and beta2 leave.
TEST(AdamWBf16Test, ReadsTheStepOnTheDevice) {
  constexpr int64_t kSize = 1000;
  for (const int64_t step : {1, 2, 1000, 123456789}) {
    auto run = [&](bool on_device) {
      DeviceBuffer<float> master = ToDevice(std::vector<float>(kSize, 1.0f));
      DeviceBuffer<float> m = ToDevice(std::vector<float>(kSize, 0.0f));
      DeviceBuffer<float> v = ToDevice(std::vector<float>(kSize, 0.0f));
      DeviceBuffer<float> g = ToDevice(std::vector<float>(kSize, 0.5f));
      DeviceBuffer<AdamWStep> device_step =
          ToDevice(std::vector<AdamWStep>{{kHyper.learning_rate, step}});
      AdamWBf16Args args = kHyper;
      args.master = master.data();
      args.exp_avg = m.data();
      args.exp_avg_sq = v.data();
      args.gradients = g.data();
      args.end = kSize;
      args.step = on_device ? 0 : step;
      if (on_device) args.device_step = device_step.data();
      Update(args);
      return ToHost(master);
    };
    const std::vector<float> from_device = run(true);
    EXPECT_EQ(from_device, run(false)) << step;
    const double beta1_power = std::pow(kHyper.beta1, step);
    const double beta2_power = std::pow(kHyper.beta2, step);
    const double update = (1 - kHyper.beta1) / (1 - beta1_power) /
                          std::sqrt((1 - kHyper.beta2) / (1 - beta2_power));
    EXPECT_NEAR(from_device[kSize - 1],
                1 - kHyper.learning_rate * (kHyper.weight_decay + update), 2e-7)
        << step;
  }
}

// Goal: a step that is skipped changes no bit.
TEST(AdamWBf16Test, SkipsWhenTold) {
  AllBf16 state(1000, 1.0f, 0.3f, 0.2f, 0.1f);
  const std::vector<Bf16s> before = state.State();
  DeviceBuffer<int32_t> skip = ToDevice(std::vector<int32_t>{1});
  AdamWBf16Args args = state.Args(0, 1000);
  args.skip = skip.data();
  Update(args);
  EXPECT_EQ(state.State(), before);
  ASSERT_EQ(cudaMemset(skip.data(), 0, sizeof(int32_t)), cudaSuccess);
  Update(args);
  EXPECT_NE(state.State(), before);
}

// Goal: what cannot be is refused by name before any launch.
TEST(AdamWBf16Test, RefusesWhatCannotBe) {
  AllBf16 state(64, 1.0f, 0.3f, 0.2f, 0.1f);
  auto refuse = [](const AdamWBf16Args& args, const char* named) {
    const absl::Status status = LaunchAdamWBf16(args, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
  };
  refuse(state.Args(5, 3), "[5, 3)");
  AdamWBf16Args args = state.Args(0, 64);
  args.beta2 = 1.0;
  refuse(args, "beta2 1");
  args = state.Args(0, 64);
  args.step = 0;
  refuse(args, "step 0");
  args = state.Args(0, 64);
  args.weights = nullptr;
  refuse(args, "neither");
  args = state.Args(0, 32);
  args.gradients = state.gradients.data() + 1;
  refuse(args, "16 bytes");
  EXPECT_TRUE(LaunchAdamWBf16(state.Args(7, 7), nullptr).ok());
}

}  // namespace
}  // namespace millrace
