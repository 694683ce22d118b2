#include "kernels/pointwise/quantize_blocks.h"

#include <algorithm>
#include <array>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

constexpr Float8Format kFormat = Float8Format::kE4m3;

// Calls body(row_block, column_block) for all squares of a matrix, part by
// part.
template <typename Body>
void ForEachSquare(int64_t rows, int64_t columns, int num_threads,
                   const Body& body) {
  const int64_t across = columns / kQuantizeBlock;
  ParallelRanges(ThreadsForFloats(num_threads, rows * columns),
                 rows / kQuantizeBlock * across,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     body(i / across, i % across);
                   }
                 });
}

// Columns of a square, turned so that their numbers lie side by side.
constexpr int64_t kTurned = 16;
using TurnedColumns = std::array<float, kTurned * kQuantizeBlock>;

void TurnColumns(const float* x, int64_t stride, TurnedColumns* turned) {
  for (int64_t r = 0; r < kQuantizeBlock; ++r) {
    for (int64_t c = 0; c < kTurned; ++c) {
      (*turned)[static_cast<size_t>(c * kQuantizeBlock + r)] =
          x[r * stride + c];
    }
  }
}

float AmaxOf(const float* x) {
  return std::bit_cast<float>(Loops().largest_magnitude(x, kQuantizeBlock));
}

void Encode(uint8_t* y, const float* x, float scale) {
  Loops().encode_float8(y, x, kQuantizeBlock, scale, kFormat);
}

void QuantizeBlock(uint8_t* y, float* unit, const float* x) {
  const float amax = AmaxOf(x);
  *unit = Float8Unit(amax, kFormat);
  Encode(y, x, Float8Scale(amax, kFormat));
}

// Calls body(column, numbers) for the columns of a square from `x` on.
template <typename Body>
void ForEachColumn(const float* x, int64_t stride, const Body& body) {
  TurnedColumns turned;
  for (int64_t first = 0; first < kQuantizeBlock; first += kTurned) {
    TurnColumns(x + first, stride, &turned);
    for (int64_t c = 0; c < kTurned; ++c) {
      body(first + c, turned.data() + c * kQuantizeBlock);
    }
  }
}

}  // namespace

absl::Status QuantizeBlocks(const QuantizeBlocksArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckQuantizeBlocks("QuantizeBlocks", args.rows, args.columns));
  RETURN_IF_ERROR(CheckRowsAndThreads("QuantizeBlocks", args.rows, args.columns,
                                      num_threads));
  ForEachSquare(
      args.rows, args.columns, num_threads,
      [&](int64_t row_block, int64_t column_block) {
        const int64_t first_row = row_block * kQuantizeBlock;
        const int64_t first_column = column_block * kQuantizeBlock;
        const float* x = args.x + first_row * args.columns + first_column;
        if (args.y != nullptr) {
          for (int64_t r = 0; r < kQuantizeBlock; ++r) {
            QuantizeBlock(
                args.y + (first_row + r) * args.columns + first_column,
                args.units + column_block * args.rows + first_row + r,
                x + r * args.columns);
          }
        }
        if (args.y_transposed == nullptr) return;
        ForEachColumn(x, args.columns, [&](int64_t c, const float* column) {
          QuantizeBlock(
              args.y_transposed + (first_column + c) * args.rows + first_row,
              args.units_transposed + row_block * args.columns + first_column +
                  c,
              column);
        });
      });
  return absl::OkStatus();
}

absl::Status QuantizeSquares(const QuantizeSquaresArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckQuantizeBlocks("QuantizeSquares", args.rows, args.columns));
  RETURN_IF_ERROR(CheckRowsAndThreads("QuantizeSquares", args.rows,
                                      args.columns, num_threads));
  ForEachSquare(
      args.rows, args.columns, num_threads,
      [&](int64_t row_block, int64_t column_block) {
        const int64_t first_row = row_block * kQuantizeBlock;
        const int64_t first_column = column_block * kQuantizeBlock;
        const float* x = args.x + first_row * args.columns + first_column;
        uint32_t largest = 0;
        for (int64_t r = 0; r < kQuantizeBlock; ++r) {
          largest = std::max(
              largest,
              Loops().largest_magnitude(x + r * args.columns, kQuantizeBlock));
        }
        const auto amax = std::bit_cast<float>(largest);
        args.units[row_block * (args.columns / kQuantizeBlock) + column_block] =
            Float8Unit(amax, kFormat);
        const float scale = Float8Scale(amax, kFormat);
        if (args.y != nullptr) {
          for (int64_t r = 0; r < kQuantizeBlock; ++r) {
            Encode(args.y + (first_row + r) * args.columns + first_column,
                   x + r * args.columns, scale);
          }
        }
        if (args.y_transposed == nullptr) return;
        ForEachColumn(x, args.columns, [&](int64_t c, const float* column) {
          Encode(args.y_transposed + (first_column + c) * args.rows + first_row,
                 column, scale);
        });
      });
  return absl::OkStatus();
}

absl::Status DecodeBlocks(const DecodeBlocksArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("DecodeBlocks", args.rows, args.columns,
                                      num_threads));
  if (args.columns % kQuantizeBlock != 0 || args.unit_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("DecodeBlocks got ", args.columns, " columns and ",
                     args.unit_rows, " rows of a unit; columns are a multiple ",
                     "of ", kQuantizeBlock, ", and rows at least one"));
  }
  std::array<float, 256> values;
  for (int bits = 0; bits < 256; ++bits) {
    values[static_cast<size_t>(bits)] =
        DecodeFloat8(static_cast<uint8_t>(bits), kFormat);
  }
  ParallelRanges(ThreadsForFloats(num_threads, args.rows * args.columns),
                 args.rows, [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const float* units =
                         args.units + r / args.unit_rows * args.unit_row_stride;
                     for (int64_t c = 0; c < args.columns; ++c) {
                       const int64_t i = r * args.columns + c;
                       args.y[i] =
                           values[args.x[i]] *
                           units[c / kQuantizeBlock * args.unit_column_stride];
                     }
                   }
                 });
  return absl::OkStatus();
}

}  // namespace millrace
