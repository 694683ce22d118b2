#include "kernels/optimizer/adamw.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/adamw_small_moments.h"
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
  const bool in_blocks = args.moments == MomentStorage::kBlocks8;
  if (args.first_index % 4 != 0 ||
      (in_blocks && args.num_elements % kMomentBlockSize != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW got ", args.num_elements, " elements from index ",
        args.first_index, "; needs an index that is a multiple of four, and ",
        "of moments in blocks a multiple of ", kMomentBlockSize, " elements"));
  }
  const int num_parts = ThreadsForFloats(num_threads, args.num_elements);
  if (args.moments == MomentStorage::kFloat32) {
    ParallelRanges(
        num_parts, args.num_elements,
        [&](int64_t begin, int64_t end) { Loops().adamw(args, begin, end); });
    return absl::OkStatus();
  }
  const int64_t num_blocks =
      (args.num_elements + kMomentBlockSize - 1) / kMomentBlockSize;
  ParallelRanges(num_parts, num_blocks, [&](int64_t begin, int64_t end) {
    AdamWSmallMoments(args, begin * kMomentBlockSize,
                      std::min(args.num_elements, end * kMomentBlockSize));
  });
  return absl::OkStatus();
}

}  // namespace millrace
