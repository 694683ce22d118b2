// Says why no layout of a job fits, and what would help.

#ifndef MILLRACE_PLANNER_SEARCH_NOTHING_FITS_H_
#define MILLRACE_PLANNER_SEARCH_NOTHING_FITS_H_

#include <cstdint>
#include <stop_token>

#include "absl/status/status.h"
#include "planner/cost/closed_form.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"

namespace millrace {

// InvalidArgument with `smallest`, the layout of `space` that needs the least
// memory, what it lacks of its `need_bytes`, and the smallest change that
// helps. `memory_limit`: the bytes of a device. `memory_is_the_jobs`: whether
// that limit is the job's resources.memory_per_device. Once a stop is
// requested, names no number of devices that has not been tried yet.
absl::Status ExplainNothingFits(const LayoutSpace& space,
                                const Layout& smallest, int64_t need_bytes,
                                int64_t memory_limit, bool memory_is_the_jobs,
                                StepModel& model,
                                const std::stop_token& stop = {});

// InvalidArgument for a global batch that no layout of `space` can train: the
// micro-batches that a device can hold would be too many for Programs
// (MicrobatchBoundsOf()). Says which batch these two bounds allow.
absl::Status ExplainLargeBatch(const LayoutSpace& space, int64_t memory_limit);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_NOTHING_FITS_H_
