#include "worker/reduction.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

// Small enough for the first-level cache, large enough to hide the loop's cost.
constexpr int64_t kBlockElements = 1024;

template <typename T>
void SumBlocks(std::span<const void* const> terms, void* out,
               int64_t num_elements) {
  T sum[kBlockElements];
  for (int64_t begin = 0; begin < num_elements; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, num_elements - begin);
    const T* first = static_cast<const T*>(terms[0]) + begin;
    std::copy(first, first + count, sum);
    for (size_t term = 1; term < terms.size(); ++term) {
      const T* next = static_cast<const T*>(terms[term]) + begin;
      for (int64_t e = 0; e < count; ++e) sum[e] += next[e];
    }
    std::copy(sum, sum + count, static_cast<T*>(out) + begin);
  }
}

}  // namespace

ElementRange SliceOf(int64_t num_elements, int32_t size, int32_t index) {
  return {.begin = num_elements * index / size,
          .end = num_elements * (index + 1) / size};
}

void SumInOrder(std::span<const void* const> terms, void* out,
                int64_t num_elements, DType dtype) {
  CHECK(dtype == DType::kFloat32 || dtype == DType::kFloat64);
  if (dtype == DType::kFloat32) {
    SumBlocks<float>(terms, out, num_elements);
  } else {
    SumBlocks<double>(terms, out, num_elements);
  }
}

}  // namespace millrace
