#include "coordinator/coordinator.h"

#include "base/status_macros.h"
#include "coordinator/job_runner.h"

namespace millrace {

absl::StatusOr<int> RunCoordinator(const CoordinatorOptions& options) {
  std::unique_ptr<JobRunner> runner;
  ASSIGN_OR_RETURN(runner, JobRunner::Create(options));
  return runner->Run();
}

}  // namespace millrace
