// Helpers that kernel tests share: seeded inputs, poisoned outputs, and running
// a kernel on every instruction set level and number of threads.

#ifndef MILLRACE_TESTS_KERNELS_KERNEL_TESTING_H_
#define MILLRACE_TESTS_KERNELS_KERNEL_TESTING_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/loops.h"

namespace millrace {

// Uniform in [-magnitude, magnitude], from a seed.
class RandomFloats {
 public:
  explicit RandomFloats(uint32_t seed) : generator_(seed) {}
  std::vector<float> operator()(int64_t count, float magnitude = 1.0f) {
    std::uniform_real_distribution<float> uniform(-magnitude, magnitude);
    std::vector<float> values(count);
    for (float& value : values) value = uniform(generator_);
    return values;
  }
  // Whole numbers in [low, high].
  std::vector<int32_t> Integers(int64_t count, int32_t low, int32_t high) {
    std::uniform_int_distribution<int32_t> uniform(low, high);
    std::vector<int32_t> values(count);
    for (int32_t& value : values) value = uniform(generator_);
    return values;
  }

 private:
  std::mt19937 generator_;
};

// An output nobody has written yet: whoever reads it, or leaves a part of it
// unwritten, spreads NaN.
inline std::vector<float> Poisoned(int64_t count) {
  return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
}

// |actual - expected| <= tolerance * (largest |expected| + 1), element by
// element; NaN never passes.
inline void ExpectClose(const std::vector<float>& actual,
                        const std::vector<float>& expected, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double scale = 1.0;
  for (float value : expected) {
    scale = std::fmax(scale, std::fabs(value) + 1.0);
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::fabs(double{actual[i]} - expected[i]);
    ASSERT_TRUE(difference <= tolerance * scale)
        << what << "[" << i << "] is " << actual[i] << ", expected "
        << expected[i];
  }
}

inline void ExpectSameBits(const std::vector<float>& a,
                           const std::vector<float>& b,
                           const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (a.empty()) return;  // memcmp takes no null.
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
      << what << " differs between equal runs";
}

// Calls body() with each level of this processor chosen in turn, then chooses
// the one before again.
template <typename Body>
void ForEachCpuLevel(const Body& body) {
  const CpuLoops* before = &Loops();
  int level_before = 0;
  for (int level = 0; level < NumCpuLevels(); ++level) {
    if (&LoopsOfLevel(level) == before) level_before = level;
    UseCpuLevelForTesting(level);
    SCOPED_TRACE(Loops().name);
    body();
  }
  UseCpuLevelForTesting(level_before);
}

// Runs `run(num_threads)`, which returns a kernel's outputs, on every level
// with one thread, one again and three: all must be close to `expected`, and
// those of one level bit-identical.
template <typename Run>
void ExpectKernelMatches(const std::vector<std::vector<float>>& expected,
                         double tolerance, const Run& run) {
  ForEachCpuLevel([&] {
    const std::vector<std::vector<float>> first = run(1);
    ASSERT_EQ(first.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectClose(first[i], expected[i], tolerance, absl::StrCat("output ", i));
    }
    for (int num_threads : {1, 3}) {
      const std::vector<std::vector<float>> again = run(num_threads);
      for (size_t i = 0; i < expected.size(); ++i) {
        ExpectSameBits(
            again[i], first[i],
            absl::StrCat("output ", i, " on ", num_threads, " threads"));
      }
    }
  });
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_KERNEL_TESTING_H_
