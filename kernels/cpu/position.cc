#include "kernels/vocabulary/position.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

absl::Status CheckPositions(const PositionShape& shape, int num_threads) {
  if (shape.sequence_length < 1 || shape.first_row < 0 || shape.num_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions got sequences of ", shape.sequence_length,
                     " and rows from ", shape.first_row, ", ", shape.num_rows,
                     " of them; needs one or more, zero or more, one or more"));
  }
  return CheckRowsAndThreads("positions", shape.num_tokens, shape.hidden,
                             num_threads);
}

}  // namespace

absl::Status AddPositions(const AddPositionsArgs& args, int num_threads) {
  const PositionShape& s = args.shape;
  RETURN_IF_ERROR(CheckPositions(s, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, s.num_tokens * s.hidden),
                 s.num_tokens, [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     const int64_t row = t % s.sequence_length - s.first_row;
                     if (row < 0 || row >= s.num_rows) continue;
                     float* x = args.x + t * s.hidden;
                     Loops().add({.out = x,
                                  .a = x,
                                  .b = args.weight + row * s.hidden,
                                  .num_elements = s.hidden},
                                 0, s.hidden);
                   }
                 });
  return absl::OkStatus();
}

absl::Status PositionGradient(const PositionGradientArgs& args,
                              int num_threads) {
  const PositionShape& s = args.shape;
  RETURN_IF_ERROR(CheckPositions(s, num_threads));
  ParallelRanges(
      ThreadsForFloats(num_threads, (s.num_tokens + s.num_rows) * s.hidden),
      s.num_rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          float* sum = args.d_weight + row * s.hidden;
          if (!args.accumulate) std::fill_n(sum, s.hidden, 0.0f);
          const int64_t position = s.first_row + row;
          if (position >= s.sequence_length) continue;
          for (int64_t t = position; t < s.num_tokens; t += s.sequence_length) {
            Loops().add({.out = sum,
                         .a = sum,
                         .b = args.d_x + t * s.hidden,
                         .num_elements = s.hidden},
                        0, s.hidden);
          }
        }
      });
  return absl::OkStatus();
}

}  // namespace millrace
