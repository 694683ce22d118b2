#include "kernels/pointwise/gelu.h"

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status GeluForward(const GeluForwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("GELU", args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   Loops().gelu_forward(args, begin, end);
                 });
  return absl::OkStatus();
}

absl::Status GeluBackward(const GeluBackwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("GELU", args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   Loops().gelu_backward(args, begin, end);
                 });
  return absl::OkStatus();
}

}  // namespace millrace
