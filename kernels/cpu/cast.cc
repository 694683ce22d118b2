#include "kernels/pointwise/cast.h"

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

// y[i] = cast(x[i]) of EncodeBf16Args or DecodeBf16Args.
template <typename Args, typename Cast>
absl::Status CastAll(const char* name, const Args& args, int num_threads,
                     Cast cast) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads(name, args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     args.y[i] = cast(args.x[i]);
                   }
                 });
  return absl::OkStatus();
}

}  // namespace

absl::Status EncodeBf16(const EncodeBf16Args& args, int num_threads) {
  return CastAll("EncodeBf16", args, num_threads,
                 [](float x) { return EncodeBf16(x); });
}

absl::Status DecodeBf16(const DecodeBf16Args& args, int num_threads) {
  return CastAll("DecodeBf16", args, num_threads,
                 [](uint16_t x) { return DecodeBf16(x); });
}

}  // namespace millrace
