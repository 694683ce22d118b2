#include "kernels/norm/layernorm.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status LayerNormForward(const LayerNormForwardArgs& args,
                              int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("LayerNormForward", args.num_tokens,
                                      args.hidden, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_tokens * args.hidden),
                 args.num_tokens, [&](int64_t begin, int64_t end) {
                   Loops().layer_norm_forward(args, begin, end);
                 });
  return absl::OkStatus();
}

absl::Status ResidualLayerNormForward(const ResidualLayerNormForwardArgs& args,
                                      int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads(
      "ResidualLayerNormForward", args.num_tokens, args.hidden, num_threads));
  const AddArgs add = {.out = args.residual,
                       .a = args.x,
                       .b = args.delta,
                       .num_elements = args.num_tokens * args.hidden};
  const LayerNormForwardArgs norm = {.y = args.y,
                                     .mean = args.mean,
                                     .rstd = args.rstd,
                                     .x = args.residual,
                                     .weight = args.weight,
                                     .bias = args.bias,
                                     .num_tokens = args.num_tokens,
                                     .hidden = args.hidden,
                                     .epsilon = args.epsilon};
  // The sum of a row is normed while it lies in the caches.
  ParallelRanges(ThreadsForFloats(num_threads, args.num_tokens * args.hidden),
                 args.num_tokens, [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     Loops().add(add, t * args.hidden, (t + 1) * args.hidden);
                     Loops().layer_norm_forward(norm, t, t + 1);
                   }
                 });
  return absl::OkStatus();
}

absl::Status LayerNormBackward(const LayerNormBackwardArgs& args,
                               int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("LayerNormBackward", args.num_tokens,
                                      args.hidden, num_threads));
  const int threads =
      ThreadsForFloats(num_threads, args.num_tokens * args.hidden);
  ParallelRanges(threads, args.num_tokens, [&](int64_t begin, int64_t end) {
    Loops().layer_norm_input_gradient(args, begin, end);
  });
  // Parts of whole cache lines, so that no two threads write to one.
  constexpr int64_t kLine = 16;
  const int64_t num_lines = (args.hidden + kLine - 1) / kLine;
  ParallelRanges(threads, num_lines, [&](int64_t begin, int64_t end) {
    Loops().layer_norm_weight_gradients(args, begin * kLine,
                                        std::min(end * kLine, args.hidden));
  });
  return absl::OkStatus();
}

}  // namespace millrace
