#include "kernels/optimizer/adamw.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status AdamW(const AdamWArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("AdamW", args.num_elements, num_threads));
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (!is_beta(args.beta1) || !is_beta(args.beta2) || args.step < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW got beta1 ", args.beta1, ", beta2 ", args.beta2, ", step ",
        args.step, "; needs betas in [0, 1) and a first step of 1"));
  }
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_elements), args.num_elements,
      [&](int64_t begin, int64_t end) { Loops().adamw(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace millrace
