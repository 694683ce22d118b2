// Helpers that tests of GPU kernels share: bf16 on the host, arrays on the
// device and back.

#ifndef MILLRACE_TESTS_KERNELS_GPU_TESTING_H_
#define MILLRACE_TESTS_KERNELS_GPU_TESTING_H_

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"

namespace millrace {

using Bf16s = std::vector<uint16_t>;  // The bits of bf16 values.

inline constexpr uint16_t kNanBf16 = 0x7FC0;
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline float FromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// To nearest even; finite values only.
inline uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline std::vector<float> FromBf16(const Bf16s& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = FromBf16(bits[i]);
  return values;
}

inline Bf16s ToBf16(const std::vector<float>& values) {
  Bf16s bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = ToBf16(values[i]);
  return bits;
}

// Zero for none.
inline float LargestMagnitude(const Bf16s& bits) {
  float largest = 0.0f;
  for (const uint16_t x : bits) {
    largest = std::fmax(largest, std::fabs(FromBf16(x)));
  }
  return largest;
}

// Standard normal values, fresh ones every run.
class RandomNormals {
 public:
  std::vector<float> Floats(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal_(generator_);
    return values;
  }
  Bf16s Bits(int64_t count) { return ToBf16(Floats(count)); }

 private:
  std::mt19937 generator_{std::random_device{}()};
  std::normal_distribution<float> normal_;
};

template <typename T>
DeviceBuffer<T> ToDevice(const std::vector<T>& host) {
  auto buffer = DeviceBuffer<T>::Allocate(host.size());
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(cudaMemcpy(buffer->data(), host.data(), host.size() * sizeof(T),
                       cudaMemcpyHostToDevice),
            cudaSuccess);
  return *std::move(buffer);
}

// After all work on the device.
template <typename T>
std::vector<T> ToHost(const DeviceBuffer<T>& buffer) {
  std::vector<T> host(buffer.size());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(host.data(), buffer.data(), host.size() * sizeof(T),
                       cudaMemcpyDeviceToHost),
            cudaSuccess);
  return host;
}

// Outputs that nobody has written yet.
inline DeviceBuffer<uint16_t> PoisonedBf16(int64_t count) {
  return ToDevice(Bf16s(count, kNanBf16));
}
inline DeviceBuffer<float> PoisonedFloats(int64_t count) {
  return ToDevice(std::vector<float>(count, kNan));
}

// |actual - expected| <= relative |expected| + absolute, element by element;
// NaN never passes.
inline void ExpectNear(const std::vector<float>& actual,
                       const std::vector<float>& expected, double relative,
                       double absolute, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::fabs(double{actual[i]} - expected[i]);
    ASSERT_TRUE(difference <= relative * std::fabs(expected[i]) + absolute)
        << what << "[" << i << "] is " << actual[i] << ", expected "
        << expected[i];
  }
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_GPU_TESTING_H_
