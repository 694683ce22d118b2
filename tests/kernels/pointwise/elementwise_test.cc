#include "kernels/pointwise/elementwise.h"

#include <cstring>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

// Around the vector widths, and large enough to be spread over threads.
const std::vector<int64_t> kSizes = {0, 1, 3, 15, 16, 17, 63, 100, 70001};

TEST(ElementwiseTest, AddMatchesReference) {
  RandomFloats random(1);
  for (int64_t size : kSizes) {
    const std::vector<float> a = random(size), b = random(size);
    std::vector<float> expected = Poisoned(size);
    AddReference({expected.data(), a.data(), b.data(), size});
    // One rounding on both sides: equal.
    ExpectKernelMatches({expected}, 0.0, [&](int num_threads) {
      std::vector<float> out = a;  // Aliases its first operand.
      EXPECT_TRUE(
          Add({out.data(), out.data(), b.data(), size}, num_threads).ok());
      return std::vector<std::vector<float>>{out};
    });
  }
}

TEST(ElementwiseTest, ZeroWritesEveryByteAndNoOther) {
  for (int64_t size : {1, 5, 70001, 1000003}) {
    for (int num_threads : {1, 2}) {
      std::vector<char> bytes(size + 2, 'x');
      ASSERT_TRUE(Zero(bytes.data() + 1, size, num_threads).ok());
      EXPECT_EQ(bytes.front(), 'x');
      EXPECT_EQ(bytes.back(), 'x');
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), '\0'), size);
    }
  }
}

// Goal: the sum adds to what is there, with the share, and has the same bits on
// any number of threads and any processor. Tolerance: both sum in double.
TEST(ElementwiseTest, SquaredNormMatchesReference) {
  RandomFloats random(2);
  for (int64_t size : kSizes) {
    const std::vector<float> x = random(size, 5.0f);
    double expected = 0.25;
    SquaredNormReference({&expected, x.data(), size, 0.5});
    double first = 0.25;
    ASSERT_TRUE(SquaredNorm({&first, x.data(), size, 0.5}, 1).ok());
    EXPECT_NEAR(first, expected, 1e-12 * expected);
    ForEachCpuLevel([&] {
      for (int num_threads : {1, 2, 3}) {
        double sum = 0.25;
        ASSERT_TRUE(SquaredNorm({&sum, x.data(), size, 0.5}, num_threads).ok());
        EXPECT_EQ(sum, first) << num_threads << " threads";
      }
    });
  }
}

TEST(ElementwiseTest, RefusesBadShapes) {
  double sum = 0.0;
  EXPECT_EQ(Add({nullptr, nullptr, nullptr, -1}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Zero(nullptr, 4, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SquaredNorm({&sum, nullptr, -1}, 1).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
