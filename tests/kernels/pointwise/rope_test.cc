#include "kernels/pointwise/rope.h"

#include <cmath>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

struct Shape {
  int64_t num_tokens, sequence_length, num_heads, num_kv_heads, head_dim;
  int64_t row() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

const std::vector<Shape> kShapes = {
    {1, 1, 1, 1, 2}, {7, 3, 2, 1, 6}, {10, 5, 4, 2, 34}, {300, 100, 3, 3, 40}};

// Goal: both directions mean what the reference says. Tolerance: two products
// and a sum.
TEST(RopeTest, MatchesReference) {
  RandomFloats random(1);
  for (const Shape& shape : kShapes) {
    const std::vector<float> before = random(shape.num_tokens * shape.row());
    std::vector<float> table =
        Poisoned(RopeTableBytes(shape.sequence_length, shape.head_dim) / 4);
    ASSERT_TRUE(FillRopeTable(table.data(), shape.sequence_length,
                              shape.head_dim, 10000.0)
                    .ok());
    // Tables of fewer elements are those of smaller heads.
    for (const int flags : {0, 1, 2, 3}) {
      const bool inverse = (flags & 1) != 0;
      const int64_t part = (flags & 2) != 0 ? (shape.head_dim + 2) / 4 * 2 : 0;
      const auto run = [&](int num_threads) -> Outputs {
        std::vector<float> qkv = before;
        const RopeArgs args = {qkv.data(),
                               table.data(),
                               shape.num_tokens,
                               shape.sequence_length,
                               shape.num_heads,
                               shape.num_kv_heads,
                               shape.head_dim,
                               inverse,
                               part};
        if (num_threads == 0) {
          RopeReference(args);
        } else {
          EXPECT_TRUE(Rope(args, num_threads).ok());
        }
        return {qkv};
      };
      ExpectKernelMatches(run(0), 3e-7, run);
    }
  }
}

// Goal: the convention of Llama checkpoints, from the definition: element i and
// element i + D/2 turn by position * theta^(-2i/D); values stay. Method: one
// head, position 3, by complex numbers.
TEST(RopeTest, PairsHalves) {
  constexpr int64_t kHeadDim = 8;
  constexpr double kTheta = 500.0;
  RandomFloats random(2);
  std::vector<float> qkv = random(5 * 3 * kHeadDim);
  const std::vector<float> before = qkv;
  std::vector<float> table(RopeTableBytes(5, kHeadDim) / 4);
  ASSERT_TRUE(FillRopeTable(table.data(), 5, kHeadDim, kTheta).ok());
  ASSERT_TRUE(
      Rope({qkv.data(), table.data(), 5, 5, 1, 1, kHeadDim, false}, 1).ok());
  for (int64_t head = 0; head < 2; ++head) {
    const int64_t row = (3 * 3 + head) * kHeadDim;
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      const double angle = 3 * std::pow(kTheta, -2.0 * i / kHeadDim);
      const double a = before[row + i], b = before[row + i + kHeadDim / 2];
      EXPECT_NEAR(qkv[row + i], a * std::cos(angle) - b * std::sin(angle),
                  1e-6);
      EXPECT_NEAR(qkv[row + i + kHeadDim / 2],
                  b * std::cos(angle) + a * std::sin(angle), 1e-6);
    }
  }
  for (int64_t i = 0; i < kHeadDim; ++i) {
    EXPECT_EQ(qkv[(3 * 3 + 2) * kHeadDim + i],
              before[(3 * 3 + 2) * kHeadDim + i]);
  }
}

// Goal: the inverse undoes the forward turn, to rounding.
TEST(RopeTest, InverseTurnsBack) {
  RandomFloats random(3);
  const Shape shape = {12, 6, 2, 1, 16};
  const std::vector<float> before = random(shape.num_tokens * shape.row());
  std::vector<float> qkv = before;
  std::vector<float> table(RopeTableBytes(6, 16) / 4);
  ASSERT_TRUE(FillRopeTable(table.data(), 6, 16, 10000.0).ok());
  for (bool inverse : {false, true}) {
    ASSERT_TRUE(
        Rope({qkv.data(), table.data(), 12, 6, 2, 1, 16, inverse}, 1).ok());
  }
  ExpectClose(qkv, before, 1e-6, "qkv");
}

