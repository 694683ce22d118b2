// 8-bit copies (e4m3) with a scale for each block, as products read them whose
// operands are scaled in blocks along the dim that is summed over (DeepSeek-AI,
// "DeepSeek-V3 Technical Report", 2024, section 3.3.2).
//
// A block's largest magnitude chooses its scale and its unit, as cast.h says:
// y = x * Float8Scale(amax), and one stored unit means Float8Unit(amax).
//   Blocks of a row: kQuantizeBlock numbers. The transposed copy has blocks of
//     its own, along the columns of x, so both copies are rounded from x.
//   Squares: kQuantizeBlock rows by as many columns. Both copies have the same
//     units and the same bits.

#ifndef MILLRACE_KERNELS_POINTWISE_QUANTIZE_BLOCKS_H_
#define MILLRACE_KERNELS_POINTWISE_QUANTIZE_BLOCKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace millrace {

inline constexpr int64_t kQuantizeBlock = 128;

struct QuantizeBlocksArgs {
  uint8_t* y;               // [rows, columns]; may be null.
  float* units;             // [columns / 128, rows]; with y only.
  uint8_t* y_transposed;    // [columns, rows]; may be null.
  float* units_transposed;  // [rows / 128, columns]; with y_transposed only.
  const float* x;           // [rows, columns]
  int64_t rows, columns;    // Multiples of kQuantizeBlock, at least one each.
};

struct QuantizeSquaresArgs {
  uint8_t* y;             // [rows, columns]; may be null.
  uint8_t* y_transposed;  // [columns, rows]; may be null.
  float* units;           // [rows / 128, columns / 128]
  const float* x;         // [rows, columns]
  int64_t rows, columns;  // Multiples of kQuantizeBlock.
};

// y[r, c] = the value of x[r, c] times its unit, which is
// units[r / unit_rows * unit_row_stride + c / 128 * unit_column_stride].
struct DecodeBlocksArgs {
  float* y;          // [rows, columns]; apart from x.
  const uint8_t* x;  // [rows, columns]
  const float* units;
  int64_t rows, columns;  // Columns: a multiple of kQuantizeBlock.
  int64_t unit_rows;      // Rows that share units: 1 or kQuantizeBlock.
  int64_t unit_row_stride;
  int64_t unit_column_stride;
};

// Host pointers. InvalidArgument names a shape that blocks do not divide, and
// num_threads below one. Results do not depend on num_threads.
absl::Status QuantizeBlocks(const QuantizeBlocksArgs& args, int num_threads);
absl::Status QuantizeSquares(const QuantizeSquaresArgs& args, int num_threads);
absl::Status DecodeBlocks(const DecodeBlocksArgs& args, int num_threads);

// Both in plain loops.
void QuantizeBlocksReference(const QuantizeBlocksArgs& args);
void QuantizeSquaresReference(const QuantizeSquaresArgs& args);

// Refuses rows and columns that blocks do not divide.
inline absl::Status CheckQuantizeBlocks(absl::string_view name, int64_t rows,
                                        int64_t columns) {
  if (rows >= 1 && columns >= 1 && rows % kQuantizeBlock == 0 &&
      columns % kQuantizeBlock == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " got [", rows, ", ", columns,
                   "]; rows and columns are multiples of ", kQuantizeBlock,
                   ", at least one each"));
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_QUANTIZE_BLOCKS_H_
