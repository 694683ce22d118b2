#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/pointwise/cast.h"
#include "kernels/pointwise/random_normal.h"

namespace millrace {
namespace {

struct Layout {
  int mantissa_bits;
  int bias;
  float largest;
  uint8_t largest_bits;
};

Layout LayoutOf(Float8Format format) {
  return format == Float8Format::kE4m3 ? Layout{3, 7, Float8Max(format), 0x7E}
                                       : Layout{2, 15, Float8Max(format), 0x7B};
}

constexpr uint8_t kNan = 0x7F;

}  // namespace

uint8_t EncodeFloat8(float x, Float8Format format) {
  const Layout layout = LayoutOf(format);
  const uint8_t sign = std::signbit(x) ? 0x80 : 0x00;
  if (std::isnan(x)) return sign | kNan;
  const double magnitude = std::fabs(double{x});
  if (magnitude >= layout.largest) return sign | layout.largest_bits;
  // In steps of the last mantissa bit, which below the smallest normal value no
  // longer shrinks.
  int exponent = 1 - layout.bias;
  if (magnitude > 0.0) exponent = std::max(exponent, std::ilogb(magnitude));
  const double step = std::ldexp(1.0, exponent - layout.mantissa_bits);
  const int steps = static_cast<int>(std::nearbyint(magnitude / step));
  // Numbered through from zero, values rise with their bits; rounding up to the
  // next power of two carries into the exponent by itself.
  const int base = (exponent + layout.bias - 1) << layout.mantissa_bits;
  return sign | static_cast<uint8_t>(base + steps);
}

float DecodeFloat8(uint8_t bits, Float8Format format) {
  const Layout layout = LayoutOf(format);
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  const int magnitude = bits & 0x7F;
  if (magnitude > layout.largest_bits) {
    const bool is_infinity = format == Float8Format::kE5m2 && magnitude == 0x7C;
    return is_infinity ? sign * std::numeric_limits<float>::infinity()
                       : std::numeric_limits<float>::quiet_NaN();
  }
  const int exponent = magnitude >> layout.mantissa_bits;
  const int mantissa = magnitude & ((1 << layout.mantissa_bits) - 1);
  const int steps =
      exponent == 0 ? mantissa : mantissa + (1 << layout.mantissa_bits);
  return sign *
         std::ldexp(static_cast<float>(steps),
                    std::max(exponent, 1) - layout.bias - layout.mantissa_bits);
}

uint16_t EncodeBf16Stochastic(float x, uint64_t seed, uint64_t stream,
                              uint64_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x)) return EncodeBf16(x);
  const auto low = [](uint64_t word) { return static_cast<uint32_t>(word); };
  const auto high = [](uint64_t word) {
    return static_cast<uint32_t>(word >> 32);
  };
  const uint64_t block = index / 8;
  const std::array<uint32_t, 4> words =
      Philox4x32({low(block), high(block), low(stream), high(stream)},
                 {low(seed), high(seed)});
  const uint32_t random = words[index % 8 / 2] >> (16 * (index % 2)) & 0xFFFF;
  return static_cast<uint16_t>((bits + random) >> 16);
}

void QuantizeFloat8Reference(const QuantizeFloat8Args& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.columns; ++c) {
      const float x = args.x[r * args.columns + c];
      const uint8_t bits = EncodeFloat8(x * args.scale, args.format);
      if (args.y != nullptr) args.y[r * args.columns + c] = bits;
      if (args.y_transposed != nullptr) {
        args.y_transposed[c * args.rows + r] = bits;
      }
      if (args.amax == nullptr || std::isnan(*args.amax)) continue;
      if (!(std::fabs(x) <= *args.amax)) *args.amax = std::fabs(x);
    }
  }
}

}  // namespace millrace
