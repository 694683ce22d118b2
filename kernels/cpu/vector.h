// A vector of floats as wide as the instruction set this source is compiled for
// has them, on the compiler's own vector types: arithmetic and comparisons are
// plain operators. Included by the loops alone (see loops_table.h).

#ifndef MILLRACE_KERNELS_CPU_VECTOR_H_
#define MILLRACE_KERNELS_CPU_VECTOR_H_

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

namespace millrace {
namespace {

// kTileRows x kTileVectors accumulators, the tile's row of vectors and a
// broadcast fit the registers: 32 in AVX-512, 16 below.
#if defined(__AVX512F__)
constexpr char kLevelName[] = "x86-64-v4";
constexpr int kLanes = 16;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 4;
#elif defined(__AVX2__)
constexpr char kLevelName[] = "x86-64-v3";
constexpr int kLanes = 8;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
#else
constexpr char kLevelName[] = "baseline";
constexpr int kLanes = 4;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));

// Any address; the aligned types above would promise too much.
using UnalignedFloats =
    float __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Floats Load(const float* from) {
  return *reinterpret_cast<const UnalignedFloats*>(from);
}
inline void Store(float* to, Floats x) {
  *reinterpret_cast<UnalignedFloats*>(to) = x;
}

// The first `count` lanes, in [0, kLanes); the others are zero, or not written.
inline Floats LoadPartial(const float* from, int64_t count) {
  Floats x = {};
  for (int lane = 0; lane < count; ++lane) x[lane] = from[lane];
  return x;
}
inline void StorePartial(float* to, Floats x, int64_t count) {
  for (int lane = 0; lane < count; ++lane) to[lane] = x[lane];
}

inline Floats Broadcast(float x) { return x - Floats{}; }

inline Floats Maximum(Floats a, Floats b) { return a > b ? a : b; }
inline Floats Minimum(Floats a, Floats b) { return a < b ? a : b; }

inline Floats SquareRoot(Floats x) {
#if defined(__AVX512F__)
  // Masked with all lanes: GCC 12 warns of the plain one's own source.
  return _mm512_maskz_sqrt_ps(0xFFFF, x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#elif defined(__x86_64__)
  return _mm_sqrt_ps(x);
#else
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

// Lanes are combined pairwise: lane i with lane i + kLanes / 2, and so on.
inline float SumOfLanes(Floats x) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) x[lane] += x[lane + half];
  }
  return x[0];
}
inline float MaximumOfLanes(Floats x) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      x[lane] = x[lane] > x[lane + half] ? x[lane] : x[lane + half];
    }
  }
  return x[0];
}

// Calls body(load, store) for each vector of [begin, end): `load(x)` reads it
// of the array x and `store(x, v)` writes it, whole or, at the end, in part.
template <typename Body>
inline void ForEachVector(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body([i](const float* x) { return Load(x + i); },
         [i](float* x, Floats v) { Store(x + i, v); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    body([i, rest](const float* x) { return LoadPartial(x + i, rest); },
         [i, rest](float* x, Floats v) { StorePartial(x + i, v, rest); });
  }
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_VECTOR_H_
