// The optimizer's moments between steps: in fp32, in bf16, or in blocks of
// 8-bit codes.
//
// Blocks follow Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", 2022: kMomentBlockSize numbers share their largest magnitude,
// and a code names a fraction of it, rounded to nearest. The fractions are
// dynamic: seven decades, with more fractions in the larger ones, each the
// middle of one of 2^decade equal parts for first moments (and as many below
// zero), of 2^(decade + 1) for second moments, which have no sign. Two details
// differ from the authors' program:
// - The largest fraction is one on either side of zero, so that decoding and
//   encoding again gives the same codes.
// - A second moment above zero never becomes zero: the next step would divide
//   by epsilon alone.

#ifndef MILLRACE_KERNELS_OPTIMIZER_MOMENTS_H_
#define MILLRACE_KERNELS_OPTIMIZER_MOMENTS_H_

#include <cstdint>

#if defined(__CUDACC__)
#define MILLRACE_HOST_DEVICE __host__ __device__
#else
#define MILLRACE_HOST_DEVICE
#endif

namespace millrace {

enum class MomentStorage : uint8_t { kFloat32, kBf16, kBlocks8 };
enum class Moment : uint8_t { kFirst, kSecond };

inline constexpr int64_t kMomentBlockSize = 256;
struct MomentBlock {
  float largest;  // Magnitude; below kLeastLargestMoment: zero, as all codes.
  // Second moments: the index of a fraction. First moments: the lower seven
  // bits are the index, the highest is set below zero.
  uint8_t codes[kMomentBlockSize];
};
static_assert(sizeof(MomentBlock) == 260);
inline constexpr float kLeastLargestMoment = 0x1p-100f;

// The fractions, rising from zero to one. middles[i] lies between i and i + 1.
struct MomentFractions {
  float values[256];
  float middles[256];
  int last;
};

constexpr MomentFractions FractionsOf(Moment moment) {
  MomentFractions fractions = {};
  const int per_part = moment == Moment::kFirst ? 1 : 2;
  double values[256] = {};
  int count = 1;
  double decade = 1e-6;
  for (int parts = per_part; parts <= 64 * per_part; parts *= 2) {
    for (int i = 0; i < parts; ++i) {
      values[count++] = decade * (0.1 + 0.9 * (i + 0.5) / parts);
    }
    decade *= 10;
  }
  fractions.last = moment == Moment::kFirst ? count - 1 : count;
  values[fractions.last] = 1.0;
  for (int i = 0; i <= fractions.last; ++i) {
    fractions.values[i] = static_cast<float>(values[i]);
    if (i == 0) continue;
    fractions.middles[i - 1] =
        static_cast<float>((values[i - 1] + values[i]) / 2);
  }
  return fractions;
}

// The index of the fraction nearest to x in [0, 1]; of two, the smaller.
template <Moment kMoment>
MILLRACE_HOST_DEVICE inline int NearestFraction(float x, const float* middles) {
  if (!(x > 0.0f)) return 0;
  // A guess from the decade, one off at most: parts have equal widths.
  int decade = 0;
  float scale = 1e6f;
  for (int i = 0; i < 6; ++i) {
    const float bound = i == 0   ? 1e-6f
                        : i == 1 ? 1e-5f
                        : i == 2 ? 1e-4f
                        : i == 3 ? 1e-3f
                        : i == 4 ? 1e-2f
                                 : 1e-1f;
    if (x >= bound) {
      ++decade;
      scale = 1e-1f / bound;
    }
  }
  const int parts = (kMoment == Moment::kFirst ? 1 : 2) << decade;
  const float part =
      (x * scale - 0.1f) * (static_cast<float>(parts) * (1.0f / 0.9f));
  int in_decade = part > 0.0f ? static_cast<int>(part) : 0;
  if (in_decade >= parts) in_decade = parts - 1;
  const int guess = (kMoment == Moment::kFirst ? parts : parts - 1) + in_decade;
  constexpr int kLast = kMoment == Moment::kFirst ? 127 : 255;
  if (guess < kLast && x > middles[guess]) return guess + 1;
  if (x > middles[guess - 1]) return guess;
  constexpr int kLeast = kMoment == Moment::kFirst ? 0 : 1;
  return guess - 1 < kLeast ? kLeast : guess - 1;
}

// `largest` is that of the block: the largest magnitude, or zero.
template <Moment kMoment>
MILLRACE_HOST_DEVICE inline uint8_t EncodeMoment(float x, float largest,
                                                 const float* middles) {
  if (largest == 0.0f) return 0;
  const float magnitude = x < 0.0f ? -x : x;
  const int index = NearestFraction<kMoment>(magnitude / largest, middles);
  const bool is_below_zero =
      kMoment == Moment::kFirst && x < 0.0f && index != 0;
  return static_cast<uint8_t>(is_below_zero ? index | 0x80 : index);
}

template <Moment kMoment>
MILLRACE_HOST_DEVICE inline float DecodeMoment(uint8_t code, float largest,
                                               const float* values) {
  if (kMoment == Moment::kSecond) return values[code] * largest;
  const float magnitude = values[code & 0x7F] * largest;
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// On a CPU: out[i] = number begin + i of a run of stored moments, up to end.
void DecodeMoments(MomentStorage storage, Moment moment, const void* moments,
                   int64_t begin, int64_t end, float* out);
// On a CPU: stores `values`, bf16 to nearest. num_values is a multiple of
// kMomentBlockSize where blocks are stored. After DecodeMoments() of the whole
// run, the same bits again.
void EncodeMoments(MomentStorage storage, Moment moment, const float* values,
                   int64_t num_values, void* moments);

}  // namespace millrace

#undef MILLRACE_HOST_DEVICE

#endif  // MILLRACE_KERNELS_OPTIMIZER_MOMENTS_H_
