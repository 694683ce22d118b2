#include "kernels/norm/rmsnorm.h"

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status RmsNormForward(const RmsNormForwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("RmsNormForward", args.num_tokens,
                                      args.hidden, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_tokens * args.hidden),
                 args.num_tokens, [&](int64_t begin, int64_t end) {
                   Loops().rms_norm_forward(args, begin, end);
                 });
  return absl::OkStatus();
}

absl::Status ResidualRmsNormForward(const ResidualRmsNormForwardArgs& args,
                                    int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("ResidualRmsNormForward", args.num_tokens,
                                      args.hidden, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_tokens * args.hidden),
                 args.num_tokens, [&](int64_t begin, int64_t end) {
                   Loops().residual_rms_norm_forward(args, begin, end);
                 });
  return absl::OkStatus();
}

absl::Status RmsNormBackward(const RmsNormBackwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("RmsNormBackward", args.num_tokens,
                                      args.hidden, num_threads));
  const int threads =
      ThreadsForFloats(num_threads, args.num_tokens * args.hidden);
  ParallelRanges(threads, args.num_tokens, [&](int64_t begin, int64_t end) {
    Loops().rms_norm_input_gradient(args, begin, end);
  });
  // Parts of whole cache lines, so that no two threads write to one.
  constexpr int64_t kLine = 16;
  const int64_t num_lines = (args.hidden + kLine - 1) / kLine;
  ParallelRanges(threads, num_lines, [&](int64_t begin, int64_t end) {
    Loops().rms_norm_weight_gradient(args, begin * kLine,
                                     std::min(end * kLine, args.hidden));
  });
  return absl::OkStatus();
}

}  // namespace millrace
