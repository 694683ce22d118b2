// Exponential functions of vectors, and the hyperbolic tangent. The
// exponentials round the argument to the nearest whole power of two, evaluate a
// polynomial on what is left and put the power into the exponent bits (Cody and
// Waite, "Software Manual for the Elementary Functions", 1980); the polynomials
// are Taylor's, whose error on so short an interval is below the rounding of
// the sum.

#ifndef MILLRACE_KERNELS_CPU_VECTOR_MATH_H_
#define MILLRACE_KERNELS_CPU_VECTOR_MATH_H_

#include "kernels/cpu/vector.h"

namespace millrace {
namespace {

// Adding and subtracting this rounds a float below 2^22 to a whole number,
// which the low bits of the sum then hold.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23.
constexpr uint32_t kRounderBits = 0x4B400000u;

// e^x within two units in the last place (1.1 seen), also where the result is
// denormal; infinity above, zero below, NaN of NaN.
inline Floats Exp(Floats x) {
  constexpr float kLog2E = 1.44269504088896341f;
  // ln 2 in two parts; the first has few enough bits that n times it is exact.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Comparisons are false of NaN, which so passes through.
  x = x > 90.0f ? Broadcast(90.0f) : x;
  x = x < -105.0f ? Broadcast(-105.0f) : x;
  const Floats shifted = x * kLog2E + kRounder;
  const Floats n = shifted - kRounder;
  const Floats r = (x - n * kLn2High) - n * kLn2Low;
  Floats p = Broadcast(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  // 2^n as the product of two powers, each of which is a normal number.
  const Ints power =
      reinterpret_cast<Ints>(reinterpret_cast<Words>(shifted) - kRounderBits);
  const Ints half = power >> 1;
  const Ints rest = power - half;
  const Floats scale_a = reinterpret_cast<Floats>((half + 127) << 23);
  const Floats scale_b = reinterpret_cast<Floats>((rest + 127) << 23);
  return p * scale_a * scale_b;
}

// 2^x for x of at most 126, within two units in the last place; zero where the
// result would be below 2^-126 and for minus infinity, NaN of NaN. The cheaper
// one, for softmax.
inline Floats Exp2Flushed(Floats x) {
  const Floats bounded = x < -126.0f ? Broadcast(-126.0f) : x;
  const Floats shifted = bounded + kRounder;
  const Floats f = bounded - (shifted - kRounder);
  Floats p = Broadcast(1.52527338040598403e-5f);  // ln(2)^7 / 7!, and so on.
  p = p * f + 1.54035303933816100e-4f;
  p = p * f + 1.33335581464284434e-3f;
  p = p * f + 9.61812910762847716e-3f;
  p = p * f + 5.55041086648215799e-2f;
  p = p * f + 2.40226506959100712e-1f;
  p = p * f + 6.93147180559945309e-1f;
  p = p * f + 1.0f;
  const Words power = (reinterpret_cast<Words>(shifted) - kRounderBits + 127u)
                      << 23;
  const Floats result = p * reinterpret_cast<Floats>(power);
  return x < -126.0f ? Floats{} : result;
}

// tanh(x) within four units in the last place; NaN of NaN.
inline Floats Tanh(Floats x) {
  // Near zero, where the difference of exponentials would cancel: Taylor's
  // series, whose first term left out is below 1e-9 of the sum.
  const Floats square = x * x;
  Floats series = Broadcast(-929569.0f / 638512875);
  series = series * square + 21844.0f / 6081075;
  series = series * square - 1382.0f / 155925;
  series = series * square + 62.0f / 2835;
  series = series * square - 17.0f / 315;
  series = series * square + 2.0f / 15;
  series = series * square - 1.0f / 3;
  series = series * square * x + x;
  const Floats size = x < 0.0f ? -x : x;
  const Floats far = 1.0f - 2.0f / (Exp(size + size) + 1.0f);
  return size < 0.5f ? series : (x < 0.0f ? -far : far);
}

void ExpLoop(const float* x, float* y, int64_t num_elements) {
  ForEachVector(0, num_elements, [=](const auto& load, const auto& store) {
    store(y, Exp(load(x)));
  });
}

void TanhLoop(const float* x, float* y, int64_t num_elements) {
  ForEachVector(0, num_elements, [=](const auto& load, const auto& store) {
    store(y, Tanh(load(x)));
  });
}

void Exp2FlushedLoop(const float* x, float* y, int64_t num_elements) {
  ForEachVector(0, num_elements, [=](const auto& load, const auto& store) {
    store(y, Exp2Flushed(load(x)));
  });
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_VECTOR_MATH_H_
