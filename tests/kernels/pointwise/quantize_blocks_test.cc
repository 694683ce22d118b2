#include "kernels/pointwise/quantize_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/pointwise/cast.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

struct BlockCopies {
  explicit BlockCopies(int64_t size)
      : y(size, 0x55),
        y_transposed(size, 0x55),
        units(Poisoned(size / kQuantizeBlock)),
        units_transposed(Poisoned(size / kQuantizeBlock)) {}
  friend bool operator==(const BlockCopies&, const BlockCopies&) = default;

  std::vector<uint8_t> y, y_transposed;
  std::vector<float> units, units_transposed;
};

// Rows of very different magnitudes, columns of others; one square of zeros.
std::vector<float> UnevenMatrix(int64_t rows, int64_t columns) {
  std::vector<float> x = RandomFloats(5)(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      float& value = x[static_cast<size_t>(r * columns + c)];
      value = std::ldexp(value, static_cast<int>(r % 23 - c % 17));
      if (r < kQuantizeBlock && c < kQuantizeBlock) value = 0;
    }
  }
  return x;
}

QuantizeBlocksArgs BlockArgs(const std::vector<float>& x, int64_t rows,
                             int64_t columns, BlockCopies* out) {
  return {.y = out->y.data(),
          .units = out->units.data(),
          .y_transposed = out->y_transposed.data(),
          .units_transposed = out->units_transposed.data(),
          .x = x.data(),
          .rows = rows,
          .columns = columns};
}

// Goal: both copies have the reference's bits on any number of threads, and a
// copy that is not asked for is not needed. Method: beside the reference.
TEST(QuantizeBlocksTest, GivesTheBitsOfTheReference) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{128, 128}, {256, 384}, {640, 128}}) {
    const std::vector<float> x = UnevenMatrix(rows, columns);
    BlockCopies expected(rows * columns);
    QuantizeBlocksReference(BlockArgs(x, rows, columns, &expected));
    for (const int num_threads : {1, 3}) {
      BlockCopies actual(rows * columns);
      QuantizeBlocksArgs args = BlockArgs(x, rows, columns, &actual);
      ASSERT_TRUE(QuantizeBlocks(args, num_threads).ok());
      EXPECT_TRUE(actual == expected) << rows << " x " << columns;
      BlockCopies one(rows * columns);
      args = BlockArgs(x, rows, columns, &one);
      args.y = nullptr;
      args.units = nullptr;
      ASSERT_TRUE(QuantizeBlocks(args, num_threads).ok());
      EXPECT_EQ(one.y_transposed, expected.y_transposed);
      args = BlockArgs(x, rows, columns, &one);
      args.y_transposed = nullptr;
      args.units_transposed = nullptr;
      ASSERT_TRUE(QuantizeBlocks(args, num_threads).ok());
      EXPECT_TRUE(one == expected);
    }
  }
}

// Goal: each number is within half a step of its block's format, so a small row
// beside a large one keeps its bits. Method: decode both copies; e4m3 has a
// relative step of 1/8, below its least normal number a step of 2^-9 units.
TEST(QuantizeBlocksTest, DecodesToWhatItWas) {
  constexpr int64_t kRows = 256, kColumns = 384;
  const std::vector<float> x = UnevenMatrix(kRows, kColumns);
  BlockCopies copies(kRows * kColumns);
  ASSERT_TRUE(QuantizeBlocks(BlockArgs(x, kRows, kColumns, &copies), 2).ok());
  std::vector<float> rows = Poisoned(kRows * kColumns);
  ASSERT_TRUE(DecodeBlocks({.y = rows.data(),
                            .x = copies.y.data(),
                            .units = copies.units.data(),
                            .rows = kRows,
                            .columns = kColumns,
                            .unit_rows = 1,
                            .unit_row_stride = 1,
                            .unit_column_stride = kRows},
                           2)
                  .ok());
  std::vector<float> turned = Poisoned(kRows * kColumns);
  ASSERT_TRUE(DecodeBlocks({.y = turned.data(),
                            .x = copies.y_transposed.data(),
                            .units = copies.units_transposed.data(),
                            .rows = kColumns,
                            .columns = kRows,
                            .unit_rows = 1,
                            .unit_row_stride = 1,
                            .unit_column_stride = kColumns},
                           1)
                  .ok());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const double value = x[r * kColumns + c];
      const auto bound = [&](float unit) {
        return std::fabs(value) / 16 * 1.0001 + unit * std::ldexp(1.0, -10);
      };
      ASSERT_NEAR(rows[r * kColumns + c], value,
                  bound(copies.units[c / kQuantizeBlock * kRows + r]));
      ASSERT_NEAR(
          turned[c * kRows + r], value,
          bound(copies.units_transposed[r / kQuantizeBlock * kColumns + c]));
    }
  }
  // A block of zeros has a unit that takes them to zeros.
  EXPECT_EQ(copies.units[0], 1);
  EXPECT_EQ(rows[0], 0);
}

