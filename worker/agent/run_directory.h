// Making a new run directory; docs/run_directory.md says what goes into it.

#ifndef MILLRACE_WORKER_AGENT_RUN_DIRECTORY_H_
#define MILLRACE_WORKER_AGENT_RUN_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "planner/job/job.h"

namespace millrace {

// Creates OUTPUT/NAME-YYYYMMDD-HHMMSS (with -2, -3 ... behind it if it exists),
// its logs folder and job.yaml, and points OUTPUT/NAME-latest at it. `now` in
// local time. Returns the absolute path.
absl::StatusOr<std::string> CreateRunDirectory(const JobSpec& job,
                                               absl::Time now);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_RUN_DIRECTORY_H_
