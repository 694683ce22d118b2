// Computes which elements of a tensor a run of a box has, and checks whether a
// set of runs covers a tensor exactly once.

#ifndef MILLRACE_FAULT_COVERAGE_H_
#define MILLRACE_FAULT_COVERAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/program/parameters.h"

namespace millrace {

// Elements [begin, end) of `box` stored row-major.
struct BoxRun {
  ParameterBox box;
  int64_t begin;
  int64_t end;
};

// True if the box lies in a [rows, cols] tensor and the run in the box.
// Values that nobody vouches for are fine.
bool IsValidRun(const BoxRun& run, int64_t rows, int64_t cols);

// Returns InvalidArgument naming `tensor` and the first row where elements are
// covered twice, or how many are not covered. All runs must be valid. Time is
// n log n in their number.
absl::Status CheckExactCover(const std::string& tensor, int64_t rows,
                             int64_t cols, const std::vector<BoxRun>& runs);

}  // namespace millrace

#endif  // MILLRACE_FAULT_COVERAGE_H_
