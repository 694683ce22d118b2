// Normal random numbers as a pure function of (seed, stream, index): any slice
// of a tensor can be made anywhere, in any order, on any rank, with equal bits.
//
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
// 2011): the key is the seed, the counter (index / 4, stream); its four words
// give four normals by the Box-Muller transform in double.

#ifndef MILLRACE_KERNELS_POINTWISE_RANDOM_NORMAL_H_
#define MILLRACE_KERNELS_POINTWISE_RANDOM_NORMAL_H_

#include <array>
#include <cstdint>

namespace millrace {

struct FillNormalArgs {
  float* out;  // [count]: elements first_index, first_index + 1, ...
  double std;  // Standard deviation; the mean is zero.
  uint64_t seed;
  uint64_t stream;       // One per tensor, say a hash of its name.
  uint64_t first_index;  // Index of out[0] in the stream.
  int64_t count;         // Not negative.
};

void FillNormal(const FillNormalArgs& args);

// The generator itself: ten rounds on `counter`.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_RANDOM_NORMAL_H_
