#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/loops.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

// Distance in units in the last place of the exact result; below the smallest
// normal number, in units of the smallest denormal.
double Ulps(float actual, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(actual - exact) / std::ldexp(1.0, exponent - 23);
}

// Goal: within the two units in the last place that the header promises, over
// all of the range, denormal results included. Method: 300,000 arguments from
// -104 to 88.7, against the C library in double.
TEST(VectorMathTest, ExpIsWithinTwoUnits) {
  std::vector<float> x;
  for (int i = 0; i < 300000; ++i) {
    x.push_back(static_cast<float>(-104.0 + i * (88.7 + 104.0) / 300000));
  }
  ForEachCpuLevel([&] {
    std::vector<float> y = Poisoned(x.size());
    Loops().exp(x.data(), y.data(), x.size());
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::fmax(worst, Ulps(y[i], std::exp(double{x[i]})));
    }
    EXPECT_LE(worst, 2.0);
  });
}

// Goal: the same of the cheap one, over the range softmax uses and a little
// above zero.
TEST(VectorMathTest, Exp2FlushedIsWithinTwoUnits) {
  std::vector<float> x;
  for (int i = 0; i < 300000; ++i) {
    x.push_back(static_cast<float>(-126.0 + i * 136.0 / 300000));
  }
  ForEachCpuLevel([&] {
    std::vector<float> y = Poisoned(x.size());
    Loops().exp2_flushed(x.data(), y.data(), x.size());
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::fmax(worst, Ulps(y[i], std::exp2(double{x[i]})));
    }
    EXPECT_LE(worst, 2.0);
  });
}

// Goal: the same of the hyperbolic tangent, within four units. Method: 300,000
// arguments from -12 to 12, evenly and by size down to 1e-30.
TEST(VectorMathTest, TanhIsWithinFourUnits) {
  std::vector<float> x;
  for (int i = 0; i < 150000; ++i) {
    x.push_back(static_cast<float>(-12.0 + i * 24.0 / 150000));
    x.push_back(static_cast<float>((i % 2 == 0 ? 1 : -1) *
                                   std::pow(10.0, -30.0 + i * 31.0 / 150000)));
  }
  ForEachCpuLevel([&] {
    std::vector<float> y = Poisoned(x.size());
    Loops().tanh(x.data(), y.data(), x.size());
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::fmax(worst, Ulps(y[i], std::tanh(double{x[i]})));
    }
    EXPECT_LE(worst, 4.0);
  });
}

// Goal: what lies beyond the range, and what is no number. 17 elements make
// every vector width meet a part of a vector.
TEST(VectorMathTest, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(17, 0.0f);
  x[0] = x[16] = -infinity;
  x[1] = nan;
  x[2] = -1e30f;
  x[3] = 1e30f;
  ForEachCpuLevel([&] {
    std::vector<float> y = Poisoned(17);
    Loops().exp(x.data(), y.data(), 17);
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[16], 0.0f);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], infinity);
    EXPECT_EQ(y[4], 1.0f);
    y = Poisoned(17);
    Loops().exp2_flushed(x.data(), y.data(), 17);
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[16], 0.0f);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[4], 1.0f);
    y = Poisoned(17);
    Loops().tanh(x.data(), y.data(), 17);
    EXPECT_EQ(y[0], -1.0f);
    EXPECT_EQ(y[16], -1.0f);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], -1.0f);
    EXPECT_EQ(y[3], 1.0f);
    EXPECT_EQ(y[4], 0.0f);
  });
}

}  // namespace
}  // namespace millrace