// Goal: frequencies are scaled as Llama 3.1 does it. Method: wavelengths of all
// three kinds, by the definition with its branches, at position 1.
TEST(RopeTest, ScalesFrequencies) {
  constexpr int64_t kHeadDim = 32;
  constexpr double kTheta = 500.0;
  const RopeFrequencyScaling scaling = {.factor = 8,
                                        .low_freq_factor = 1,
                                        .high_freq_factor = 4,
                                        .original_length = 256};
  std::vector<float> table(RopeTableBytes(2, kHeadDim) / 4);
  ASSERT_TRUE(FillRopeTable(table.data(), 2, kHeadDim, kTheta, scaling).ok());
  int kept = 0, divided = 0, blended = 0;
  for (int64_t i = 0; i < kHeadDim / 2; ++i) {
    double frequency = std::pow(kTheta, -2.0 * i / kHeadDim);
    const double wavelength = 2 * M_PI / frequency;
    if (wavelength < 256.0 / 4) {
      ++kept;
    } else if (wavelength > 256.0 / 1) {
      ++divided;
      frequency /= 8;
    } else {
      ++blended;
      const double smooth = (256.0 / wavelength - 1) / (4 - 1);
      frequency = (1 - smooth) * frequency / 8 + smooth * frequency;
    }
    EXPECT_FLOAT_EQ(table[kHeadDim / 2 + i], std::cos(frequency));
    EXPECT_FLOAT_EQ(table[3 * kHeadDim / 2 + i], std::sin(frequency));
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

// Goal: only the first elements of a head turn, as a head of so many would.
// Method: a head of eight of twelve against a head of eight.
TEST(RopeTest, TurnsAPartOfAHead) {
  constexpr int64_t kHeadDim = 12, kPart = 8;
  RandomFloats random(4);
  const std::vector<float> before = random(5 * 3 * kHeadDim);
  std::vector<float> table(RopeTableBytes(5, kPart) / 4);
  ASSERT_TRUE(FillRopeTable(table.data(), 5, kPart, 500.0).ok());
  std::vector<float> qkv = before, small(5 * 3 * kPart);
  const auto for_each = [&](const auto& body) {
    for (int64_t head = 0; head < 5 * 3; ++head) {
      for (int64_t i = 0; i < kHeadDim; ++i) {
        body(qkv[head * kHeadDim + i], before[head * kHeadDim + i],
             i < kPart ? &small[head * kPart + i] : nullptr);
      }
    }
  };
  for_each([](float, float x, float* of_small) {
    if (of_small != nullptr) *of_small = x;
  });
  ASSERT_TRUE(
      Rope({qkv.data(), table.data(), 5, 5, 1, 1, kHeadDim, false, kPart}, 1)
          .ok());
  ASSERT_TRUE(
      Rope({small.data(), table.data(), 5, 5, 1, 1, kPart, false}, 1).ok());
  for_each([](float x, float before, const float* of_small) {
    EXPECT_EQ(x, of_small != nullptr ? *of_small : before);
  });
}

// Goal: frequencies are divided, all alike or each by its own number, and all
// of the table is multiplied. Method: the definition at position 1.
TEST(RopeTest, DividesFrequenciesAndScales) {
  constexpr int64_t kHeadDim = 6;
  const double divisors[] = {1.0, 2.5, 40.0};
  std::vector<float> table(RopeTableBytes(2, kHeadDim) / 4);
  for (const bool is_linear : {false, true}) {
    RopeFrequencyScaling scaling = {.scale = 1.25};
    if (is_linear) {
      scaling.factor = 8;
      scaling.is_linear = true;
    } else {
      scaling.divisors = divisors;
    }
    ASSERT_TRUE(FillRopeTable(table.data(), 2, kHeadDim, 500.0, scaling).ok());
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      const double frequency =
          std::pow(500.0, -2.0 * i / kHeadDim) / (is_linear ? 8 : divisors[i]);
      EXPECT_FLOAT_EQ(table[kHeadDim / 2 + i], 1.25 * std::cos(frequency));
      EXPECT_FLOAT_EQ(table[3 * kHeadDim / 2 + i], 1.25 * std::sin(frequency));
    }
  }
}

TEST(RopeTest, RefusesBadShapes) {
  float table[4];
  EXPECT_EQ(Rope({nullptr, table, 1, 1, 1, 1, 4, false, 6}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Rope({nullptr, table, 1, 1, 1, 1, 4, false, 3}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FillRopeTable(table, 1, 2, 10000.0, {.factor = 0.5}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FillRopeTable(table, 1, 2, 10000.0, {.factor = 8}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FillRopeTable(table, 1, 3, 10000.0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FillRopeTable(table, 0, 2, 10000.0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FillRopeTable(table, 1, 2, 0.0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Rope({nullptr, table, 1, 1, 1, 1, 3, false}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Rope({nullptr, table, 1, 0, 1, 1, 2, false}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Rope({nullptr, table, -1, 1, 1, 1, 2, false}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Rope({nullptr, table, 0, 1, 1, 1, 2, false}, 1).ok());
}

}  // namespace
}  // namespace millrace
