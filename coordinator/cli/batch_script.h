// The batch script by which Slurm trains a job: one agent a node, a warning
// before the time limit, and another place in the queue after it.

#ifndef MILLRACE_COORDINATOR_CLI_BATCH_SCRIPT_H_
#define MILLRACE_COORDINATOR_CLI_BATCH_SCRIPT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace millrace {

struct BatchScriptOptions {
  std::string program;   // The path of millrace on the nodes.
  std::string job_file;  // An absolute path, on the first node at least.
  std::string job_name;
  std::string directory;  // From which the job's relative paths count.
  int32_t num_nodes = 1;
  int32_t gpus_per_node = 0;  // 0: none is asked for.
  std::string time_limit;     // As sbatch's --time; empty: the partition's.
  // How long before the time limit the job begins to stop.
  absl::Duration warning = absl::Minutes(5);
  bool requeue = true;                      // The job goes on where it stopped.
  std::vector<std::string> sbatch_options;  // "--partition=gpu", one a line.
};

// InvalidArgument if a text cannot stand in a script's line.
absl::StatusOr<std::string> WriteBatchScript(const BatchScriptOptions& options);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_BATCH_SCRIPT_H_
