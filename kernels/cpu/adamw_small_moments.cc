// Compiled without fused multiplications, whose roundings a GPU's kernel would
// have to repeat.

#include "kernels/cpu/adamw_small_moments.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/cpu/moment_blocks.h"
#include "kernels/pointwise/random_normal.h"

namespace millrace {
namespace {

using BlockFloats = std::array<float, kMomentBlockSize>;

double PowerOfBeta(double base, int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) power *= base;
    base *= base;
  }
  return power;
}

// The constants of a step, folded in double and rounded once.
struct AdamWConstants {
  explicit AdamWConstants(const AdamWArgs& args)
      : keep(static_cast<float>(1.0 - args.learning_rate * args.weight_decay)),
        beta1(static_cast<float>(args.beta1)),
        beta2(static_cast<float>(args.beta2)),
        rest1(static_cast<float>(1.0 - args.beta1)),
        rest2(static_cast<float>(1.0 - args.beta2)),
        step_size(static_cast<float>(
            args.learning_rate / (1.0 - PowerOfBeta(args.beta1, args.step)))),
        root_factor(static_cast<float>(
            1.0 / std::sqrt(1.0 - PowerOfBeta(args.beta2, args.step)))),
        epsilon(static_cast<float>(args.epsilon)),
        gradient_scale(static_cast<float>(args.gradient_scale)) {}

  float keep, beta1, beta2, rest1, rest2, step_size, root_factor, epsilon,
      gradient_scale;
};

void UpdateFloats(const AdamWConstants& c, const float* gradients,
                  int64_t count, float* parameters, float* exp_avg,
                  float* exp_avg_sq) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradients[i] * c.gradient_scale;
    const float m = exp_avg[i] * c.beta1 + g * c.rest1;
    const float v = exp_avg_sq[i] * c.beta2 + g * g * c.rest2;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameters[i] =
        parameters[i] * c.keep -
        m * c.step_size / (std::sqrt(v) * c.root_factor + c.epsilon);
  }
}

uint16_t RoundStochastically(float x, uint32_t random16) {
  constexpr uint32_t kNan = 0x7FFF0000u;
  const uint32_t sum = std::bit_cast<uint32_t>(x) + random16;
  return static_cast<uint16_t>((x == x ? sum : kNan) >> 16);
}

// Elements begin to begin + count of the run.
void StoreBf16(const AdamWArgs& args, int64_t begin, int64_t count,
               const BlockFloats& exp_avg, const BlockFloats& exp_avg_sq) {
  const auto low = [](uint64_t word) { return static_cast<uint32_t>(word); };
  const auto high = [](uint64_t word) {
    return static_cast<uint32_t>(word >> 32);
  };
  auto* const m = static_cast<uint16_t*>(args.exp_avg) + begin;
  auto* const v = static_cast<uint16_t*>(args.exp_avg_sq) + begin;
  const auto step = static_cast<uint64_t>(args.step);
  std::array<uint32_t, 4> words = {};
  for (int64_t i = 0; i < count; ++i) {
    if (i % 4 == 0) {
      const auto four =
          static_cast<uint64_t>((args.first_index + begin + i) / 4);
      words = Philox4x32({low(four), high(four), low(step), high(step)},
                         {low(args.seed), high(args.seed)});
    }
    const uint32_t word = words[static_cast<size_t>(i % 4)];
    m[i] = RoundStochastically(exp_avg[static_cast<size_t>(i)], word & 0xFFFF);
    v[i] = RoundStochastically(exp_avg_sq[static_cast<size_t>(i)], word >> 16);
  }
}

}  // namespace

void AdamWSmallMoments(const AdamWArgs& args, int64_t begin, int64_t end) {
  const AdamWConstants constants(args);
  BlockFloats exp_avg;
  BlockFloats exp_avg_sq;
  for (int64_t at = begin; at < end; at += kMomentBlockSize) {
    const int64_t count = std::min(kMomentBlockSize, end - at);
    DecodeMoments(args.moments, Moment::kFirst, args.exp_avg, at, at + count,
                  exp_avg.data());
    DecodeMoments(args.moments, Moment::kSecond, args.exp_avg_sq, at,
                  at + count, exp_avg_sq.data());
    UpdateFloats(constants, args.gradients + at, count, args.parameters + at,
                 exp_avg.data(), exp_avg_sq.data());
    if (args.moments == MomentStorage::kBf16) {
      StoreBf16(args, at, count, exp_avg, exp_avg_sq);
      continue;
    }
    const int64_t block = at / kMomentBlockSize;
    EncodeMomentBlock(Moment::kFirst, exp_avg.data(),
                      static_cast<MomentBlock*>(args.exp_avg)[block]);
    EncodeMomentBlock(Moment::kSecond, exp_avg_sq.data(),
                      static_cast<MomentBlock*>(args.exp_avg_sq)[block]);
  }
}

}  // namespace millrace
