#include "kernels/pointwise/elementwise.h"

#include <cstring>

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status Zero(void* x, int64_t num_bytes, int num_threads) {
  RETURN_IF_ERROR(CheckElementsAndThreads("Zero", num_bytes, num_threads));
  const int64_t num_floats = num_bytes / static_cast<int64_t>(sizeof(float));
  ParallelRanges(ThreadsForFloats(num_threads, num_floats), num_bytes,
                 [&](int64_t begin, int64_t end) {
                   std::memset(static_cast<char*>(x) + begin, 0, end - begin);
                 });
  return absl::OkStatus();
}

absl::Status Add(const AddArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("Add", args.num_elements, num_threads));
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_elements), args.num_elements,
      [&](int64_t begin, int64_t end) { Loops().add(args, begin, end); });
  return absl::OkStatus();
}

absl::Status SquaredNorm(const SquaredNormArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("SquaredNorm", args.num_elements, num_threads));
  // A fixed number of parts, whoever sums them.
  constexpr int64_t kParts = 64;
  double sums[kParts];
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_elements), kParts,
      [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t first = args.num_elements * part / kParts;
          const int64_t last = args.num_elements * (part + 1) / kParts;
          sums[part] = Loops().squared_norm(args.x + first, last - first);
        }
      });
  double total = 0.0;
  for (double sum : sums) total += sum;
  *args.sum += args.share * total;
  return absl::OkStatus();
}

}  // namespace millrace
