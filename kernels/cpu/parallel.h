// Spreading independent work over a fixed number of threads. Which thread does
// which item never changes a result.

#ifndef MILLRACE_KERNELS_CPU_PARALLEL_H_
#define MILLRACE_KERNELS_CPU_PARALLEL_H_

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace millrace {

// The thread sanitizer does not see the barriers inside the OpenMP library and
// would report every one as a race, so under it all parts run on the caller.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kParallelKernels = false;
#else
inline constexpr bool kParallelKernels = true;
#endif

// Work below this is not worth waking a second thread, about 5 us each way.
inline constexpr int64_t kMinFloatsPerThread = 16384;

// Threads worth using for `num_floats` floats of streaming work.
inline int ThreadsForFloats(int num_threads, int64_t num_floats) {
  return static_cast<int>(
      std::clamp<int64_t>(num_floats / kMinFloatsPerThread, 1, num_threads));
}

// Calls body(begin, end) on contiguous parts of [0, num_items), one a thread.
template <typename Body>
void ParallelRanges(int num_threads, int64_t num_items, const Body& body) {
  const int64_t num_parts = std::min<int64_t>(num_threads, num_items);
  if (num_parts <= 1 || !kParallelKernels) {
    if (num_items > 0) body(int64_t{0}, num_items);
    return;
  }
#pragma omp parallel for num_threads(num_parts) schedule(static, 1)
  for (int64_t part = 0; part < num_parts; ++part) {
    body(num_items * part / num_parts, num_items * (part + 1) / num_parts);
  }
}

// Calls body(item) for every item, dealt out one by one as threads become free:
// for items of unequal size.
template <typename Body>
void ParallelItems(int num_threads, int64_t num_items, const Body& body) {
  if (std::min<int64_t>(num_threads, num_items) <= 1 || !kParallelKernels) {
    for (int64_t item = 0; item < num_items; ++item) body(item);
    return;
  }
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1)
  for (int64_t item = 0; item < num_items; ++item) body(item);
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_PARALLEL_H_
