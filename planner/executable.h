// What can be planned and not run yet: models, formats and axes for which
// workers have no ops.

#ifndef MILLRACE_PLANNER_EXECUTABLE_H_
#define MILLRACE_PLANNER_EXECUTABLE_H_

#include "absl/status/status.h"
#include "planner/job.h"
#include "planner/layout.h"
#include "planner/model.h"

namespace millrace {

// OK if workers can execute it. Else InvalidArgument naming every key of the
// job that stands against it, with its value and what workers execute instead.
absl::Status CheckExecutable(const JobSpec& job);
absl::Status CheckExecutable(const ModelSpec& model, const Layout& layout);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXECUTABLE_H_
