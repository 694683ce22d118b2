#include "kernels/pointwise/swiglu.h"

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status SwigluForward(const SwigluForwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("SwigluForward", args.num_tokens,
                                      args.ffn_hidden, num_threads));
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_tokens * args.ffn_hidden),
      args.num_tokens, [&](int64_t begin, int64_t end) {
        Loops().swiglu_forward(args, begin, end);
      });
  return absl::OkStatus();
}

absl::Status SwigluBackward(const SwigluBackwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("SwigluBackward", args.num_tokens,
                                      args.ffn_hidden, num_threads));
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_tokens * args.ffn_hidden),
      args.num_tokens, [&](int64_t begin, int64_t end) {
        Loops().swiglu_backward(args, begin, end);
      });
  return absl::OkStatus();
}

}  // namespace millrace
