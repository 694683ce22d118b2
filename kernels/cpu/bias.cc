#include "kernels/pointwise/bias.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status AddBias(const AddBiasArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("AddBias", args.num_rows, args.num_cols,
                                      num_threads));
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_rows * args.num_cols),
      args.num_rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          float* x = args.x + row * args.num_cols;
          Loops().add(
              {.out = x, .a = x, .b = args.bias, .num_elements = args.num_cols},
              0, args.num_cols);
        }
      });
  return absl::OkStatus();
}

// Each thread sums its columns down all rows, in the order of rows.
absl::Status BiasGradient(const BiasGradientArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("BiasGradient", args.num_rows,
                                      args.num_cols, num_threads));
  if (!args.accumulate) std::fill_n(args.d_bias, args.num_cols, 0.0f);
  // Parts of whole cache lines, so that no two threads write to one.
  constexpr int64_t kLine = 16;
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_rows * args.num_cols),
      (args.num_cols + kLine - 1) / kLine, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kLine;
        const int64_t count = std::min(end * kLine, args.num_cols) - first;
        float* sums = args.d_bias + first;
        for (int64_t row = 0; row < args.num_rows; ++row) {
          const float* d_y = args.d_y + row * args.num_cols + first;
          Loops().add({.out = sums, .a = sums, .b = d_y, .num_elements = count},
                      0, count);
        }
      });
  return absl::OkStatus();
}

}  // namespace millrace
