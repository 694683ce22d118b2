// Measures the choices of the tuned kernels on the current device, for a table
// (tuning.h). Takes about a minute on a GPU that does nothing else; never
// called by training.

#ifndef MILLRACE_KERNELS_AUTOTUNE_TUNE_KERNELS_H_
#define MILLRACE_KERNELS_AUTOTUNE_TUNE_KERNELS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/autotune/tuning_cases.h"
#include "kernels/tuning/tuning.h"

namespace millrace {

struct TuneKernelsOptions {
  // A move counts, and a choice replaces the start, if it gains more.
  double least_gain = 0.01;
  // Seconds for which one burst of launches is timed; the median of several
  // counts.
  double burst_seconds = 3e-3;
  int num_bursts = 5;
  // Gets a line a case: what was measured and found.
  std::function<void(absl::string_view)> log = [](absl::string_view) {};
};

// One entry a shape class of `cases`, whether it keeps its start or not.
// Overwrites nothing but what the cases allocate. `version` and `date` go into
// the table. Unavailable without a GPU; Internal names the case that failed.
absl::StatusOr<TuningTable> TuneKernels(
    const std::vector<TuningCaseMaker>& cases,
    const TuneKernelsOptions& options, absl::string_view version,
    absl::string_view date);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_AUTOTUNE_TUNE_KERNELS_H_
