#include <algorithm>
#include <bit>

#include "kernels/pointwise/cast.h"
#include "kernels/pointwise/quantize_blocks.h"

namespace millrace {
namespace {

constexpr Float8Format kE4m3 = Float8Format::kE4m3;

// The largest magnitude of [height, width] numbers; NaN counts as larger than
// all.
float AmaxOf(const float* x, int64_t stride, int64_t height, int64_t width) {
  uint32_t largest = 0;
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      largest = std::max(
          largest, std::bit_cast<uint32_t>(x[r * stride + c]) & 0x7FFFFFFF);
    }
  }
  return std::bit_cast<float>(largest);
}

}  // namespace

void QuantizeBlocksReference(const QuantizeBlocksArgs& args) {
  const int64_t stride = args.columns;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.columns; ++c) {
      const float x = args.x[r * stride + c];
      const int64_t row_block = r / kQuantizeBlock;
      const int64_t column_block = c / kQuantizeBlock;
      if (args.y != nullptr) {
        const float amax =
            AmaxOf(args.x + r * stride + column_block * kQuantizeBlock, stride,
                   1, kQuantizeBlock);
        args.units[column_block * args.rows + r] = Float8Unit(amax, kE4m3);
        args.y[r * stride + c] =
            EncodeFloat8(x * Float8Scale(amax, kE4m3), kE4m3);
      }
      if (args.y_transposed != nullptr) {
        const float amax =
            AmaxOf(args.x + row_block * kQuantizeBlock * stride + c, stride,
                   kQuantizeBlock, 1);
        args.units_transposed[row_block * args.columns + c] =
            Float8Unit(amax, kE4m3);
        args.y_transposed[c * args.rows + r] =
            EncodeFloat8(x * Float8Scale(amax, kE4m3), kE4m3);
      }
    }
  }
}

void QuantizeSquaresReference(const QuantizeSquaresArgs& args) {
  const int64_t stride = args.columns;
  for (int64_t first_row = 0; first_row < args.rows;
       first_row += kQuantizeBlock) {
    for (int64_t first_column = 0; first_column < args.columns;
         first_column += kQuantizeBlock) {
      const float amax = AmaxOf(args.x + first_row * stride + first_column,
                                stride, kQuantizeBlock, kQuantizeBlock);
      args.units[first_row / kQuantizeBlock * (args.columns / kQuantizeBlock) +
                 first_column / kQuantizeBlock] = Float8Unit(amax, kE4m3);
      for (int64_t r = first_row; r < first_row + kQuantizeBlock; ++r) {
        for (int64_t c = first_column; c < first_column + kQuantizeBlock; ++c) {
          const uint8_t code = EncodeFloat8(
              args.x[r * stride + c] * Float8Scale(amax, kE4m3), kE4m3);
          if (args.y != nullptr) args.y[r * stride + c] = code;
          if (args.y_transposed != nullptr) {
            args.y_transposed[c * args.rows + r] = code;
          }
        }
      }
    }
  }
}

}  // namespace millrace
