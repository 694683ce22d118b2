// The agents' places where srun starts them without PMIx, so that MPI would
// take each for a job of its own. Slurm's environment says all but where agent
// 0 listens, which follows from the job's number.

#ifndef MILLRACE_WORKER_AGENT_SLURM_START_H_
#define MILLRACE_WORKER_AGENT_SLURM_START_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/agent/mpi_start.h"

namespace millrace {

struct SlurmStart {
  AgentPlace place;
  std::string first_node;  // Where agent 0 runs.
  int32_t port = 0;
};

// A variable's value, or null.
using ReadVariable = std::function<const char*(const char* name)>;

// Nothing if srun did not start several processes, or MPI knows them. Returns
// InvalidArgument if Slurm's variables are not as documented.
absl::StatusOr<std::optional<SlurmStart>> StartUnderSlurm(
    const ReadVariable& read);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_SLURM_START_H_
