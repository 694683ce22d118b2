#include "kernels/pointwise/gelu.h"

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

absl::Status CheckGelu(GeluForm form, int64_t num_elements, int num_threads) {
  if (form != GeluForm::kTanh) {
    return absl::InvalidArgumentError(
        "GELU on a CPU got the form with erf; it has the tanh form alone");
  }
  return CheckElementsAndThreads("GELU", num_elements, num_threads);
}

}  // namespace

absl::Status GeluForward(const GeluForwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckGelu(args.form, args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   Loops().gelu_forward(args, begin, end);
                 });
  return absl::OkStatus();
}

absl::Status GeluBackward(const GeluBackwardArgs& args, int num_threads) {
  RETURN_IF_ERROR(CheckGelu(args.form, args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   Loops().gelu_backward(args, begin, end);
                 });
  return absl::OkStatus();
}

}  // namespace millrace
