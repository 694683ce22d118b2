// Helpers that tests of the plain kernels share: tensors of either element
// type, always one element beyond an aligned address unless asked otherwise.

#ifndef MILLRACE_TESTS_KERNELS_PLAIN_TESTING_H_
#define MILLRACE_TESTS_KERNELS_PLAIN_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/element_type.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {

inline constexpr ElementType kElementTypes[] = {ElementType::kFloat32,
                                                ElementType::kBfloat16};

inline std::string ElementName(ElementType type) {
  return type == ElementType::kFloat32 ? "fp32" : "bf16";
}

// These values as a tensor of the type holds them.
inline std::vector<float> Rounded(ElementType type,
                                  const std::vector<float>& values) {
  return type == ElementType::kFloat32 ? values : FromBf16(ToBf16(values));
}

// `size` elements on the device, NaN until written.
class PlainTensor {
 public:
  PlainTensor(ElementType type, int64_t size, bool is_aligned = false)
      : type_(type),
        size_(size),
        offset_(is_aligned ? 0 : ElementBytes(type)),
        bytes_(ToDevice(std::vector<uint8_t>(
            offset_ + size * ElementBytes(type) + 1, 0xFF))) {}

  PlainTensor(ElementType type, const std::vector<float>& values,
              bool is_aligned = false)
      : PlainTensor(type, static_cast<int64_t>(values.size()), is_aligned) {
    Write(values);
  }

  void* data() { return bytes_.data() + offset_; }

  void Write(const std::vector<float>& values) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), size_);
    const Bf16s narrow = ToBf16(values);
    const void* from = type_ == ElementType::kFloat32
                           ? static_cast<const void*>(values.data())
                           : narrow.data();
    EXPECT_EQ(cudaMemcpy(data(), from, size_ * ElementBytes(type_),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  // After all work on the device.
  std::vector<float> Host() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<float> values(size_);
    Bf16s narrow(type_ == ElementType::kFloat32 ? 0 : size_);
    void* to = type_ == ElementType::kFloat32
                   ? static_cast<void*>(values.data())
                   : narrow.data();
    EXPECT_EQ(cudaMemcpy(to, data(), size_ * ElementBytes(type_),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return type_ == ElementType::kFloat32 ? values : FromBf16(narrow);
  }

 private:
  ElementType type_;
  int64_t size_;
  int64_t offset_;
  DeviceBuffer<uint8_t> bytes_;
};

// |actual - expected| <= relative |expected| + absolute (largest |expected| +
// 1) plus, in bf16, one rounding to nearest.
inline void ExpectPlain(ElementType type, const std::vector<float>& actual,
                        const std::vector<float>& expected, double relative,
                        double absolute, const std::string& what) {
  double largest = 0.0;
  for (const float value : expected) {
    largest = std::fmax(largest, std::fabs(value));
  }
  const double rounding = type == ElementType::kFloat32 ? 0.0 : 0x1p-8;
  ExpectNear(actual, expected, relative + rounding, absolute * (largest + 1.0),
             absl::StrCat(ElementName(type), " ", what));
}

inline void ExpectEqualBits(const std::vector<float>& a,
                            const std::vector<float>& b,
                            const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (a.empty()) return;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
      << what << " differs between equal runs";
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_PLAIN_TESTING_H_