// Goal: squares have one unit, and the transposed copy the same bits. Method:
// beside the reference; decode as a product does with either copy.
TEST(QuantizeSquaresTest, SharesUnitsWithTheTransposedCopy) {
  constexpr int64_t kRows = 384, kColumns = 256;
  const std::vector<float> x = UnevenMatrix(kRows, kColumns);
  BlockCopies expected(kRows * kColumns), actual(kRows * kColumns);
  expected.units = actual.units = Poisoned(6);
  const auto args = [&](BlockCopies& out) -> QuantizeSquaresArgs {
    return {.y = out.y.data(),
            .y_transposed = out.y_transposed.data(),
            .units = out.units.data(),
            .x = x.data(),
            .rows = kRows,
            .columns = kColumns};
  };
  QuantizeSquaresReference(args(expected));
  for (const int num_threads : {1, 3}) {
    ASSERT_TRUE(QuantizeSquares(args(actual), num_threads).ok());
    EXPECT_EQ(actual.y, expected.y);
    EXPECT_EQ(actual.y_transposed, expected.y_transposed);
    EXPECT_EQ(actual.units, expected.units);
  }
  std::vector<float> rows = Poisoned(kRows * kColumns);
  std::vector<float> turned = Poisoned(kRows * kColumns);
  ASSERT_TRUE(DecodeBlocks({.y = rows.data(),
                            .x = actual.y.data(),
                            .units = actual.units.data(),
                            .rows = kRows,
                            .columns = kColumns,
                            .unit_rows = kQuantizeBlock,
                            .unit_row_stride = kColumns / kQuantizeBlock,
                            .unit_column_stride = 1},
                           1)
                  .ok());
  ASSERT_TRUE(DecodeBlocks({.y = turned.data(),
                            .x = actual.y_transposed.data(),
                            .units = actual.units.data(),
                            .rows = kColumns,
                            .columns = kRows,
                            .unit_rows = kQuantizeBlock,
                            .unit_row_stride = 1,
                            .unit_column_stride = kColumns / kQuantizeBlock},
                           1)
                  .ok());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      ASSERT_EQ(turned[c * kRows + r], rows[r * kColumns + c]);
    }
  }
}

// Goal: what is not finite turns its own block into NaN and no other.
TEST(QuantizeBlocksTest, KeepsNanInItsBlock) {
  std::vector<float> x = RandomFloats(6)(128 * 256);
  x[5 * 256 + 130] = std::numeric_limits<float>::infinity();
  BlockCopies copies(128 * 256);
  ASSERT_TRUE(QuantizeBlocks(BlockArgs(x, 128, 256, &copies), 1).ok());
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t block = 0; block < 2; ++block) {
      EXPECT_EQ(std::isnan(copies.units[block * 128 + r]),
                r == 5 && block == 1);
    }
  }
  for (int64_t c = 0; c < 256; ++c) {
    EXPECT_EQ(std::isnan(copies.units_transposed[c]), c == 130);
  }
}

TEST(QuantizeBlocksTest, RefusesWhatBlocksDoNotDivide) {
  BlockCopies out(128 * 128);
  const std::vector<float> x(128 * 128);
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{64, 128}, {128, 130}, {0, 128}}) {
    const absl::Status status =
        QuantizeBlocks(BlockArgs(x, rows, columns, &out), 1);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

}  // namespace
}  // namespace millrace
