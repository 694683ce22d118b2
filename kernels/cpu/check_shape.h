// The refusals that all kernel families share.

#ifndef MILLRACE_KERNELS_CPU_CHECK_SHAPE_H_
#define MILLRACE_KERNELS_CPU_CHECK_SHAPE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {

// InvalidArgument unless rows >= 0, cols >= 1 and num_threads >= 1.
inline absl::Status CheckRowsAndThreads(absl::string_view kernel, int64_t rows,
                                        int64_t cols, int num_threads) {
  if (rows >= 0 && cols >= 1 && num_threads >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kernel, " got [", rows, ", ", cols, "] on ", num_threads,
      " threads; needs rows of at least zero, columns and threads of at least "
      "one"));
}

// The same of a flat run.
inline absl::Status CheckElementsAndThreads(absl::string_view kernel,
                                            int64_t num_elements,
                                            int num_threads) {
  return CheckRowsAndThreads(kernel, num_elements, 1, num_threads);
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_CHECK_SHAPE_H_
