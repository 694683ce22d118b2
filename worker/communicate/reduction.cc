#include "worker/communicate/reduction.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

// Small enough for the first-level cache, large enough to hide the loop's cost.
constexpr int64_t kBlockElements = 1024;

// How an element is kept (T) and what it is summed in.
template <typename T>
struct Plain {
  using Sum = T;
  static Sum Load(T stored) { return stored; }
  static T Store(Sum sum) { return sum; }
};
struct Bf16Sums {
  using Sum = float;
  static Sum Load(uint16_t stored) { return DecodeBf16(stored); }
  static uint16_t Store(Sum sum) { return EncodeBf16(sum); }
};

template <typename T, typename Element>
void SumBlocks(std::span<const void* const> terms, void* out,
               int64_t num_elements) {
  typename Element::Sum sum[kBlockElements];
  for (int64_t begin = 0; begin < num_elements; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, num_elements - begin);
    const T* first = static_cast<const T*>(terms[0]) + begin;
    std::transform(first, first + count, sum, Element::Load);
    for (size_t term = 1; term < terms.size(); ++term) {
      const T* next = static_cast<const T*>(terms[term]) + begin;
      for (int64_t e = 0; e < count; ++e) sum[e] += Element::Load(next[e]);
    }
    std::transform(sum, sum + count, static_cast<T*>(out) + begin,
                   Element::Store);
  }
}

}  // namespace

ElementRange SliceOf(int64_t num_elements, int32_t size, int32_t index) {
  return {.begin = num_elements * index / size,
          .end = num_elements * (index + 1) / size};
}

void SumInOrder(std::span<const void* const> terms, void* out,
                int64_t num_elements, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return SumBlocks<float, Plain<float>>(terms, out, num_elements);
    case DType::kFloat64:
      return SumBlocks<double, Plain<double>>(terms, out, num_elements);
    case DType::kBfloat16:
      return SumBlocks<uint16_t, Bf16Sums>(terms, out, num_elements);
    default:
      CHECK(false) << "no sum of dtype " << static_cast<int>(dtype);
  }
}

}  // namespace millrace
