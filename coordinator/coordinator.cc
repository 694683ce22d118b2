#include "coordinator/coordinator.h"

#include "base/status_macros.h"
#include "coordinator/job_runner.h"

namespace millrace {

absl::StatusOr<int> RunCoordinator(const CoordinatorOptions& options) {
  std::unique_ptr<JobRunner> runner;
  CoordinatorOptions completed = options;
  if (completed.run.empty()) completed.run = options.run_directory;
  ASSIGN_OR_RETURN(runner, JobRunner::Create(completed));
  return runner->Run();
}

}  // namespace millrace
