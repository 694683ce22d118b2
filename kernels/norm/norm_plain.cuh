// The parts that the plain norms share: types of rows and weights, and the cut
// of tokens for the gradients of weights.

#ifndef MILLRACE_KERNELS_NORM_NORM_PLAIN_CUH_
#define MILLRACE_KERNELS_NORM_NORM_PLAIN_CUH_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/elements.cuh"

namespace millrace::plain {

// Tokens are cut into parts for the gradients of weights; each part leaves its
// sums in the workspace. Their number depends on the tokens alone, so equal
// inputs are summed in one order.
inline constexpr int64_t kMaxParts = 64;
inline constexpr int64_t kMinTokensOfPart = 32;
inline int64_t NumParts(int64_t num_tokens) {
  return std::clamp<int64_t>(num_tokens / kMinTokensOfPart, 1, kMaxParts);
}

// A block takes 32 columns of a part, a warp every eighth token.
inline constexpr int kBlockColumns = 32;
inline constexpr int kBlockRows = kNumThreads / kBlockColumns;

// Calls f.operator()<T, W>() with the types of rows and weights.
template <typename F>
void WithRowsAndWeights(ElementType type, bool fp32_weight, const F& f) {
  WithElements(type, [&]<typename T>() {
    if (fp32_weight) {
      f.template operator()<T, float>();
    } else {
      f.template operator()<T, T>();
    }
  });
}

}  // namespace millrace::plain

#endif  // MILLRACE_KERNELS_NORM_NORM_PLAIN_CUH_
