#include "base/status_macros.h"
#include "kernels/cast.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

absl::Status EncodeBf16(const EncodeBf16Args& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("EncodeBf16", args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     args.y[i] = EncodeBf16(args.x[i]);
                   }
                 });
  return absl::OkStatus();
}

absl::Status DecodeBf16(const DecodeBf16Args& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("DecodeBf16", args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     args.y[i] = DecodeBf16(args.x[i]);
                   }
                 });
  return absl::OkStatus();
}

}  // namespace millrace
